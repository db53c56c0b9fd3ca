"""The simulator as a Gymnasium environment: one episode at a time, NumPy in and out.

    env = gymnasium.make("symphony/genomics-v0")
    obs, info = env.reset(seed=7)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))

`reset(seed=7)` starts the scenario of seed 7, that of `sy.compare(…, seeds=[7])`, and determines the whole episode.
Without a seed, a random one is used (from 1,000,000 on). An episode ends when all jobs are complete; the next one
starts with another `reset`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from symphony.envs.functional import EnvFeatures, EnvState, FunctionalEnv, Params
from symphony.envs.named import FIRST_TRAINING_SEED, scenario_source
from symphony.problem import limits
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.scenario_source import Draw
from symphony.simulator.scenarios import Disturbances

BOUND = 32.0  # of features, which are shares and clipped logarithms
OBSERVED = ("rows", "devices", "gangs", "pairs", "others", "scene", "action_mask")


class GymnasiumEnv(gymnasium.Env[Any, np.int64]):
    """One decision of the scheduler per step. `options` are those of `FunctionalEnv`.

    The observation is a dictionary of arrays (`sy.envs.EnvFeatures`), including the action mask. The mask is also in
    `info["action_mask"]`, for `action_space.sample`, and returned by `action_masks()`, for `MaskablePPO`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (the base class declares it so)

    def __init__(
        self,
        scenario: str = "",
        *,
        topology: Topology | str | None = None,
        workload: Workload | Draw | str | None = None,
        disturbances: Disturbances | None = None,
        job_slots: int | None = None,
        render_mode: None = None,
        **options: Any,
    ) -> None:
        for name in ("features", "micro_steps"):
            if name in options:
                raise InputError(f"a Gymnasium environment takes no {name!r}", hint="sy.envs.make does")
        self.render_mode = render_mode
        source = scenario_source(scenario, topology, workload, disturbances, job_slots)
        self.functional = FunctionalEnv(source, micro_steps=None, **options)
        self._reset, self._step = jax.jit(self.functional.reset_to), jax.jit(self.functional.step_env)
        self._params: Params | None = None
        self._state: EnvState | None = None
        self._mask = np.zeros(self.functional.num_actions, bool)
        self._key = jax.random.key(0)  # only used by automatic resets, which are off here
        self.action_space = spaces.Discrete(self.functional.num_actions)
        self.observation_space = self._space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start the scenario of a seed, or of a random one."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(FIRST_TRAINING_SEED, limits.SEED)) if seed is None else seed
        self._params = self.functional.params([number])
        features, self._state = self._reset(jnp.asarray(0), self._params)
        return self._arrays(features), {"action_mask": self._mask.astype(np.int8), "seed": number}

    def step(self, action: np.int64 | int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Carry out an action. If the mask forbids it, the first allowed action is carried out instead."""
        if self._state is None or self._params is None:
            raise InputError("the environment has not been reset", hint="call reset() first")
        if not 0 <= int(action) < self.functional.num_actions:
            hint = f"use an index from 0 to {self.functional.num_actions - 1}"
            raise InputError(f"the action is {action!r}", hint=hint)
        features, self._state, reward, done, info = self._step(
            self._key, self._state, jnp.asarray(int(action)), self._params
        )
        scalars = {name: value.item() for name, value in jax.device_get(info).items()}
        obs = self._arrays(features)
        return obs, float(reward), bool(done), False, {**scalars, "action_mask": self._mask.astype(np.int8)}

    def action_masks(self) -> np.ndarray:
        """The action mask, under the name that `MaskablePPO` calls."""
        return self._mask.copy()

    def _space(self) -> spaces.Dict:
        """The space of the features' shapes, without computing any."""
        params = self.functional.params([FIRST_TRAINING_SEED])
        shapes = jax.eval_shape(self.functional.reset_to, jnp.asarray(0), params)[0]
        return spaces.Dict(
            {
                name: spaces.MultiBinary(self.functional.num_actions)
                if name == "action_mask"
                else spaces.Box(-BOUND, BOUND, getattr(shapes, name).shape, np.float32)
                for name in OBSERVED
            }
        )

    def _arrays(self, features: EnvFeatures) -> dict[str, np.ndarray]:
        """The observation as NumPy arrays of the space's dtypes; also stores the mask."""
        host = jax.device_get(features)
        self._mask = np.asarray(host.action_mask)
        arrays = {name: np.clip(getattr(host, name), -BOUND, BOUND, dtype=np.float32) for name in OBSERVED[:-1]}
        return {**arrays, "action_mask": self._mask.astype(np.int8)}
