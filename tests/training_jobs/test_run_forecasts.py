"""What a forecast is made of, from looks that were made by hand; and what is said to have happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.lowering.readers.job_lists import gang_graph
from symphony.problem.topologies import topology
from symphony.problem.workload import Job, Kernel, Profile, Workload
from symphony.scheduling.state import ABSENT, FREE, READY, RUNNING, SAVING
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from symphony.simulator.scenarios import CALM, draw
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs.forecast import ClusterNow
from symphony.training_jobs.measured_jobs import CHECKPOINT_COST as COSTS
from symphony.training_jobs.measured_jobs import sharable
from symphony.training_jobs.run_forecasts import RunForecaster, actual_times

CLUSTER = sharable(topology("gpu24"))
KERNELS = tuple(Kernel(name, {"v100": Profile(1.0)}) for name in "ab")
GRAPHS = (gang_graph("a", 1, 50.0, COSTS, unit="steps"), gang_graph("b", 2, 80.0, COSTS, unit="steps"))
JOBS = (Job(0, 0.0), Job(1, 100.0, priority=3), Job(0, 200.0), Job(1, 900.0))
SCENARIO = draw(CLUSTER, Workload("by hand", KERNELS, GRAPHS, JOBS), 0, CALM, job_slots=4)


def look(at_s: float, holds: dict[int, int], status: list[int], left: list[float]) -> JobSnapshot:
    """Jobs 0, 1, 2 in that order; lanes by number, two to a GPU."""
    lanes = np.full(48, FREE)
    for lane, gang in holds.items():
        lanes[lane] = gang
    return JobSnapshot(
        now_s=np.asarray(at_s), windows=np.asarray(1), over=np.asarray(False), job=np.asarray([0, 1, 2, -1]),
        kernel=np.asarray([0, 1, 0, 0]), status=np.asarray([*status, ABSENT]), units_left=np.asarray([*left, 0.0]),
        holds=lanes, since_s=np.zeros(48), setup=np.zeros(48, bool),
    )  # fmt: skip


def test_who_runs_has_devices_and_who_waits_has_what_it_has_waited() -> None:
    outlook = RunForecaster(SCENARIO)
    outlook.observe(look(360.0, {0: 2, 1: 0}, [RUNNING, READY, RUNNING], [30.0, 80.0, 40.0]))
    runs, waits, saved = outlook.jobs(look(720.0, {0: 2, 3: 0}, [RUNNING, READY, SAVING], [10.0, 80.0, 20.0]))
    assert runs[:6] == (0, 0, 10.0, 1, 0, (1,)) and runs.saving_s == COSTS.checkpoint_s
    assert waits[:6] == (1, 1, 80.0, 2, 3, ()) and not waits.has_run and waits.waited_s == 620.0
    assert saved.devices == () and saved.has_run and saved.waited_s == 360.0


def test_what_has_come_says_what_is_yet_to_come_and_nothing_that_is_hidden_does() -> None:
    outlook = RunForecaster(SCENARIO)
    coming = outlook.coming(720.0)
    assert coming is not None
    assert [job.left for job in coming.like] == [50.0, 80.0, 50.0] and (coming.for_s, coming.silent_s) == (200.0, 520.0)
    assert outlook.coming(0.0) is None
    later = replace(SCENARIO, workload=replace(SCENARIO.workload, jobs=(*JOBS[:3], Job(0, 800.0))))
    assert RunForecaster(later).coming(720.0) == coming


def test_devices_of_a_cluster_are_told_apart_by_kind_and_machine() -> None:
    now = ClusterNow.of(CLUSTER)
    assert np.bincount(now.kind).tolist() == [8, 8, 8] and len(set(now.machine)) == 24 and now.up.all()
    assert np.flatnonzero(~ClusterNow.of(CLUSTER, {3, 5}).up).tolist() == [3, 5]


def test_what_happened_is_the_next_start_and_the_end() -> None:
    def stay(job: int, start_s: float, finish_s: float) -> GangRecord:
        return GangRecord(job, 0, (0,), 0.0, 0.0, start_s, finish_s, 1.0, 0.0)

    run = RunRecord(
        policy="", seed=0, jobs=(JobRecord(0, 0, 0.0, 900.0, 1.0), JobRecord(1, 0, 0.0, 700.0, 1.0)),
        gangs=(stay(0, 800.0, 900.0), stay(0, 10.0, 300.0), stay(1, 500.0, 700.0)), makespan_s=900.0, utilisation={},
        decisions=0, events=0, refused=0, wall_s=0.0,
    )  # fmt: skip
    assert actual_times(run, 360.0) == {0: (800.0, 900.0), 1: (500.0, 700.0)}
    assert actual_times(run, 600.0)[1] == (600.0, pytest.approx(700.0))
