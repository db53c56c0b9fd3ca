"""Policies that learn, and all policies by name.

features ─► encoders ─► learned      (weights: in files)
"""

from __future__ import annotations

from symphony import baselines
from symphony.policies.learned import Learned, Network, Sizes
from symphony.policies.weights import SUFFIX, load, save
from symphony.scheduling.policy import Policy

__all__ = ["SUFFIX", "Learned", "Network", "Sizes", "load", "named", "save"]


def named(name: str) -> Policy:
    """The policy of a name: a baseline's, or the path of a file that training wrote."""
    if name.endswith(SUFFIX):
        return load(name)[0]
    return baselines.named(name)
