"""Identities: relations between counts that hold whatever a program does, such as sums and bounds.

A metric states what to compute from counts; it constrains nothing. Redundancy does: a total that is listed beside its
parts, a difference that cannot be negative. *Mined* identities follow from a listing by rules that hold for every
vendor, *curated* ones are in `curated/*.toml`. All are claims that `gate.py` tests on data.

The rules, and the `source` of their identities:

    alias            two names of one event
    umask union      one event code of the core, a mask that is the disjoint union of others
    likely union     the same if bits may have other meanings: outside the core, enumerations, cycles
    reserved bits    the union of all listed parts, though the total's mask has more bits
    umask product    masks that select a kind *and* an outcome: kinds add up for one outcome, outcomes for one kind
    hit + miss       names that differ in hit/miss, read/write, load/store, and one that has neither
    top-down         children of a metric add up to it
    residual         a metric that is a difference and cannot be negative
    percentage       a metric in per cent is at most 100
    bound            a mask that includes another; cycles with at least n of something, n times
    curated: …       a line of that file
"""

from __future__ import annotations

from symphony.telemetry.identities.curated_file import curated, read_curated
from symphony.telemetry.identities.relations import (
    Identity,
    Relation,
    identity,
    independent,
)
from symphony.telemetry.identities.rules import everything, mine

__all__ = [
    "Identity",
    "Relation",
    "curated",
    "everything",
    "identity",
    "independent",
    "mine",
    "read_curated",
]
