"""Policies that decide without learning, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from symphony.baselines.earliest_finish import EftBelief, EftExact, EftStatic, Heft
from symphony.baselines.simple import Fifo, Random, ShortestQueue, Sjf
from symphony.problem.errors import InputError
from symphony.scheduling.policy import Policy

__all__ = ["BASELINES", "EftBelief", "EftExact", "EftStatic", "Fifo", "Heft", "Random", "ShortestQueue", "Sjf", "named"]

BASELINES: Mapping[str, type[Policy]] = {
    "random": Random,
    "fifo": Fifo,
    "shortest-queue": ShortestQueue,
    "sjf": Sjf,
    "heft": Heft,
    "eft-static": EftStatic,
    "eft-belief": EftBelief,
    "eft-exact": EftExact,
}


def named(name: str) -> Policy:
    """The policy of that name."""
    if name not in BASELINES:
        close = difflib.get_close_matches(name, BASELINES, 1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"unknown policy {name!r}", hint=f"{meant}there are {', '.join(BASELINES)}")
    return BASELINES[name]()
