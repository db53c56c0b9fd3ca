"""Scenarios from a topology, a workload and seeds."""

from __future__ import annotations

from dataclasses import replace

from symphony.problem.topologies import topology
from symphony.problem.workload import Job, Task, TaskGraph, Workload
from symphony.simulator.scenario_source import ROUND_S, compared_scenarios, scenario, slots_for
from symphony.simulator.scenarios import Disturbances
from tests.scheduling.by_hand import chain, cluster, dot, work


def few_jobs(count: int) -> Workload:
    return replace(work(chain(), dot("any")), jobs=tuple(Job(n % 2, 10.0 * n) for n in range(count)))


def test_job_slots_are_enough_not_to_matter_and_few_enough_to_be_fast() -> None:
    assert slots_for(few_jobs(3)) == 3
    assert slots_for(few_jobs(100)) == 128
    assert slots_for(few_jobs(5000)) == 256
    tasks = tuple(Task(f"t{i}", "any") for i in range(1000))
    long = replace(few_jobs(100), graphs=(TaskGraph("long", tasks), TaskGraph("other", tasks[:1])))
    assert slots_for(long) == 16
    assert scenario(cluster(), few_jobs(100), 0).job_slots == 128
    assert scenario(cluster(), few_jobs(100), 0, job_slots=7).job_slots == 7


def test_seeds_draw_workload_and_disturbances_alike() -> None:
    machine = topology("machine")
    one, same, other = (scenario(machine, "eeg?jobs=2", seed) for seed in (1, 1, 2))
    assert one == same
    assert one.workload != other.workload and one.phases != other.phases


def test_training_jobs_are_compared_in_rounds() -> None:
    gpus, machine = topology("gpu24"), topology("machine")
    (one,) = compared_scenarios(gpus, "training?jobs=4", [3])
    assert (one.disturbances.window_s, one.disturbances.offer_at_windows) == (ROUND_S, True)
    assert one.workload == scenario(gpus, "training?jobs=4", 3).workload
    (given,) = compared_scenarios(gpus, "training?jobs=4", [3], Disturbances(window_s=60.0))
    assert (given.disturbances.window_s, given.disturbances.offer_at_windows) == (60.0, False)
    assert compared_scenarios(machine, "eeg?jobs=2", [0]) == [scenario(machine, "eeg?jobs=2", 0)]
