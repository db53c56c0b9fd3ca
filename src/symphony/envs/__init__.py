"""The simulator as an environment for reinforcement learning: pure functions for JAX, and a class for Gymnasium.

env, params = sy.envs.make("genomics")                    # reset, step: to be jitted and vmapped
env = gymnasium.make("symphony/genomics-v0")              # after `import symphony.envs`; needs the extra [envs]
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from symphony.envs.functional import EnvFeatures, EnvState, FunctionalEnv, Params
from symphony.envs.named import FIRST_TRAINING_SEED, SCENARIOS, scenario_source
from symphony.problem.extras import needs_extra
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.scenario_source import Draw
from symphony.simulator.scenarios import Disturbances

if TYPE_CHECKING:
    from symphony.envs.gymnasium_env import GymnasiumEnv

__all__ = ["SCENARIOS", "EnvFeatures", "EnvState", "FunctionalEnv", "GymnasiumEnv", "Params", "make"]


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
    """A functional environment, and the scenarios of these seeds.

    `name` is one of `sy.envs.SCENARIOS`, or `TOPOLOGY/WORKLOAD`, such as "paper/variant-calling?jobs=20"; or give
    `topology` and `workload` as to `sy.compare`. `options` are those of `FunctionalEnv`: `objective`, `micro_steps`,
    `gangs`, `devices`, `preempts`, `configures`, `features`, `contention`.
    """
    source = scenario_source(name, topology, workload, disturbances, job_slots)
    scenarios = source.stack(seeds)
    env = FunctionalEnv(source, **options)
    return env, env.params_of(scenarios)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name != "GymnasiumEnv":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra("envs", "this environment"):
            from symphony.envs.gymnasium_env import GymnasiumEnv
        return GymnasiumEnv


def _register() -> None:
    """Register the scenarios with Gymnasium as `symphony/NAME-v0`, and any other as `symphony/Scheduling-v0`."""
    import gymnasium

    where = f"{__name__}.gymnasium_env:GymnasiumEnv"
    gymnasium.register("symphony/Scheduling-v0", where)
    for name in SCENARIOS:
        gymnasium.register(f"symphony/{name}-v0", where, kwargs={"scenario": name})


if find_spec("gymnasium") is not None:
    _register()
