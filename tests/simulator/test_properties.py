"""Properties that hold in every run, whatever the policy: checked on what the fast simulator records, in float32.

Random work on random clusters, with failures, hidden tenants, FPGAs, gangs and preemption; one baseline of each sort,
and a policy that preempts, reconfigures and breaks rules at random.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from symphony.baselines import BASELINES
from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel, Task
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import PLACE, Policy
from symphony.scheduling.state import RECONFIGURING
from symphony.simulator.records import GangRecord, RunRecord
from symphony.simulator.run import Trace, record, run_traces
from symphony.simulator.scenarios import Disturbances, Scenario, stack
from tests.simulator.chaos import Chaos
from tests.simulator.strategies import SIZES, random_failures, random_phases, random_scenario, random_workload

# One of each sort: what places at once, what keeps back, what preempts, what plans. All in one program take minutes.
SORTS = ("random", "fifo", "heft", "eft-belief", "eft-exact", "dmdas", "sparrow", "tiresias", "max-min-fairness")
POLICIES: dict[str, Policy] = {"chaos": Chaos(), **{name: BASELINES[name]() for name in SORTS}}
CLUSTERS = (7,)  # seeds of clusters with several machines, FPGAs and peer links; each takes a minute
EACH = 8  # scenarios on each
CLOSE = 1e-4  # of times in float32, relative to lengths of gangs


@dataclass(frozen=True)
class Run:
    """One policy on one scenario."""

    scenario: Scenario
    trace: Trace
    record: RunRecord

    @property
    def topology(self) -> Topology:
        return self.scenario.topology

    @property
    def finished(self) -> list[GangRecord]:
        return [stay for stay in self.record.gangs if stay.outcome == "finished"]

    def task(self, stay: GangRecord) -> tuple[Kernel, Task, int]:
        """The kernel, the first task and the number of workers of a gang."""
        w = self.scenario.workload
        graph = w.graphs[w.jobs[stay.job].graph]
        gang = graph.all_gangs[stay.gang]
        task = next(task for task in graph.tasks if task.name == gang.tasks[0])
        return w.kernels[w.kernel_index[task.kernel]], task, len(gang.tasks)

    def footprint(self, stay: GangRecord, device: int) -> float:
        """Bytes that a worker of a gang takes."""
        kernel, task, _ = self.task(stay)
        profile = kernel.on(self.topology.kind_of[self.topology.devices[device].kind])
        assert profile is not None, "a kernel runs where it has no implementation"
        return profile.memory_bytes(kernel.work(task.size))


def scenarios(cluster: int) -> list[Scenario]:
    """Random work and disturbances on one random cluster."""
    topology = random_scenario(cluster).topology
    made = []
    for seed in range(EACH):
        rng = np.random.default_rng([cluster, seed])
        made.append(
            Scenario(
                topology,
                random_workload(rng, SIZES["small"], topology, SIZES["small"].jobs, share_graphs=False),
                seed,
                phases=random_phases(rng, topology),
                failures=random_failures(rng, topology),
                work_noise=tuple(map(float, np.exp(rng.normal(0.0, 0.2, 13)))),
                disturbances=Disturbances(window_s=0.7, offer_at_windows=seed % 2 == 1),
                job_slots=3,
            )
        )
    return made


@cache
def runs_of(cluster: int, policy: str) -> list[Run]:
    """All policies are in one program for each cluster."""
    drawn = scenarios(cluster)
    chosen = OneOf(tuple(POLICIES.values()), jnp.asarray(list(POLICIES).index(policy), jnp.int32))
    traces, _ = run_traces(stack(drawn), drawn, chosen)
    return [Run(one, trace, record(one, trace, policy, 0.0)) for one, trace in zip(drawn, traces, strict=True)]


PAIRS = [(cluster, policy) for cluster in CLUSTERS for policy in POLICIES]


@pytest.fixture(params=PAIRS, ids=[f"{policy}-{cluster}" for cluster, policy in PAIRS], scope="module")
def runs(request: pytest.FixtureRequest) -> list[Run]:
    return runs_of(*request.param)


def by_device(run: Run) -> Iterator[tuple[int, list[GangRecord]]]:
    """Every device with the stays of gangs that had a worker on it."""
    stays: defaultdict[int, list[GangRecord]] = defaultdict(list)
    for stay in run.record.gangs:
        for device in stay.devices:
            stays[device].append(stay)
    yield from sorted(stays.items())


def peak(stays: list[tuple[float, float, float]]) -> float:
    """The most of (start, end, amount) at any time; who leaves makes room for who starts at that instant."""
    changes = sorted(
        [(end, 0, -amount) for _, end, amount in stays] + [(start, 1, amount) for start, _, amount in stays]
    )
    return float(np.cumsum([amount for *_, amount in changes]).max())


def test_every_job_completes(runs: list[Run]) -> None:
    for run in runs:
        w = run.scenario.workload
        assert [job.job for job in run.record.jobs] == list(range(len(w.jobs)))
        gangs = [(n, i) for n, job in enumerate(w.jobs) for i in range(len(w.graphs[job.graph].all_gangs))]
        assert sorted((stay.job, stay.gang) for stay in run.finished) == gangs
        for job in run.record.jobs:
            assert job.finish_s == max(stay.finish_s for stay in run.finished if stay.job == job.job)
            assert job.finish_s >= job.arrival_s


def test_no_device_runs_more_workers_than_it_has_slots(runs: list[Run]) -> None:
    for run in runs:
        for device, stays in by_device(run):
            slots = run.topology.kind_of[run.topology.devices[device].kind].slots
            assert peak([(stay.start_s, stay.finish_s, 1) for stay in stays]) <= slots


def test_no_memory_is_oversubscribed(runs: list[Run]) -> None:
    for run in runs:
        for device, stays in by_device(run):
            kind = run.topology.kind_of[run.topology.devices[device].kind]
            used = peak([(stay.start_s, stay.finish_s, run.footprint(stay, device)) for stay in stays])
            assert used <= kind.memory + kind.slots * 1024  # footprints are kept in KiB


def test_no_gang_is_split(runs: list[Run]) -> None:
    for run in runs:
        ends: dict[tuple[int, int], float] = {}
        for stay in sorted(run.record.gangs, key=lambda stay: stay.start_s):
            _, _, workers = run.task(stay)
            assert len(stay.devices) == len(set(stay.devices)) == workers
            assert stay.start_s >= ends.get((stay.job, stay.gang), 0.0), "two stays of a gang at once"
            ends[stay.job, stay.gang] = stay.finish_s


def test_no_gang_runs_before_its_inputs(runs: list[Run]) -> None:
    for run in runs:
        w = run.scenario.workload
        done = {(stay.job, stay.gang): stay.finish_s for stay in run.finished}
        for stay in run.record.gangs:
            graph = w.graphs[w.jobs[stay.job].graph]
            parents = [source for source, target, _ in graph.gang_edges if target == stay.gang and source >= 0]
            assert all(done[stay.job, parent] <= stay.ready_s for parent in parents)
            assert w.jobs[stay.job].arrival_s <= stay.ready_s + 1e-6
            assert stay.ready_s <= stay.placed_s <= stay.start_s <= stay.finish_s


def test_work_is_conserved(runs: list[Run]) -> None:
    """A gang ends no sooner than its work could be done; what failures undid is done again."""
    for run in runs:
        ran: dict[tuple[int, int], float] = {}  # share of the gang's work that its stays had time for
        noise = run.scenario.work_noise
        for stay in sorted(run.record.gangs, key=lambda stay: stay.start_s):
            _, task, _ = run.task(stay)
            who = (stay.job, stay.gang)
            total = task.units * noise[(31 * stay.job + stay.gang) % len(noise)]
            assert stay.isolated_s == pytest.approx(total * isolated_unit_s(run, stay), rel=CLOSE)
            assert stay.setup_s >= 0
            ran[who] = ran.get(who, 0.0) + stay.slowdown
            if stay.outcome == "finished":
                assert ran[who] >= 1 - 2 * CLOSE


def isolated_unit_s(run: Run, stay: GangRecord) -> float:
    """One unit of a gang alone on its devices: the slowest worker's time, and the exchange over the narrowest row."""
    kernel, task, workers = run.task(stay)
    devices = [run.topology.devices[d] for d in stay.devices]
    profiles = [kernel.on(run.topology.kind_of[device.kind]) for device in devices]
    slowest = max(profile.seconds(kernel.work(task.size)) for profile in profiles if profile)
    pairs = [run.topology.distance(a, b) for a in devices for b in devices]
    span = max(pairs)
    if span and devices[0].peers and len({device.peers for device in devices}) == 1:
        span = 6
    capacity = {row.name: row.capacity for row in run.topology.resources}
    crossed = [capacity[hop.resource] for device in devices for hop in device.route if span and span in hop.spans]
    return slowest + (kernel.exchange_bytes / min(crossed) if workers > 1 and crossed else 0.0)


