"""Time moves to the next event: small runs worked out by hand. All share one compiled program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Job, Task, TaskGraph, Workload
from symphony.simulator.next_event import EVENTS
from symphony.simulator.records import RunRecord
from symphony.simulator.run import Trace, record, run_traces
from symphony.simulator.scenarios import CALM, Disturbances, Failure, Phase, Scenario, stack
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GB, GPU, KERNELS, chain, cluster, dot, pair
from tests.simulator.scripted import Scripted, script

# Sizes of every scenario here, so that the program is one; what is not needed comes late.
JOBS, PHASES, FAILURES = 6, 3, 3
LATE = 5_000.0
FILLER = TaskGraph("filler", tuple(Task(name, "any") for name in "abc"), (Edge("a", "b", 1.0), Edge("a", "c", 1.0)))
CALM_WINDOWS = replace(CALM, window_s=4.0)


def simulated(
    jobs: list[tuple[TaskGraph, float, list[list[int]]]],
    *,
    phases: tuple[Phase, ...] = (),
    failures: tuple[Failure, ...] = (),
    disturbances: Disturbances = CALM_WINDOWS,
    topology: Topology | None = None,
) -> tuple[RunRecord, Trace]:
    """Run (graph, arrival, devices of each gang's workers) jobs; the record holds those only."""
    filler = [(FILLER, LATE, [[CPU0], [CPU0], [CPU1]])] * (JOBS - 1 - len(jobs))
    every = [*jobs, *filler, (pair(), LATE, [[CPU0, CPU1]])]
    graphs = tuple(replace(graph, name=f"{n}") for n, (graph, _, _) in enumerate(every))
    workload = Workload("w", KERNELS, graphs, tuple(Job(n, at) for n, (_, at, _) in enumerate(every)))
    phases += (Phase(LATE, "a", {}),) * (PHASES - len(phases))
    failures += (Failure(LATE, "gpu", 1.0),) * (FAILURES - len(failures))
    where = topology or cluster()
    scenario = Scenario(where, workload, 0, phases, failures, (1.0,), disturbances, job_slots=JOBS)
    policy = Scripted(script([devices for _, _, devices in every], gangs=3, workers=2))
    (trace,), _ = run_traces(stack([scenario]), [scenario], policy)
    run = record(scenario, trace, "scripted", 0.0)
    kept = range(len(jobs))
    return replace(
        run, jobs=tuple(j for j in run.jobs if j.job in kept), gangs=tuple(g for g in run.gangs if g.job in kept)
    ), trace


def finishes(run: RunRecord) -> list[float]:
    return [job.finish_s for job in run.jobs]


def events(trace: Trace, at: float) -> list[str]:
    """The events at an instant, in order."""
    kinds = np.asarray(trace.log.event[0])
    return [EVENTS[kind] for kind, time in zip(kinds, trace.after_s, strict=True) if kind >= 0 and time == at]


def test_events_at_one_instant_happen_in_the_order_of_the_rules() -> None:
    """All at 4 s: a gang finishes, a context is ready, a transfer ends, a job arrives, a device is repaired and another
    fails, tenants change, a window ends."""
    topology = cluster()
    kinds = tuple(replace(kind, reconfigure_s=4.0) if kind.reconfigurable else kind for kind in topology.kinds)
    first = TaskGraph("g", (Task("a", "any"), Task("b", "any")))
    _, trace = simulated(
        [
            (first, 0.0, [[CPU0], [FPGA]]),  # 4 s on the CPU; 4 s of set-up
            (chain(size=4 * GB), 0.0, [[GPU], [CPU0]]),  # 4 s over the NIC
            (dot("any"), 4.0, [[CPU1]]),
        ],
        topology=replace(topology, kinds=kinds),
        failures=(Failure(2.0, "cpu1", 2.0), Failure(2.0, "cpu1", 1.0)),
        phases=(Phase(4.0, "b", {}),),
    )
    assert events(trace, 4.0) == [
        "finished",
        "set-up",
        "fetched",
        "arrival",
        "repair",
        "failure",
        "background",
        "window",
    ]


def test_two_that_ask_for_more_than_a_row_has_slow_one_another_down() -> None:
    """Each wants 6 of the 10 GB/s of one memory: load 1.2, and 2 s become 2.4."""
    run, _ = simulated([(dot("cpu only"), 0.0, [[CPU0]]), (dot("cpu only"), 0.0, [[CPU1]])])
    assert finishes(run) == pytest.approx([2.4, 2.4], rel=1e-4)  # loads are rounded to 2**-16
    assert [stay.slowdown for stay in run.gangs] == pytest.approx([1.2, 1.2], rel=1e-4)


def test_contention_lasts_while_both_run() -> None:
    """The first is alone for 1 s and has 1 s left, which takes 1.2; the second then has 1 s of its 2 left."""
    run, _ = simulated([(dot("cpu only"), 0.0, [[CPU0]]), (dot("cpu only"), 1.0, [[CPU1]])])
    assert finishes(run) == pytest.approx([2.2, 3.2], rel=1e-4)


def test_hidden_tenants_slow_work_down_from_one_phase_to_the_next() -> None:
    """Load 0.6 alone; from 1 s to 2 s tenants add 1.4, and the work goes at half speed."""
    phases = (Phase(1.0, "a", {"memory": 1.4}), Phase(1.0, "a", {}))
    run, _ = simulated([(dot("cpu only"), 0.0, [[CPU0]])], phases=phases)
    assert finishes(run) == pytest.approx([2.5], rel=1e-4)


def test_tenants_of_another_machine_do_not() -> None:
    phases = (Phase(0.0, "b", {"memory": 1.4, "nic": 3.0}),)
    run, _ = simulated([(dot("cpu only"), 0.0, [[CPU0]])], phases=phases)
    assert finishes(run) == [2.0]


def test_transfers_share_a_link() -> None:
    """Two of 1 GB each over one NIC of 1 GB/s, to devices of their own: 2 s. Then 1 s and 0.5 + 0.5 s of work."""
    jobs = [(chain(), 0.0, [[GPU], [GPU]]), (chain(), 0.0, [[FPGA], [FPGA]])]
    run, _ = simulated(jobs)
    starts = sorted(stay.start_s for stay in run.gangs if stay.gang == 0)
    assert starts == pytest.approx([2.0, 2.0], rel=1e-5)


def test_an_engine_fetches_one_input_at_a_time() -> None:
    """Two jobs at one GPU: inputs come at 1 s and 2 s. The GPU computes while the second is fetched."""
    jobs = [(chain(), 0.0, [[GPU], [GPU]]), (chain(), 0.0, [[GPU], [GPU]])]
    run, _ = simulated(jobs)
    starts = {(stay.job, stay.gang): stay.start_s for stay in run.gangs}
    assert starts[0, 0] == pytest.approx(1.0) and starts[1, 0] == pytest.approx(2.0)
    assert sorted((starts[0, 1], starts[1, 1])) == pytest.approx([3.0, 4.0])  # the outputs lie there: no transfer


def test_what_was_fetched_once_lies_there() -> None:
    """Both children are on the GPU: the parent's output, 1 GB, is fetched for the first of them only."""
    tasks = (Task("a", "cpu only"), Task("b", "any"), Task("c", "any"))
    graph = TaskGraph("g", tasks, (Edge("a", "b", 1 * GB), Edge("a", "c", 1 * GB)))
    run, trace = simulated([(graph, 0.0, [[CPU0], [GPU], [GPU]])])
    assert finishes(run) == pytest.approx([2.0 + 1.0 + 1.0 + 1.0])
    assert [EVENTS[k] for k in trace.log.event[0] if k >= 0].count("fetched") == 1


def test_a_failure_costs_the_work_since_the_last_checkpoint() -> None:
    """8 units of 1 s on two CPUs, a checkpoint every 2. Down at 5 s: 4 units are kept. Up at 6 s; 0.5 s to restore."""
    graph = pair(preemptible=True, checkpoint_units=2.0, restore_s=0.5)
    failures = (Failure(5.0, "cpu1", 1.0),)
    run, _ = simulated([(graph, 0.0, [[CPU0, CPU1]])], failures=failures)
    assert [stay.outcome for stay in run.gangs] == ["failed", "finished"]
    assert [(stay.start_s, stay.finish_s) for stay in run.gangs] == [(0.0, 5.0), (6.0, 10.5)]
    assert [stay.isolated_s for stay in run.gangs] == [8.0, 8.0]
    assert [stay.setup_s for stay in run.gangs] == [0.0, 0.5]


def test_without_checkpoints_a_failure_costs_everything() -> None:
    failures = (Failure(5.0, "cpu1", 1.0),)
    run, _ = simulated([(pair(), 0.0, [[CPU0, CPU1]])], failures=failures)
    assert finishes(run) == [14.0]


def test_every_decision_is_charged_the_schedulers_latency() -> None:
    """0.5 s for each: the first worker of the gang at 0.5, the second at 1.0, the other job at 1.5."""
    jobs = [(pair(), 0.0, [[CPU0, CPU1]]), (dot("any"), 0.0, [[GPU]])]
    run, trace = simulated(jobs, disturbances=replace(CALM_WINDOWS, latency_s=0.5))
    assert {stay.job: stay.start_s for stay in run.gangs} == {0: 1.0, 1: 1.5}
    assert [events(trace, at) for at in (0.5, 1.0, 1.5)] == [["thought"]] * 3


def test_readings_are_means_over_the_window() -> None:
    """Of 4 s, 0.6 of memory for 2 s: 0.3; two transfers of none. In the next window nothing runs."""
    _, trace = simulated([(dot("cpu only"), 0.0, [[CPU0]])])
    windows = [row for row, kind in enumerate(trace.log.event[0]) if kind >= 0 and EVENTS[kind] == "window"]
    assert trace.after_s[windows[:2]].tolist() == [4.0, 8.0]
    assert np.asarray(trace.log.reading)[windows[:2]].tolist() == pytest.approx([0.3, 0.0], rel=1e-4)


def test_utilisation_is_of_our_own_work_only() -> None:
    """0.6 of the memory for 2 s; tenants do not count, and what fills the scenario up asks for nothing."""
    phases = (Phase(0.0, "a", {"memory": 0.2, "nic": 5.0}),)
    run, trace = simulated([(dot("cpu only"), 0.0, [[CPU0]])], phases=phases)
    end = float(np.max(trace.after_s))
    assert run.utilisation["memory"] == pytest.approx(0.6 * 2.0 / end, rel=1e-3)
    assert run.utilisation["link"] == 0.0
