"""Plots of a plan: its schedule, and what more samples bring."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from symphony.evaluation.plots import PALETTE, blank, gantt
from symphony.evaluation.report import Report, ScenarioMeta
from symphony.oracle.planning import Planned


def save_plan(planned: Planned, folder: Path) -> list[Path]:
    """Write both plots as PNG files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    meta = {planned.run.seed: ScenarioMeta.from_scenario(planned.scenario)}
    figures = {"schedule": gantt(Report([planned.run], meta, cheats=set(), command=""))}
    if planned.samples_s:
        figures["curve"] = curve(planned)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path, dpi=150)
    return paths


def curve(planned: Planned) -> Figure:
    """The best of so many samples on average, between what is given up and what cannot be reached."""
    figure, ax = blank(7, 4)
    counts, values = zip(*planned.curve, strict=True)
    ax.plot(counts, values, marker="o", color=PALETTE[0], label="best of so many samples, on average")
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
