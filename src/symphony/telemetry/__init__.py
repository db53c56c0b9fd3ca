"""Performance counters: the events of a CPU, estimates of their counts, and the uncertainty of those.

posterior = sy.telemetry.infer(sy.telemetry.model("sapphirerapids"), sy.telemetry.read_perf("perf.json"))
print(posterior["memory_bandwidth_read"].mean, posterior["memory_bandwidth_read"].std)

The files, in the order in which a count passes through them (`counters` is the entrance for all callers):

    events            listing_files → listings, perf_list, architectural → events → catalogue; machine: this CPU
    metrics           expressions → evaluating (values), linear (linear forms)
    identities        identities/, curated/ → gate, which tests them
    what to count     event_selection, bayes_net → planning
    readings          sources/ → samples (whose docstring lists the four forms of a reading); naming: perf's event names
    inference         reading, columns → posterior (arrays) → inference → spans → estimates; rows: a topology's rows
    symphony stat     counting, sample_feed, verdicts → stat → interval_plots; drawing: the network as a picture
"""

from symphony.telemetry.counters import (
    Catalogue,
    Column,
    CounterSource,
    Estimate,
    Event,
    Identity,
    Metric,
    Model,
    Parameters,
    Platform,
    Pmu,
    Posterior,
    Problem,
    Recording,
    Sample,
    Tracker,
    Verdict,
    add,
    at_hand,
    entries,
    infer,
    load,
    model,
    read_perf,
    record,
)

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
