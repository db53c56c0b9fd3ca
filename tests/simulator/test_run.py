"""Whole runs: deterministic, the same alone and side by side, precise when old, compiled once, and ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.baselines import EftBelief, EftExact, Fifo, Heft, Random
from symphony.problem.errors import InputError, LimitError, PolicyError
from symphony.problem.topologies import topology
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Policy, best_feasible
from symphony.simulator import run as runs
from symphony.simulator.next_event import EVENTS
from symphony.simulator.records import RunRecord
from symphony.simulator.rollout import STEP_OPTIONS
from symphony.simulator.run import record, run_traces, simulate
from symphony.simulator.scenario_source import scenario as drawn
from symphony.simulator.scenarios import CALM, Disturbances, Scenario, draw, stack
from tests.scheduling.by_hand import cluster
from tests.simulator.chaos import Chaos
from tests.simulator.reference import Reference
from tests.simulator.scripted import BreaksRules, WaitsForEver
from tests.simulator.test_rollout import actions


class Weighted(Policy):
    """Has numbers that are no part of its program."""

    weights: jax.Array

    def init(self, topology):
        return None

    def decide(self, key, state, observation):
        score = self.weights @ jnp.stack([-observation.queue_s, observation.topology.slots * 1.0])
        return state, best_feasible(observation, score)


POLICIES: dict[str, Policy] = {
    "heft": Heft(),
    "fifo": Fifo(),
    "random": Random(),
    "eft-belief": EftBelief(),
    "eft-exact": EftExact(),
    "breaks-rules": BreaksRules(),
    "waits": WaitsForEver(),
    "chaos": Chaos(),
    "weighted": Weighted(jnp.asarray([1.0, 0.0])),
}
ROUGH = Disturbances(failures_per_day=20_000.0, repair_s=0.2, phase_s=1.0, window_s=0.1)  # for runs of two seconds
SPEC = "layered?jobs={jobs}&tasks=4&graphs={graphs}"


def policy(name: str) -> OneOf:
    """One of many policies in one program."""
    return OneOf(tuple(POLICIES.values()), jnp.asarray(list(POLICIES).index(name), jnp.int32))


def scenario(seed: int, *, jobs: int = 6, graphs: int = 6, **parts: object) -> Scenario:
    """A rough scenario on one machine; all fall into one size bucket."""
    made = drawn(topology("machine"), SPEC.format(jobs=jobs, graphs=graphs), seed, ROUGH, job_slots=6)
    return replace(made, **parts)


THREE = [scenario(0), scenario(1, jobs=5), scenario(2, graphs=3)]


def same(a: RunRecord, b: RunRecord) -> bool:
    """Equal in everything that is simulated; utilisation, a long sum of floats, to within rounding."""
    alike = all(a.utilisation[kind] == pytest.approx(b.utilisation[kind], rel=1e-6) for kind in b.utilisation)
    return alike and replace(a, wall_s=0.0, utilisation={}) == replace(b, wall_s=0.0, utilisation={})


@contextmanager
def compilations() -> Iterator[list[float]]:
    """Counts what XLA compiles meanwhile."""
    seen: list[float] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    """Batches are split over the cores at hand; here they have the same shape everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def batch() -> list[RunRecord]:
    """Three scenarios side by side, of unequal sizes."""
    return simulate(THREE, Heft())


# -------------------------------------------------------------------- determinism


@pytest.mark.parametrize("name", ["heft", "random", "chaos"])
def test_equal_seeds_give_equal_runs_and_others_others(name: str) -> None:
    first, again, other = (simulate([scenario(seed)], policy(name))[0] for seed in (0, 0, 7))
    assert same(first, again)
    assert first.jobs != other.jobs and first.makespan_s != other.makespan_s


def test_a_batch_gives_what_its_scenarios_give_alone(batch: list[RunRecord]) -> None:
    """Exactly, though sizes are padded to the largest and another program runs."""
    alone = (policy("heft"), policy("heft"), Heft())  # the last is of another size, and has a program of its own
    for together, one, heft in zip(batch, THREE, alone, strict=True):
        assert same(together, simulate([one], heft, name="Heft")[0])


