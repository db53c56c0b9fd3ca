"""The speed of the environments relative to the bare simulator: `python -m benchmarks.envs [--quick] [--json FILE]`.

The same policy decides the same scenarios (those of `benchmarks.simulator`: 32 devices, 128 tasks, all features on) in
the simulator's own loop, and from outside, through the environment: observation out, action in, reward. Counted are
decisions. Programs take turns, a short run each, so that whatever else the machine does slows all alike; the share is
the median over turns, and a second is one of CPU time. Everything runs as one program, on both sides. `features`: an
agent draws among the allowed actions by scores that need all features, as a policy and through the environment. Alone,
the policy is asked only where an action is needed, as in the simulator; side by side it is always asked, on both sides.

What is unfair: episodes do not end while they are measured, so no environment is reset. The bare simulator keeps no log
here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, parser
from benchmarks.simulator import longer, scenario, small_cluster, tile
from symphony.baselines import EftBelief, ShortestQueue
from symphony.envs import EnvFeatures, FunctionalEnv, Params, make
from symphony.envs.functional import AgentPolicy, look
from symphony.policies.learned import STANDARD
from symphony.scheduling.policy import Action, Observation, Policy, wait
from symphony.simulator.contention import Bottleneck
from symphony.simulator.rollout import STEP_OPTIONS, begin_batch, run_steps

JOBS = 3_000  # of a scenario: enough not to run out
MODES = {"micro_steps=1": 1, "whole decisions": None}
Program = Callable[[], int]  # continues a run; returns the number of decisions


class DrawingPolicy(AgentPolicy):
    """Draws among the allowed actions, as an agent does that learns; its scores depend on all features."""

    def decide(self, key: Array, state: None, observation: Observation) -> tuple[None, Action]:
        """A random allowed action."""
        features, actions = look(observation, self.counts)
        index = drawn(key, features)
        return None, jax.tree.map(lambda x: x[index], actions)


def drawn(key: Array, features: EnvFeatures) -> Array:
    """A random action, by cheap scores that depend on all features, so that the compiler removes none."""
    f = features
    pairs = f.pairs.sum(axis=-1) + f.gangs.sum(axis=-1)[:, None] + f.devices.sum(axis=-1)[f.device]
    waits = f.scene.sum() + f.rows.sum()
    scores = jnp.concatenate([pairs.reshape(-1), f.others.sum(axis=-1), waits[None]])
    return jax.random.categorical(key, jnp.where(f.action_mask, 1e-3 * scores, -1e9))


def bare(params: Params, policy: Policy, size: int, steps: int) -> Program:
    """The loop of the simulator itself."""
    batch = tile(params.scenarios, size)
    keys = jax.random.split(jax.random.key(0), size)
    carry = begin_batch(batch, policy, keys)
    program = run_steps.lower(batch, carry, policy, Bottleneck(), steps, False).compile()

    def run() -> int:
        nonlocal carry
        before = int(carry.world.core.decisions.sum())
        carry, _, over = jax.block_until_ready(program(batch, carry, policy, Bottleneck(), steps, False))
        assert not over.any(), "scenarios ran out of jobs: the figures would be too low"
        return int(carry.world.core.decisions.sum()) - before

    return run


def through(env: FunctionalEnv, params: Params, policy: Policy, size: int, steps: int) -> Program:
    """The same through the environment: a policy with the usual observations, or one that draws allowed actions."""

    def decide(state: Any, key: Array) -> Action:
        return policy.decide(key, None, env.observation(state, params))[1]

    def one(carry: Any, key: Array) -> tuple[Any, Array]:
        obs, state = carry
        if env.features:
            action = drawn(key, obs)
        elif size == 1:
            action = jax.lax.cond(env.needs_action(state, params), lambda: decide(state, key), wait)
        else:
            action = decide(state, key)
        obs, state, _, done, info = env.step(key, state, action, params)
        return (obs, state), info["decided"] & ~done

    def many(carry: Any, params: Params, key: Array) -> tuple[Any, Array]:
        mapped = one if size == 1 else jax.vmap(one)
        keys = jax.random.split(key, (steps, size) if size > 1 else (steps,))
        carry, counted = jax.lax.scan(mapped, carry, keys)
        return carry, counted.sum()

    first = env.reset_to if size == 1 else jax.vmap(env.reset_to, in_axes=(0, None))
    numbers = jnp.arange(size) % params.size
    carry = jax.jit(first)(numbers[0] if size == 1 else numbers, params)
    key = jax.random.key(0)
    program = eqx.filter_jit(many, compiler_options=STEP_OPTIONS).lower(carry, params, key).compile()

    def run() -> int:
        nonlocal carry, key
        key, now = jax.random.split(key)
        carry, count = program(carry, params, now)
        return int(count)

    return run


def take_turns(programs: dict[str, Program], seconds: float) -> dict[str, list[float]]:
    """Decisions per second of CPU time of each program, in turns: other load of the machine does not count."""
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for run in programs.values():
        run()
    began = time.perf_counter()
    while len(rates["bare"]) < 3 or time.perf_counter() - began < seconds:
        for name, run in programs.items():
            started = time.process_time()
            count = run()
            rates[name].append(count / (time.process_time() - started))
    return rates


def main() -> None:
    arguments = parser("How fast the environments are.", ("shortest-queue", "eft-belief", "features"))
    arguments.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 1024], help="environments side by side")
    args = arguments.parse_args()
    cluster = small_cluster()
    sizes = [64] if args.quick else args.sizes
    source = {
        "topology": cluster,
        "workload": lambda topology, seed: scenario(topology, seed).workload,
        "disturbances": scenario(cluster, 0).disturbances,
        "job_slots": 8,
        "seeds": range(8),
    }
    table = Table(title="Decisions a second, and as a share of the bare simulator's")
    for column in ("policy", "side by side", "through", "decisions/s", "share"):
        table.add_column(column, justify="left" if column in ("policy", "through") else "right")
    rows: list[dict[str, Any]] = []
    policies: dict[str, Policy] = {
        "shortest-queue": ShortestQueue(),
        "eft-belief": EftBelief(),
        "features": DrawingPolicy(None, STANDARD.counts),
    }
    if args.quick:
        policies = {"shortest-queue": ShortestQueue()}
    for name, policy in policies.items():
        if name not in args.only:
            continue
        made = partial(make, features=isinstance(policy, DrawingPolicy), **source)  # type: ignore[arg-type]
        for size in sizes:
            steps = 1024 if size == 1 else 128 if size <= 64 else 32
            _, params = made()
            params = replace(params, scenarios=longer(params.scenarios, JOBS))
            programs = {"bare": bare(params, policy, size, steps)}
            for label, micro_steps in MODES.items():
                if args.quick and micro_steps is None:
                    continue
                env, _ = made(micro_steps=micro_steps)
                programs[label] = through(env, params, policy, size, steps if micro_steps else max(steps // 4, 1))
            rates = take_turns(programs, 5.0 if args.quick else 20.0)
            for label, rate in rates.items():
                share = statistics.median(a / b for a, b in zip(rate, rates["bare"], strict=True))
                row = {"policy": name, "environments": size, "through": label, "share": share}
                rows.append({**row, "decisions_per_s": statistics.median(rate), "turns": rate})
                table.add_row(name, f"{size:,}", label, f"{statistics.median(rate):,.0f}", f"{share:.0%}")
            keep(args.json, rows=rows)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
