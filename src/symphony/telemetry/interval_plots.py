"""Plots of means and 95% bands over time: one panel for each event or metric, one colour for each place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, ScalarFormatter

from symphony.problem.errors import InputError
from symphony.telemetry.spans import Span, StatRow

IMAGE_SUFFIXES = (".svg", ".png", ".pdf")
MAX_PANELS = 24
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#777777")


@dataclass
class IntervalPlots:
    """The spans and rows of a run, kept for the plot."""

    intervals: list[tuple[Span, dict[str, StatRow]]] = field(default_factory=list)

    def add(self, span: Span, rows: Sequence[StatRow]) -> None:
        # A span of its own: the caller's holds beliefs, and goes on growing.
        self.intervals.append((Span(span.reader, span.where, span.start_s, span.duration_s), {r.name: r for r in rows}))

    def figure(self) -> Figure:
        """The plot. Events are shown as rates, so that windows of different lengths are comparable."""
        known = dict.fromkeys(name for _, rows in self.intervals for name, row in rows.items() if _known(row))
        names = list(known)[:MAX_PANELS]
        columns = 1 if len(names) <= 4 else 2
        height = max(1, math.ceil(len(names) / columns))
        figure = Figure(figsize=(6.4 * columns, 0.6 + 1.7 * height), layout="constrained")
        axes = figure.subplots(height, columns, squeeze=False, sharex=True).ravel()
        places = list(dict.fromkeys(span.where for span, _ in self.intervals))
        for ax, name in zip(axes, names, strict=False):
            self._panel(ax, name, places)
        for ax in axes[len(names) :]:
            ax.axis("off")
        for ax in axes[max(0, len(names) - columns) : len(names)]:
            ax.set_xlabel("time, s")
        if len(places) > 1:
            lines = {line.get_label(): line for ax in axes[: len(names)] for line in ax.get_lines()}
            figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=min(8, len(places)))
        return figure

    def _panel(self, ax: Axes, name: str, places: Sequence[str]) -> None:
        kind, unit = next((rows[name].kind, rows[name].unit) for _, rows in self.intervals if name in rows)
        for number, place in enumerate(places):
            times: list[float] = []
            lower: list[float] = []
            mean: list[float] = []
            upper: list[float] = []
            for span, rows in self.intervals:
                row = rows.get(name)
                if span.where != place or row is None or span.duration_s <= 0:
                    continue
                per = span.duration_s if kind == "event" else 1.0
                shown = (row.lower / per, row.value / per, row.upper / per) if _known(row) else (math.nan,) * 3
                for values, value in zip((lower, mean, upper), shown, strict=True):
                    values += [value, value]
                times += [span.start_s, span.end_s]
            if times:
                colour = _PALETTE[number % len(_PALETTE)]
                ax.fill_between(times, lower, upper, color=colour, alpha=0.25, linewidth=0)
                ax.plot(times, mean, color=colour, linewidth=1.2, label=place or "all")
        shown_unit = (f"{unit}/s" if unit else "per second") if kind == "event" else unit
        ax.set_title(f"{name}, {shown_unit}" if shown_unit else name, fontsize=9, loc="left")
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(EngFormatter(sep="") if kind == "event" else ScalarFormatter())
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)


def check(file: Path) -> None:
    """Raises `InputError` if a plot cannot be written to a file."""
    if file.suffix.lower() not in IMAGE_SUFFIXES:
        raise InputError(
            f"--plot {file} is not the name of a picture",
            hint=f"name a file that ends with {', '.join(IMAGE_SUFFIXES)}",
        )
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"--plot {file} cannot be written", hint="name a file in a folder that exists")


def _known(row: StatRow) -> bool:
    return math.isfinite(row.value) and math.isfinite(row.upper)
