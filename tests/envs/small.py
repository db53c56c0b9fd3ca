"""One small environment with everything in it: gangs, transfers, an FPGA, failures, tenants and offered decisions."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax

from symphony.envs import FunctionalEnv, Params, make
from tests.baselines.cheap import cheap_scenario

SEEDS = (3, 4, 5)
LISTED = {"gangs": 4, "devices": 3, "preempts": 1, "configures": 1}


def described() -> dict[str, Any]:
    """What both environments are made of. There is a job slot for every job, so that none waits outside."""
    s = cheap_scenario()
    return {
        "topology": s.topology,
        "workload": s.workload,
        "disturbances": s.disturbances,
        "job_slots": len(s.workload.jobs),
    }


@cache
def small(**options: Any) -> tuple[FunctionalEnv, Params]:
    """Of three scenarios. Equal options are one environment, whose programs are compiled once."""
    return make(**described(), seeds=SEEDS, **LISTED, **options)


@cache
def decisions() -> tuple[FunctionalEnv, Any, Any]:
    """One whole decision a step, with its compiled `reset_to` and `step_env`. Give them params of one scenario."""
    env, _ = small(micro_steps=None)
    return env, jax.jit(env.reset_to), jax.jit(env.step_env)
