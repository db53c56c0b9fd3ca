"""A rehearsal serves jobs by the cluster's rule, on lanes of device kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from symphony.counterfactuals.rehearsal import RehearsedJob, rehearse
from symphony.counterfactuals.snapshot import SnapshotJob, SnapshotTask
from symphony.engines.containment import Allowance, Containment
from symphony.service.played_admission import PlayedAdmission
from symphony.service.shares import FairQueue
from symphony.service.state import Usage, UserRecord

AT_S = 1.6e9 - 1.6e9 % 3_600  # the beginning of an hour
TASK = SnapshotTask(0)


def job(number: int, user: str, *seconds: float, tasks: tuple[SnapshotTask, ...] = (), **more: object) -> RehearsedJob:
    """Tasks that take so long on the only kind; one by default."""
    runs_on = more.pop("runs_on", ())
    made = SnapshotJob(number, tasks or (TASK,) * len(seconds), user, **more)
    return RehearsedJob(made, [[x] for x in seconds], runs_on)


def play(
    *jobs: RehearsedJob,
    lanes: int = 1,
    at_once: int = 16,
    used_s: Mapping[str, float] | None = None,
    users: Mapping[str, Allowance] | None = None,
) -> list[float]:
    """When the first new task of each job starts."""
    records = {name: UserRecord(Usage(x, AT_S), {"": Usage(x, AT_S)}) for name, x in (used_s or {}).items()}
    rule = PlayedAdmission(FairQueue({}, Containment(users=users or {})), records, at_once, AT_S)
    rehearse(rule.copy(), [[0.0] * lanes], jobs)
    return [one.first_s for one in jobs]


def test_users_take_turns_and_newcomers_do_not_wait_behind_all_others() -> None:
    ann = [job(n, "ann", 10.0) for n in range(1, 6)]
    newcomer = job(6, "bob", 10.0, arrives_s=15.0)
    assert play(*ann, newcomer) == [0.0, 10.0, 30.0, 40.0, 50.0, 20.0]
    ann = [job(n, "ann", 10.0) for n in range(1, 6)]
    newcomer = job(6, "bob", 10.0, arrives_s=15.0)
    assert play(*ann, newcomer, used_s={"bob": 1_000.0}) == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert newcomer.admitted == 5 and newcomer.ended_s == 60.0


def test_a_newcomer_is_admitted_before_jobs_of_a_user_who_has_used_more() -> None:
    ann, newcomer = [job(n, "ann", 10.0) for n in range(1, 4)], job(4, "bob", 10.0, arrives_s=5.0)
    assert play(*ann, newcomer, at_once=1) == [0.0, 20.0, 30.0, 10.0]
    assert [one.admitted for one in ann] == [0, 2, 3]


def test_urgent_jobs_go_first() -> None:
    assert play(job(1, "ann", 10.0), job(2, "ann", 10.0), job(3, "bob", 10.0, priority=1)) == [10.0, 20.0, 0.0]


def test_quotas_hold_jobs_back() -> None:
    jobs = [job(n, "ann", 10.0) for n in range(1, 4)]
    assert play(*jobs, lanes=4, users={"ann": Allowance(running_jobs=1)}) == [0.0, 10.0, 20.0]
    assert [one.ended_s for one in jobs] == [10.0, 20.0, 30.0]
    wide = job(1, "ann", 10.0, 10.0, 10.0), job(2, "bob", 10.0)
    assert play(*wide, lanes=4, users={"ann": Allowance(slots=1)}) == [0.0, 0.0]
    assert wide[0].left == 0
    [later] = play(job(1, "ann", 10.0), users={"ann": Allowance(device_time_per_day=5.0)})
    assert later == 0.0
    _, later = play(
        job(1, "ann", 10.0), job(2, "ann", 10.0), at_once=1, users={"ann": Allowance(device_time_per_day=5)}
    )
    assert 23 * 3_600 < later <= 25 * 3_600  # when what it used is a day ago


def test_dependencies_running_work_and_delays() -> None:
    running = job(1, "ann", 4.0, tasks=(TASK._replace(devices=(0,), elapsed_s=6.0),), runs_on=(0,))
    after = job(2, "ann", 5.0, after=(1,))
    chain = job(3, "bob", 3.0, 3.0, tasks=(TASK._replace(delay_s=2.0), TASK._replace(reads=(0,))))
    assert play(running, after, chain, lanes=2) == [math.inf, 4.0, 2.0]
    assert chain.left == after.left == 0


def test_work_waits_for_a_kind_on_which_it_ends_sooner() -> None:
    """One slow lane is free, and a fast one soon."""
    rule = PlayedAdmission(FairQueue({}), {}, 16, AT_S)
    fast, slow = RehearsedJob(SnapshotJob(1, (TASK,)), [[100.0, 1.0]]), job(2, "", 1.0)
    slow.seconds = [[1.0, math.inf]]
    rehearse(rule, [[0.0], [5.0]], [fast, slow])
    assert (fast.first_s, slow.first_s) == (5.0, 0.0)
