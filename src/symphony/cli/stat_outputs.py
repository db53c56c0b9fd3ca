"""The outputs of `symphony stat`: lines, a plot, a page for Prometheus."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from symphony.cli import prometheus
from symphony.cli.stat_lines import Lines
from symphony.telemetry import (
    MACHINE_PLACE,
    CounterKind,
    EventSelection,
    Problem,
    Span,
    StatRow,
    Verdict,
    averaged,
    half_interval,
)

Totals = Sequence[tuple[Span, Sequence[StatRow]]]
GPU_PLACE_PREFIX = "GPU-"
CPU_COUNTER_KINDS: tuple[CounterKind, ...] = ("hardware", "software")  # at all places but the machine and GPUs
COUNTER_KINDS: tuple[tuple[CounterKind, ...], ...] = (CPU_COUNTER_KINDS, ("kernel",), ("gpu",))


class SpanSink(Protocol):
    """Keeps spans and their rows, for a plot."""

    def add(self, span: Span, rows: Sequence[StatRow]) -> None: ...


@dataclass
class StatOutputs:
    """Passes results on to all outputs: a `telemetry.counting.StatOutput`."""

    lines: Lines
    in_intervals: bool
    named: bool  # whether events or metrics were named: they are reported even if nothing counts them
    wanted: EventSelection = field(default_factory=lambda: EventSelection(()))
    plots: SpanSink | None = None
    page: prometheus.Page | None = None
    kept: list[tuple[str, Totals, float]] | None = None  # totals of repeated runs: not printed, but kept here
    _notes: set[str] = field(default_factory=set)
    _has_header: bool = False

    @property
    def wants_spans(self) -> bool:
        return self.in_intervals or self.plots is not None or self.page is not None

    @property
    def live(self) -> bool:
        return self.page is not None

    def note(self, text: str, kind: str = "note") -> None:
        if text not in self._notes:  # of repeated runs
            self.lines.note(text, kind)
        self._notes.add(text)

    def problems(self, found: Sequence[Problem]) -> None:
        self.lines.problems(found)

    def add_unsupported(self, names: Iterable[str]) -> None:
        self.lines.unsupported |= frozenset(names)

    def spans(self, spans: Iterable[Span], several: bool) -> None:
        for span in spans:
            if not self.wants_spans:
                continue
            rows = self.rows(span)
            if self.in_intervals:
                if not self._has_header:
                    self.lines.header(several)
                self._has_header = True
                self.lines.interval(span, rows, several)
            if self.plots is not None:
                self.plots.add(span, rows)
            if self.page is not None:
                self.page.update(span, rows)

    def totals(
        self, spans: Collection[Span], title: str, empty: Span, elapsed_s: float | None = None, *, about: bool = False
    ) -> None:
        spans = sorted(spans, key=lambda span: COUNTER_KINDS.index(_kinds(span.where)))
        found = [] if self.in_intervals else [(span, self.rows(span)) for span in spans]
        # The kernel and GPUs are polled for a little longer than the counted program runs.
        counted = [span for span in spans if _kinds(span.where) == CPU_COUNTER_KINDS] or spans
        length_s = max((span.duration_s for span in counted), default=0.0) if elapsed_s is None else elapsed_s
        if self.named:  # named events that no source counts are reported as not counted
            nothing = replace(empty, duration_s=length_s)
            present = {_kinds(span.where) for span in spans}
            missing = [kinds for kinds in COUNTER_KINDS if kinds not in present]
            metrics = self.wanted.metrics if CPU_COUNTER_KINDS in missing else ()
            rows = nothing.rows(self.wanted.of(*(kind for kinds in missing for kind in kinds)), metrics)
            found = [(nothing, rows), *found] if rows else found
        if found and self.kept is not None:
            self.kept.append((title, found, length_s))
        elif found:
            self.lines.totals(title, found, length_s, about=about)

    def print_means(self) -> None:
        """The means of the totals that were kept."""
        if not self.kept:
            return
        lengths_s = [length_s for _, _, length_s in self.kept]
        title = f"{self.kept[-1][0]}, {len(self.kept)} runs" if len(self.kept) > 1 else self.kept[-1][0]
        means = averaged([found for _, found, _ in self.kept])
        elapsed_s = sum(lengths_s) / len(lengths_s)
        self.lines.totals(title, means, elapsed_s, over_runs_s=half_interval(lengths_s))

    def rows(self, span: Span) -> list[StatRow]:
        """The rows that were requested, of those that the place can have."""
        kinds = _kinds(span.where)
        if kinds == CPU_COUNTER_KINDS:
            return span.rows(self.wanted.of(*kinds), self.wanted.metrics)
        return span.rows(event for event in self.wanted.of(*kinds) if self.named or event in span.tallies)

    def explain(
        self,
        cpu: str,
        groups: Sequence[Sequence[str]],
        derived: Sequence[str],
        found: Sequence[Verdict],
        used: Container[str],
    ) -> None:
        self.lines.explain(cpu, groups, derived, found, used)


def _kinds(where: str) -> tuple[CounterKind, ...]:
    """The kinds of events that are counted at a place."""
    if where == MACHINE_PLACE:
        return ("kernel",)
    return ("gpu",) if where.startswith(GPU_PLACE_PREFIX) else CPU_COUNTER_KINDS
