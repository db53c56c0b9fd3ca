"""Trainings that differ in nothing but their seeds, side by side in one compiled program: for ablations.

Each takes the scenarios, and draws the numbers, that it would take and draw by itself; one program is compiled for all,
and an accelerator that one training leaves half idle is full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.estimation.tuning import BeliefSlopes
from symphony.learning.beliefs import NONE, slopes
from symphony.learning.train import (
    RoundSize,
    TrainingRound,
    TrainingScenarios,
    TrainingState,
    compare_with_rivals,
    initial_state,
    one_round,
    round_objectives,
    round_scenarios,
    round_summary,
)
from symphony.learning.update import PPO, Method, rate
from symphony.policies import Learned, Network, Sizes
from symphony.policies.learned import STANDARD
from symphony.problem.objective import MEAN_ONLY
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.scenarios import ScenarioArrays, batch_axes, pick

SEED_AXIS = "seeds"  # the axis


def train_seeds(
    drawn: TrainingScenarios,
    seeds: Sequence[int],
    *,
    rounds: int,
    size: RoundSize,
    sizes: Sizes = STANDARD,
    method: Method = PPO,
    telemetry_gradient: str = NONE,
    contention: ContentionModel | None = None,
    tell: Callable[[list[list[TrainingRound]]], None] | None = None,
    turn: AbstractContextManager[Any] | None = None,
) -> tuple[list[Learned], list[list[TrainingRound]]]:
    """Train once for each seed, on what `draw` made. Returns the weights at the end, and what was told of each round.

    Seconds and rates of a round are a training's share of them. `tell` hears after each look at validation scenarios.
    `turn`, a lock say, is entered between compiling and the first round: others may compile while one trains.
    """
    contention = contention or Bottleneck()
    sloped = slopes(telemetry_gradient)
    each = [initial_state(Network(jax.random.key(seed), sizes), method) for seed in seeds]
    positions = jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *each)
    history: list[list[TrainingRound]] = [[] for _ in seeds]

    def lesson(number: int) -> tuple[Any, ...]:
        """What a round takes, but for where training stands."""
        batch = pick(drawn.pool, np.stack([round_scenarios(drawn, size, seed, number) for seed in seeds]))
        keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), number) for seed in seeds])
        objective = jnp.asarray(round_objectives(MEAN_ONLY, size, 0, number))
        return batch, keys, rate(method, number, rounds), contention, objective, drawn.keep, size, method, sloped

    compiles: Any = eqx.filter_jit(_rounds)
    program = compiles.lower(positions, *lesson(0)).compile()
    with turn or nullcontext():
        for number in range(rounds):
            since = time.perf_counter()
            positions, figures = program(positions, *lesson(number))
            seen = {name: np.asarray(value) for name, value in figures.items()}  # waits for them
            networks = [_of(positions, index).network for index in range(len(seeds))]
            against: list[float | None] = [None] * len(seeds)
            if (number + 1) % size.every == 0 or number + 1 == rounds:
                against = [
                    float(compare_with_rivals(drawn, Learned(network), contention).mean()) for network in networks
                ]
            passed = (time.perf_counter() - since) / len(seeds)
            for index, told in enumerate(history):
                one = {name: float(value[index]) for name, value in seen.items()}
                told.append(round_summary(told, passed, one, against[index]))
            if tell is not None and against[0] is not None:
                tell(history)
    return [Learned(network) for network in networks], history


def _rounds(
    positions: TrainingState,
    batch: ScenarioArrays,
    keys: Array,
    rate: Array,
    contention: ContentionModel,
    objective: Array,
    keep: int,
    size: RoundSize,
    method: Method,
    sloped: BeliefSlopes | None,
) -> tuple[TrainingState, dict[str, Array]]:
    """A round of all."""
    arrays, rest = eqx.partition(positions, eqx.is_array)

    def one(arrays: Any, batch: ScenarioArrays, key: Array) -> tuple[Any, dict[str, Array]]:
        position, figures = one_round(
            eqx.combine(arrays, rest), batch, key, rate, contention, objective, keep, size, method, sloped, SEED_AXIS
        )
        return eqx.filter(position, eqx.is_array), figures

    arrays, figures = jax.vmap(one, in_axes=(0, batch_axes(batch), 0), axis_name=SEED_AXIS)(arrays, batch, keys)
    return eqx.combine(arrays, rest), figures


def _of(positions: TrainingState, index: int) -> TrainingState:
    """One of them."""
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, positions)
