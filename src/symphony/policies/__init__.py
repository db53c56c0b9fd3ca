"""Learned policies, and all policies by name.

features ─► encoders ─► learned ─► batched, lookahead, explain
Weights are in files; `symphony.policy` is part of the package.

The planner and the forecasts of training jobs are in `symphony.training_jobs`.
"""

from __future__ import annotations

from pathlib import Path

from symphony.baselines import EftBelief
from symphony.baselines import named as baseline
from symphony.policies.batched import Batched
from symphony.policies.budgeted import Budgeted
from symphony.policies.explain import DecisionExplanation, explain
from symphony.policies.late_binding import LateBinding
from symphony.policies.learned import Learned, Network, Sizes, with_objective
from symphony.policies.lookahead import LookAhead
from symphony.policies.weights import SUFFIX, load, save
from symphony.problem.defaults import LIVE_POLICY, SHIPPED
from symphony.problem.errors import PolicyError
from symphony.scheduling.policy import Policy
from symphony.training_jobs.beliefs import Beliefs
from symphony.training_jobs.forecast import ClusterNow, JobNow, RecentArrivals, forecast
from symphony.training_jobs.job_forecast import JobForecast
from symphony.training_jobs.planner import Planner

__all__ = [
    "LATE_BINDING",
    "LIVE_POLICY",
    "LOOK_AHEAD",
    "PLANNER",
    "SHIPPED",
    "SUFFIX",
    "Batched",
    "Beliefs",
    "Budgeted",
    "ClusterNow",
    "DecisionExplanation",
    "JobForecast",
    "JobNow",
    "LateBinding",
    "Learned",
    "LookAhead",
    "Network",
    "Planner",
    "RecentArrivals",
    "Sizes",
    "explain",
    "forecast",
    "load",
    "named",
    "save",
    "with_objective",
]

LATE_BINDING = "symphony-late"  # the shipped policy with late binding
LOOK_AHEAD = "look-ahead"  # the shipped policy with rollouts by a heuristic
PLANNER = "planner"  # for training jobs, in rounds


def named(name: str) -> Policy:
    """A policy by name: the shipped one, the planner, a baseline, or the path of a file written by training.

    `symphony:8` places up to 8 gangs per evaluation of the network.
    """
    if name == PLANNER:
        return Planner()
    if name.startswith(SHIPPED + ":"):
        most = name.partition(":")[2]
        if not most.isdecimal() or int(most) < 1:
            raise PolicyError(f"{name!r} is not a policy", hint=f"write a number of placements: {SHIPPED}:8")
        return Batched(_shipped(), int(most))
    if name == LATE_BINDING:
        return LateBinding(_shipped())
    if name == LIVE_POLICY:
        return Budgeted(LateBinding(_shipped()))
    if name in (SHIPPED, LOOK_AHEAD):
        shipped = _shipped()
        return shipped if name == SHIPPED else LookAhead(shipped, rolls=EftBelief())
    if name.endswith(SUFFIX):
        return load(name)[0]
    return baseline(name, (SHIPPED, LIVE_POLICY, LATE_BINDING, LOOK_AHEAD, PLANNER))


def _shipped() -> Learned:
    return load(Path(__file__).with_name(SHIPPED + SUFFIX))[0]