def test_queues_are_served_in_order(runs: list[Run]) -> None:
    """Of two gangs on one device, the one that was placed first starts first, unless the policy orders them itself."""
    for run in runs:
        if run.record.policy == "dmdas":
            continue
        log = run.trace.log
        kind, job, gang, _, _, accepted, _ = log.decision
        started_job, started_gang, devices, *_ = log.started
        placed: dict[tuple[int, int], int] = {}
        queues: defaultdict[int, list[int]] = defaultdict(list)  # device -> placements of those that started, in order
        for row in range(len(kind)):
            if kind[row] == PLACE and accepted[row]:
                placed[int(job[row]), int(gang[row])] = row
            if started_job[row] >= 0:
                number = placed[int(started_job[row]), int(started_gang[row])]
                for device in devices[row]:
                    if device >= 0:
                        queues[int(device)].append(number)
        assert queues
        for order in queues.values():
            assert order == sorted(order)


def test_nothing_runs_on_a_device_that_is_down(runs: list[Run]) -> None:
    for run in runs:
        for device, stays in by_device(run):
            for down, up in outages(run.scenario, run.topology.devices[device].name, run.record.makespan_s):
                for stay in stays:
                    assert stay.finish_s <= down + CLOSE or stay.start_s >= up - CLOSE


