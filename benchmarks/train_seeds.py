"""Trainings that differ in their seeds only, side by side in one compiled program, for ablations.

Each has the scenarios and random numbers that it would have alone. One program is compiled for all, and an accelerator
is used fully that one training would leave half idle.
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

SEED_AXIS = "seeds"


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
    """Train once for each seed, on the scenarios of `draw`. Returns the final weights and the summaries of rounds.

    Seconds and rates of a round are a training's share of them. `tell` is called after each validation. `turn`, such as
    a lock, is entered between compiling and the first round: others may compile meanwhile.
    """
    contention = contention or Bottleneck()
    sloped = slopes(telemetry_gradient)
    each = [initial_state(Network(jax.random.key(seed), sizes), method) for seed in seeds]
    states = jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *each)
    history: list[list[TrainingRound]] = [[] for _ in seeds]

    def round_arguments(number: int) -> tuple[Any, ...]:
        """Arguments of a round after the state."""
        batch = pick(drawn.pool, np.stack([round_scenarios(drawn, size, seed, number) for seed in seeds]))
        keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), number) for seed in seeds])
        objective = jnp.asarray(round_objectives(MEAN_ONLY, size, 0, number))
        return batch, keys, rate(method, number, rounds), contention, objective, drawn.keep, size, method, sloped

    compiles: Any = eqx.filter_jit(_rounds)
    program = compiles.lower(states, *round_arguments(0)).compile()
    with turn or nullcontext():
        for number in range(rounds):
            since = time.perf_counter()
            states, figures = program(states, *round_arguments(number))
            seen = {name: np.asarray(value) for name, value in figures.items()}  # waits for them
            networks = [_of(states, index).network for index in range(len(seeds))]
            against: list[float | None] = [None] * len(seeds)
            if (number + 1) % size.every == 0 or number + 1 == rounds:
                against = [
                    float(compare_with_rivals(drawn, Learned(network), contention).mean()) for network in networks
                ]
            passed = (time.perf_counter() - since) / len(seeds)
            for index, summaries in enumerate(history):
                one = {name: float(value[index]) for name, value in seen.items()}
                summaries.append(round_summary(summaries, passed, one, against[index]))
            if tell is not None and against[0] is not None:
                tell(history)
    return [Learned(network) for network in networks], history


def _rounds(
    states: TrainingState,
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
    """A round of all trainings."""
    arrays, rest = eqx.partition(states, eqx.is_array)

    def one(arrays: Any, batch: ScenarioArrays, key: Array) -> tuple[Any, dict[str, Array]]:
        state, figures = one_round(
            eqx.combine(arrays, rest), batch, key, rate, contention, objective, keep, size, method, sloped, SEED_AXIS
        )
        return eqx.filter(state, eqx.is_array), figures

    arrays, figures = jax.vmap(one, in_axes=(0, batch_axes(batch), 0), axis_name=SEED_AXIS)(arrays, batch, keys)
    return eqx.combine(arrays, rest), figures


def _of(states: TrainingState, index: int) -> TrainingState:
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, states)
