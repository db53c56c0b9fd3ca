"""Train a small agent by PPO in Symphony's functional environment, then compare it with earliest finish.

    python examples/ppo.py                 # minutes on 2 cores
    python examples/ppo.py --scenario paper/variant-calling?jobs=20 --rounds 200

One file, top to bottom: the agent, an episode of many environments side by side, what decisions were worth, the update.

The agent scores pairs of a gang and a device: a small network on the numbers of the pair, its gang, its device and the
whole system, on top of earliest finish (minus a multiple of how much later than on its best device the gang would end).

Every scenario is run several times in a round. What the runs of a scenario cost from some time on, on average, is the
baseline of a decision made at that time. All runs meet the same jobs, so that the luck of arrivals is taken out, which
a value network would have to guess (Mao et al., 2019: input-dependent baselines). So there is no critic.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import symphony as sy

REGRET = 0  # of the numbers of a pair: how much later than on its best device the gang would end there
FIRST_SEED = 1_000_000  # of training; the comparison takes seeds from 0 on


class Agent(eqx.Module):
    """Scores of all actions, for one decision."""

    pair: eqx.nn.MLP
    wait: eqx.nn.MLP
    regret: Array  # weight of earliest finish, as a logarithm

    def __init__(self, obs: sy.envs.EnvFeatures, key: Array, width: int = 32) -> None:
        one, two = jax.random.split(key)
        size = sum(x.shape[-1] for x in (obs.pairs, obs.gangs, obs.devices, obs.scene))
        self.pair = eqx.nn.MLP(size, "scalar", width, 2, key=one)
        self.wait = eqx.nn.MLP(obs.scene.shape[-1], "scalar", width, 1, key=two)
        self.regret = jnp.log(10.0)

    def __call__(self, obs: sy.envs.EnvFeatures) -> Array:
        count = obs.pairs.shape[:2]
        parts = [
            obs.pairs,
            jnp.broadcast_to(obs.gangs[:, None], (*count, obs.gangs.shape[-1])),
            obs.devices[jnp.maximum(obs.device, 0)],
            jnp.broadcast_to(obs.scene, (*count, obs.scene.shape[-1])),
        ]
        scores = jax.vmap(jax.vmap(self.pair))(jnp.concatenate(parts, axis=-1))
        scores -= jnp.exp(self.regret) * obs.pairs[..., REGRET]
        others = jnp.full(obs.others.shape[0], -5.0)  # preempting and configuring are not learned here
        return jnp.concatenate([scores.reshape(-1), others, self.wait(obs.scene)[None] - 3.0])


def log_chances(agent: Agent, obs: sy.envs.EnvFeatures) -> Array:
    """Logarithms of the probabilities of all actions."""
    return jax.nn.log_softmax(jnp.where(obs.action_mask, agent(obs), -1e9))


def episodes(env: sy.envs.FunctionalEnv, params: Any, agent: Agent, numbers: Array, key: Array, steps: int) -> Any:
    """One episode of each of these scenarios, side by side: what each decision was, and when [B, N]."""

    def step(carry: Any, key: Array) -> tuple[Any, Any]:
        obs, state, now, done = carry
        keys = jax.random.split(key, len(numbers))
        chances = jax.vmap(lambda obs: log_chances(agent, obs))(obs)
        action = jax.vmap(jax.random.categorical)(keys, chances)
        chance = jnp.take_along_axis(chances, action[:, None], axis=1)[:, 0]
        new, state, reward, over, info = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(keys, state, action, params)
        return (new, state, info["time_s"], over), (obs, action, chance, reward, now, ~done, over)

    obs, state = jax.vmap(env.reset_to, in_axes=(0, None))(numbers, params)
    start = (obs, state, state.episode.world.now.total, jnp.zeros(len(numbers), bool))
    _, made = jax.lax.scan(step, start, jax.random.split(key, steps))
    return jax.tree.map(lambda x: x.swapaxes(0, 1), made)


def advantages(reward: Array, now: Array, kept: Array, group: int) -> Array:
    """Return of each decision [B, N] above what runs of the same scenario got from that time on, on average."""
    end = jnp.where(kept, now, now.max() + 1)
    to_come = jnp.cumsum(reward[:, ::-1], axis=1)[:, ::-1]

    def baseline(run: Array) -> Array:
        others = run // group * group + jnp.arange(group)
        return jax.vmap(lambda other: jnp.interp(now[run], end[other], to_come[other]))(others).mean(axis=0)

    advantage = jnp.where(kept, to_come - jax.vmap(baseline)(jnp.arange(len(now))), 0)
    spread = jnp.sqrt((advantage**2).sum() / jnp.maximum(kept.sum(), 1))
    return advantage / jnp.maximum(spread, 1e-8)


def loss(agent: Agent, obs: Any, action: Array, before: Array, advantage: Array, kept: Array) -> Array:
    """PPO's clipped objective, and a little entropy."""
    chances = jax.vmap(lambda obs: log_chances(agent, obs))(obs)
    ratio = jnp.exp(jnp.take_along_axis(chances, action[:, None], axis=1)[:, 0] - before)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    entropy = -(jnp.exp(chances) * chances).sum(axis=1)
    return -(jnp.where(kept, gain + 0.003 * entropy, 0)).sum() / jnp.maximum(kept.sum(), 1)