def test_splitting_a_batch_over_cores_changes_nothing(batch: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five in two parts of three: the last is run twice, and counted once."""
    monkeypatch.setattr(runs, "cores", lambda: 2)
    split = simulate([*THREE, scenario(3), scenario(4)], Heft())
    assert [run.seed for run in split] == [0, 1, 2, 3, 4]
    assert all(same(a, b) for a, b in zip(split, batch, strict=False))


def test_policies_are_told_apart_within_one_program() -> None:
    heft, fifo = (simulate([scenario(0)], policy(name))[0] for name in ("heft", "fifo"))
    assert heft.jobs != fifo.jobs
    assert same(replace(heft, policy=""), replace(simulate([scenario(0)], policy("heft"))[0], policy=""))


# -------------------------------------------------------------------- compilations


def test_nothing_is_compiled_again_within_a_size_bucket(batch: list[RunRecord]) -> None:
    """Another seed, fewer jobs, other graphs, another policy of several, another arrival process."""
    simulate([scenario(0)], policy("heft"))
    programs = len(runs._programs)
    with compilations() as compiled:
        simulate([scenario(31)], policy("heft"))
        simulate([scenario(0, jobs=5)], policy("heft"))
        simulate([scenario(0, graphs=5)], policy("heft"))
        simulate([scenario(0)], policy("eft-exact"))
        bursty = drawn(topology("machine"), SPEC.format(jobs=6, graphs=6) + "&arrivals=bursty", 5, ROUGH, job_slots=6)
        simulate([bursty], policy("chaos"))
        simulate([scenario(8), scenario(9, jobs=5), scenario(10)], Heft())
    assert len(runs._programs) == programs
    assert compiled == []


def test_weights_of_a_policy_are_no_part_of_the_program() -> None:
    one = policy("weighted")
    other = replace(one, policies=(*one.policies[:-1], Weighted(jnp.asarray([0.0, 1.0]))))
    first = simulate([scenario(0)], one)[0]
    with compilations() as compiled:
        second = simulate([scenario(0)], other)[0]
    assert compiled == []
    assert first.jobs != second.jobs


def test_another_size_bucket_is_another_program() -> None:
    """So that the tests above cannot pass for want of counting."""
    programs = len(runs._programs)
    with compilations() as compiled:
        simulate([draw(cluster(), tiny(3), 0)], Fifo())
    assert len(runs._programs) == programs + 2  # the state before the first step, and the steps
    assert compiled


def tiny(jobs: int) -> Workload:
    kernel = Kernel("k", {"cpu": Profile(1.0)})
    return Workload(
        "tiny", (kernel,), (TaskGraph("g", (Task("a", "k"),)),), tuple(Job(0, 0.5 * n) for n in range(jobs))
    )


def test_passes_that_xla_flags_leave_out_are_left_out_of_steps() -> None:
    """Options of a program would replace their list."""
    assert "xla_disable_hlo_passes" in os.environ["XLA_FLAGS"]
    assert "xla_disable_hlo_passes" not in STEP_OPTIONS


# -------------------------------------------------------------------- policies that misbehave


def test_a_policy_that_waits_for_ever_is_told_so() -> None:
    # Where devices fail all the time, there is always a repair that it might be waiting for.
    seldom = tuple(replace(failure, gap_s=1e6) for failure in scenario(0).failures)
    with pytest.raises(PolicyError, match=r"'waits' stalled on seed 0: .* waited for ever \(0 jobs") as caught:
        simulate([scenario(0, failures=seldom)], policy("waits"), name="waits")
    assert "wait()" in caught.value.hint


def test_forbidden_actions_are_counted_and_every_job_completes() -> None:
    run = simulate([scenario(0)], policy("breaks-rules"))[0]
    assert run.refused > 0
    assert run.refused == pytest.approx(run.decisions / 3, abs=1)
    assert len(run.jobs) == 6


# -------------------------------------------------------------------- records


def test_jobs_that_find_all_slots_taken_wait_outside() -> None:
    """Three jobs of 1 s, half a second apart, on one slot at a time: they end at 1, 2 and 3 s."""
    one, enough = (simulate([draw(cluster(), tiny(3), 0, **slots)], Fifo())[0] for slots in ({"job_slots": 1}, {}))
    assert one.jobs_outside == 2 and enough.jobs_outside == 0
    assert [job.finish_s for job in one.jobs] == [1.0, 2.0, 3.0]
    assert [job.completion_s for job in one.jobs] == [1.0, 1.5, 2.0]  # from arrival, not from admission
    assert [job.finish_s for job in enough.jobs] == [1.0, 1.5, 2.0]


def test_what_comes_from_outside_is_equal_for_all_policies() -> None:
    """Arrivals, failures, tenants and windows, for as long as both runs last."""
    one = scenario(4)
    outside = [EVENTS.index(kind) for kind in ("arrival", "failure", "background", "window")]
    seen = {}
    for name in ("heft", "random", "chaos"):
        (trace,), _ = run_traces(stack([one]), [one], policy(name))
        kinds = np.asarray(trace.log.event[0])
        rows = np.isin(kinds, outside)
        seen[name] = [(int(kind), float(at)) for kind, at in zip(kinds[rows], trace.after_s[rows], strict=True)]
    length = min(len(events) for events in seen.values())
    assert length > 20 and {kind for kind, _ in seen["heft"][:length]} == set(outside)
    for events in seen.values():
        np.testing.assert_allclose(events[:length], seen["heft"][:length], rtol=0, atol=2e-5)


def test_progress_is_told_and_ends_with_1(batch: list[RunRecord]) -> None:
    told: list[float] = []
    simulate([scenario(0)], policy("heft"), progress=told.append)
    assert told == sorted(told) and told[-1] == 1.0


def test_names_seeds_and_counts_of_a_record(batch: list[RunRecord]) -> None:
    assert [(run.policy, run.seed, len(run.jobs)) for run in batch] == [("Heft", 0, 6), ("Heft", 1, 5), ("Heft", 2, 6)]
    for run in batch:
        assert run.events > run.decisions >= sum(stay.outcome == "finished" for stay in run.gangs)
        assert run.makespan_s == max(job.finish_s for job in run.jobs)
        assert all(0 <= share <= 1 for share in run.utilisation.values())
        assert run.wall_s > 0 and not run.stalled and run.refused == 0
    assert simulate([scenario(0)], policy("heft"))[0].policy == "OneOf"


def test_nothing_to_run_is_said() -> None:
    with pytest.raises(InputError, match="no scenario is given"):
        simulate([], Fifo())


# -------------------------------------------------------------------- precision


def old_and_small(at: float) -> Scenario:
    """Chains of gangs that take milliseconds, arriving when the run is `at` seconds old."""
    rng = np.random.default_rng(5)
    kernel = Kernel("k", {"cpu": Profile(per_work_s=1e-3, demand={"memory": 4e9}), "gpu": Profile(per_work_s=3e-4)})
    graphs = []
    for n in range(12):
        tasks = tuple(Task(f"t{i}", "k", size=float(rng.uniform(1, 5))) for i in range(4))
        edges = tuple(Edge(f"t{i}", f"t{i + 1}", float(rng.uniform(1e5, 1e6))) for i in range(3))
        graphs.append(TaskGraph(f"g{n}", tasks, edges))
    arrivals = at + np.cumsum(rng.exponential(2e-3, 12))
    jobs = tuple(Job(n, float(arrival)) for n, arrival in enumerate(arrivals))
    workload = Workload("small", (kernel,), tuple(graphs), jobs)
    return draw(cluster(), workload, 0, replace(CALM, window_s=max(at, 1.0) / 7), job_slots=12)


@pytest.mark.parametrize("at", [0.0, 1e6, 5e8])
def test_the_clock_keeps_its_small_change_however_old(at: float) -> None:
    """Against the plain simulator in 64 bits, on the same decisions. A float32 clock is 32 s coarse at 5e8 s."""
    one = old_and_small(at)
    (trace,), _ = run_traces(stack([one]), [one], Heft())
    reference = Reference(one)
    decided = iter(actions(trace, order_of=lambda job, gang: 0))
    reference.run(lambda world: next(decided)[1])
    ours = {job.job: job.completion_s for job in record(one, trace, "heft", 0.0).jobs}
    theirs = {job.job: job.completion_s for job in reference.jobs}
    assert len(ours) == 12
    np.testing.assert_allclose([ours[n] for n in theirs], list(theirs.values()), rtol=0, atol=5e-6)
    assert 1e-3 < min(theirs.values()) < 0.05


def test_a_long_run_does_not_drift() -> None:
    """A thousand gangs under contention, in float32 against 64 bits: every completion within a ten-thousandth."""
    cluster = topology("machine")
    one = drawn(cluster, "layered?jobs=150&tasks=4&graphs=4&load=0.5", 1, replace(ROUGH, work_noise=0.1), job_slots=16)
    (trace,), _ = run_traces(stack([one]), [one], Fifo())
    reference = Reference(one)
    decided = iter(actions(trace, order_of=lambda job, gang: 0))
    reference.run(lambda world: next(decided)[1])
    ours = {job.job: job for job in record(one, trace, "fifo", 0.0).jobs}
    assert len(reference.jobs) == 150
    for job in reference.jobs:
        assert ours[job.job].finish_s == pytest.approx(job.finish_s, rel=1e-4)
        assert ours[job.job].isolated_s == pytest.approx(job.isolated_s, rel=1e-6)


def test_time_beyond_what_the_clock_can_count_is_an_error() -> None:
    one = old_and_small(0.0)
    slow = Kernel("k", {"cpu": Profile(fixed_s=9e8, demand={"memory": 4e9}), "gpu": Profile(fixed_s=9e8)})
    ages = replace(one, workload=replace(one.workload, kernels=(slow,)), disturbances=replace(CALM, window_s=1e8))
    with pytest.raises(LimitError, match="68 years"):
        simulate([ages], Heft())
