"""The page of a report: one self-contained HTML file with its style, script and data.

Metrics are embedded for every seed, schedules for a few, so that the page stays small with many seeds.
Names come from users: in the page's text they are escaped, and the script adds them as text, never as markup.
"""

from __future__ import annotations

import html as markup
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from symphony.evaluation.archive import ScenarioMeta
from symphony.evaluation.plots import KERNEL_PALETTE, LOSS_COLOURS, MIN_CONTENDED_SLOWDOWN, PALETTE, Bar, colours, lanes
from symphony.evaluation.statistics import main_estimate, verdict
from symphony.simulator.records import RunRecord

if TYPE_CHECKING:
    from symphony.evaluation.report import Report

SCHEDULED_SEEDS = 3
MAX_BARS = 60_000  # of all schedules together; about 2 MB
_MAX_IDLE_DEVICES = 256  # on larger clusters, devices without an embedded bar are left out
_MAX_PAIRED_POLICIES = 12  # with more policies, the page compares with the report's baseline only
_TICKS_PER_SCHEDULE = 1_000_000  # a schedule's times are whole numbers of its length divided by this
_QUANTILE_LEVELS = np.concatenate([np.linspace(0, 0.99, 100), np.linspace(0.991, 1, 10)])


def html(report: Report) -> str:
    files = resources.files("symphony.evaluation")
    first = report.scenarios[report.seeds[0]]
    parts = {
        "title": markup.escape(f"{first.topology}, {first.workload}: {len(report.policies)} policies compared"),
        "headline": markup.escape(report.headline()),
        "unfairness": markup.escape(report.unfairness()),
        "command": markup.escape(report.command),
        "script": files.joinpath("report.js").read_text(encoding="utf-8"),
        "data": for_script(payload(report)),
    }
    template = files.joinpath("report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def payload(report: Report) -> dict[str, Any]:
    """The data of the page's script, as JSON types."""
    base = report.baseline_for(None)
    first = report.scenarios[report.seeds[0]]
    colour = colours(report)
    bases = report.policies if len(report.policies) <= _MAX_PAIRED_POLICIES else (base,)
    runs = [report.run_of[policy, report.seeds[0]] for policy in report.policies]
    return {
        "topology": first.topology,
        "workload": first.workload,
        "devices": len(first.devices),
        "machines": len({device.machine for device in first.devices}),
        "jobs": max(len(run.jobs) for run in runs),
        "disturbances": {
            key: ", ".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else _rounded(value)
            for key, value in first.disturbances.items()
        },
        "policies": [
            {"name": p, "label": report.label(p), "cheats": p in report.cheats, "colour": colour[p]}
            for p in report.policies
        ],
        "ranking": [report.policies.index(policy) for policy in report.ranking],
        "baselines": [report.policies.index(policy) for policy in bases],
        "baseline": report.policies.index(base),
        "seeds": list(report.seeds),
        "notes": list(report.notes()),
        "loss_colours": LOSS_COLOURS,
        "palette": PALETTE,
        "kernel_palette": KERNEL_PALETTE,
        "contended": MIN_CONTENDED_SLOWDOWN,
        "metrics": [
            {
                "name": m.name,
                "title": m.title,
                "unit": m.unit,
                "better": m.better,
                "definition": m.definition,
                "values": [[_rounded(x) for x in report.values(policy, m.name)] for policy in report.policies],
                "means": [_rounded(report.mean(policy, m.name), 12) for policy in report.policies],
                "paired": [[_pair(report, policy, m.name, b) for policy in report.policies] for b in bases],
            }
            for m in report.metrics
        ],
        "levels": [_rounded(level) for level in _QUANTILE_LEVELS],
        "distributions": {
            "slow-down": _distributions(report, "slowdown"),
            "completion time": _distributions(report, "completion_s"),
        },
        "schedules": _schedules(report),
    }


def scheduled_seeds(report: Report) -> list[tuple[int, str]]:
    """The seeds whose schedules are embedded, with the reason: the median one, then the two extremes."""
    base, best = report.baseline_for(None), report.best
    ours, theirs = report.values(best, "mean_completion_s"), report.values(base, "mean_completion_s")
    with np.errstate(invalid="ignore"):
        ratio = np.nan_to_num(ours / theirs, nan=np.inf)  # where both stalled
    order = [report.seeds[i] for i in np.argsort(ratio, kind="stable")]
    if best == base or len(order) < SCHEDULED_SEEDS:
        chosen = [(seed, "") for seed in report.seeds[:SCHEDULED_SEEDS]]
    else:
        chosen = [
            (order[len(order) // 2], f"the median for {best} against {base}"),
            (order[0], f"the best for {best} against {base}"),
            (order[-1], f"the worst for {best} against {base}"),
        ]
    bars = max(_bars(report, seed) for seed, _ in chosen)
    return chosen[: max(1, MAX_BARS // max(1, bars))]


def _bars(report: Report, seed: int) -> int:
    return sum(len(stay.devices) for policy in report.policies for stay in report.run_of[policy, seed].gangs)


def _pair(report: Report, policy: str, metric: str, base: str) -> list[Any] | None:
    """[1 if a ratio else 0, value, low, high, p, verdict]."""
    if policy == base:
        return None
    result = report.paired(policy, metric, base)
    m = next(m for m in report.metrics if m.name == metric)
    estimate, equal = main_estimate(result, m)
    numbers = [_rounded(x) for x in (estimate.value, estimate.low, estimate.high, result.p)]
    return [int(equal == 1), *numbers, verdict(result, m)]


def _distributions(report: Report, field: str) -> list[list[float | None]]:
    """For each policy, the quantiles over the jobs of all seeds; None where a job never finished."""
    rows = []
    for policy in report.policies:
        values = [getattr(job, field) for seed in report.seeds for job in report.run_of[policy, seed].jobs]
        # This method returns one of the values and never interpolates, which fails with infinite ones.
        rows.append(
            [_rounded(x) for x in np.quantile(values, _QUANTILE_LEVELS, method="inverted_cdf")] if values else []
        )
    return rows


def _schedules(report: Report) -> list[dict[str, Any]]:
    chosen = scheduled_seeds(report)
    most = MAX_BARS // (len(chosen) * len(report.policies))
    return [_schedule(report, seed, why, max(1, most)) for seed, why in chosen]


def _schedule(report: Report, seed: int, why: str, most: int) -> dict[str, Any]:
    """All policies' schedules of one seed, with the earliest `most` bars of each."""
    meta = report.scenarios[seed]
    cut: list[tuple[RunRecord, list[Bar], int]] = []
    for policy in report.policies:
        run = report.run_of[policy, seed]
        stays = sorted((s for s in run.gangs if math.isfinite(s.start_s + s.finish_s)), key=lambda s: s.start_s)
        room, kept = most, 0
        while kept < len(stays) and len(stays[kept].devices) <= room:
            room -= len(stays[kept].devices)
            kept += 1
        cut.append((run, lanes(stays[:kept]), len(stays) - kept))
    used = {bar.device for _, bars, _ in cut for bar in bars}
    shown = [d for d in range(len(meta.devices)) if d in used or len(meta.devices) <= _MAX_IDLE_DEVICES]
    place = {device: i for i, device in enumerate(shown)}
    kernels = list(dict.fromkeys(kernel for graph in meta.graphs for kernel in graph.kernels))
    names = _Numbers()
    end = max((bar.stay.finish_s for _, bars, _ in cut for bar in bars), default=1.0)
    tick = max(end, 1e-9) / _TICKS_PER_SCHEDULE
    return {
        "seed": seed,
        "why": why,
        "tick": tick,
        "devices": [[meta.devices[d].name, meta.devices[d].kind, meta.devices[d].machine] for d in shown],
        "hidden": len(meta.devices) - len(shown),
        "kernels": [names.of(kernel) for kernel in kernels],  # in the order that gives them their colours
        "runs": [
            {
                "mean": _rounded(report.metrics_of[run.policy, seed]["mean_completion_s"]),
                "left_out": left_out,
                **_columns(run, bars, meta, place=place, names=names, tick=tick),
            }
            for run, bars, left_out in cut
        ],
        "names": list(names),  # after the runs, whose columns fill it
    }


class _Numbers(dict[str, int]):
    """Numbers of strings, in the order of their first use."""

    def of(self, text: str) -> int:
        return self.setdefault(text, len(self))


def _columns(
    run: RunRecord, bars: Sequence[Bar], meta: ScenarioMeta, *, place: dict[int, int], names: _Numbers, tick: float
) -> dict[str, Any]:
    """A run's bars by column: times in ticks, starts as differences from bar to bar, names as numbers."""
    jobs = {job.job: job for job in run.jobs}
    graph = {number: meta.graphs[job.graph] for number, job in jobs.items()}

    def ticks(seconds: float) -> int:
        return max(0, round(seconds / tick))

    # A stay's bars follow one another.
    stays = [bar.stay for i, bar in enumerate(bars) if i == 0 or bars[i - 1].stay is not bar.stay]
    starts = [ticks(stay.start_s) for stay in stays]
    finished = [stay.job for stay in stays if stay.job in graph]
    return {
        "job": [stay.job for stay in stays],
        "gang": [names.of(graph[s.job].gangs[s.gang]) if s.job in graph else -1 for s in stays],
        "kernel": [names.of(graph[s.job].kernels[s.gang]) if s.job in graph else -1 for s in stays],
        "start": [b - a for a, b in zip([0, *starts], starts, strict=False)],
        "length": [ticks(stay.finish_s - stay.start_s) for stay in stays],
        "queued": [ticks(stay.start_s - stay.placed_s) for stay in stays],
        "undecided": [ticks(stay.placed_s - stay.ready_s) for stay in stays],
        "setup": [ticks(stay.setup_s) for stay in stays],
        "stretch": [round(1000 * stay.slowdown) for stay in stays],
        "cut": {i: stay.outcome for i, stay in enumerate(stays) if stay.outcome != "finished"},
        "workers": [len(stay.devices) for stay in stays],
        "bar_device": [place[bar.device] for bar in bars],
        "bar_lane": [bar.lane for bar in bars],
        "jobs": {
            i: [names.of(graph[i].name), _rounded(jobs[i].completion_s, 4), _rounded(jobs[i].slowdown, 4)]
            for i in dict.fromkeys(finished)
        },
    }


def _rounded(value: float | None, digits: int = 6) -> float | None:
    """A number with few digits; None for infinity and nan, which JSON does not have."""
    if value is None or isinstance(value, bool):
        return value
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def for_script(value: Any) -> str:
    """JSON for a script element: without `<`, so that no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