def train(env: sy.envs.FunctionalEnv, params: Any, options: argparse.Namespace) -> Agent:
    """Rounds of episodes and updates; says every few how it goes."""
    key = jax.random.key(options.seed)
    shapes = jax.eval_shape(env.reset_to, jnp.asarray(0), params)[0]
    agent = Agent(shapes, key)
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(options.rate))
    memory = optimiser.init(eqx.filter(agent, eqx.is_array))
    runs = options.scenarios * options.group

    @eqx.filter_jit
    def play(agent: Agent, key: Array, params: Any) -> tuple[Any, Array, Array]:
        """Decisions of a round, in a row; the mean return, and the share of episodes that ended."""
        which, run = jax.random.split(key)
        chosen = jax.random.choice(which, params.size, (options.scenarios,), replace=False)
        numbers = jnp.repeat(chosen, options.group)
        obs, action, chance, reward, now, kept, over = episodes(env, params, agent, numbers, run, options.steps)
        made = (obs, action, chance, advantages(reward, now, kept, options.group), kept)
        flat = jax.tree.map(lambda x: x.reshape(runs * options.steps, *x.shape[2:]), made)
        return flat, reward.sum(axis=1).mean(), over[:, -1].mean()

    @eqx.filter_jit
    def update(agent: Agent, memory: Any, made: Any, which: Array) -> tuple[Agent, Any]:
        gradient = eqx.filter_grad(loss)(agent, *jax.tree.map(lambda x: x[which], made))
        change, memory = optimiser.update(gradient, memory)
        return eqx.apply_updates(agent, change), memory

    began = time.perf_counter()
    shuffle = np.random.default_rng(options.seed)
    for number in range(options.rounds):
        made, mean, ended = play(agent, jax.random.fold_in(key, number), params)
        for _ in range(options.epochs):
            for which in np.split(shuffle.permutation(runs * options.steps), options.batches):
                agent, memory = update(agent, memory, made, which)
        if number % options.every == 0 or number == options.rounds - 1:
            print(
                f"round {number:4d}  {time.perf_counter() - began:6.0f} s  mean completion {-float(mean):.4g} s "
                f"(drawing actions; {float(ended):.0%} of the episodes ended)",
                flush=True,
            )
    return agent


def main(arguments: Sequence[str] | None = None) -> sy.Report:
    """Train, then compare on seeds that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="machine/layered:8?jobs=12&load=0.9", help="a name, or TOPOLOGY/WORKLOAD")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--scenarios", type=int, default=8, help="in a round")
    parser.add_argument("--group", type=int, default=8, help="runs of each")
    parser.add_argument("--bank", type=int, default=256, help="scenarios to train on, in all")
    parser.add_argument("--steps", type=int, default=128, help="decisions of an episode, at most")
    parser.add_argument("--epochs", type=int, default=2, help="over the decisions of a round")
    parser.add_argument("--batches", type=int, default=4, help="in an epoch")
    parser.add_argument("--rate", type=float, default=2e-3, help="of learning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=5, help="rounds between two lines")
    parser.add_argument("--seeds", type=int, default=20, help="of the comparison")
    options = parser.parse_args(arguments)

    env, params = sy.envs.make(
        options.scenario,
        seeds=range(FIRST_SEED, FIRST_SEED + options.bank),
        gangs=8,
        preempts=0,
        configures=0,
        micro_steps=None,  # all steps are kept in memory: only those with a decision
    )
    print(f"{env.name}: {env.num_actions} actions; compiling takes a while", flush=True)
    agent = train(env, params, options)
    report = sy.compare(
        {"eft-belief": sy.baselines.EftBelief(), "ppo": env.policy(agent)},
        topology=env.source.topology,
        workload=env.source.workload,
        seeds=range(options.seeds),
        baseline="eft-belief",
    )
    print(report.table("mean_completion_s", relative_to="eft-belief"))
    print(report.headline("eft-belief"))
    return report


if __name__ == "__main__":
    main()
