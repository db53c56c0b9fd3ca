"""Random expressions, and their values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from symphony.telemetry.evaluating import Definitions, compile_expressions
from symphony.telemetry.expressions import (
    BINARY_FUNCTIONS,
    NOT_A_NUMBER,
    PRECEDENCE,
    QUERIES,
    Binary,
    Conditional,
    Constant,
    Expression,
    Name,
    NameQuery,
    Negative,
    Number,
)
from symphony.telemetry.machine import Platform

EVENTS = ("a", "B", "cpu@c,umask=0x1@", "top-down")
# Neither so small nor so large that products leave the range of normal numbers: XLA takes what is below for zero.
_numbers = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 0.5, 1e9, 1e-9, NOT_A_NUMBER]), st.floats(1e-12, 1e15))
_leaves = st.one_of(
    st.builds(Number, _numbers),
    st.builds(Name, st.sampled_from(EVENTS)),
    st.builds(Constant, st.sampled_from(["#SMT_on", "#num_packages", "#slots"])),
    st.builds(NameQuery, st.sampled_from(QUERIES), st.sampled_from([*EVENTS, "missing"])),
)


def _deeper(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(Negative, inner),
        st.builds(Binary, st.sampled_from([*PRECEDENCE, *BINARY_FUNCTIONS]), inner, inner),
        st.builds(Conditional, inner, inner, inner),
    )


expressions: st.SearchStrategy[Expression] = st.recursive(_leaves, _deeper, max_leaves=12)


def evaluate(
    tree: Expression,
    counts: Mapping[str, float],
    *,
    definitions: Definitions | None = None,
    platform: Platform | None = None,
) -> float:
    """The value of one expression given counts of events: raw counts, `duration_time` in seconds."""
    compiled = compile_expressions({"": tree}, definitions=definitions, platform=platform, inputs=tuple(counts))
    return float(compiled(np.array(list(counts.values()), float))[0])
