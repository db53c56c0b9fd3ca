"""Futures: played from where work is, future by future; one program serves all changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.counterfactuals import answers
from symphony.counterfactuals.change import Addition, Change
from symphony.counterfactuals.futures import Stage
from symphony.counterfactuals.outlook import outlook_of
from symphony.counterfactuals.record import Record
from symphony.counterfactuals.snapshot import KernelBelief, Snapshot, SnapshotJob, SnapshotTask
from symphony.engines.containment import Allowance, Containment
from symphony.problem.workload import Kernel, Profile
from symphony.service.played_admission import PlayedAdmission
from symphony.service.shares import FairQueue
from symphony.service.state import Usage, UserRecord
from symphony.simulator import run
from tests.runtime.machines import machine

KERNELS = [
    KernelBelief(Kernel("known", {"cpu": Profile(10.0)}), {"small": 0.1}, {"small": 0.2}),
    KernelBelief(Kernel("accelerated", {"accelerator": Profile(1.0)}), {"big": 0.1}, {"big": 0.2}),
]
RUNS = SnapshotTask(0, devices=(0,), elapsed_s=8.0)


@pytest.fixture(scope="module")
def stage() -> Stage:
    jobs = [
        SnapshotJob(1, (RUNS,), "bob"),
        SnapshotJob(2, (RUNS._replace(elapsed_s=9.0), SnapshotTask(0, reads=(0,))), "bob"),
        SnapshotJob(3, (SnapshotTask(0),), "ann", "mine"),
        SnapshotJob(4, (SnapshotTask(0),), "ann", after=(3,)),
        SnapshotJob(5, (SnapshotTask(1),), "ann", "needs what is not there"),
        SnapshotJob(6, (SnapshotTask(0, took_s=4.0, kind="small"),), "ann", arrives_s=500.0),
        SnapshotJob(7, (SnapshotTask(0, delay_s=600.0),), "ann", "to be tried again"),
    ]
    like = [SnapshotJob(0, (SnapshotTask(0),), priority=-1, arrives_s=-50.0)]  # later arrivals come last
    snapshot = Snapshot(machine(), KERNELS, jobs, recent=like)
    extra = SnapshotJob(0, (SnapshotTask(0),), "ann", "one more")
    return Stage(snapshot, (Addition(1, "small"),), extra, draws=8)


def test_every_future_follows_from_what_runs(stage: Stage) -> None:
    out = stage.play()
    first, second = out.finish_s[:, 0], out.start_s[:, 1]
    assert (second == 0).all() and (out.start_s[:, 0] == 0).all() and len(np.unique(first)) == 8
    assert np.median(first) < 8.0  # most of its 10 seconds have passed
    third = out.start_s[:, 2]
    assert np.all((third > 0) & (third <= first + 1e-3))  # when a slot is free
    assert (out.start_s[:, 3] >= out.finish_s[:, 2] - 1e-3).all()
    assert np.isinf(out.finish_s[:, 4]).all() and np.isinf(out.finish_s[:, 7]).all()  # impossible; not submitted
    took = out.finish_s[:, 5] - out.start_s[:, 5]
    assert took == pytest.approx(np.full(8, 4.0), rel=1e-3) and (out.start_s[:, 5] >= 500.0).all()
    assert (out.start_s[:, 6] >= 600.0).all() and np.isfinite(out.start_s[:, 6]).all()
    assert (stage.play().finish_s == out.finish_s).all()
    found, made = outlook_of(Record(), out, 2, stage.jobs[2], 0.0)
    assert found.start_s.low <= found.start_s.mid <= found.start_s.high < found.finish_s.high and len(made) == 2
    assert "is expected to start in" in found.text


def test_changes_play_the_same_futures_with_the_same_program(stage: Stage) -> None:
    now, programs = stage.play(), len(run._programs)
    more = stage.play(Change(more=(Addition(1, "small"),)))
    assert (more.start_s[:, 2] == 0).all() and (more.finish_s[:, 0] == now.finish_s[:, 0]).all()
    down = stage.play(Change(fail=("here",), fail_s=100.0))
    assert (down.start_s[:, 2] >= 100.0).all()
    none = stage.play(Change(without=("here",)))
    assert np.isinf(none.finish_s).all()
    first = stage.play(Change(priority={6: 3, 4: -1}))
    assert (first.start_s[:, 3] >= first.finish_s[:, 2] - 1e-3).all()
    submitted = stage.play(Change(submit=stage.extra))
    assert np.isfinite(submitted.finish_s[:, 7]).all() and (submitted.start_s[:, 2] == now.start_s[:, 2]).all()
    assert len(run._programs) == programs


def test_answers_compare_futures_in_words(stage: Stage) -> None:
    assert [one.change.more for one in answers.helps(stage, 2)] == [(Addition(1, "small"),)]
    found = answers.what_if(stage, Change(more=(Addition(1, "small"),)), visible={3, 4, 5})
    assert found.jobs == 2 and {row.job for row in found.rows} == {3, 4}  # job 5 never runs, the others are hidden
    wait = next(one for one in found.measures if one.name == "mean_wait_s")
    assert wait.change.high < 0 and found.text.startswith("With 1 more small, 2 jobs would take")
    gone = answers.what_if(stage, Change(without=("here",)))
    assert gone.stranded == (1, 2, 3, 4, 6, 7) and "could not run" in gone.text
    assert {job for job, _ in answers.ahead(stage.snapshot, stage.play(), 2)} == {1, 2}


def test_users_that_share_a_cluster_are_served_by_its_rule(stage: Stage) -> None:
    """Ann has used much: what bob submits, now or later, goes before what she has waiting."""
    ann = [SnapshotJob(n, (SnapshotTask(0),), "ann") for n in range(3, 8)]
    jobs = [*stage.snapshot.jobs[:2], *ann, SnapshotJob(8, (SnapshotTask(0),), "bob", after=(1,))]
    records = {"ann": UserRecord(Usage(100.0, 0.0), {"": Usage(100.0, 0.0)})}
    like = [SnapshotJob(0, (SnapshotTask(0),), "eve", arrives_s=-float(n)) for n in range(10, 90, 10)]
    extra = SnapshotJob(0, (SnapshotTask(0),), "bob", "one more")

    def play(limits: Containment, change: Change | None = None) -> np.ndarray:
        rule = PlayedAdmission(FairQueue({}, limits), records, 4, 0.0)
        shared = replace(stage.snapshot, jobs=jobs, recent=like, admission=rule, slots=4)
        return Stage(shared, stage.spare, extra, draws=8).play(change).start_s

    starts = play(Containment())
    hers, bobs = starts[:, 2:7], starts[:, 7]
    assert (np.diff(hers) >= 0).all() and (bobs <= hers[:, 2]).all() and np.isinf(starts[:, 8]).all()
    urgent = play(Containment(), Change(priority={7: 1}))
    assert (urgent[:, 6] <= urgent[:, 2]).all()
    submitted = play(Containment(), Change(submit=extra))
    assert (submitted[:, 8] <= submitted[:, 5]).all()
    held = play(Containment(users={"ann": Allowance(running_jobs=1)}))[:, 2:7]
    assert (np.diff(held) > 1.0).all()  # one after the other
