"""Metrics of one run, and the registry of their definitions.

Reports average a metric over seeds and compare policies seed by seed (`statistics`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from symphony.problem import units
from symphony.problem.topology import RESOURCE_KINDS
from symphony.simulator.records import RunRecord

# Upper ends of the loss classes, as slow-downs of a gang. The first allows only for rounding of times.
MAX_ISOLATED_SLOWDOWN, WITHIN_10, WITHIN_20 = 1.005, 1.10, 1.20
Direction = Literal["lower", "higher", "neither"]
LOSS_CLASSES = ("isolated_share", "within10_share", "within20_share", "worse_share")


@dataclass(frozen=True)
class RunMetric:
    """Name, definition, unit and better direction of a metric."""

    name: str
    title: str
    unit: Literal["s", "times", "share", "per second", "count"]
    better: Direction
    definition: str

    @property
    def relative(self) -> bool:
        """Whether values are compared by ratio. Shares and counts, which may be 0, are compared by difference."""
        return self.unit in ("s", "times", "per second")

    def show(self, value: float) -> str:
        """A value as text, with its unit."""
        if not math.isfinite(value):
            return "never" if value == math.inf else "–"
        if self.unit == "s":
            return units.show(value, "seconds")
        if self.unit == "share":
            return f"{value:.1%}"
        return f"{value:,.2f}" if self.unit == "times" else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _registry() -> Iterable[RunMetric]:
    statistics = {"mean": "Mean", "p50": "Median", "p90": "90th percentile", "p99": "99th percentile"}
    for key, words in statistics.items():
        title = f"{words} of completion time"
        definition = f"{words} over a run's jobs of the time from a job's arrival to the end of its last gang."
        yield RunMetric(f"{key}_completion_s", title, "s", "lower", definition)
    for key, words in statistics.items():
        definition = (
            f"{words} over a run's jobs of completion time divided by the job's critical path with every gang alone "
            "on its best device; 1 is perfect."
        )
        yield RunMetric(f"{key}_slowdown", f"{words} of slow-down", "times", "lower", definition)
    yield RunMetric("max_slowdown", "Worst slow-down", "times", "lower", "The largest slow-down of a run's jobs.")
    definition = (
        "The largest ratio of a job's slow-down to the cluster's demand while the job was in the system (workers of "
        "all jobs over devices, at least 1, averaged over time). A job that got its fair share is at 1 or below."
    )
    yield RunMetric("max_unfairness", "Worst finish-time fairness", "times", "lower", definition)
    title, definition = "Jobs worse off than with their share", "Share of the jobs for which that ratio is above 1."
    yield RunMetric("unfair_share", title, "share", "lower", definition)
    yield RunMetric("makespan_s", "Makespan", "s", "lower", "Time from 0 to the completion of the run's last job.")
    classes: tuple[tuple[str, str, Direction, str], ...] = (
        ("isolated_share", "Gangs at isolated speed", "higher", "at most 0.5% longer than"),
        ("within10_share", "Gangs slowed by up to 10%", "neither", "over 0.5% and up to 10% longer than"),
        ("within20_share", "Gangs slowed by 10 to 20%", "neither", "over 10% and up to 20% longer than"),
        ("worse_share", "Gangs slowed by over 20%", "lower", "over 20% longer than"),
    )
    for name, title, better, words in classes:
        definition = (
            f"Share of the finished gangs that ran {words} alone on the same devices, set-up excluded; an interrupted "
            "gang counts once, with all its stays added up."
        )
        yield RunMetric(name, title, "share", better, definition)
    for kind, (_, what) in RESOURCE_KINDS.items():
        title = f"Utilisation of {kind.replace('_', ' ')}"
        definition = f"Mean over the run and the rows of this kind ({what}) of min(1, load by the run's own work)."
        yield RunMetric(f"utilisation.{kind}", title, "share", "neither", definition)
    definition = "Share of device-time in which a device was empty while a gang that it can run was ready and unplaced."
    yield RunMetric("idle_ready_share", "Empty devices with work ready", "share", "lower", definition)
    yield RunMetric("preemptions", "Preemptions", "count", "neither", "Stays of gangs that the policy ended early.")
    definition = "Stays of gangs that a device failure ended."
    yield RunMetric("failures", "Stays lost to failures", "count", "lower", definition)
    definition = "Decisions over the run's wall-clock time, the simulator's own work included, compilation excluded."
    yield RunMetric("decisions_per_s", "Decisions per second", "per second", "higher", definition)


METRICS: Mapping[str, RunMetric] = {metric.name: metric for metric in _registry()}


def metrics(run: RunRecord) -> dict[str, float]:
    """Every metric of one run, in the order of `METRICS`; utilisation only of the resource kinds in the cluster.

    Completion times, slow-downs and makespan of a stalled run are infinite.
    """
    finished = bool(run.jobs) and not run.stalled
    values: dict[str, float] = {}
    for name, sample in (
        ("completion_s", [job.completion_s for job in run.jobs]),
        ("slowdown", [job.slowdown for job in run.jobs]),
    ):
        summary = [np.mean(sample), *np.percentile(sample, [50, 90, 99])] if finished else [math.inf] * 4
        values |= {f"{key}_{name}": float(x) for key, x in zip(("mean", "p50", "p90", "p99"), summary, strict=True)}
    values["max_slowdown"] = max(job.slowdown for job in run.jobs) if finished else math.inf
    if run.devices:
        ratios = finish_time_fairness(run) if finished else np.array([math.inf])
        values["max_unfairness"], values["unfair_share"] = float(ratios.max()), float(np.mean(ratios > 1))
    values["makespan_s"] = run.makespan_s if finished else math.inf
    slowdowns = np.array(gang_slowdowns(run))
    bounds = [-math.inf, MAX_ISOLATED_SLOWDOWN, WITHIN_10, WITHIN_20, math.inf]
    for name, low, high in zip(LOSS_CLASSES, bounds[:-1], bounds[1:], strict=True):
        share = np.mean((low < slowdowns) & (slowdowns <= high)) if len(slowdowns) else math.nan
        values[name] = float(share)
    values |= {f"utilisation.{kind}": run.utilisation[kind] for kind in RESOURCE_KINDS if kind in run.utilisation}
    if run.idle_ready_share is not None:
        values["idle_ready_share"] = run.idle_ready_share
    outcomes = Counter(gang.outcome for gang in run.gangs)
    values["preemptions"], values["failures"] = float(outcomes["preempted"]), float(outcomes["failed"])
    values["decisions_per_s"] = run.decisions / run.wall_s if run.wall_s > 0 else math.nan
    return values


def finish_time_fairness(run: RunRecord) -> np.ndarray:
    """Each job's slow-down over the cluster's demand (workers over devices, at least 1) while it was in the system.

    As in Themis, with each job's best device for its time alone: a fair share would slow a job by the demand.
    """
    width: dict[int, int] = {}
    for gang in run.gangs:
        width[gang.job] = max(width.get(gang.job, 1), len(gang.devices))
    arrival, finish = (np.array([getattr(job, name) for job in run.jobs]) for name in ("arrival_s", "finish_s"))
    workers = np.array([width.get(job.job, 1) for job in run.jobs])
    instants = np.unique([arrival, finish])
    present = (arrival[:, None] <= instants[:-1]) & (finish[:, None] > instants[:-1])
    demand = np.maximum((workers[:, None] * present).sum(axis=0) / run.devices, 1.0)
    integral = np.concatenate([[0.0], np.cumsum(demand * np.diff(instants))])
    total = integral[np.searchsorted(instants, finish)] - integral[np.searchsorted(instants, arrival)]
    return np.array([job.completion_s for job in run.jobs]) * np.array([job.slowdown for job in run.jobs]) / total


def gang_slowdowns(run: RunRecord) -> list[float]:
    """The slow-down of every gang that finished.

    The slow-down of a stay is relative to the isolated time of the *whole* gang, so the stays of a preempted gang add
    up: to 1 at isolated speed, to more if work was lost or slowed.
    """
    total: defaultdict[tuple[int, int], float] = defaultdict(float)
    for gang in run.gangs:
        total[gang.job, gang.gang] += gang.slowdown
    return [total[gang.job, gang.gang] for gang in run.gangs if gang.outcome == "finished"]
