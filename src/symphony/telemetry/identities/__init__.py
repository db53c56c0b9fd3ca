"""Relations between counts that must hold whatever a program does: sums, and bounds.

A metric says what to compute from counts; it constrains nothing. What does is redundancy: a total that is listed beside
its parts, a difference that cannot be negative. *Mined* identities are read off a listing by rules that hold for every
vendor, *curated* ones are in `curated/*.toml`. All are claims; `gate.py` tests them on data.

The rules, and what an identity's `source` says:

    alias            two names for one thing
    umask union      one event code of the core, a mask that is the disjoint union of others
    likely union     … where bits may mean something else: outside the core, or numbers, or where cycles are counted
    reserved bits    … of all others that there are, though the total's mask has more bits
    umask product    masks that choose a kind *and* an outcome: kinds add up for one outcome, outcomes for one kind
    hit + miss       names that differ in hit/miss, read/write, load/store, and one that has neither
    top-down         children of a metric add up to it
    residual         a metric that is a difference, and would mean nothing if it were negative
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
