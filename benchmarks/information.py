"""The value of knowing hidden tenants: `python -m benchmarks.information [--only CASE …] [--quick] [--json FILE]`.

The same scenarios, seed by seed, with five beliefs about the loads by hidden tenants: none (what is typical), raw (the
last readings), rows (a filter for each row), joint (one filter over the flows of a machine), exact (the true loads).
The figures of a belief are its mean completion time above that with the exact loads, and the share of the gap between
raw readings and exact loads that it closes. Each case differs from `base` in one setting; `--workloads` has the others.

Unfair to the filters: `exact` also knows rows that nothing measures, and hidden demands of our own kernels. Unfair to
`raw`: rows without a counter count as idle. No belief knows when tenants will change.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, machine, parser
from symphony.evaluation.compare import compare
from symphony.evaluation.statistics import paired
from symphony.simulator.scenarios import BELIEFS, Disturbances

CASES: dict[str, dict[str, Any]] = {
    "base": {"background": 1.0},
    "weak": {"background": 0.6},
    "strong": {"background": 2.0},
    "short phases": {"background": 1.0, "phase_gangs": 8.0},
    "long phases": {"background": 1.0, "phase_gangs": 60.0},
    "two counters": {"background": 1.0, "counters": 2},
    "a counter for each row": {"background": 1.0, "counters": None},
    "steady": {"background": 1.0, "burst": 0.4},
    "very bursty": {"background": 1.0, "burst": 1.8},
    "all counted": {"background": 1.0, "uncounted": ()},
    "seldom busy": {"background": 1.5, "busy_share": 0.1},
    "late readings": {"background": 1.0, "counter_delay": 2},
    "whole machines": {"background": 1.0, "tenants": "machine"},
    "hidden demands": {"background": 1.0, "demand_noise": 0.5},
}
WORKLOADS = {
    "variant-calling": ("paper", "variant-calling?jobs=40"),
    "layered": ("paper", "layered?jobs=40"),
    "busy": ("paper", "layered?jobs=40&load=0.9"),
    "machine": ("machine", "layered?jobs=30"),
    "equal devices": ("fat-tree:24", "layered?jobs=40"),
}
METRIC, TAIL = "mean_completion_s", "p99_slowdown"


def measure(case: str, place: str, policies: list[str], seeds: range) -> list[dict[str, Any]]:
    """A row for each policy and belief, with figures by seed."""
    cluster, work = WORKLOADS[place]
    settings = Disturbances(**CASES[case])
    rows = []
    for belief in BELIEFS:
        report = compare(
            policies, topology=cluster, workload=work, seeds=seeds, disturbances=replace(settings, belief=belief)
        )
        for policy in policies:
            figures = {metric: report.values(policy, metric).tolist() for metric in (METRIC, TAIL)}
            rows.append({"case": case, "workload": place, "policy": policy, "belief": belief, **figures})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case, workload and policy: completion time above exact, and the closed share of the gap of `raw`."""
    found: dict[tuple[str, str, str], dict[str, np.ndarray]] = {}
    for row in rows:
        found.setdefault((row["case"], row["workload"], row["policy"]), {})[row["belief"]] = np.array(row[METRIC])
    lines = []
    for (case, place, policy), times in found.items():
        above = {belief: paired(times[belief], times["exact"]).ratio for belief in BELIEFS}
        excess = {belief: ratio.value - 1 if ratio else float("nan") for belief, ratio in above.items()}
        half = {
            b: (r.high - r.low) / 2 if r and r.high is not None and r.low is not None else 0.0 for b, r in above.items()
        }
        against_rows = paired(times["joint"], times["rows"]).ratio
        lines.append(
            {
                "case": case,
                "workload": place,
                "policy": policy,
                "excess": excess,
                "half_width": half,
                "closed": {b: 1 - excess[b] / excess["raw"] if excess["raw"] > 0 else float("nan") for b in BELIEFS},
                "joint_over_rows": against_rows.value if against_rows else float("nan"),
            }
        )
    return lines


def table(lines: list[dict[str, Any]]) -> Table:
    """A table of completion times above exact, and of the closed shares."""
    shown = Table("case", "workload", "policy", *(b for b in BELIEFS if b != "exact"), "rows closes", "joint closes")
    for line in lines:
        excess, half = line["excess"], line["half_width"]
        shown.add_row(
            line["case"],
            line["workload"],
            line["policy"],
            *(f"{100 * excess[b]:+.1f} ±{100 * half[b]:.1f}%" for b in BELIEFS if b != "exact"),
            *(f"{100 * line['closed'][b]:.0f}%" for b in ("rows", "joint")),
        )
    return shown


def picture(lines: list[dict[str, Any]], path: Path) -> None:
    """Completion time above exact for each case, a mark for each belief."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.32 * len(lines) + 1.4))
    marks = {"none": "x", "raw": "s", "rows": "^", "joint": "o"}
    for belief, mark in marks.items():
        axes.scatter([100 * line["excess"][belief] for line in lines], range(len(lines)), marker=mark, label=belief)
    axes.set_yticks(range(len(lines)), [f"{line['case']}, {line['workload']}, {line['policy']}" for line in lines])
    axes.invert_yaxis()
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("mean completion time above exact knowledge of the tenants, %")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    options = parser(__doc__ or "", tuple(CASES))
    options.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), help="default: all for base, else two")
    options.add_argument("--policies", nargs="+", default=["eft-belief"])
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--first-seed", type=int, default=700)
    options.add_argument("--picture", type=Path, metavar="FILE", help="write a plot, as PNG")
    chosen = options.parse_args()
    count = 2 if chosen.quick else chosen.seeds
    cases = ["base"] if chosen.quick else list(chosen.only)
    rows: list[dict[str, Any]] = []
    for case in cases:
        places = list(WORKLOADS) if case == "base" else ["variant-calling", "layered"]
        if chosen.quick:
            places = places[:1]
        for place in chosen.workloads or places:
            rows += measure(case, place, chosen.policies, range(chosen.first_seed, chosen.first_seed + count))
            Console().print(table(summary(rows[-len(BELIEFS) * len(chosen.policies) :])))
            keep(chosen.json, machine=machine(), seeds=count, rows=rows, summary=summary(rows))
    lines = summary(rows)
    Console(width=160).print(table(lines))
    wide = [line for line in lines if line["excess"]["raw"] >= 0.03]
    if wide:
        left = np.array([max(1 - line["closed"]["joint"], 0.05) for line in wide])
        closed = 1 - np.exp(np.log(left).mean())
        print(f"where raw readings cost 3% or more ({len(wide)} cells), joint closes {closed:.0%}")
    if chosen.picture:
        picture(lines, chosen.picture)


if __name__ == "__main__":
    main()
