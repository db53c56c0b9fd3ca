"""What goes wrong in a run, as one record: how often, and until when."""

from __future__ import annotations

import random
from dataclasses import dataclass

CALM_S = 60.0  # of a run, after which nothing goes wrong any more


class Broken(BaseException):
    """A property that does not hold. No handler of errors in between takes it for one of its own."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Killed(BaseException):
    """The process of the service is gone, at once."""


@dataclass(frozen=True)
class Faults:
    """Chances, of each thing that can happen; 0 = never."""

    # News of the engine.
    lose: float = 0.0
    delay: float = 0.0  # and so come in another order
    double: float = 0.0
    # Runs of kernels.
    killed: float = 0.0  # from outside
    crash: float = 0.0
    hang: float = 0.0  # of those that have a bound
    flaky: float = 0.0  # of those that are tried again, after a delay: they raise
    garbage: float = 0.0  # their process answers nonsense, and is ended
    inputs_lost: float = 0.0
    values_lost: float = 0.0
    # In each second:
    device: float = 0.0  # one goes, or comes back
    death: float = 0.0  # of the engine
    disk_full: float = 0.0  # for a while
    store_full: float = 0.0  # where the engine keeps values, for a while
    clock: float = 0.0  # somebody sets it
    taken: float = 0.0  # another process takes the journal over
    database: float = 0.0  # is away for a while: nothing can be read or written, and the lock is lost
    stop: float = 0.0  # an operator drains the service, ends it and starts it again
    files: float = 0.0  # no file can be opened, for a while
    # Other parts.
    slow_disk: float = 0.0  # of writes
    answer_lost: float = 0.0  # of writes that are through
    kill: float = 0.0  # at each of the many points at which the service can be killed
    policy: float = 0.0  # of turns: it raises, or is late
    damage: float = 0.0  # of starts: an event was damaged before

    since_s: float = 0.0

    def go_on(self, now_s: float) -> bool:
        """Whether something may still go wrong."""
        return now_s < self.since_s + CALM_S


RATES = {
    "lose": 0.05,
    "delay": 0.3,
    "double": 0.2,
    "killed": 0.1,
    "crash": 0.02,
    "hang": 0.3,
    "inputs_lost": 0.1,
    "values_lost": 0.05,
    "device": 0.1,
    "death": 0.05,
    "disk_full": 0.1,
    "store_full": 0.05,
    "clock": 0.1,
    "slow_disk": 0.2,
    "answer_lost": 0.05,
    "kill": 0.03,
    "policy": 0.2,
    "taken": 0.03,
    "database": 0.1,
    "files": 0.1,
    "garbage": 0.1,
    "flaky": 0.8,
    "stop": 0.05,
    "damage": 0.2,
}


def drawn(rng: random.Random, since_s: float) -> Faults:
    """Some of them: where everything goes wrong at once, little is ever reached."""
    return Faults(**{name: rate * rng.random() for name, rate in RATES.items() if rng.random() < 0.4}, since_s=since_s)
