"""The public check of counter sources: it passes what is right, and names each thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

import symphony as sy
from symphony.problem.errors import InputError
from symphony.telemetry.samples import Column, Problem, Sample
from symphony.testing import check_counter_source


def sample(k: int) -> Sample:
    columns = (Column("cycles"), Column("instructions", 1))
    return Sample("CPU0", 0.1 * k, 0.1, columns, np.array([5.0, np.nan]), np.array([0.1, 0.0]), np.array([0.1, 0.1]))


class Fine:
    """Keeps the contract, for ever; `change` spoils a sample."""

    def __init__(self, change: Callable[[Sample], Any] = lambda sample: sample, problems: Any = ()) -> None:
        self._change, self._problems = change, problems

    @property
    def problems(self) -> Sequence[Problem]:
        return self._problems

    def samples(self) -> Iterator[Sample]:
        yield from (self._change(sample(k)) for k in count())


def test_a_source_without_end_passes() -> None:
    assert sy.testing.check_counter_source(Fine()) is None  # type: ignore[func-returns-value]
    check_counter_source(Fine(problems=[Problem("line 3", "is wrong")]), most=3)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: 5, "a sample is int"),
        (lambda s: replace(s, where=3), "where is not a string"),
        (lambda s: replace(s, start_s=1.0), "begins before the one before it ended"),
        (lambda s: replace(s, duration_s=0.0), "lasts 0.0 s"),
        (lambda s: replace(s, start_s=float("nan")), "lasts"),
        (lambda s: replace(s, columns=list(s.columns)), "columns is not a tuple"),
        (lambda s: replace(s, columns=s.columns[:1] * 2), "has a column twice"),
        (lambda s: replace(s, count=[1.0, 2.0]), "count is list"),
        (lambda s: replace(s, count=s.count[:1]), "count is float64(1,) for 2 columns"),
        (lambda s: replace(s, running_s=s.running_s.astype(np.float32)), "running_s is float32"),
        (lambda s: replace(s, count=-s.count), "negative count"),
        (lambda s: replace(s, count=s.count * np.inf), "infinite count"),
        (lambda s: replace(s, running_s=s.running_s * np.nan), "not finite"),
        (lambda s: replace(s, enabled_s=s.enabled_s / 2), "ran for longer than it was enabled"),
        (lambda s: replace(s, count=np.nan_to_num(s.count)), "count of a column that did not run"),
    ],
)
def test_what_is_wrong_with_a_sample_is_named(change: Callable[[Sample], Any], what: str) -> None:
    with pytest.raises(InputError) as error:
        check_counter_source(Fine(change))
    assert what in error.value.message and error.value.hint and error.value.where == "counter source Fine"


@pytest.mark.parametrize("problems", [5, ["text"], [Problem("", "what")], [Problem("where", " ")]])
def test_problems_are_a_list_of_problems(problems: Any) -> None:
    with pytest.raises(InputError, match="problem"):
        check_counter_source(Fine(problems=problems))


def test_arrays_are_not_used_again() -> None:
    shared = np.array([0.0, np.nan])

    def change(one: Sample) -> Sample:
        shared[0] += 1
        return replace(one, count=shared)

    with pytest.raises(InputError, match="a sample changed after it was yielded"):
        check_counter_source(Fine(change))


def test_what_is_no_source() -> None:
    class Empty(Fine):
        def samples(self) -> Iterator[Sample]:
            yield from ()

    class Listed(Fine):
        def samples(self) -> Any:
            return [sample(0)]

    for source, what in (
        (object(), "is not a CounterSource"),
        (Empty(), "yields no sample"),
        (Listed(), "samples() returns list"),
    ):
        with pytest.raises(InputError) as error:
            check_counter_source(source)  # type: ignore[arg-type]
        assert what in str(error.value)
