"""The simulator as an environment for reinforcement learning: functional (JAX) and for Gymnasium.

env, params = sy.envs.make("genomics")                                   # pure functions, to be vmapped
env = gymnasium.make("symphony/genomics-v0")                             # needs the extra [envs]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from symphony.envs.functional import Features, FunctionalEnv, Params, State
from symphony.envs.named import FIRST_TRAINING_SEED, SCENARIOS, ScenarioSource, parts_of
from symphony.evaluation.compare import Draw
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.scenarios import Disturbances

__all__ = ["SCENARIOS", "Features", "FunctionalEnv", "Params", "State", "make"]


def make(
    name: str = "",
    *,
    topology: Topology | str | None = None,
    workload: Workload | Draw | str | None = None,
    seeds: Iterable[int] = range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 64),
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
    **options: Any,
) -> tuple[FunctionalEnv, Params]:
    """A functional environment, and its scenarios of these seeds.

    `name` is one of `sy.envs.SCENARIOS`, or `TOPOLOGY/WORKLOAD`, such as "paper/variant-calling?jobs=20"; or give
    `topology` and `workload` as to `sy.compare`. `options` are those of `FunctionalEnv`.
    """
    seeds = list(seeds)
    env = FunctionalEnv(source(name, topology, workload, seeds, disturbances, job_slots), **options)
    return env, env.params(seeds)


def source(
    name: str,
    topology: Topology | str | None,
    workload: Workload | Draw | str | None,
    seeds: Iterable[int],
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
) -> ScenarioSource:
    """Where the scenarios of an environment come from."""
    if bool(name) == (topology is not None or workload is not None):
        raise InputError("an environment has either a name or a topology and a workload", hint="give one of the two")
    if name:
        topology, workload = parts_of(name)
    if topology is None or workload is None:
        raise InputError("topology or workload is missing", hint="give both, or a name such as 'genomics'")
    return ScenarioSource(topology, workload, seeds, name=name, disturbances=disturbances, job_slots=job_slots)
