"""Plots of reports and plans. Every function returns a new figure; Matplotlib's global state is not used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, PercentFormatter

from symphony.evaluation.metrics import LOSS_CLASSES, METRICS
from symphony.simulator.records import GangRecord

if TYPE_CHECKING:
    from symphony.evaluation.report import Report
    from symphony.oracle.planning import Planned

# Distinguishable with any colour vision (after Okabe and Ito, without the yellow, which is too pale on white).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#777777")
# There are often more kernels than colours: the same again, paler.
KERNEL_PALETTE = (*PALETTE, *(to_hex(((1 + r) / 2, (1 + g) / 2, (1 + b) / 2)) for r, g, b in map(to_rgb, PALETTE)))
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))  # once the palette is used up
LOSS_COLOURS = ("#0072B2", "#8CC5E3", "#F3C06B", "#D55E00")
LOSS_TITLES = ("isolated speed", "slowed ≤ 10%", "10 to 20%", "over 20%")
MIN_CONTENDED_SLOWDOWN = 1.05  # above this, a stay is drawn as slowed by contention
_INK, _FAINT, _RED = "#222222", "#D8D8D8", "#C1121F"
_GANTT_LANES, _GANTT_BARS = 64, 4_000  # more could not be told apart in a picture


def colours(report: Report) -> dict[str, str]:
    """The colour of each policy, in every plot and on the page."""
    return {policy: PALETTE[i % len(PALETTE)] for i, policy in enumerate(report.policies)}


def save_all(report: Report, directory: Path) -> list[Path]:
    """Write every plot of a report as a PNG file into a directory; returns the paths."""
    plots = (slowdown_cdf, loss_classes, paired_ratios, utilisation, gantt)
    return _save({plot.__name__: plot(report) for plot in plots}, directory)


def save_plan(planned: Planned, directory: Path) -> list[Path]:
    """Write the schedule of a plan, and its quality by the number of samples, as PNG files into a directory."""
    from symphony.evaluation.report import Report, ScenarioMeta  # which imports this module

    scenarios = {planned.run.seed: ScenarioMeta.from_scenario(planned.scenario)}
    figures = {"schedule": gantt(Report([planned.run], scenarios, cheats=set(), command=""))}
    if planned.samples_s:
        figures["curve"] = sample_curve(planned)
    return _save(figures, directory)


def _save(figures: Mapping[str, Figure], directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(directory / f"{name}.png", dpi=150)
    return [directory / f"{name}.png" for name in figures]


def slowdown_cdf(report: Report) -> Figure:
    """Share of the jobs of all seeds whose slow-down is at most x, for each policy."""
    figure, ax = blank(7.2, 4.2)
    colour = colours(report)
    least, most = 1.0, 1.0
    for policy in report.ranking:
        jobs = [job for seed in report.seeds for job in report.run_of[policy, seed].jobs]
        values = np.sort([job.slowdown for job in jobs if math.isfinite(job.slowdown)])
        if len(values):
            least, most = min(least, values[0]), max(most, values[-1])
            ax.step(
                [values[0], *values],
                np.arange(len(values) + 1) / len(jobs),
                where="post",
                color=colour[policy],
                linestyle=_dash(report, policy),
                linewidth=1.8,
            )
    ax.set_xscale("log")
    ax.set_xlim(least * 0.97, most * 1.05)
    ax.set_ylim(0, 1.01)
    ticks = [x for x in _nice_log(most / least) if least * 0.97 <= x <= most * 1.05]
    ax.set_xticks(ticks, [f"{x:g}×" for x in ticks])
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("slow-down of a job (log scale)")
    ax.set_ylabel("jobs at most this slow")
    ax.grid(color=_FAINT, linewidth=0.6)
    _title(ax, "Slow-down of jobs", f"{len(report.seeds)} seeds pooled; further left is better")
    _legend(ax, report, loc="lower right")
    return figure


def loss_classes(report: Report) -> Figure:
    """Shares of gangs by how much contention slowed them, a bar for each policy."""
    policies = report.ranking[::-1]
    figure, ax = blank(7.2, 1.5 + 0.42 * len(policies))
    left = np.zeros(len(policies))
    for name, colour in zip(LOSS_CLASSES, LOSS_COLOURS, strict=True):
        shares = np.nan_to_num([report.mean(policy, name) for policy in policies])
        ax.barh(range(len(policies)), shares, left=left, color=colour, height=0.68, edgecolor="white", linewidth=0.8)
        for row, (start, share) in enumerate(zip(left, shares, strict=True)):
            if share >= 0.05:
                ink = "white" if colour in (LOSS_COLOURS[0], LOSS_COLOURS[3]) else _INK
                ax.text(start + share / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=8, color=ink)
        left += shares
    ax.set_yticks(range(len(policies)), [_text(report.label(policy)) for policy in policies])
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.tick_params(axis="y", length=0)
    _title(ax, "What contention cost the gangs", "share of finished gangs, mean over seeds")
    ax.legend(
        [Patch(color=colour) for colour in LOSS_COLOURS],
        LOSS_TITLES,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.32 / (0.42 * len(policies))),
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    return figure


def paired_ratios(
    report: Report,
    relative_to: str | None = None,
    metrics: Sequence[str] = ("mean_completion_s", "p99_completion_s", "p99_slowdown", "makespan_s"),
) -> Figure:
    """Ratio to the baseline of several metrics, with 95% intervals and every seed's own ratio as a dot."""
    base = report.baseline_for(relative_to)
    others = [policy for policy in report.ranking[::-1] if policy != base]
    figure = Figure(figsize=(1.6 + 2.3 * len(metrics), 1.6 + 0.42 * max(1, len(others))), layout="constrained")
    axes = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    colour = colours(report)
    for ax, name in zip(axes, metrics, strict=True):
        _style(ax)
        ax.axvline(1.0, color=_INK, linewidth=0.9)
        for row, policy in enumerate(others):
            ratio = report.paired(policy, name, base).ratio
            if ratio is None:
                ax.text(1.0, row, "never ended", ha="center", va="center", fontsize=8, backgroundcolor="white")
                continue
            each = report.values(policy, name) / report.values(base, name)
            ax.plot(each, np.full(len(each), row - 0.24), "|", color=colour[policy], alpha=0.55, markersize=5)
            if ratio.low is not None and ratio.high is not None:
                ax.plot([ratio.low, ratio.high], [row, row], color=colour[policy], linewidth=2.6)
            ax.plot(ratio.value, row, "o", color=colour[policy], markersize=6)
        ax.set_title(METRICS[name].title.replace(" of ", "\nof ", 1), fontsize=9, color=_INK)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.2f}".rstrip("0").rstrip(".")))
        ax.set_ylim(-0.6, max(1, len(others)) - 0.4)
        ax.grid(axis="x", color=_FAINT, linewidth=0.6)
        ax.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(others)), [_text(report.label(policy)) for policy in others])
    axes[0].set_xlabel(f"ratio to {_text(report.label(base))}; left of 1 is better", fontsize=8, loc="left")
    figure.suptitle(
        "Against the baseline, seed by seed: geometric mean ratio, 95% interval; ticks are seeds",
        fontsize=10,
        x=0.01,
        ha="left",
        color=_INK,
    )
    return figure