def outages(scenario: Scenario, device: str, until: float) -> list[tuple[float, float]]:
    """When a device is down."""
    at, number, down = 0.0, 0, [(-1.0, -1.0)]
    while at <= until:
        failure = scenario.failures[number % len(scenario.failures)]
        at, number = at + failure.gap_s, number + 1
        if failure.device == device and at >= down[-1][1]:
            down.append((at, at + failure.down_s))
    return down[1:]


def test_everything_is_given_back(runs: list[Run]) -> None:
    """At the end no row carries a load of ours, all memory is free, and slots but for those that a policy had begun
    to configure; all queues are empty."""
    for run in runs:
        world = run.trace.carry.world
        core, devices = world.core, len(run.topology.devices)
        kinds = [run.topology.kind_of[device.kind] for device in run.topology.devices]
        assert not np.asarray(world.load).any()
        slots = np.repeat(np.arange(devices), [kind.slots for kind in kinds])
        configuring = np.bincount(slots[core.lane_holds[: len(slots)] == RECONFIGURING], minlength=devices)
        assert (core.lanes_free[:devices] + configuring).tolist() == [kind.slots for kind in kinds]
        assert core.memory_free[:devices].tolist() == [int(kind.memory // 1024) for kind in kinds]
        assert not core.queued.any() and not core.queued_s.any() and (core.head == -1).all()
        assert (core.job == -1).all()


def test_time_never_runs_backwards(runs: list[Run]) -> None:
    for run in runs:
        assert (np.diff(run.trace.after_s) >= 0).all()
        assert (run.trace.after_s >= run.trace.before_s).all()


def test_only_those_that_break_rules_are_refused() -> None:
    for cluster in CLUSTERS:
        assert sum(run.record.refused for run in runs_of(cluster, "chaos")) > 0
        for policy in SORTS:
            assert sum(run.record.refused for run in runs_of(cluster, policy)) == 0, policy


def test_the_runs_show_what_the_properties_are_about() -> None:
    """Preemption, failures, set-up, gangs, full devices and contention all happened."""
    stays = [stay for cluster in CLUSTERS for run in runs_of(cluster, "chaos") for stay in run.record.gangs]
    assert {stay.outcome for stay in stays} == {"finished", "preempted", "failed"}
    assert any(len(stay.devices) > 1 for stay in stays)
    assert any(stay.setup_s > 0 and stay.outcome == "finished" for stay in stays)
    assert sum(stay.slowdown > 1.2 for stay in stays if stay.outcome == "finished") > 10
    assert sum(stay.start_s > stay.placed_s for stay in stays) > 10
