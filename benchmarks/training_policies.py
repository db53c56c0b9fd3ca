"""Learned policies for training jobs against the planner: `python -m benchmarks.training_policies [--json FILE]`.

1. *collect*: the planner runs one list (a seed that is not evaluated); what members of the ensemble that it ends with
   make of all jobs are the worlds to train in.
2. *train*: (a) actor-critic (Harmony), (b) meta, with its one step of adaptation, (c) history, `--minutes` each.
   Untrained, the policy is a greedy planner. This is the part for an accelerator: give it larger `--batch` and
   `--repeats`.
3. *policies*: each runs held-out lists in the closed loop, on beliefs of its own samples, as does (d) the planner.

Worlds and weights are kept in `--weights DIR`, so that the parts may be run apart. `--merge` as in `training_jobs`,
whose rows for the planner may be merged with these: the lists are the same.

Unfair to the learned ones: they are trained for minutes, on shorter jobs, rounds of ten minutes and one pool for each
kind of GPU. Unfair to the planner: nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks import placer_training
from benchmarks.common import before, gather, in_parts, parser
from benchmarks.placer import LearnedPlanner, Placer, network
from benchmarks.training_jobs import OURS, Figures, by_load, figures, planner, unknown_case
from symphony.training_jobs.closed_loop import run
from symphony.training_jobs.measured_jobs import describe_jobs
from tests.compiling import compile_quickly

SECTIONS = ("collect", "train", "policies")
COLLECTED = 1_000  # the seed of the list that samples are collected on
LOAD = 2.0  # of that list
UNTRAINED = "untrained"


def collect(options: Any) -> Iterator[Figures]:
    """Worlds that may be, after the planner has run one list."""
    scenario, made = unknown_case(COLLECTED, 2, options.jobs, LOAD)
    out = run(scenario, planner(options.planner), describe_jobs(made, scenario.topology))
    out.beliefs.refit(out.run.makespan_s)
    counts = [scenario.topology.kind_counts[kind.name] for kind in scenario.topology.kinds]
    width = np.asarray([shape.gpus for shape in made.shapes])
    worlds = placer_training.speed_worlds(out.beliefs, width, np.asarray(counts), np.ones(len(counts), int))
    options.weights.mkdir(parents=True, exist_ok=True)
    np.savez(options.weights / "worlds.npz", *(np.asarray(leaf) for leaf in jax.tree.leaves(worlds)))
    yield {"seed": COLLECTED, "samples": out.samples, "members": int(worlds.members.unit_s.shape[0])}


def kept_worlds(options: Any) -> placer_training.SpeedWorlds:
    """What `collect` left."""
    with np.load(options.weights / "worlds.npz") as file:
        leaves = [jnp.asarray(file[name]) for name in file.files]
    unit_s, kept, doubt, every_unit_s, every_kept, width, gpus = leaves
    sampled = placer_training.SpeedWorld(unit_s, kept)
    every = placer_training.SpeedWorld(every_unit_s, every_kept)
    return placer_training.SpeedWorlds(sampled, doubt, every, width, gpus)


def train(options: Any) -> Iterator[Figures]:
    """Weights of each kind, and how training went."""
    w = kept_worlds(options)
    for how in options.how:
        began, steps = time.perf_counter(), 2 if options.quick else options.steps
        until = began + 60 * options.minutes
        found = placer_training.train(
            w, how=how, steps=steps, batch=options.batch, repeats=options.repeats,
            goes_on=lambda step, until=until: step < 2 or time.perf_counter() < until,
        )  # fmt: skip
        served = placer_training.adapt(found.weights, w) if how == "meta" else found.weights
        eqx.tree_serialise_leaves(options.weights / f"{how}.eqx", served)
        yield {
            "trained": how, "steps": len(found.costs), "lists": options.batch, "repeats": options.repeats,
            "wall_s": time.perf_counter() - began, "used": found.used.tolist(),
            "judged": found.validation_costs, "costs": [round(cost, 3) for cost in found.costs],
        }  # fmt: skip


def policies(options: Any) -> Iterator[Figures]:
    """One load and seed after the other, all policies; but for what has been measured."""
    made = {UNTRAINED: network(jax.random.key(0))}
    for file in sorted(options.weights.glob("*.eqx")):
        made[file.stem] = eqx.tree_deserialise_leaves(file, made[UNTRAINED])
    # Plans are made on the host: one placer with other weights is one compiled program for all.
    placer = Placer(made[UNTRAINED])
    exact = planner(options.planner)
    learned = LearnedPlanner(planner=exact, placer=placer)
    known = {(row["load"], row["seed"], row["policy"]) for row in options.before}
    seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
    names = [name for name in (OURS, *made) if not options.policies or name in options.policies]
    cases = [(load, seed, name) for load in options.loads for seed in seeds for name in names]
    for load, seed, name in (case for case in cases if case not in known):
        if name in made:
            placer.layers = Placer(made[name]).layers
        scenario, jobs = unknown_case(seed, 2, options.jobs, load)
        out = run(scenario, learned if name in made else exact, describe_jobs(jobs, scenario.topology))
        yield {"load": load, "seed": seed, "policy": name, **figures(out, scenario)}


MEASURE = {"collect": collect, "train": train, "policies": policies}


def main() -> None:
    """Measure, print, keep. What is there is kept after every row, so that a run may be stopped."""
    options_parser = parser(__doc__.splitlines()[0], SECTIONS)
    in_parts(options_parser)
    options_parser.add_argument("--jobs", type=int, default=48, help="of each seed")
    options_parser.add_argument(
        "--loads", type=float, nargs="+", default=[LOAD], help="of the lists that are evaluated"
    )
    options_parser.add_argument("--policies", nargs="+", help="run these only")
    options_parser.add_argument("--planner", nargs="+", default=[], metavar="NAME=VALUE", help="settings of ours")
    options_parser.add_argument("--weights", type=Path, default=Path("out/training-policies"), help="kept there")
    options_parser.add_argument(
        "--how",
        nargs="+",
        choices=placer_training.TRAINING_METHODS,
        default=placer_training.TRAINING_METHODS,
        help="train these only",
    )
    options_parser.add_argument("--steps", type=int, default=1000, help="of training, at most")
    options_parser.add_argument("--minutes", type=float, default=10.0, help="of training, each, at most")
    options_parser.add_argument("--batch", type=int, default=7, help="lists a step")
    options_parser.add_argument("--repeats", type=int, default=8, help="episodes of a list")
    options = options_parser.parse_args()
    if options.quick:
        compile_quickly()  # it is compilation that takes the time
        options.jobs, options.how = options.jobs // 4, options.how[:1]
        options.batch, options.repeats = 2, 2
        # One list for all parts: a second one would be compiled for again.
        options.first_seed, options.policies = COLLECTED, [OURS, *options.how]
    found: dict[str, Any] = {}
    for section in options.only:
        rows = before(options, section) if section == "policies" or options.merge else []
        if section == "policies" and options.merge:
            loads = {row["load"] for row in rows}
            rows += [row for row in before(options, "drawn") if row["policy"] == OURS and row["load"] in loads]
        summary = partial(by_load, console=Console()) if section == "policies" else None
        gather(options, found, section, rows, partial(MEASURE[section], options), summary)


if __name__ == "__main__":
    main()
