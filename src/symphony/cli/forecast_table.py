"""Forecasts of training jobs as a table: those of a service and those of a simulated cluster alike."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDE_TERMINAL_COLUMNS = 120  # columns of a terminal that has room for a job on a line


def within(band: dict[str, float | None], value: float) -> bool:
    """Whether a time is in a band, to the second."""
    low, high = (math.inf if end is None else end for end in (band["low"], band["high"]))
    return low - 1 <= value <= high + 1


def _unit(seconds: float) -> tuple[float, str]:
    units = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s"))
    return next((size, unit) for size, unit in units if seconds >= 2 * size)


def _figure(value: float) -> str:
    """Three digits, or all of them, without exponents that nobody reads."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def time(seconds: float) -> str:
    """A duration, in the unit in which it is read most easily."""
    size, unit = _unit(seconds)
    return f"{_figure(seconds / (size or 1))} {unit}"


def times(band: dict[str, Any], now_s: float, apart: str = " ") -> str:
    """A band from now on, in the unit of its middle."""
    if band["mid"] is None:
        return "never" if band["low"] is None else f"{time(band['low'] - now_s)} or never"
    size, unit = _unit(band["mid"] - now_s)
    low, mid, high = (
        "never" if band[end] is None else _figure((band[end] - now_s) / (size or 1)) for end in ("low", "mid", "high")
    )
    return f"{mid} {unit}{apart}({low} to {high})"


def _where(job: dict[str, Any]) -> str:
    if len(job["devices"]) == 1:
        return str(job["devices"][0])
    place = f"{job['workers']} × {job['kind']}" if job["workers"] > 1 else str(job["kind"])
    return place if job["runs"] else "nowhere" if job["kind"] is None else f"{place}?"


def _samples(behind: dict[str, Any], apart: str) -> str:
    if behind["guess_only"]:
        return "guess only"
    counts = f"{behind['signature']} + {behind['kernel']} + {behind['family']}"
    return f"{counts},{apart}{time(behind['newest_s'])} old"


def _actual_times_cell(job: dict[str, Any], now_s: float) -> str:
    """Times from then on; those outside their bands are marked."""

    def one(what: str, key: str) -> str:
        mark = "" if within(job[key], job["happened"][key]) else " ✗"
        return f"{what} {time(job['happened'][key] - now_s)}{mark}"

    done = one("done", "finish_s")
    return done if job["runs"] else f"{one('started', 'start_s')}, {done}"


def _loss(loss: dict[str, Any], others: bool) -> str:
    low, mid, high = (f"{1 - loss['kept'][end]:.0%}" for end in ("high", "mid", "low"))
    return f"{mid} ({low} to {high}) to {'job ' + str(loss['job']) if loss['job'] or not others else 'another user'}"


def show(console: Console, said: dict[str, Any], title: str) -> None:
    """A job on each line."""
    now_s, checks, live = said["at_s"], "check" in said, "service" in said
    apart = (
        "\n" if console.width < WIDE_TERMINAL_COLUMNS else " "
    )  # bands below what they are of, where there is little room
    losses = any(job["loses"] for job in said["jobs"])
    shown = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    whose = ("job", "task", "where", "steps/s") if live else ("job", "kernel", "where", "units/s")
    for column in (*whose, *(["loses"] if losses else []), "start in", "finish in", "samples"):
        shown.add_column(column, overflow="fold")
    if checks:
        shown.add_column("happened")
    for job in sorted(said["jobs"], key=lambda job: (not job["runs"], job["finish_s"]["mid"] or math.inf)):
        low, mid, high = (_figure(job["speed"][end]) for end in ("low", "mid", "high"))
        row = [
            str(job["job"]),
            escape(job["kernel"]),
            escape(_where(job)),
            f"{mid}{apart}({low} to {high})",
            *(["; ".join(_loss(loss, live) for loss in job["loses"])] if losses else []),
            "runs" if job["runs"] else times(job["start_s"], now_s, apart),
            times(job["finish_s"], now_s, apart),
            _samples(job["samples"], apart),
        ]
        shown.add_row(*row, *([_actual_times_cell(job, now_s)] if checks else []))
    console.print(shown)
    console.print()
    console.print("where?: most likely; samples: of the very same + of the kernel elsewhere + of others of its family")
    if checks:
        c = said["check"]
        finishes = f"{c['finishes_within']} of {c['jobs']} finishes"
        console.print(f"within bands: {finishes}, {c['starts_within']} of {c['waited']} starts")
