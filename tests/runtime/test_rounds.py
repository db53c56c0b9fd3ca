"""Rounds: what counts as a report, what is done when one ends, and that nobody waits for who learns."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.engines.local import LocalEngine
from symphony.problem.errors import EngineError, InputError
from symphony.runtime.cluster import Cluster
from symphony.runtime.rounds import Rounds, Stand
from symphony.runtime.speeds import Kind, Seen, Speeds
from tests.runtime.machines import machine

SECONDS = 60.0
A, B = Kind("a", 0, 0.0, 1e9, 1, 0), Kind("b", 0, 0.0, 1e9, 1, 0)


class Recording(Speeds):
    """Speeds, and what they were taught."""

    def __init__(self) -> None:
        super().__init__(sy.topology("gpu24"))
        self.taught: list[list[Seen]] = []
        self.fails = False
        self.go_on = threading.Event()
        self.go_on.set()

    def learn(self, seen: Any, now_s: float, present: Any) -> Any:
        """Take a note of it."""
        self.taught.append(list(seen))
        assert self.go_on.wait(30.0)
        if self.fails:
            raise ValueError("no")
        return super().learn(seen, now_s, present)


def stand(step: float, at_s: float, **other: Any) -> Stand:
    usual = Stand(7, 1, A, 0, False, frozenset(), (), -math.inf, step, at_s)
    return usual._replace(**other)


@pytest.fixture
def rounds() -> Rounds:
    found = Rounds(Recording(), 360.0, threads=False)
    found.attend([A], 0.0, lambda: None)
    return found


def taught(rounds: Rounds, *stands: Stand, now_s: float = 360.0) -> list[Seen]:
    """What the end of a round has taught."""
    rounds.end(stands, [A], now_s, lambda: None)
    assert isinstance(rounds.speeds, Recording)
    return rounds.speeds.taught[-1]


def test_rounds_go_on_for_as_long_as_there_are_training_jobs() -> None:
    rounds, told = Rounds(Recording(), 360.0, threads=False), []
    rounds.attend([], 10.0, lambda: told.append("believe"))
    assert rounds.due_s == math.inf and not told
    rounds.attend([A], 10.0, lambda: told.append("believe"))
    assert rounds.due_s == 370.0 and told == ["believe"]  # what was kept of its kind counts at once
    rounds.attend([A], 20.0, lambda: told.append("believe"))
    assert rounds.due_s == 370.0 and told == ["believe"]
    rounds.attend([A, B], 30.0, lambda: told.append("believe"))
    assert told == ["believe"] * 2
    rounds.end([], [A, B], 371.0, lambda: told.append("ended"))
    assert rounds.due_s == 731.0 and told[2:] == ["ended"]
    rounds.attend([], 380.0, lambda: None)
    assert rounds.due_s == math.inf


def test_who_ran_through_a_round_has_shown_its_speed(rounds: Rounds) -> None:
    assert taught(rounds, stand(10, 5.0)) == []
    assert taught(rounds, stand(730, 365.0), now_s=720.0) == [Seen(7, A, 0, (), False, 360.0, 720)]
    near = stand(740, 725.0, near=frozenset({3}), neighbours=(B,), spread=True)
    assert taught(rounds, near, now_s=1080.0) == []  # somebody has come
    later = near._replace(step=840, at_s=1085.0)
    assert taught(rounds, later, now_s=1440.0) == [Seen(7, A, 0, (B,), True, 360.0, 100)]


@pytest.mark.parametrize(
    "after",
    [
        stand(730, 365.0, attempt=2),  # it was stopped, and went on
        stand(730, 365.0, near=frozenset({3})),  # somebody has come
        stand(730, 365.0, left_s=100.0),  # somebody was there, and has left
        stand(730, 365.0, neighbours=None),  # who is beside it is no training job
        stand(10, 365.0),  # it did no step
    ],
)
def test_what_is_no_report(rounds: Rounds, after: Stand) -> None:
    taught(rounds, stand(10, 5.0))
    assert taught(rounds, after, now_s=720.0) == []


def test_steps_longer_than_a_round_are_measured_over_several(rounds: Rounds) -> None:
    taught(rounds, stand(1, 5.0))
    assert taught(rounds, stand(1, 5.0), now_s=720.0) == []
    assert taught(rounds, stand(2, 805.0), now_s=1080.0) == [Seen(7, A, 0, (), False, 800.0, 1)]


def test_nobody_waits_for_who_learns(caplog: pytest.LogCaptureFixture) -> None:
    speeds = Recording()
    rounds, posted, done = Rounds(speeds, 360.0), [], []
    speeds.go_on.clear()
    rounds.done = posted.append
    rounds.end([], [A], 360.0, lambda: done.append(1))
    assert not done and not posted
    with caplog.at_level(logging.WARNING, "symphony.runtime"):
        rounds.end([], [A], 720.0, lambda: done.append(2))  # it is late: the round ends without it
    assert done == [2] and "not used" in caplog.text
    speeds.go_on.set()
    rounds.close()
    assert len(posted) == 1 and done == [2]
    posted[0]()
    assert done == [2, 1] and speeds._tables.kinds == (A,)
    with pytest.raises(EngineError, match="closed"):
        rounds.ask(lambda: None).result()


def test_what_cannot_be_learned_changes_nothing_and_the_round_ends(
    rounds: Rounds, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(rounds.speeds, Recording)
    before, done = rounds.speeds._tables, []
    rounds.speeds.fails = True
    rounds.end([], [A], 360.0, lambda: done.append(1))
    assert done == [1] and rounds.speeds._tables is before and "cannot be learned" in caplog.text


@pytest.mark.parametrize("round_s", [0.0, -1.0, math.nan, math.inf, "6"])
def test_a_round_takes_some_time(round_s: Any) -> None:
    with pytest.raises(InputError, match="round_s"):
        Rounds(Recording(), round_s)


@sy.training(steps=400, kind="patient", device="big", checkpoint_s=0.1, restore_s=0.1)
def patient(job):
    import time

    begun = [*(job.restore() or []), job.began]
    for _ in job.steps():
        time.sleep(0.01)
        if job.save_now:
            job.save(begun)
    return begun


@sy.training(steps=20, device="big")
def urgent(job):
    return list(job.steps())[-1]


def test_at_the_end_of_a_round_the_urgent_go_first_and_the_others_go_on_from_what_they_saved(tmp_path: Path) -> None:
    engine = LocalEngine(machine(slots=1, others=1))
    with Cluster(engine, policy="planner", profiles=tmp_path / "profiles.json", round_s=0.5) as cluster:
        first, second = sy.graph("patient"), sy.graph("urgent")
        first.task(patient)
        second.task(urgent)
        waits = cluster.submit(first)
        deadline = time.monotonic() + SECONDS
        while (told := waits._state.runs[0].progress) is None or told.step < 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        goes = cluster.submit(second, priority=1)
        assert goes.result(SECONDS) == 20
        assert waits.status == "running"
        begun = waits.result(SECONDS)
        assert len(begun) == 2 and begun[0] == 0 and begun[1] >= 10
        assert not cluster.statistics.fallbacks
        assert not any(timing.runs for timing in cluster.profiles.values())  # a whole run tells nothing of its steps
    assert (tmp_path / "profiles-training.json").exists()
