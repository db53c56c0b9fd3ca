"""The HTML page of a survey: for each workload the winner, the differences to it, and whether they are significant."""

from __future__ import annotations

import html as markup
import math
import re
from importlib import resources
from typing import Any

from symphony.evaluation.metrics import METRICS
from symphony.evaluation.page import for_script
from symphony.evaluation.report import DAGGER
from symphony.evaluation.statistics import holm
from symphony.evaluation.survey import WINNER_ALPHA, Survey

SHOWN_METRICS = (
    "mean_completion_s",
    "p99_completion_s",
    "mean_slowdown",
    "p99_slowdown",
    "makespan_s",
    "decisions_per_s",
)


def html(survey: Survey) -> str:
    cheating = ", ".join(sorted(survey.cheats))
    parts = {
        "title": markup.escape(f"{len(survey.policies)} policies on {len(survey.places)} workloads"),
        "headline": markup.escape(headline(survey)),
        "unfairness": markup.escape(
            (f"Unfair: {cheating} ({DAGGER}) sees the true state and cannot win. " if cheating else "")
            + "Deciding takes no simulated time unless --latency-s is given, however slow a policy is."
        ),
        "test": f"Wilcoxon's signed-rank test (Holm's correction, {WINNER_ALPHA:.0%} for a row)",
        "command": markup.escape(survey.command),
        "data": for_script(payload(survey)),
    }
    template = resources.files("symphony.evaluation").joinpath("survey.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def headline(survey: Survey) -> str:
    """The result in a sentence."""
    overall = {name: row for name, row in survey.overall().items() if name not in survey.cheats}
    full = {name: row for name, row in overall.items() if row[2] == len(survey.places) and math.isfinite(row[0])}
    if not full:
        return f"No policy ran on all {len(survey.places)} workloads."
    best = min(full, key=lambda name: full[name][0])
    ratio, won, count = full[best]
    behind = "it wins every one" if ratio == 1 else f"on average {ratio - 1:.1%} behind each winner"
    return f"{best} has the least mean completion time over all {count} workloads: best or tied on {won}, {behind}."


def payload(survey: Survey) -> dict[str, Any]:
    """The data of the page's script."""
    present = set().union(*(cell.metrics for cell in survey.cells))
    shown = [name for name in SHOWN_METRICS if name in present]
    return {
        "metrics": [{"name": name, "title": METRICS[name].title} for name in shown],
        "labels": {p: p + DAGGER if p in survey.cheats else p for p in survey.policies},
        "views": {name: _view(survey, name) for name in shown},
        "notes": survey.notes()[1:],
    }


def _view(survey: Survey, metric: str) -> dict[str, Any]:
    overall = survey.overall(metric)
    places = []
    higher = METRICS[metric].better == "higher"
    for place in survey.places:
        standings = survey.standings(place, metric)
        corrected = iter(holm([s.against.p for s in standings if s.against is not None]))
        rows: dict[str, Any] = {}
        for standing in standings:
            ratio = standing.against.ratio if standing.against is not None else None
            rows[standing.policy] = {
                "ratio": None if ratio is None else _number(ratio.value),
                "low": None if ratio is None else _number(ratio.low),
                "high": None if ratio is None else _number(ratio.high),
                "p": None if standing.against is None else _number(next(corrected)),
                "tied": standing.tied,
                "shown": METRICS[metric].show(standing.mean),
            }
        winner = next(s.policy for s in standings if s.against is None)
        order = [s.policy for s in standings]
        places.append({"place": str(place), "winner": winner, "standings": rows, "order": order})

    def rank(policy: str) -> float:
        value = overall[policy][0]
        return math.inf if not math.isfinite(value) else -value if higher else value

    return {
        "places": places,
        "order": sorted(survey.policies, key=rank),
        "overall": {p: {"ratio": _number(r), "won": won, "of": count} for p, (r, won, count) in overall.items()},
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
