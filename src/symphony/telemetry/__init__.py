"""Performance counters: the events of a CPU, estimates of their counts, and the uncertainty of those.

posterior = sy.telemetry.infer(sy.telemetry.model("sapphirerapids"), sy.telemetry.read_perf("perf.json"))
print(posterior["memory_bandwidth_read"].mean, posterior["memory_bandwidth_read"].std)

This module is the one entrance to the package, for `sy.telemetry` and for the commands. `__all__` is the Python
interface; the names that are imported `as` themselves serve the commands:

* `symphony stat`: `stat_model`, then `count` or `replay` with a `StatRequest`; results go to a `StatOutput`;
* `symphony catalogue`: `add`, `entries`, `load`, `at_hand`, `this_cpu`; `draw` and `svg` for the picture of a network;
* `symphony topology`: `memory_traffic`, how this machine's memory traffic is counted.

The files, in the order in which a count passes through them:

    events            listing_files → listings, perf_list, architectural → events → catalogue; machine: this CPU
    metrics           expressions → evaluating (values), linear (linear forms)
    identities        identities/, curated/ → gate, which tests them
    what to count     event_selection, bayes_net → planning
    readings          sources/ → samples (whose docstring lists the four forms of a reading); naming: perf's event names
    inference         reading, columns → posterior (arrays) → inference → spans → estimates; rows: a topology's rows
    symphony stat     counting, top_down, sample_feed, verdicts → stat → repeats, interval_plots; drawing: a picture
"""

from symphony.telemetry.architectural import ARCHITECTURAL_NAME as ARCHITECTURAL_NAME
from symphony.telemetry.catalogue import CatalogueEntry as CatalogueEntry
from symphony.telemetry.catalogue import add, at_hand, entries, load
from symphony.telemetry.catalogue import add_perf as add_perf
from symphony.telemetry.catalogue import this_cpu as this_cpu
from symphony.telemetry.counting import MACHINE_PLACE as MACHINE_PLACE
from symphony.telemetry.counting import StatRequest as StatRequest
from symphony.telemetry.counting import StatTarget as StatTarget
from symphony.telemetry.counting import count as count
from symphony.telemetry.counting import new_plots as new_plots
from symphony.telemetry.counting import replay as replay
from symphony.telemetry.counting import stat_model as stat_model
from symphony.telemetry.drawing import draw as draw
from symphony.telemetry.drawing import svg as svg
from symphony.telemetry.estimates import Estimate, Posterior
from symphony.telemetry.event_selection import EventSelection as EventSelection
from symphony.telemetry.event_selection import split_names as split_names
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.listing_files import installed_source as installed_source
from symphony.telemetry.machine import Platform
from symphony.telemetry.memory import memory_traffic as memory_traffic
from symphony.telemetry.naming import CounterKind as CounterKind
from symphony.telemetry.posterior import Parameters
from symphony.telemetry.reading import Model, model
from symphony.telemetry.repeats import averaged as averaged
from symphony.telemetry.repeats import half_interval as half_interval
from symphony.telemetry.samples import Column, CounterSource, Problem, Recording, Sample, record
from symphony.telemetry.sources import read_perf
from symphony.telemetry.spans import Span as Span
from symphony.telemetry.spans import StatRow as StatRow
from symphony.telemetry.top_down import largest as largest
from symphony.telemetry.top_down import tree as tree

__all__ = [
    "Catalogue",
    "Column",
    "CounterSource",
    "Estimate",
    "Event",
    "Identity",
    "Metric",
    "Model",
    "Parameters",
    "Platform",
    "Pmu",
    "Posterior",
    "Problem",
    "Recording",
    "Sample",
    "Tracker",
    "Verdict",
    "add",
    "at_hand",
    "entries",
    "infer",
    "load",
    "model",
    "read_perf",
    "record",
]
