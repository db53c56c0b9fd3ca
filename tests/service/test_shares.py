"""Who is next: priorities, then fair shares, then age."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import symphony as sy
from symphony.engines.containment import Allowance, Containment
from symphony.service.client import RemoteCluster
from symphony.service.service import Limits
from symphony.service.shares import FairQueue
from symphony.service.state import ACCEPTED, CANCEL, ENDED, FINISHED, USAGE_HALF_LIFE_S, JournalEvent, State
from tests.service.kernels import note, one, wait_for
from tests.service.places import SECONDS, place, wait_until


class Story:
    """Events, one after the other, and a line."""

    def __init__(self, **weights: float) -> None:
        self.state, self.line, self.now = State(), FairQueue(weights), 0.0

    def _add(self, job: int, kind: str, **data: object) -> None:
        self.state.apply(JournalEvent(self.state.events + 1, self.now, job, kind, 0, data.pop("seconds", 0.0), data))

    def submit(self, user: str, priority: int = 0, queue: str = "") -> int:
        job = self.state.last_job + 1
        about = {"user": user, "name": "g", "queue": queue, "priority": priority, "tasks": 1, "outputs": [0]}
        self._add(job, ACCEPTED, **about, names=[], key="", digest="")
        self.line.join(self.state.jobs[job])
        return job

    def next(self, **used_s: float) -> int:
        """`used_s`: of jobs under way, by their numbers, as `j1`."""
        found = self.line.next(self.state, self.now, lambda: {int(name[1:]): s for name, s in used_s.items()})
        return found.id if found is not None else 0

    def end(self, job: int, seconds: float) -> None:
        self._add(job, FINISHED, seconds=seconds)
        self.line.leave(self.state.jobs[job])
        self._add(job, ENDED, status="done")


def test_who_has_used_least_is_next() -> None:
    story = Story()
    mine = [story.submit("ann") for _ in range(3)]
    his = [story.submit("bob") for _ in range(2)]
    assert story.next() == mine[0]
    assert story.next() == his[0]  # one of hers is under way
    story.end(mine[0], 100.0)
    story.end(his[0], 1.0)
    assert [story.next(), story.next(), story.next(), story.next()] == [his[1], mine[1], mine[2], 0]


def test_a_day_does_not_hold_hours_to_come() -> None:
    """Of a clock that was a year ahead for a moment: what ran then counted until that year was over."""
    story = Story()
    story.now = 365 * 86_400.0
    story.end(story.submit("ann"), 100.0)
    story.now = 7_200.0
    story.end(story.submit("ann"), 5.0)
    assert story.state.users["ann"].used_today(story.now) == 5.0


def test_what_runs_counts_though_it_has_not_ended() -> None:
    """She has one long job under way and he a few short ones: the next is his."""
    story = Story()
    mine, his = story.submit("ann"), [story.submit("bob") for _ in range(3)]
    assert [story.next() for _ in range(4)] == [mine, *his]
    hers, another = story.submit("ann"), story.submit("bob")
    assert story.next(j1=7200.0, j2=60.0) == another
    assert story.next(j1=7200.0, j2=60.0) == hers


def test_what_was_used_long_ago_counts_little() -> None:
    story = Story()
    story.end(story.submit("ann"), 100.0)
    story.now = 20 * USAGE_HALF_LIFE_S
    story.end(story.submit("bob"), 10.0)
    old, new = story.submit("bob"), story.submit("ann")
    assert [story.next(), story.next()] == [new, old]


def test_a_larger_share_may_use_more() -> None:
    story = Story(ann=10.0)
    story.end(story.submit("ann"), 50.0)
    story.end(story.submit("bob"), 10.0)
    his, mine = story.submit("bob"), story.submit("ann")
    assert [story.next(), story.next()] == [mine, his]


def test_urgent_jobs_go_first_whatever_their_user_has_used() -> None:
    story = Story()
    story.end(story.submit("ann"), 1_000.0)
    usual, his, urgent = story.submit("ann"), story.submit("bob"), story.submit("ann", priority=3)
    assert [story.next(), story.next(), story.next()] == [urgent, his, usual]


def test_queues_of_a_user_take_turns() -> None:
    story = Story()
    many = [story.submit("ann", queue="many") for _ in range(3)]
    few = story.submit("ann", queue="few")
    assert [story.next(), story.next(), story.next()] == [many[0], few, many[1]]


def test_a_job_that_was_given_up_is_not_let_in() -> None:
    story = Story()
    first, second = story.submit("ann"), story.submit("ann")
    story._add(first, CANCEL, by="ann")
    story._add(first, ENDED, status="cancelled")
    assert [story.next(), story.next()] == [second, 0]


def test_the_core_serves_first_who_has_used_least() -> None:
    """All jobs of one user are admitted before another comes: his go before hers, until he has used more."""
    story = Story()
    hers = [story.submit("ann") for _ in range(3)]
    urgent = story.submit("ann", priority=1)
    for _ in range(4):
        story.next()
    assert story.line.levels(story.state, 0.0, {}) == {**dict.fromkeys(hers, 0), urgent: 1}
    his = story.submit("bob")
    story.next()
    assert story.line.levels(story.state, 0.0, {1: 5.0}) == {**dict.fromkeys(hers, 0), his: 1, urgent: 2}
    assert story.line.levels(story.state, 0.0, {1: 5.0, his: 5.9})[his] == 1  # too close to change places
    assert story.line.levels(story.state, 0.0, {1: 5.0, his: 6.1})[his] == 0


def test_a_user_leaves_places_for_others() -> None:
    story = Story()
    for _ in range(10):
        story.submit("ann")
    admitted = [story.line.next(story.state, 0.0, at_once=8) for _ in range(10)]
    assert [job is not None for job in admitted] == [True] * 6 + [False] * 4
    his = story.submit("bob")
    assert "6 jobs of ann are under way" in story.line.held_back("ann", 8, story.state, 0.0, {})
    assert not story.line.held_back("bob", 8, story.state, 0.0, {})
    assert not story.line.held_back("bob", 1, story.state, 0.0, {})
    found = story.line.next(story.state, 0.0, at_once=8)
    assert found is not None and found.id == his


def test_device_time_of_a_day_is_bounded() -> None:
    """Of the last 24 hours, in whole hours, with what runs at present."""
    story = Story()
    story.line = FairQueue({}, Containment(user=Allowance(device_time_per_day=100.0)))
    story.now = 10 * 3600.0
    story.end(story.submit("ann"), 60.0)
    later = story.submit("ann")
    assert not story.line.held_back("ann", 8, story.state, story.now, {})
    story.end(later, 40.0)
    text = story.line.held_back("ann", 8, story.state, story.now, {})
    assert text == "ann may use 100 s of device time in 24 hours, and has used 100 s"
    waiting = story.submit("ann")
    assert story.line.next(story.state, story.now, at_once=8) is None
    story.now += 24 * 3600.0
    found = story.line.next(story.state, story.now, at_once=8)
    assert found is not None and found.id == waiting
    assert not story.line.held_back("ann", 8, story.state, story.now, {waiting: 99.0})
    assert story.line.held_back("ann", 8, story.state, story.now, {waiting: 100.0})


def test_quotas_of_users_make_jobs_wait_and_say_why(tmp_path: Path) -> None:
    allowed = {"ann": Allowance(running_jobs=1), "bob": Allowance(slots=1), "eve": Allowance(device_time_per_day=1e-6)}
    gates = [str(tmp_path / name) for name in ("ann", "bob")]
    limits = Limits(containment=Containment(users=allowed))
    with place(tmp_path / "service", limits=limits) as here, here.connect("ann") as ann, here.connect("bob") as bob:
        hers = [ann.submit(one(wait_for, gates[0])) for _ in range(2)]
        assert hers[1].view().waits == "ann may have 1 job under way, and has 1"
        wide = sy.graph("wide")
        for _ in range(3):
            wide.task(wait_for, gates[1])
        his = [bob.submit(wide), bob.submit(one(wait_for, gates[1]))]
        wait_until(lambda: his[0].status == "running" and hers[0].status == "running")
        wait_until(lambda: his[1].view().waits == "bob may hold 1 slots of devices at once, and holds too many")
        assert [task.status for task in his[0].detail().tasks] == ["running", "waiting", "waiting"]
        with pytest.raises(sy.InfeasibleError, match="needs 2 slots at once, and your jobs may have 1"):
            bob.submit(one(sy.kernel(cores=2)(len), ""))
        for gate in gates:
            Path(gate).touch()
        assert [job.result(SECONDS) for job in (*hers, *his)] == ["came", "came", ("came",) * 3, "came"]
        runs = [run for job in his for task in job.detail().tasks for run in task.runs]
        spans = sorted((run.began_s, run.began_s + run.seconds) for run in runs if run.began_s and run.seconds)
        assert len(spans) == 4 and all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        with here.connect("eve") as eve:
            assert eve.submit(one(note, str(tmp_path / "notes"), "x")).result(SECONDS) == "x"
            held = eve.submit(one(note, str(tmp_path / "notes"), "y"))
            assert "of device time in 24 hours, and has used" in held.view().waits and held.status == "waiting"


@pytest.mark.parametrize("wide", [False, True])
def test_a_user_who_has_used_little_does_not_wait_behind_all_of_anothers_work(tmp_path: Path, wide: bool) -> None:
    """Hers hold both slots and queue there; one ends, and his is next, whether hers are many jobs or one."""
    with place(tmp_path / "service") as here, here.connect("ann") as ann, here.connect("bob") as bob:
        check_fairness(ann, bob, tmp_path, wide)


def check_fairness(ann: RemoteCluster, bob: RemoteCluster, tmp_path: Path, wide: bool) -> None:
    files = [str(tmp_path / f"go-{k}") for k in range(8)]
    graphs = [sy.graph("hers")] if wide else [sy.graph("hers") for _ in files]
    for k, path in enumerate(files):
        graphs[k % len(graphs)].task(wait_for, path)
    hers = [ann.submit(graph) for graph in graphs]

    def running() -> list[int]:
        tasks = [task for job in hers for task in job.detail().tasks]
        return [k for k, task in enumerate(tasks) if task.status == "running"]

    wait_until(lambda: len(running()) == 2)
    his = bob.submit(one(note, str(tmp_path / "ran"), "x"))
    Path(files[running()[0]]).touch()
    assert his.result(SECONDS) == "x"
    for path in files:
        Path(path).touch()
    for job in hers:
        job.result(SECONDS)
