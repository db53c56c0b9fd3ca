"""The public conformance check of counter sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry.samples import Column, CounterSource, Problem, Sample

_TIME_TOLERANCE = 1e-6  # seconds, and relative


class _Expect(Protocol):
    def __call__(self, holds: object, what: str, hint: str) -> None: ...


def check_counter_source(source: CounterSource, most: int = 64) -> None:
    """Raise `InputError`, saying what to change, unless the first `most` samples of a counter source keep its contract.

    Windows of a place do not overlap, are in order, and have a positive length. Columns are distinct. Counts are not
    negative, and NaN where a column had no counter. Running and enabled times are finite; running is at most enabled.
    Samples do not change later. `problems` is always a list of `Problem`.
    """
    name = type(source).__name__
    where = f"counter source {name}"

    def expect(holds: object, what: str, hint: str) -> None:
        if not holds:
            raise InputError(what, where=where, hint=hint)

    expect(
        isinstance(source, CounterSource),
        "is not a CounterSource",
        "define a method `samples` and a property `problems`",
    )
    _check_problems(source, expect)
    found = source.samples()
    expect(isinstance(found, Iterator), f"samples() returns {type(found).__name__}", "write it as a generator")
    ends: dict[str, float] = {}
    kept: list[tuple[Sample, list[np.ndarray]]] = []
    for sample in islice(found, most):
        expect(isinstance(sample, Sample), f"a sample is {type(sample).__name__}", "yield symphony's Sample")
        _check_sample(sample, expect)
        at = f"the sample of {sample.where!r} at {sample.start_s:.9g} s"
        end = ends.get(sample.where, -np.inf)
        expect(
            sample.start_s >= end - _TIME_TOLERANCE - abs(end if np.isfinite(end) else 0.0) * _TIME_TOLERANCE,
            f"{at} begins before the one before it ended, at {end:.9g} s",
            "yield the windows of a place in order of time; omit windows where the clock went back",
        )
        ends[sample.where] = sample.start_s + sample.duration_s
        kept.append((sample, [array.copy() for array in _arrays(sample)]))
        _check_problems(source, expect)
    expect(kept, "yields no sample", "check it where there are counters to read")
    expect(
        all(
            np.array_equal(now, earlier, equal_nan=True)
            for sample, before in kept
            for now, earlier in zip(_arrays(sample), before, strict=True)
        ),
        "a sample changed after it was yielded",
        "make new arrays for each sample",
    )
    if hasattr(found, "close"):
        found.close()
    _check_problems(source, expect)


def _arrays(sample: Sample) -> tuple[np.ndarray, ...]:
    return sample.count, sample.running_s, sample.enabled_s


def _check_sample(sample: Sample, expect: _Expect) -> None:
    at = f"the sample of {sample.where!r} at {sample.start_s!r} s"
    expect(isinstance(sample.where, str), f"{at}: where is not a string", 'use "" if there is only one place')
    expect(
        np.isfinite(sample.start_s) and np.isfinite(sample.duration_s) and sample.duration_s > 0,
        f"{at} lasts {sample.duration_s!r} s",
        "omit windows of unknown length",
    )
    columns = sample.columns
    expect(
        isinstance(columns, tuple) and all(isinstance(column, Column) for column in columns),
        f"{at}: columns is not a tuple of Column",
        'columns=(Column("cycles"), Column("instructions"))',
    )
    expect(len(set(columns)) == len(columns), f"{at} has a column twice", "use another group for the second one")
    for name, array in zip(("count", "running_s", "enabled_s"), _arrays(sample), strict=True):
        shape = getattr(array, "shape", None)
        expect(
            isinstance(array, np.ndarray) and array.dtype == np.float64 and shape == (len(columns),),
            f"{at}: {name} is {getattr(array, 'dtype', type(array).__name__)}{shape} for {len(columns)} columns",
            "use an array of float64 with one entry for each column",
        )
    count, running, enabled = _arrays(sample)
    expect(not (count < 0).any(), f"{at} has a negative count", "use NaN where a counter went back")
    expect(not np.isinf(count).any(), f"{at} has an infinite count", "use NaN where the count is unknown")
    expect(
        np.isfinite(running).all() and np.isfinite(enabled).all() and (running >= 0).all(),
        f"{at} has a running or enabled time that is negative or not finite",
        "use 0 where a column had no counter",
    )
    expect(
        (running <= enabled * (1 + _TIME_TOLERANCE) + _TIME_TOLERANCE).all(),
        f"{at} has a column that ran for longer than it was enabled",
        "enabled_s is the time for which a counter was requested, running_s for which it counted",
    )
    expect(
        np.isnan(count[running == 0]).all(),
        f"{at} has a count of a column that did not run",
        "use NaN where running_s is 0: nothing was counted, which is not a count of 0",
    )


def _check_problems(source: CounterSource, expect: _Expect) -> None:
    problems = source.problems
    expect(
        isinstance(problems, Sequence) and all(isinstance(problem, Problem) for problem in problems),
        "problems is not a list of Problem",
        'return a list: [Problem("perf.json, line 12", "what is wrong")]',
    )
    expect(
        all(problem.where.strip() and problem.what.strip() for problem in problems),
        "a problem has an empty where or what",
        'Problem("perf.json, line 12", "what is wrong")',
    )
