"""Learned policies for training jobs against the planner: `python -m benchmarks.training_policies [--json FILE]`.

Samples are collected by the planner on one list (a seed that is not evaluated); the ensemble that it ends with is what
all policies are trained on: (a) actor-critic, (b) meta, with its one step of adaptation, (c) history. Then each runs
held-out lists in the closed loop, on beliefs of its own samples, as does (d) the planner. Untrained, the policy is a
greedy planner.

Unfair to the learned ones: they are trained for minutes, on shorter jobs, rounds of ten minutes and one pool for each
kind of GPU. Unfair to the planner: nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from rich.console import Console

from benchmarks.common import keep, parser
from benchmarks.training_jobs import OURS, Figures, beside, figures, unknown_case
from symphony.policies.describing import describe
from symphony.policies.exploration import Exploration
from symphony.policies.placer import Placer, network
from symphony.policies.planner import Planner
from symphony.training import placing
from symphony.training.closed_loop import run

SECTIONS = ("policies",)
COLLECTED = 1_000  # the seed of the list that samples are collected on
LOAD = 2.0
EXPLORES = Exploration("optimistic")


def collected(jobs: int) -> placing.Worlds:
    """Worlds that may be, after the planner has run one list."""
    scenario, made = unknown_case(COLLECTED, 2, jobs, LOAD)
    out = run(scenario, Planner(exploration=EXPLORES), describe(made, scenario.topology))
    out.beliefs.refit(out.run.makespan_s)
    counts = [scenario.topology.kind_counts[kind.name] for kind in scenario.topology.kinds]
    width = np.asarray([shape.gpus for shape in made.shapes])
    return placing.worlds(out.beliefs, width, np.asarray(counts), np.ones(len(counts), int))


def trained(w: placing.Worlds, steps: int) -> tuple[dict[str, eqx.nn.MLP], list[Figures]]:
    """Weights of each kind, and how training went."""
    weights, rows = {"untrained": network(jax.random.key(0))}, []
    for how in placing.HOW:
        began = time.perf_counter()
        found = placing.train(w, how=how, steps=steps)
        tenth = max(1, steps // 10)
        rows.append({
            "trained": how, "steps": steps, "wall_s": time.perf_counter() - began, "used": found.used.tolist(),
            "first": float(np.mean(found.costs[:tenth])), "last": float(np.mean(found.costs[-tenth:])),
            "costs": found.costs,
        })  # fmt: skip
        weights[how] = placing.adapt(found.weights, w) if how == "meta" else found.weights
    return weights, rows


def policies(options: Any) -> Iterator[Figures]:
    """Train, then one seed after the other, all policies."""
    weights, rows = trained(collected(options.jobs), 2 if options.quick else options.steps)
    yield from rows
    # Plans are made on the host: one placer with other weights is one compiled program for all.
    placer = Placer(weights["untrained"])
    planner, learned = Planner(exploration=EXPLORES), Planner(exploration=EXPLORES, placer=placer)
    for seed in range(1 if options.quick else options.seeds):
        for name in (f"{OURS}, optimistic", *weights):
            own = name not in weights
            placer.layers = placer.layers if own else Placer(weights[name]).layers
            scenario, made = unknown_case(seed, 2, options.jobs, LOAD)
            out = run(scenario, planner if own else learned, describe(made, scenario.topology))
            yield {"seed": seed, "policy": name, **figures(out)}


def main() -> None:
    """Measure, print, keep. What is there is kept after every row, so that a run may be stopped."""
    options_parser = parser(__doc__.splitlines()[0], SECTIONS)
    options_parser.add_argument("--seeds", type=int, default=20)
    options_parser.add_argument("--jobs", type=int, default=48, help="of each seed")
    options_parser.add_argument("--steps", type=int, default=100, help="of training")
    options = options_parser.parse_args()
    rows: list[Figures] = []
    for row in policies(options):
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if k not in ("errors", "costs")}), flush=True)
        keep(options.json, policies={"rows": rows})
    against = beside([row for row in rows if "policy" in row], "policies", Console())
    keep(options.json, policies={"rows": rows, "summary": against})


if __name__ == "__main__":
    main()
