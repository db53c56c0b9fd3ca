"""The public check of counter sources: does one keep its contract?"""

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
    """Raise `InputError`, saying what to change, unless a counter source keeps its contract on its first samples.

    Windows of a place follow one another, and last some time. Columns are distinct; for each there is a count that is
    not negative, or NaN where it had no counter; running and enabled times are finite, running is the shorter. Samples
    stay as they were given. Problems are a list of `Problem`, before, while and after samples come.
    """
    name = type(source).__name__
    where = f"counter source {name}"

    def expect(holds: object, what: str, hint: str) -> None:
        if not holds:
            raise InputError(what, where=where, hint=hint)

    expect(isinstance(source, CounterSource), "is none", "give it a method `samples` and a property `problems`")
    _check_problems(source, expect)
    found = source.samples()
    expect(isinstance(found, Iterator), f"samples() gives {type(found).__name__}", "write it as a generator")
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
            "give the windows of a place in order of time, and leave out those of a clock that went back",
        )
        ends[sample.where] = sample.start_s + sample.duration_s
        kept.append((sample, [array.copy() for array in _arrays(sample)]))
        _check_problems(source, expect)
    expect(kept, "gives no sample", "check it where there is something to read")
    expect(
        all(
            np.array_equal(now, then, equal_nan=True)
            for sample, before in kept
            for now, then in zip(_arrays(sample), before, strict=True)
        ),
        "a sample changed after it was given",
        "make new arrays for each sample",
    )
    if hasattr(found, "close"):
        found.close()
    _check_problems(source, expect)


def _arrays(sample: Sample) -> tuple[np.ndarray, ...]:
    return sample.count, sample.running_s, sample.enabled_s


def _check_sample(sample: Sample, expect: _Expect) -> None:
    at = f"the sample of {sample.where!r} at {sample.start_s!r} s"
    expect(isinstance(sample.where, str), f"{at}: where is no string", 'use "" if there is only one place')
    expect(
        np.isfinite(sample.start_s) and np.isfinite(sample.duration_s) and sample.duration_s > 0,
        f"{at} lasts {sample.duration_s!r} s",
        "leave out windows whose length is not known",
    )
    columns = sample.columns
    expect(
        isinstance(columns, tuple) and all(isinstance(column, Column) for column in columns),
        f"{at}: columns are no tuple of Column",
        'columns=(Column("cycles"), Column("instructions"))',
    )
    expect(len(set(columns)) == len(columns), f"{at} has a column twice", "give the second one a group of its own")
    for name, array in zip(("count", "running_s", "enabled_s"), _arrays(sample), strict=True):
        shape = getattr(array, "shape", None)
        expect(
            isinstance(array, np.ndarray) and array.dtype == np.float64 and shape == (len(columns),),
            f"{at}: {name} is {getattr(array, 'dtype', type(array).__name__)}{shape} for {len(columns)} columns",
            "give an array of float64, one for each column",
        )
    count, running, enabled = _arrays(sample)
    expect(not (count < 0).any(), f"{at} has a negative count", "NaN where a counter went back")
    expect(not np.isinf(count).any(), f"{at} has an infinite count", "NaN where nothing is known")
    expect(
        np.isfinite(running).all() and np.isfinite(enabled).all() and (running >= 0).all(),
        f"{at} has a running or enabled time that is negative or not finite",
        "0 where a column had no counter",
    )
    expect(
        (running <= enabled * (1 + _TIME_TOLERANCE) + _TIME_TOLERANCE).all(),
        f"{at} has a column that ran for longer than it was enabled",
        "enabled_s is the time for which a counter was wanted, running_s for which there was one",
    )
    expect(
        np.isnan(count[running == 0]).all(),
        f"{at} has a count of a column that did not run",
        "NaN where running_s is 0: nothing was counted, which is not the same as 0",
    )


def _check_problems(source: CounterSource, expect: _Expect) -> None:
    problems = source.problems
    expect(
        isinstance(problems, Sequence) and all(isinstance(problem, Problem) for problem in problems),
        "problems are no list of Problem",
        'return a list: [Problem("perf.json, line 12", "what is wrong")]',
    )
    expect(
        all(problem.where.strip() and problem.what.strip() for problem in problems),
        "a problem does not say where or what",
        'Problem("perf.json, line 12", "what is wrong")',
    )
