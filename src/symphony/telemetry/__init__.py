"""Performance counters: what there is to count, what can be computed from it, and how sure that is.

posterior = sy.telemetry.infer(sy.telemetry.model("sapphirerapids"), sy.telemetry.read_perf("perf.json"))
print(posterior["memory_bandwidth_read"].mean, posterior["memory_bandwidth_read"].std)
"""

from symphony.telemetry.catalogue import add, at_hand, entries, load
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Estimate, Model, Posterior, Tracker, infer, model
from symphony.telemetry.machine import Platform
from symphony.telemetry.posterior import Parameters
from symphony.telemetry.samples import Column, CounterSource, Problem, Recording, Sample, record
from symphony.telemetry.sources import read_perf

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
