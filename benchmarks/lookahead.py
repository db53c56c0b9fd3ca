"""Gain and cost of look-ahead: `python -m benchmarks.lookahead [--quick] [--json FILE]`.

Small workloads on one machine: mean completion time over that of the wrapped policy, seed by seed, for budgets from
nothing to the end of all jobs in the system, and the time of a decision. In simulated futures, earliest finish decides,
which is far cheaper than the network; that heuristic alone is shown, too.

Unfair to policies without look-ahead: the time of decisions is measured but not charged. Unfair to look-ahead: it does
not know future jobs, takes tenants as constant, and restarts transfers. The machine may have other load, which is
stored with the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import arguments, keep
from symphony.baselines import EftBelief
from symphony.evaluation.scorecard import FIRST_HELD_OUT_SEED
from symphony.evaluation.statistics import paired
from symphony.lowering.family import workload
from symphony.policies import SHIPPED, Learned, LookAhead, named
from symphony.problem.topologies import topology
from symphony.scheduling.policy import Policy
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import Disturbances, Scenario, draw, stack

WORKLOADS = {"layered": "layered:12?jobs=6", "variant-calling": "variant-calling?jobs=6"}
SEEDS = range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + 10)
SHAPES = ((4, 4), (2, 2))  # candidates, samples; each needs a program
HORIZONS = {(4, 4): (1.0, 4.0, 16.0, 64.0), (2, 2): (16.0,)}  # in typical times of a gang
MOST = 2000  # steps


def scenario(spec: str, seed: int) -> Scenario:
    """A scenario with the disturbances of `symphony compare`."""
    cluster = topology("machine")
    drawn = workload(spec, cluster, seed)
    return draw(cluster, drawn, seed, Disturbances(), job_slots=len(drawn.jobs))


def ahead(learned: Learned, shape: tuple[int, int], horizon: float) -> LookAhead:
    """Look-ahead with a budget; without a horizon, the policy itself."""
    policy = LookAhead(learned, EftBelief(), *shape, horizon=horizon, most=MOST)
    return policy if horizon else eqx.tree_at(lambda p: p.caution, policy, jnp.asarray(jnp.inf))


def measure(scenarios: list[Scenario], policy: Policy) -> dict[str, Any]:
    """Runs one by one, so that decisions are computed only where they are due; equally padded, for one program."""
    batch = stack(scenarios)
    runs: list[RunRecord] = []
    for number, each in enumerate(scenarios):
        alone = jax.tree.map(lambda x, n=number: x[n : n + 1], replace(batch, topology=None))
        runs += simulate([each], policy, batch=replace(alone, topology=batch.topology))
    assert not any(run.refused for run in runs)
    return {
        "mean_completion_s": [float(np.mean([job.completion_s for job in run.jobs])) for run in runs],
        "decision_ms": [1e3 * run.wall_s / run.decisions for run in runs],
    }


def main() -> None:
    chosen = arguments(__doc__ or "", tuple(WORKLOADS))
    learned = named(SHIPPED)
    assert isinstance(learned, Learned)
    found: dict[str, list[dict[str, Any]]] = {}
    seeds = list(SEEDS[:2] if chosen.quick else SEEDS)
    for name in chosen.only[:1] if chosen.quick else chosen.only:
        scenarios = [scenario(WORKLOADS[name], seed) for seed in seeds]
        found[name] = []
        for policy, budget, made in budgets(learned, chosen.quick):
            found[name].append({"policy": policy, **budget, **measure(scenarios, made)})
            keep(chosen.json, seeds=seeds, workloads=WORKLOADS, results=found)
        show(name, found[name])


def budgets(learned: Learned, quick: bool) -> Iterator[tuple[str, dict[str, float], Policy]]:
    """Policies with their budgets."""
    shapes = SHAPES[-1:] if quick else SHAPES
    yield SHIPPED, {}, ahead(learned, shapes[0], 0.0)
    if not quick:  # needs another program
        yield "eft-belief", {}, EftBelief()
    for shape in shapes:
        for horizon in HORIZONS[shape]:
            budget = {"candidates": shape[0], "samples": shape[1], "horizon": horizon}
            yield "look-ahead", budget, ahead(learned, shape, horizon)


def show(name: str, found: list[dict[str, Any]]) -> None:
    """A table with a row for each budget, relative to the wrapped policy."""
    table = Table(title=f"{name}: mean completion time against {SHIPPED}")
    for column in ("policy", "candidates", "samples", "horizon", "ratio", "95%", "ms a decision, median"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for row in found:
        ratio = paired(row["mean_completion_s"], found[0]["mean_completion_s"]).ratio
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        budget = [f"{row[key]:g}" if key in row else "" for key in ("candidates", "samples", "horizon")]
        interval = f"{ratio.low:.3f} … {ratio.high:.3f}"
        table.add_row(row["policy"], *budget, f"{ratio.value:.3f}", interval, f"{np.median(row['decision_ms']):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
