"""The effect of the terms of the estimate: `python -m benchmarks.estimate [--only CASE …] [--quick] [--json FILE]`.

Earliest finish with all terms of the estimate (`scheduling/estimate.py`), with some of them, and with none: a queue in
isolated seconds, the slow-down of the mean load, no cost of harm. Same scenarios for all; the seeds are not those that
the terms were chosen by.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, parser
from benchmarks.waiting import heavy_tailed
from symphony.evaluation.compare import compare
from symphony.evaluation.statistics import paired
from symphony.scheduling.estimate import estimate_parts
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place
from symphony.simulator.scenarios import Disturbances

CASES = {
    "layered": "layered?jobs=30",
    "variant-calling": "variant-calling?jobs=20",
    "eeg": "eeg?jobs=30",
    "intrusion": "intrusion?jobs=40",
    "cholesky:6": "cholesky:6?jobs=12",
    "cholesky:8": "cholesky:8?jobs=10",
    "cholesky:12": "cholesky:12?jobs=6",
    "lu": "lu:6?jobs=8",
    "qr": "qr:6?jobs=8",
    "heavy": "layered:24?jobs=30&load=1",  # heavy-tailed: see `benchmarks/waiting.py`
    "layered, load 1": "layered?jobs=30&load=1",
    "layered, load 0.4": "layered?jobs=30&load=0.4",
    "cholesky:6, load 0.5": "cholesky:6?jobs=12&load=0.5",
}
TOPOLOGIES = ("paper", "machine")
METRICS = ("mean_completion_s", "p99_slowdown")
BEFORE, AFTER = "none", "all"  # of the terms


class EarliestFinish(Policy):
    """`eft-belief` or `eft-exact`, with some terms of its estimate."""

    exact: bool = eqx.field(static=True)  # sees the true background
    expected: bool = eqx.field(static=True)  # the expected slow-down, not that of the mean load
    queue: bool = eqx.field(static=True)  # queues are slowed like runs
    harm: bool = eqx.field(static=True)  # seconds by which others are delayed count

    @property
    def cheats(self) -> bool:  # type: ignore[override]
        return self.exact

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        background = observation.true_background if self.exact else observation.background
        std = observation.background_std if self.expected and not self.exact else None
        parts = estimate_parts(observation, gang, background, std)
        if not self.queue:
            parts = replace(parts, queue=observation.queue_s)
        return state, place(gang, best_device(observation, gang, -(parts.cost if self.harm else parts.finish)))


def policies() -> dict[str, Policy]:
    """Policies by their terms; `exact` ones see the true background."""
    of = {BEFORE: (False, False, False), AFTER: (True, True, True)}
    of["slow-down, queue"] = True, True, False
    belief: dict[str, Policy] = {name: EarliestFinish(False, *terms) for name, terms in of.items()}
    return belief | {f"{name}, exact": EarliestFinish(True, *of[name]) for name in (BEFORE, AFTER)}


def measure(case: str, topology: str, background: float, seeds: range, workload: str) -> dict[str, Any]:
    """Run every policy on every seed of one cell."""
    work: Any = partial(heavy_tailed, spec=workload) if case == "heavy" else workload
    chosen = policies()
    report = compare(
        chosen, topology=topology, workload=work, seeds=seeds, disturbances=Disturbances(background=background)
    )
    found = {name: {m: [report.metrics_of[name, seed][m] for seed in seeds] for m in METRICS} for name in chosen}
    return {"case": case, "topology": topology, "background": background, "columns": found}


def ratio(row: dict[str, Any], metric: str, name: str) -> str:
    """Ratio of these terms to none: geometric mean and 95% interval over seeds."""
    base = f"{BEFORE}, exact" if name.endswith("exact") else BEFORE
    found = paired(row["columns"][name][metric], row["columns"][base][metric]).ratio
    assert found is not None
    return f"{found.value:.3f} ({found.low:.3f} … {found.high:.3f})"


def table(rows: list[dict[str, Any]], metric: str) -> Table:
    """A row for each cell, and the geometric mean over cells."""
    names = [name for name in rows[0]["columns"] if not name.startswith(BEFORE)]
    shown = Table("case", "topology", "background", *names, title=f"{metric}, over none of the terms")
    for row in rows:
        cells = (ratio(row, metric, name) for name in names)
        shown.add_row(row["case"], row["topology"], f"{row['background']:g}", *cells)
    shown.add_row("all", "", "", *(f"{overall(rows, metric, name):.3f}" for name in names))
    return shown


def overall(rows: list[dict[str, Any]], metric: str, name: str) -> float:
    """Geometric mean over cells and seeds."""
    base = f"{BEFORE}, exact" if name.endswith("exact") else BEFORE
    logs = [np.log(row["columns"][name][metric]) - np.log(row["columns"][base][metric]) for row in rows]
    return float(np.exp(np.mean(logs)))


def main() -> None:
    given = parser((__doc__ or "").splitlines()[0], tuple(CASES))
    given.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    given.add_argument("--backgrounds", nargs="+", type=float, default=(0.0, 0.6, 1.0, 2.0))
    given.add_argument("--seeds", type=int, default=20)
    given.add_argument("--first-seed", type=int, default=2000, help="lower seeds were used for tuning")
    options = given.parse_args()
    cells = [(c, t, b) for c in options.only for t in options.topologies for b in options.backgrounds]
    seeds = range(options.first_seed, options.first_seed + (2 if options.quick else options.seeds))
    console, rows = Console(width=220), []
    for case, topology, background in cells[:1] if options.quick else cells:
        workload = "layered:6?jobs=4" if options.quick else CASES[case]
        rows.append(measure(case, topology, background, seeds, workload))
        console.print(case, topology, background, ratio(rows[-1], METRICS[0], AFTER))
        keep(options.json, estimate={"seeds": [*seeds], "rows": rows})
    for metric in METRICS:
        console.print(table(rows, metric))


if __name__ == "__main__":
    main()