def utilisation(report: Report) -> Figure:
    """Mean utilisation of each kind of resource, a bar for each policy."""
    names = [metric.name for metric in report.metrics if metric.name.startswith("utilisation.")]
    figure, ax = blank(max(5.5, 1.2 + 1.25 * len(names)), 3.8)
    width = 0.82 / len(report.policies)
    colour = colours(report)
    for number, policy in enumerate(report.ranking):
        heights = [report.mean(policy, name) for name in names]
        places = np.arange(len(names)) - 0.41 + (number + 0.5) * width
        ax.bar(places, heights, width * 0.92, color=colour[policy])
    ax.set_xticks(range(len(names)), [name.split(".")[1].replace("_", "\n") for name in names])
    ax.tick_params(axis="x", length=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.grid(axis="y", color=_FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    _title(ax, "Utilisation by the runs' own work", "mean over rows of the kind, run and seeds; tenants left out")
    _legend(ax, report, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def gantt(report: Report, seed: int | None = None, policies: Sequence[str] | None = None) -> Figure:
    """The schedules of one seed, by default the first, of the best fair policy and the baseline."""
    seed = report.seeds[0] if seed is None else seed
    policies = list(dict.fromkeys(policies or [report.best, report.baseline_for(None)]))
    meta = report.scenarios[seed]
    charts = [_Chart.of(report.run_of[policy, seed].gangs) for policy in policies]
    kernel = {(g, i): name for g, graph in enumerate(meta.graphs) for i, name in enumerate(graph.kernels)}
    names = list(dict.fromkeys(kernel.values()))
    shade = {name: KERNEL_PALETTE[i % len(KERNEL_PALETTE)] for i, name in enumerate(names)}
    heights = [min(max(1.2, 0.16 * len(chart.rows)), 6.0) for chart in charts]
    figure = Figure(figsize=(11, 1.0 + sum(heights) + 0.5 * len(charts)), layout="constrained")
    axes = figure.subplots(len(charts), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for ax, policy, chart in zip(axes, policies, charts, strict=True):
        _style(ax)
        run = report.run_of[policy, seed]
        graph_of = {job.job: job.graph for job in run.jobs}
        row_of = {row: number for number, row in enumerate(chart.rows)}
        boxes: dict[str, list[Any]] = defaultdict(list)
        contended = []
        for bar in chart.bars:
            y = row_of[bar.device, bar.lane]
            stay = bar.stay
            box = [(stay.start_s, y), (stay.start_s, y + 0.86), (stay.finish_s, y + 0.86), (stay.finish_s, y)]
            boxes[kernel.get((graph_of.get(stay.job, 0), stay.gang), "?")].append(box)
            if stay.slowdown > MIN_CONTENDED_SLOWDOWN:
                contended.append(box)
        for name, polygons in boxes.items():
            ax.add_collection(PolyCollection(polygons, facecolor=shade.get(name, "#999999"), linewidth=0))
        ax.add_collection(PolyCollection(contended, facecolor="none", edgecolor=_RED, linewidth=0.7))
        firsts = [n for n, (device, _) in enumerate(chart.rows) if n == 0 or chart.rows[n - 1][0] != device]
        lasts = [*firsts[1:], len(chart.rows)]
        ax.set_yticks(
            [(a + b - 0.14) / 2 for a, b in zip(firsts, lasts, strict=True)],
            [_text(meta.devices[chart.rows[n][0]].name) for n in firsts],
            fontsize=7,
        )
        for n in firsts[1:]:
            same = meta.devices[chart.rows[n][0]].machine == meta.devices[chart.rows[n - 1][0]].machine
            ax.axhline(n - 0.07, color=_FAINT if same else "#777777", linewidth=0.5 if same else 0.9)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(chart.rows), -0.1)
        ax.autoscale_view(scalex=True, scaley=False)
        mean = METRICS["mean_completion_s"].show(report.metrics_of[policy, seed]["mean_completion_s"])
        left_out = f"; {chart.left_out}" if chart.left_out else ""
        _title(ax, _text(report.label(policy)), f"mean completion time {mean}{left_out}")
    axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel(f"time, s (seed {seed}; red edge: slowed by over 5% by contention)", fontsize=8)
    shown = names[:24]
    figure.legend(
        [Patch(color=shade[name]) for name in shown],
        [_text(name) for name in shown],
        loc="outside lower center",
        ncols=min(8, max(1, len(shown))),
        frameon=False,
        fontsize=8,
    )
    return figure


def sample_curve(planned: Planned) -> Figure:
    """The expected best of a number of samples, with the policy, the best heuristic, the plan and the lower bound."""
    figure, ax = blank(7, 4)
    counts, values = zip(*planned.curve, strict=True)
    ax.plot(counts, values, marker="o", color=PALETTE[0], label="expected best of the samples")
    best = sorted(planned.heuristics, key=lambda name: planned.heuristics[name])[:1]
    lines = (
        (planned.greedy_s, "the policy's own decisions", "-."),
        *((planned.heuristics[name], f"{name}, the best heuristic", ":") for name in best),
        (planned.value_s, "the plan", "-"),
        (planned.bound_s, "lower bound", "--"),
    )
    for (value, label, dash), colour in zip(lines, PALETTE[1:], strict=False):
        ax.axhline(value, linestyle=dash, color=colour, label=label)
    ax.set_xscale("log", base=2)
    ax.set_xlabel("samples", fontsize=8)
    ax.set_ylabel(f"{planned.objective.replace('_', ' ')}, s", fontsize=8)
    ax.legend(frameon=False, fontsize=8)
    return figure


class Bar(NamedTuple):
    """One worker of a stay, and where it is drawn."""

    stay: GangRecord
    device: int
    lane: int


def lanes(stays: Sequence[GangRecord]) -> list[Bar]:
    """Assign each worker the lowest free lane of its device, so that bars do not overlap."""
    ends: defaultdict[int, list[float]] = defaultdict(list)
    bars = []
    for stay in sorted(stays, key=lambda stay: (stay.start_s, stay.finish_s)):
        for device in stay.devices:
            busy = ends[device]
            lane = next((i for i, end in enumerate(busy) if end <= stay.start_s), len(busy))
            busy[lane : lane + 1] = [stay.finish_s]
            bars.append(Bar(stay, device, lane))
    return bars


class _Chart(NamedTuple):
    bars: list[Bar]
    rows: list[tuple[int, int]]  # (device, lane), from the top
    left_out: str

    @classmethod
    def of(cls, stays: Sequence[GangRecord]) -> _Chart:
        ordered = sorted(stays, key=lambda stay: stay.start_s)
        bars = lanes(ordered[:_GANTT_BARS])
        rows = sorted({(bar.device, bar.lane) for bar in bars})
        notes = [f"the first {_GANTT_BARS:,} of {len(ordered):,} stays"] if len(ordered) > _GANTT_BARS else []
        if len(rows) > _GANTT_LANES:
            notes.append(f"{_GANTT_LANES} of {len(rows)} lanes, evenly chosen")
            # Devices of one kind are neighbours: the first lanes would all be alike.
            rows = [rows[i] for i in np.linspace(0, len(rows) - 1, _GANTT_LANES).round().astype(int)]
            kept = set(rows)
            bars = [bar for bar in bars if (bar.device, bar.lane) in kept]
        return cls(bars, rows, ", ".join(notes))


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty plot in the style of the others; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.subplots()
    _style(ax)
    return figure, ax


def _style(ax: Axes) -> None:
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#999999")
    ax.tick_params(colors=_INK, labelsize=8, color="#999999")


def _title(ax: Axes, title: str, subtitle: str) -> None:
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=18)
    ax.annotate(
        subtitle, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=8, color="#666666"
    )


def _legend(ax: Axes, report: Report, **where: Any) -> None:
    colour = colours(report)
    handles = [Line2D([], [], color=colour[p], linestyle=_dash(report, p), linewidth=2.2) for p in report.ranking]
    ax.legend(handles, [_text(report.label(p)) for p in report.ranking], frameon=False, fontsize=8, **where)


def _dash(report: Report, policy: str) -> Any:
    return DASHES[report.policies.index(policy) // len(PALETTE) % len(DASHES)]


def _text(name: str) -> str:
    """A name, escaped for Matplotlib: a dollar begins mathematics, a leading _ hides a legend entry."""
    name = name.replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name


def _nice_log(span: float) -> list[float]:
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if span < 4 else (1, 2, 5) if span < 200 else (1,)
    return [step * 10.0**power for power in range(-3, 10) for step in steps]
