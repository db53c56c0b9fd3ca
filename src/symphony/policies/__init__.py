"""Policies that learn, and all policies by name.

features ─► encoders ─► learned ─► batched, lookahead, explain
Weights are in files; `symphony.policy` comes with the package.

For training jobs whose speeds are not known:
samples ─► performance_model ─► beliefs ─► board, exploration ─► planner   (describing: what beliefs start from;
                                   └─► rolling ─► forecast                  learning: what a round's reports change)
"""

from __future__ import annotations

from pathlib import Path

from symphony.baselines import EftBelief
from symphony.baselines import named as baseline
from symphony.policies.batched import Batched
from symphony.policies.beliefs import Beliefs
from symphony.policies.explain import Explanation, explain
from symphony.policies.exploration import Exploration
from symphony.policies.forecast import ClusterNow, Coming, JobForecast, JobNow, forecast
from symphony.policies.late import Late
from symphony.policies.learned import Learned, Network, Sizes
from symphony.policies.lookahead import LookAhead
from symphony.policies.planner import Planner
from symphony.policies.weights import SUFFIX, load, save
from symphony.problem.defaults import SHIPPED
from symphony.problem.errors import PolicyError
from symphony.scheduling.policy import Policy

__all__ = [
    "AHEAD",
    "LATE",
    "PLANNER",
    "SHIPPED",
    "SUFFIX",
    "Batched",
    "Beliefs",
    "ClusterNow",
    "Coming",
    "Explanation",
    "Exploration",
    "JobForecast",
    "JobNow",
    "Late",
    "Learned",
    "LookAhead",
    "Network",
    "Planner",
    "Sizes",
    "explain",
    "forecast",
    "load",
    "named",
    "save",
]

LATE = "symphony-late"  # the shipped one, deciding who comes next only when a device is about to be free
AHEAD = "look-ahead"  # the same, asking the simulator first; what is asked there, a heuristic decides
PLANNER = "planner"  # of training jobs, round by round


def named(name: str) -> Policy:
    """The policy of a name: the shipped one, the planner, a baseline, or the path of a file that training wrote.

    `symphony:8` places up to 8 gangs for each time that it thinks.
    """
    if name == PLANNER:
        return Planner()
    if name.startswith(SHIPPED + ":"):
        most = name.partition(":")[2]
        if not most.isdecimal() or int(most) < 1:
            raise PolicyError(f"{name!r} is no policy", hint=f"write a number of decisions: {SHIPPED}:8")
        return Batched(_shipped(), int(most))
    if name == LATE:
        return Late(_shipped())
    if name in (SHIPPED, AHEAD):
        shipped = _shipped()
        return shipped if name == SHIPPED else LookAhead(shipped, rolls=EftBelief())
    if name.endswith(SUFFIX):
        return load(name)[0]
    return baseline(name, (SHIPPED, LATE, AHEAD, PLANNER))


def _shipped() -> Learned:
    return load(Path(__file__).with_name(SHIPPED + SUFFIX))[0]
