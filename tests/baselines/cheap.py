"""One small scenario with everything in it that a policy may stumble over."""

from __future__ import annotations

from dataclasses import replace

from symphony.problem.workload import Job
from symphony.scheduling.policy import Policy
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import Disturbances, Scenario, draw
from tests.scheduling.by_hand import chain, cluster, dot, pair, work


def cheap_scenario() -> Scenario:
    """Unlike devices, a gang, chains with transfers, an FPGA, failures, tenants and offered decisions."""
    workload = work(chain(), pair(preemptible=True), dot("cpu only"), chain("cpu only"), dot("any", units=3.0))
    jobs = tuple(Job(n % 5, 0.75 * n, priority=n % 2) for n in range(8))
    rough = Disturbances(failures_per_day=5000.0, repair_s=2.0, phase_s=3.0, window_s=1.0, offer_at_windows=True)
    return draw(cluster(), replace(workload, jobs=jobs), 3, rough, job_slots=4)


def check_runs(policy: Policy, scenario: Scenario) -> None:
    """Fail unless it keeps the rules, completes every job and decides alike in equal runs.

    `sy.testing.check_policy` asks for the same, and for the form of answers: it traces all policies of one program.
    """
    (first,), (second,) = simulate([scenario], policy), simulate([scenario], policy)
    assert first.refused == 0
    assert len(first.jobs) == len(scenario.workload.jobs)
    assert first.jobs == second.jobs
