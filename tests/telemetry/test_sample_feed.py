"""Sources read side by side: the lead says when it ends, and is replaced if it cannot begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.sample_feed import CommandLead, IdleLead, SampleFeed
from symphony.telemetry.samples import Column, Problem, Sample
from symphony.telemetry.sources import KernelSource


def sample(where: str, start_s: float = 0.0) -> Sample:
    one = np.array([1.0])
    return Sample(where, start_s, 0.1, (Column("a"),), one, one, one)


class Given:
    """Some samples, then an error or the end."""

    problems: Sequence[Problem] = ()
    exit_status = 0
    cuts = False
    first_read_s: float | None = None
    began_s = ended_s = None

    def __init__(self, *samples: Sample, error: Exception | None = None) -> None:
        self._samples, self._error = samples, error
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None

    def samples(self) -> Iterator[Sample]:
        if self._samples:
            self.on_begin()
        yield from self._samples
        if self._error:
            raise self._error

    def stop(self) -> None:
        """Nothing to stop."""


def lead(*samples: Sample, error: Exception | None = None) -> CommandLead:
    return Given(*samples, error=error)  # type: ignore[return-value]


def test_it_ends_with_its_lead_and_polled_sources_have_a_last_window() -> None:
    command = CommandLead(["sleep", "0.15"])
    feed = SampleFeed([command])
    feed.others = [KernelSource(interval_s=10.0, sleep=feed.pause, where="machine")]
    (one,) = list(feed)
    assert one.where == "machine" and one.start_s == 0
    assert feed.elapsed_s is not None and feed.elapsed_s >= 0.15
    assert one.duration_s == pytest.approx(feed.elapsed_s)


def test_windows_of_other_sources_are_cut_to_the_command() -> None:
    """Windows of 1 s from second 10 on, and a command from 10.5 to 12.25: the first window loses a half."""
    one = CommandLead(["true"])
    feed = SampleFeed([one])
    feed.lead, one.began_s, one.ended_s = one, 10.5, 12.25
    source = Given()
    source.first_read_s = 10.0
    for start in (-1.0, 0.0, 1.0, 2.0, 3.0):
        feed._put(source, Sample("x", start, 1.0, (Column("a"),), np.array([8.0]), np.array([1.0]), np.array([1.0])))
    found = [feed._queue.get() for _ in range(feed._queue.qsize())]
    assert [(s.start_s, s.duration_s, *s.count, *s.running_s) for s in found if isinstance(s, Sample)] == [
        (0.0, 0.5, 4.0, 0.5),
        (0.5, 1.0, 8.0, 1.0),
        (1.5, 0.25, 2.0, 0.25),
    ]


def test_a_lead_that_cannot_begin_is_replaced_and_the_reserve_begins() -> None:
    said: list[str] = []
    feed = SampleFeed([lead(error=DataError("not permitted")), lead(sample("second"))], note=said.append)
    feed.reserve = [Given(sample("reserve"))]
    assert {one.where for one in feed} == {"second", "reserve"}
    assert said == ["not permitted"]
    assert feed.lead is not None and len(feed.sources) == 2


def test_a_lead_that_fails_later_or_last_is_an_error() -> None:
    for leads in ([lead(error=DataError("no"))], [lead(sample(""), error=DataError("no")), lead(sample("never"))]):
        with pytest.raises(DataError, match="no"):
            list(SampleFeed(leads))


def test_another_source_that_fails_is_only_noted() -> None:
    said: list[str] = []
    feed = SampleFeed([CommandLead(["sleep", "0.1"])], note=said.append)
    feed.others = [Given(sample("x"), error=DataError("gone"))]
    assert [one.where for one in feed] == ["x"] and said == ["gone"]


def test_the_rest_after_an_interruption() -> None:
    feed = SampleFeed([IdleLead()])
    feed.others = [Given(sample("a"), sample("a", 0.1))]
    for one in feed:
        assert one.start_s == 0.0
        break
    assert [one.start_s for one in feed.rest()] == [0.1]


def test_a_commands_status() -> None:
    one = CommandLead(["sh", "-c", "exit 4"])
    assert list(SampleFeed([one])) == [] and one.exit_status == 4
    long = CommandLead(["sleep", "60"])
    feed = SampleFeed([long])
    feed.others = [Given(sample("a"))]
    next(iter(feed))
    assert list(feed.rest()) == [] and long.exit_status == -15
    with pytest.raises(InputError, match="cannot be started"):
        list(SampleFeed([CommandLead(["/no/such/command"])]))
