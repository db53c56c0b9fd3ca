"""Policies that learn, and all policies by name.

features ─► encoders ─► learned ─► explain      (weights: in files; those of `symphony.policy` come with the package)
"""

from __future__ import annotations

from pathlib import Path

from symphony import baselines
from symphony.policies.explain import Explanation, explain
from symphony.policies.learned import Learned, Network, Sizes
from symphony.policies.weights import SUFFIX, load, save
from symphony.scheduling.policy import Policy

__all__ = ["SHIPPED", "SUFFIX", "Explanation", "Learned", "Network", "Sizes", "explain", "load", "named", "save"]

SHIPPED = "symphony"  # the policy that is used where none is asked for


def named(name: str) -> Policy:
    """The policy of a name: the shipped one, a baseline, or the path of a file that training wrote."""
    if name == SHIPPED:
        return load(Path(__file__).with_name(SHIPPED + SUFFIX))[0]
    if name.endswith(SUFFIX):
        return load(name)[0]
    return baselines.named(name)
