"""The report of a comparison: tables for the terminal, JSON, plots and an HTML page."""

from __future__ import annotations

import difflib
import io
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from symphony.evaluation import archive
from symphony.evaluation.archive import Contents, DeviceMeta, GraphMeta, ScenarioMeta
from symphony.evaluation.metrics import LOSS_CLASSES, METRICS, RunMetric, metrics
from symphony.evaluation.statistics import IntervalEstimate, Paired, main_estimate, paired, verdict
from symphony.problem.errors import InputError
from symphony.simulator.records import RunRecord

__all__ = ["DeviceMeta", "GraphMeta", "Printable", "Report", "ScenarioMeta"]

DAGGER = "†"
_VERDICT_STYLE = {"better": "green", "worse": "red"}
_HEADLINE = "mean_completion_s"


@dataclass(frozen=True)
class Report:
    """Runs of several policies on the same seeds, and their comparison."""

    runs: Sequence[RunRecord]  # one for each policy and seed
    scenarios: Mapping[int, ScenarioMeta]  # by seed
    cheats: Set[str]  # policies that see the true state
    command: str  # reproduces the runs
    baseline: str | None = None  # the policy that the others are compared with; None = the first

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        object.__setattr__(self, "scenarios", dict(self.scenarios))
        object.__setattr__(self, "cheats", frozenset(self.cheats))
        _check(self)

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """In the order of their first run."""
        return tuple(dict.fromkeys(run.policy for run in self.runs))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Sorted; every policy has a run for each."""
        return tuple(sorted({run.seed for run in self.runs}))

    @cached_property
    def run_of(self) -> Mapping[tuple[str, int], RunRecord]:
        return {(run.policy, run.seed): run for run in self.runs}

    @cached_property
    def metrics_of(self) -> Mapping[tuple[str, int], Mapping[str, float]]:
        return {key: metrics(run) for key, run in self.run_of.items()}

    @cached_property
    def metrics(self) -> tuple[RunMetric, ...]:
        """The metrics that these runs have, in the order of `METRICS`."""
        present = set().union(*self.metrics_of.values())
        return tuple(metric for name, metric in METRICS.items() if name in present)

    @cached_property
    def ranking(self) -> tuple[str, ...]:
        """Policies by mean completion time, the best first; those that stalled come last."""
        return tuple(sorted(self.policies, key=lambda policy: self.mean(policy, _HEADLINE)))

    @cached_property
    def _fair(self) -> tuple[str, ...]:
        return tuple(policy for policy in self.ranking if policy not in self.cheats) or self.ranking

    @property
    def best(self) -> str:
        """The policy with the least mean completion time among those that do not cheat (or all, if all do)."""
        return self._fair[0]

    def baseline_for(self, relative_to: str | None) -> str:
        """The policy to compare with: `relative_to`, else the report's baseline, else the first."""
        name = relative_to or self.baseline or self.policies[0]
        if name not in self.policies:
            raise _unknown("policy", name, self.policies)
        return name

    def label(self, policy: str) -> str:
        """A policy's name, with a dagger if it sees the true state."""
        return policy + DAGGER if policy in self.cheats else policy

    def values(self, policy: str, metric: str) -> NDArray[np.float64]:
        """The values of a metric, one for each seed; nan where the run has none."""
        self.baseline_for(policy)
        self._metric(metric)
        return np.array([self.metrics_of[policy, seed].get(metric, math.nan) for seed in self.seeds])

    def mean(self, policy: str, metric: str) -> float:
        """Over the seeds."""
        return float(np.mean(self.values(policy, metric)))

    def paired(self, policy: str, metric: str, relative_to: str | None = None) -> Paired:
        """A policy against another (default: the baseline), seed by seed."""
        return paired(self.values(policy, metric), self.values(self.baseline_for(relative_to), metric))

    def verdict(self, policy: str, metric: str, relative_to: str | None = None) -> str:
        """A policy against another: better, worse, not distinguishable, …"""
        return verdict(self.paired(policy, metric, relative_to), METRICS[metric])

    def headline(self, relative_to: str | None = None) -> str:
        """The result in a sentence: the best policy that does not cheat, against the baseline."""
        base = self.baseline_for(relative_to)
        best = self.best if self.best != base else next((p for p in self._fair if p != base), base)
        if best == base:
            return f"{base} has a mean completion time of {METRICS[_HEADLINE].show(self.mean(base, _HEADLINE))}."
        lead = "" if best == self.best else f"No policy beats {self.label(base)}. "
        result, answer = self.paired(best, _HEADLINE, base), self.verdict(best, _HEADLINE, base)
        if result.ratio is None:
            return f"{lead}{best} and {self.label(base)} cannot be compared: a run of one of them stalled."
        if result.ratio == IntervalEstimate(1.0, 1.0, 1.0):
            return f"{best} and {self.label(base)} have the same mean completion time on every seed."
        change = _change(result.ratio.value)
        text = f"{lead}The mean completion time of {best} is {change} than that of {self.label(base)}"
        if result.ratio.low is None or result.ratio.high is None:
            return f"{text}, on a single seed: run more seeds for a confidence interval."
        low, high = sorted((result.ratio.low, result.ratio.high), key=lambda x: abs(x - 1))
        same_side = (low - 1) * (high - 1) > 0
        ends = f"{abs(low - 1):.1%} to {_change(high)}" if same_side else f"{_change(low)} to {_change(high)}"
        sure = "" if answer != "not distinguishable" else "; the two are not distinguishable"
        return f"{text} (95% confidence interval: {ends}; {len(self.seeds)} seeds{sure})."

    def unfairness(self) -> str:
        """One line on what is unfair in the comparison."""
        named = [self.label(policy) for policy in self.policies if policy in self.cheats]
        parts = []
        if named:
            see = "sees" if len(named) == 1 else "see"
            parts.append(f"{_listed(named)} {see} the true state, which no real scheduler can")
        if not any(meta.disturbances.get("latency_s") for meta in self.scenarios.values()):
            parts.append("deciding takes no simulated time, however slow a policy is")
        return f"Unfair: {'; '.join(parts)}." if parts else "Every policy has the same information, on the same seeds."

    def notes(self) -> tuple[str, ...]:
        """Caveats: rounds, stalled runs, refused actions, chance."""
        notes = []
        rounds = [meta.disturbances for meta in self.scenarios.values() if meta.disturbances.get("offer_at_windows")]
        if rounds:
            seconds, slots = rounds[0]["window_s"], rounds[0]["job_slots"]
            notes.append(f"Jobs are planned again after every round of {seconds:g} s; up to {slots} of them are known.")
        for policy in self.policies:
            runs = [self.run_of[policy, seed] for seed in self.seeds]
            stalled, refused = sum(run.stalled for run in runs), sum(run.refused for run in runs)
            if stalled:
                notes.append(f"{policy} stalled in {stalled} of {len(runs)} runs: it waited for ever, jobs unfinished.")
            if refused:
                notes.append(f"{policy} tried {refused:,} actions that break the rules; each counted as a wait.")
        if len(self.seeds) == 1:
            notes.append("With one seed there is no interval: differences may be chance.")
        elif len(self.policies) > 2:
            notes.append(
                f"{len(self.policies) - 1} policies are compared with the baseline at 95% each: of twenty "
                "such intervals, one misses the true value by chance."
            )
        return tuple(notes)

    def summary(self, relative_to: str | None = None) -> Printable:
        """The headline table: policies by mean completion time, and each against the baseline."""
        base = self.baseline_for(relative_to)
        mean = {(policy, m.name): self.mean(policy, m.name) for policy in self.policies for m in self.metrics}
        factor, unit = _time_scale(mean[policy, "p50_completion_s"] for policy in self.policies)
        span_factor, span_unit = _time_scale(mean[policy, "makespan_s"] for policy in self.policies)
        header = [
            ("policy", ["policy"]),
            ("time", [f"time, {unit}\nmean", "\np50", "\np90", "\np99"]),
            ("slow-down", ["slow-down\nmean", "\np99"]),
            ("makespan", [f"make-\nspan, {span_unit}"]),
            ("gangs", ["gangs\nisolated", "\n≤10%", "\n≤20%", "\nworse"]),
            ("against", [f"mean time against {_short(base)}\n(95% interval)", "\nverdict"]),
            ("speed", ["decisions\nper s"]),
        ]
        rows = []
        for policy in self.ranking:
            row = [Text(self.label(policy), style="bold" if policy == self.best else "")]
            times = [mean[policy, f"{key}_completion_s"] for key in ("mean", "p50", "p90", "p99")]
            row += [_plain(x * factor, 3) for x in times]
            row += [_plain(mean[policy, f"{key}_slowdown"], 3) for key in ("mean", "p99")]
            row += [_plain(mean[policy, "makespan_s"] * span_factor, 3)]
            row += [Text(f"{mean[policy, name]:.0%}") for name in LOSS_CLASSES]
            row += self._against(policy, METRICS[_HEADLINE], base)
            row += [Text(METRICS["decisions_per_s"].show(mean[policy, "decisions_per_s"]))]
            rows.append(row)
        first = self.scenarios[self.seeds[0]]
        title = f"{first.topology}, {first.workload}: {_counted(len(self.seeds), 'seed')}, mean over seeds"
        return Printable(title, header, rows, [self.unfairness()], [*self._footnote(), *self.notes()])

    def table(self, metric: str, relative_to: str | None = None) -> Printable:
        """One metric: its mean and range over the seeds, and every policy against the baseline."""
        m, base = self._metric(metric), self.baseline_for(relative_to)
        header = [
            ("policy", ["policy"]),
            ("value", ["mean", "least", "most"]),
            *([("difference", [f"minus {_short(base)}\n(95% interval)"])] if m.relative else []),
            ("against", [f"against {_short(base)}\n(95% interval)", "\nverdict"]),
            ("p", ["Wilcoxon\np"]),
        ]
        rows = []
        order = sorted(self.policies, key=lambda policy: self.mean(policy, metric), reverse=m.better != "lower")
        for policy in order:
            values = self.values(policy, metric)
            result = self.paired(policy, metric, base)
            p = "–" if result.p is None or policy == base else f"{result.p:.2g}"
            row = [Text(self.label(policy)), *(Text(m.show(x)) for x in (values.mean(), values.min(), values.max()))]
            if m.relative:
                row += [Text("–" if policy == base else _signed(result.difference, m))]
            row += [*self._against(policy, m, base), Text(p)]
            rows.append(row)
        direction = "" if m.better == "neither" else f" ({m.better} is better)"
        title = f"{m.title}{direction}, {_counted(len(self.seeds), 'seed')}"
        return Printable(title, header, rows, [self.unfairness(), m.definition], [*self._footnote(), *self.notes()])

    def to_json(self, path: str | Path) -> None:
        """Write the records of all jobs and gangs as JSON; compressed if the path ends in `.gz`."""
        archive.save(Contents(self.runs, self.scenarios, self.cheats, self.command, self.baseline), path)

    @classmethod
    def from_json(cls, path: str | Path) -> Report:
        """Read a report that `to_json` wrote."""
        return cls(*archive.load(path))

    def write(self, directory: str | Path) -> Path:
        """Write report.html, plots as PNG and records.json.gz into a directory; returns the page's path."""
        from symphony.evaluation import page, plots  # matplotlib takes a second to import

        directory = Path(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "name a directory that can be written"
            raise InputError(f"it cannot be created ({error.strerror})", where=str(directory), hint=hint) from error
        self.to_json(directory / "records.json.gz")
        plots.save_all(self, directory)
        target = directory / "report.html"
        target.write_text(page.html(self), encoding="utf-8")
        return target

    def _metric(self, name: str) -> RunMetric:
        if name not in METRICS:
            raise _unknown("metric", name, METRICS)
        return METRICS[name]

    def _against(self, policy: str, metric: RunMetric, base: str) -> list[Text]:
        if policy == base:
            return [Text("baseline", style="dim"), Text("")]
        result = self.paired(policy, metric.name, base)
        answer = verdict(result, metric)
        estimate, equal = main_estimate(result, metric)
        interval = _signed(estimate, None if equal == 1 else metric)
        return [Text(interval), Text(answer, style=_VERDICT_STYLE.get(answer, "dim"))]

    def _footnote(self) -> list[str]:
        cheating = any(policy in self.cheats for policy in self.policies)
        return [f"{DAGGER} cheats: sees the true state, where the others see noisy readings."] if cheating else []


@dataclass(frozen=True)
class Printable:
    """A table with notes. Rich prints it in colour; `str` gives plain text.

    A table that is too wide for the terminal is split between groups of columns.
    """

    title: str
    header: Sequence[tuple[str, Sequence[str]]]  # group, its columns; every part repeats the first group
    rows: Sequence[Sequence[Text]]
    before: Sequence[str]
    after: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.before:
            yield Text(line, style="italic")
        yield Text(f"\n{self.title}", style="bold")
        for table in self._tables(console, options):
            yield table
            yield Text()
        for line in self.after:
            yield Text(line, style="dim")

    def __str__(self) -> str:
        width = shutil.get_terminal_size((160, 24)).columns
        console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
        console.print(self)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]

    def _tables(self, console: Console, options: ConsoleOptions) -> Iterable[Table]:
        # Rich limits a table's width to the console's; its natural width is measured on a wide console.
        wide = options.update(width=10_000)
        groups = list(range(1, len(self.header)))
        while groups:
            count = len(groups)
            while count > 1 and Measurement.get(console, wide, self._cut(groups[:count])).maximum > options.max_width:
                count -= 1
            yield self._cut(groups[:count])
            groups = groups[count:]

    def _cut(self, groups: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        starts = np.cumsum([0, *(len(columns) for _, columns in self.header)])
        indices = []
        for group in (0, *groups):
            for offset, title in enumerate(self.header[group][1]):
                left = group == 0 or "verdict" in title
                table.add_column(Text(title), justify="left" if left else "right", no_wrap=True, vertical="bottom")
                indices.append(int(starts[group]) + offset)
        for row in self.rows:
            table.add_row(*(row[index] for index in indices))
        return table


def _check(report: Report) -> None:
    if not report.runs:
        raise InputError("there is no run", where="report", hint="run at least one policy on one seed")
    if len(report.run_of) != len(report.runs):
        ((policy, seed), count) = Counter((run.policy, run.seed) for run in report.runs).most_common(1)[0]
        raise InputError(f"policy {policy!r} has {count} runs of seed {seed}", where="report", hint="keep one")
    for policy in report.policies:
        missing = [seed for seed in report.seeds if (policy, seed) not in report.run_of]
        if missing:
            message = f"policy {policy!r} has no run of seed {missing[0]}, which another policy has"
            raise InputError(message, where="report", hint="run every policy on the same seeds")
    unknown = [seed for seed in report.seeds if seed not in report.scenarios]
    if unknown:
        hint = "pass scenarios={seed: ScenarioMeta.from_scenario(scenario), …} with every seed"
        raise InputError(f"there is no scenario for seed {unknown[0]}", where="report", hint=hint)
    if report.baseline is not None and report.baseline not in report.policies:
        raise _unknown("policy", report.baseline, report.policies)


def _unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    known = list(known)
    near = difflib.get_close_matches(name, known, 3) or known
    return InputError(f"unknown {what} {name!r}", where="report", hint=f"use {_listed(near, 'or')}")


def _listed(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _short(name: str) -> str:
    return name if len(name) <= 20 else name[:19] + "…"


def _change(ratio: float) -> str:
    return f"{abs(ratio - 1):.1%} {'lower' if ratio < 1 else 'higher'}"


def _plain(value: float, digits: int) -> Text:
    if not math.isfinite(value):
        return Text("never", style="red")
    decimals = max(0, digits - 1 - math.floor(math.log10(value))) if value > 0 else 0
    return Text(f"{value:,.{min(decimals, digits)}f}")


def _signed(estimate: IntervalEstimate, metric: RunMetric | None) -> str:
    """An estimate with its interval: a ratio (no metric) as a percentage, a difference in the metric's unit."""

    def show(value: float) -> str:
        if metric is None:
            return f"{value - 1:+.1%}".replace("-", "−")
        sign = "−" if value < 0 else "+"
        return sign + (f"{abs(value) * 100:.1f} pp" if metric.unit == "share" else metric.show(abs(value)))

    if not math.isfinite(estimate.value):
        return "–"
    if estimate.low is None or estimate.high is None:
        return show(estimate.value)
    return f"{show(estimate.value)} ({show(estimate.low)} … {show(estimate.high)})"


def _time_scale(seconds: Iterable[float]) -> tuple[float, str]:
    """One time unit for a whole column, by its median: the factor from seconds, and the unit's name."""
    finite = [value for value in seconds if math.isfinite(value)]
    median = float(np.median(finite)) if finite else 1.0
    for factor, unit in ((1 / 3600, "h"), (1 / 60, "min"), (1.0, "s"), (1e3, "ms")):
        if median * factor >= (2 if unit in ("h", "min") else 1):
            return factor, unit
    return 1e6, "µs"
