"""Performance counters: what there is to count, what can be computed from it, and how sure that is.

posterior = sy.telemetry.infer(sy.telemetry.model("sapphirerapids"), sy.telemetry.read_perf("perf.json"))
print(posterior["memory_bandwidth_read"].mean, posterior["memory_bandwidth_read"].std)

The files, in the order in which a count passes through them:

    what there is     listing_files → listings, perf_list, architectural → events → catalogue   (the CPU at hand:
    machine) what it means     expressions → evaluating (plain), compiling (arrays)
    what must hold    linear → identities/, curated/ → gate
    what to count     bayes_net → planning
    what is read      samples ← sources/                                    (what perf calls events: naming)
    what follows      posterior (arrays) → reading, inference (names) → spans (sums) → rows (a topology's)
    `symphony stat`   kinds, event_selection, verdicts, sample_feed → stat → interval_plots (plots); drawing (the net)
"""

from symphony.telemetry.catalogue import add, at_hand, entries, load
from symphony.telemetry.estimates import Estimate, Posterior
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.machine import Platform
from symphony.telemetry.posterior import Parameters
from symphony.telemetry.reading import Model, model
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
