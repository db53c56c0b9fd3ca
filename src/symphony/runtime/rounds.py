"""Rounds of training jobs: what they did since the last one is learned from, and the policy is asked anew.

A round is six minutes, unless somebody says otherwise. At its end, whoever ran through it in one place and beside the
same neighbours has shown how fast it is there. A thread of its own learns from that, because a fit of the networks
takes seconds; when it is done, the loop goes by the new beliefs, and the core hears that a round has ended.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from symphony.problem import limits, units
from symphony.problem.errors import InputError
from symphony.runtime.speeds import Kind, Seen, Speeds, Tables

log = logging.getLogger("symphony.runtime")
ROUND_S = 360.0
LOGGED = 1_000  # entries that are kept
T = TypeVar("T")


class Stand(NamedTuple):
    """Where a training job is at the end of a round."""

    job: int
    attempt: int
    kind: Kind
    device: int  # number of the device kind
    spread: bool  # over several machines
    near: frozenset[int]  # attempts on the same devices
    neighbours: tuple[Kind, ...] | None  # what they are; None = not all of them are training jobs
    left_s: float  # when something left those devices for the last time
    step: float
    at_s: float  # when it had come to that step


class Rounds:
    """Ends rounds. Used by the loop's thread, but for `ask`."""

    def __init__(self, speeds: Speeds, round_s: float, *, threads: bool = True) -> None:
        if not units.is_number(round_s, 0.1, limits.SECONDS):
            raise InputError(f"round_s is {round_s!r}", hint="write seconds, 0.1 or more")
        self.speeds, self.round_s = speeds, round_s
        self.due_s = math.inf  # when the present round ends; inf = there is no training job
        self.done: Callable[[Callable[[], None]], None] = lambda then: then()  # has the loop's thread do something
        self._before: dict[int, Stand] = {}  # at the end of the round before, by attempt
        self._thread = ThreadPoolExecutor(1, "symphony-speeds") if threads else None
        self._late: Future | None = None
        self._known: frozenset[Kind] = frozenset()  # kinds that the newest tables are of

    def attend(self, kinds: Sequence[Kind], now_s: float, believe: Callable[[], None]) -> None:
        """Begin and end with the training jobs that there are; look up what is known of those who have just come."""
        if not kinds:
            self.due_s, self._before = math.inf, {}
        elif self.due_s == math.inf:
            self.due_s = now_s + self.round_s
        if not self._known.issuperset(kinds):
            self._learn([], now_s, kinds, believe)

    def end(self, stands: Sequence[Stand], kinds: Sequence[Kind], now_s: float, then: Callable[[], None]) -> None:
        """A round is over; `then` is done when what it has shown is known."""
        seen, before = [], {}
        for stand in stands:
            old = self._before.get(stand.attempt)
            calm = old is not None and old.near == stand.near and stand.left_s <= old.at_s
            # One that did no step is not slow: nobody knows what it does. When it has done one, that tells.
            idle = calm and old is not None and stand.step <= old.step
            before[stand.attempt] = old if idle and old is not None else stand
            if old is not None and calm and not idle and stand.neighbours is not None:
                seen.append(_seen(old, stand))
        self._before, self.due_s = before, now_s + self.round_s
        if not self._learn(seen, now_s, kinds, then):
            log.warning("what training jobs reported in this round is not used: the round before is still learned from")
            then()

    def _learn(self, seen: Sequence[Seen], now_s: float, kinds: Sequence[Kind], then: Callable[[], None]) -> bool:
        """Learn, and then have the loop's thread go by it; whether there was time for that."""
        if self._late is not None and not self._late.done():
            return False
        self._known = frozenset(kinds)

        def learn() -> None:
            tables = self._learned(seen, now_s, sorted(self._known))

            def adopt() -> None:
                if tables is not None:
                    self.speeds.adopt(tables)
                then()

            self.done(adopt)

        self._late = self.ask(learn)
        return True

    def _learned(self, seen: Sequence[Seen], now_s: float, kinds: Sequence[Kind]) -> Tables | None:
        import jax

        try:
            with jax.default_device(jax.devices("cpu")[0]):  # accelerators are for kernels
                learner = self.speeds.learner
                told = len(learner.log)
                tables = self.speeds.learn(seen, now_s, kinds)
        except Exception:
            log.exception("speeds of training jobs cannot be learned; what was believed before stands")
            return None
        for entry in learner.log[told:]:
            log.info("training jobs: %s: %s", entry.what, entry.why)
        del learner.log[:-LOGGED], learner.errors[:-LOGGED]
        return tables

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Have something done between two learnings, when nobody changes what is believed. Any thread may ask."""
        if self._thread is not None:
            return self._thread.submit(question)
        done: Future[T] = Future()
        done.set_result(question())
        return done

    def close(self) -> None:
        """Keep what was learned, and let the thread go."""
        self.ask(self.speeds.save)
        if self._thread is not None:
            self._thread.shutdown(wait=True)


def _seen(before: Stand, now: Stand) -> Seen:
    """What a job has done between two ends of rounds, with nothing changed around it."""
    near = now.neighbours or ()
    steps, seconds = now.step - before.step, now.at_s - before.at_s
    return Seen(now.job, now.kind, now.device, near, now.spread, seconds, steps)
