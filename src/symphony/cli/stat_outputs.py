"""Who is told of the counts of `symphony stat`: lines, a plot, a page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from symphony.cli import prometheus
from symphony.cli.stat_lines import Lines
from symphony.telemetry import verdicts
from symphony.telemetry.event_selection import EventSelection
from symphony.telemetry.naming import Kind
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.spans import Span, StatRow
from symphony.telemetry.stat import StatRun

if TYPE_CHECKING:
    from symphony.telemetry.interval_plots import IntervalPlots

MACHINE_PLACE, GPU_PLACE_PREFIX = "machine", "GPU-"  # places: of the kernel's own figures, and of NVML's
CPU_COUNTER_KINDS: tuple[Kind, ...] = ("hardware", "software")  # who counts at all other places
COUNTER_KINDS: tuple[tuple[Kind, ...], ...] = (CPU_COUNTER_KINDS, ("kernel",), ("gpu",))


@dataclass
class StatOutputs:
    """Passes spans on to all who want them."""

    lines: Lines
    in_intervals: bool
    named: bool  # events or metrics were: they are told of even if nobody counts them
    wanted: EventSelection = field(default_factory=lambda: EventSelection(()))
    bands: IntervalPlots | None = None
    page: prometheus.Page | None = None
    _headed: bool = False

    @property
    def wants_spans(self) -> bool:
        """Whether anybody wants to hear of spans before the end."""
        return self.in_intervals or self.bands is not None or self.page is not None

    def spans(self, spans: Iterable[Span], places: bool) -> None:
        """What was found of the last windows."""
        for span in spans:
            if not self.wants_spans:
                continue
            rows = self.rows(span)
            if self.in_intervals:
                if not self._headed:
                    self.lines.header(places)
                self._headed = True
                self.lines.interval(span, rows, places)
            if self.bands is not None:
                self.bands.add(span, rows)
            if self.page is not None:
                self.page.update(span, rows)

    def totals(
        self, run: StatRun, title: str, reader: Reader, elapsed_s: float | None = None, *, about: bool = False
    ) -> None:
        """What was found of the whole run; of what was named and nobody could count, that.

        `elapsed_s`: how long it was, if not as long as what was counted; `about`: that is not known well.
        """
        spans = sorted(run.totals.values(), key=lambda span: COUNTER_KINDS.index(_kinds(span.where)))
        found = [] if self.in_intervals else [(span, self.rows(span)) for span in spans]
        # The kernel and GPUs are looked at for a little longer than what is counted.
        counted = [span for span in spans if _kinds(span.where) == CPU_COUNTER_KINDS] or spans
        length_s = max((span.duration_s for span in counted), default=0.0) if elapsed_s is None else elapsed_s
        if self.named:
            nothing = Span(reader, "", 0.0, length_s)
            there = {_kinds(span.where) for span in spans}
            missing = [kinds for kinds in COUNTER_KINDS if kinds not in there]
            metrics = self.wanted.metrics if CPU_COUNTER_KINDS in missing else ()
            rows = nothing.rows(self.wanted.of(*(kind for kinds in missing for kind in kinds)), metrics)
            found = [(nothing, rows), *found] if rows else found
        if found:
            self.lines.totals(title, found, length_s, about=about)

    def rows(self, span: Span) -> list[StatRow]:
        """The lines that were asked for, of those that the place can have."""
        kinds = _kinds(span.where)
        if kinds == CPU_COUNTER_KINDS:
            return span.rows(self.wanted.of(*kinds), self.wanted.metrics)
        return span.rows(event for event in self.wanted.of(*kinds) if self.named or event in span.tallies)

    def explain(self, model: Model, run: StatRun, groups: Sequence[Sequence[str]], derived: Sequence[str]) -> None:
        """How counts came about."""
        found = verdicts.together([place.verdicts for place in run.places.values()])
        net = next((place.net for place in run.places.values() if place.net), None)
        self.lines.explain(model.catalogue.name, groups, derived, net, found)


def _kinds(where: str) -> tuple[Kind, ...]:
    """Who counts at a place."""
    return (
        ("kernel",) if where == MACHINE_PLACE else ("gpu",) if where.startswith(GPU_PLACE_PREFIX) else CPU_COUNTER_KINDS
    )
