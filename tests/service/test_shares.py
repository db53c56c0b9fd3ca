"""Who is next: priorities, then fair shares, then age."""

from __future__ import annotations

from pathlib import Path

import pytest

import symphony as sy
from symphony.service.client import RemoteCluster
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
    assert story.line.is_full("ann", 8) and not story.line.is_full("bob", 8) and not story.line.is_full("bob", 1)
    his = story.submit("bob")
    found = story.line.next(story.state, 0.0, at_once=8)
    assert found is not None and found.id == his


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
