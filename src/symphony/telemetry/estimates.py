"""Estimates of events and metrics by name: window by window, and over all windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.expressions import key
from symphony.telemetry.gate import Verdict
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.samples import Floats
from symphony.telemetry.spans import Span, StatRow


@dataclass(frozen=True, eq=False)
class Estimate:
    """An event's count or a metric's value, window by window."""

    name: str
    unit: str
    mean: Floats  # [K]; NaN if unknown
    std: Floats  # [K]
    lower: Floats  # [K]: of the 95% interval
    upper: Floats  # [K]


@dataclass(frozen=True, eq=False)
class Posterior:
    """The belief about one place."""

    reader: Reader
    net: BayesNet
    spans: tuple[Span, ...]  # one for each window
    verdicts: tuple[Verdict, ...] = ()

    def __repr__(self) -> str:
        place = f" of {self.where}" if self.where else ""
        events = f"{len(self.net.events)} events, {len(self.net.free)} of them free"
        return f"<Posterior{place}: {len(self)} windows, {events}, {self.model.catalogue.name}>"

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, name: str) -> Estimate:
        """The estimate of an event's count, or of a metric."""
        return self._estimates([name], self.spans)[name]

    def metrics(self, names: Sequence[str]) -> dict[str, Estimate]:
        """Estimates of metrics, all from the same draws: what adds up in every draw adds up in the means."""
        return _side_by_side(names, [span.metrics(tuple(names)) for span in self.spans])

    def events(self) -> dict[str, Estimate]:
        """Estimates of all events, counted and derived."""
        return self._estimates(tuple(dict.fromkeys((*self.net.events, *self.whole.tallies))), self.spans)

    def total(self, name: str) -> Estimate:
        """The count of an event, or the value of a metric, over all windows together."""
        return self._estimates([name], [self.whole])[name]

    @cached_property
    def whole(self) -> Span:
        whole = Span(self.reader, self.where, self.spans[0].start_s if self.spans else 0.0)
        for span in self.spans:
            whole.add(span)
        return whole

    @property
    def model(self) -> Model:
        return self.reader.model

    @property
    def where(self) -> str:
        return self.spans[0].where if self.spans else ""

    @property
    def start_s(self) -> Floats:
        """Starts of windows [K]."""
        return np.array([span.start_s for span in self.spans])

    @property
    def duration_s(self) -> Floats:
        """Lengths of windows [K]."""
        return np.array([span.duration_s for span in self.spans])

    def is_event(self, name: str) -> bool:
        """Whether the event was counted, or follows from counted events."""
        node = self.reader.node(name)
        return node in self.net.events or node in self.whole.tallies

    def _estimates(self, names: Sequence[str], spans: Sequence[Span]) -> dict[str, Estimate]:
        metrics = [name for name in names if not self.is_event(name)]
        known = self.model.catalogue.definitions()
        if unknown := [name for name in metrics if key(name) not in known]:
            events = ", ".join(self.net.events[:6])
            raise InputError(
                f"{unknown[0]} was not counted, and {self.model.catalogue.name} has no metric {unknown[0]}",
                hint=f"events: {events}{', …' if len(self.net.events) > 6 else ''}; or the name of a metric",
            )
        if metrics:
            return _side_by_side(names, [span.metrics(tuple(names)) for span in spans])
        return _side_by_side(names, [span.rows(names) for span in spans])


def _side_by_side(names: Sequence[str], rows: Sequence[Sequence[StatRow]]) -> dict[str, Estimate]:
    def column(at: int, of: Callable[[StatRow], float]) -> Floats:
        return np.array([of(row[at]) for row in rows], dtype=float)

    return {
        name: Estimate(
            name,
            next((row[at].unit for row in rows if row[at].unit), ""),
            column(at, lambda row: row.value),
            column(at, lambda row: row.std),
            column(at, lambda row: row.lower),
            column(at, lambda row: row.upper),
        )
        for at, name in enumerate(names)
    }
