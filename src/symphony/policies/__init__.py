"""Policies that learn, and all policies by name.

features ─► encoders ─► learned ─► lookahead, explain   (weights: in files; `symphony.policy` comes with the package)
"""

from __future__ import annotations

from pathlib import Path

from symphony import baselines
from symphony.policies.explain import Explanation, explain
from symphony.policies.learned import Learned, Network, Sizes
from symphony.policies.lookahead import LookAhead
from symphony.policies.weights import SUFFIX, load, save
from symphony.scheduling.policy import Policy

__all__ = [
    "AHEAD",
    "SHIPPED",
    "SUFFIX",
    "Explanation",
    "Learned",
    "LookAhead",
    "Network",
    "Sizes",
    "explain",
    "load",
    "named",
    "save",
]

SHIPPED = "symphony"  # the policy that is used where none is asked for
AHEAD = "look-ahead"  # the same, asking the simulator first; what is asked there, a heuristic decides


def named(name: str) -> Policy:
    """The policy of a name: the shipped one, a baseline, or the path of a file that training wrote."""
    if name in (SHIPPED, AHEAD):
        shipped = load(Path(__file__).with_name(SHIPPED + SUFFIX))[0]
        return shipped if name == SHIPPED else LookAhead(shipped, rolls=baselines.EftBelief())
    if name.endswith(SUFFIX):
        return load(name)[0]
    return baselines.named(name)
