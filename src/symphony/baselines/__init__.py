"""Policies that decide without learning, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symphony.baselines.allox import AlloX
from symphony.baselines.earliest_finish import EftBelief, EftExact, EftRebinding, EftStatic, Heft
from symphony.baselines.gavel import (
    FifoPassing,
    FinishTimeFairness,
    FinishTimeFairnessPacked,
    MaxMinFairness,
    MaxMinFairnessPacked,
    MaxMinFairnessPlain,
    MaxSumThroughput,
    MaxSumThroughputPacked,
    MinTotalDuration,
    MinTotalDurationPacked,
)
from symphony.baselines.graphene import Graphene
from symphony.baselines.interference import LeastInterference, LoadBalancing
from symphony.baselines.list_scheduling import Cpop, Peft
from symphony.baselines.optimus import Optimus
from symphony.baselines.packing import Drf, Tetris
from symphony.baselines.paragon import Paragon, ParagonProfiled
from symphony.baselines.preemptive import Las, Srtf, Tiresias
from symphony.baselines.simple import Fifo, Random, ShortestQueue, Sjf
from symphony.baselines.sparrow import Sparrow, SparrowBatch
from symphony.baselines.starpu import Dm, Dmda, Dmdas, Heteroprio
from symphony.problem.errors import InputError
from symphony.problem.texts import did_you_mean
from symphony.scheduling.policy import Policy

# For preemptible training jobs; elsewhere they only cost time.
_TRAINING: Mapping[str, type[Policy]] = {
    "srtf": Srtf,
    "las": Las,
    "tiresias": Tiresias,
    "optimus": Optimus,
    "allox": AlloX,
    "max-min-fairness": MaxMinFairness,
    "max-min-fairness-plain": MaxMinFairnessPlain,
    "max-min-fairness-packed": MaxMinFairnessPacked,
    "max-sum-throughput": MaxSumThroughput,
    "max-sum-throughput-packed": MaxSumThroughputPacked,
    "min-total-duration": MinTotalDuration,
    "min-total-duration-packed": MinTotalDurationPacked,
    "finish-time-fairness": FinishTimeFairness,
    "finish-time-fairness-packed": FinishTimeFairnessPacked,
}
FOR_TRAINING: frozenset[str] = frozenset(_TRAINING)

BASELINES: Mapping[str, type[Policy]] = {
    "random": Random,
    "fifo": Fifo,
    "shortest-queue": ShortestQueue,
    "sjf": Sjf,
    "heft": Heft,
    "cpop": Cpop,
    "peft": Peft,
    "dm": Dm,
    "dmda": Dmda,
    "dmdas": Dmdas,
    "heteroprio": Heteroprio,
    "sparrow": Sparrow,
    "sparrow-batch": SparrowBatch,
    "paragon": Paragon,
    "paragon-profiled": ParagonProfiled,
    "graphene": Graphene,
    "tetris": Tetris,
    "drf": Drf,
    "least-interference": LeastInterference,
    "load-balancing": LoadBalancing,
    "fifo-passing": FifoPassing,
    **_TRAINING,
    "eft-static": EftStatic,
    "eft-belief": EftBelief,
    "eft-rebinding": EftRebinding,
    "eft-exact": EftExact,
}

__all__ = ["BASELINES", "FOR_TRAINING", "named", *sorted(policy.__name__ for policy in BASELINES.values())]  # noqa: PLE0604


def named(name: str, others: Sequence[str] = ()) -> Policy:
    """A new policy by name. `others` are further names for the hint of the error message."""
    if name not in BASELINES:
        available = [*others, *BASELINES]
        raise InputError(
            f"unknown policy {name!r}", hint=f"{did_you_mean(name, available)}there are {', '.join(available)}"
        )
    return BASELINES[name]()
