"""Who is next: priorities, then fair shares, then age."""

from __future__ import annotations

from symphony.service.shares import FairQueue
from symphony.service.state import ACCEPTED, CANCEL, ENDED, FINISHED, USAGE_HALF_LIFE_S, JournalEvent, State


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
