"""The one entrance to performance counters: `sy.telemetry` and the commands import from here, and from nowhere else.

* Python: `model`, `infer`, `Tracker`, `read_perf`, and the types that they take and return.
* `symphony stat`: `stat_model`, then `count` or `replay` with a `StatRequest`; results go to a `StatOutput`.
* `symphony catalogue`: `add`, `entries`, `load`, `at_hand`, `this_cpu`; `draw` for the picture of a network.
* `symphony topology`: `memory_traffic`, how this machine's memory traffic is counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from symphony.telemetry import memory
from symphony.telemetry.architectural import ARCHITECTURAL_NAME
from symphony.telemetry.catalogue import CatalogueEntry, add, add_perf, at_hand, entries, load, this_cpu
from symphony.telemetry.counting import MACHINE_PLACE, StatOutput, StatRequest, StatTarget, count, replay, stat_model
from symphony.telemetry.drawing import NetDrawing, draw, svg
from symphony.telemetry.estimates import Estimate, Posterior
from symphony.telemetry.event_selection import EventSelection, split_names
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.machine import Platform
from symphony.telemetry.naming import CounterKind
from symphony.telemetry.posterior import Parameters
from symphony.telemetry.reading import Model, model
from symphony.telemetry.samples import Column, CounterSource, Problem, Recording, Sample, record
from symphony.telemetry.sources import read_perf
from symphony.telemetry.spans import Span, StatRow

if TYPE_CHECKING:
    from symphony.telemetry.interval_plots import IntervalPlots

__all__ = [
    "ARCHITECTURAL_NAME",
    "MACHINE_PLACE",
    "Catalogue",
    "CatalogueEntry",
    "Column",
    "CounterKind",
    "CounterSource",
    "Estimate",
    "Event",
    "EventSelection",
    "Identity",
    "IntervalPlots",
    "Metric",
    "Model",
    "NetDrawing",
    "Parameters",
    "Platform",
    "Pmu",
    "Posterior",
    "Problem",
    "Recording",
    "Sample",
    "Span",
    "StatOutput",
    "StatRequest",
    "StatRow",
    "StatTarget",
    "Tracker",
    "Verdict",
    "add",
    "add_perf",
    "at_hand",
    "count",
    "draw",
    "entries",
    "infer",
    "interval_plots",
    "load",
    "memory_traffic",
    "model",
    "read_perf",
    "record",
    "replay",
    "split_names",
    "stat_model",
    "svg",
    "this_cpu",
]


def interval_plots(file: Path) -> IntervalPlots:
    """An empty plot of intervals that can be saved to a file; raises `InputError` if the file cannot be written."""
    from symphony.telemetry import interval_plots as plots  # importing matplotlib takes a second

    plots.check(file)
    return plots.IntervalPlots()


def memory_traffic() -> str:
    """How this machine's memory traffic is counted in real runs, as a phrase."""
    return str(memory.at_hand() or memory.NOT_COUNTED)
