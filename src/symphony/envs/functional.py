"""The simulator as a functional environment, in the style of gymnax: pure functions that `jit` and `vmap` take.

    env, params = sy.envs.make("genomics", seeds=range(1_000_000, 1_000_064))
    obs, state = env.reset(key, params)
    obs, state, reward, done, info = env.step(key, state, action, params)

`params` holds scenarios, drawn beforehand; `reset` picks one at random. A step carries out the action of one decision
and runs the simulator until the next decision is due or all jobs are complete. `step` then starts a new episode
automatically, `step_env` does not.

In a batch, all environments wait for the one that needs longest to its next decision. With `micro_steps=n` they do not:
a step of the environment is then n steps of the simulator; where no decision is due, `obs.decision` is false and the
action is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.envs.named import ScenarioSource
from symphony.learning.rollouts import COMPLETION, MAKESPAN, SLOWDOWN, rates
from symphony.policies.features import GraphTables, extract_features, graph_tables
from symphony.policies.learned import STANDARD, action_at
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import InputError
from symphony.scheduling.indexing import BoolScalar, FloatScalar, first, take
from symphony.scheduling.policy import Action, Observation, Policy, wait
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import between_decisions, decision_due, finished, observe, without_arrivals
from symphony.simulator.scenarios import ScenarioArrays, pick
from symphony.simulator.world import World, initial

ENV_OBJECTIVES = (COMPLETION, SLOWDOWN, MAKESPAN)
RESETS_AT_ONCE = 32  # 1/32 of the environments of a batch are reset together: few end in the same step


class Tables(eqx.Module):
    """Computed from the graphs of a scenario before its first decision."""

    graphs: GraphTables


class Params(eqx.Module):
    """The scenarios of episodes."""

    scenarios: ScenarioArrays  # a batch on one topology
    tables: Tables | None  # of each scenario; None without features

    @property
    def size(self) -> int:
        """Number of scenarios."""
        return self.scenarios.phases.shape[0]


class EnvFeatures(eqx.Module):
    """The observation of a decision, with fixed shapes. Times are logarithms, relative to the typical time of a gang.

    Candidates are gangs that may be placed, choices the devices for each, others further actions (preempt a gang,
    configure an FPGA). Actions are candidates * choices pairs, others, and to wait. The columns are enumerations of
    `symphony/policies/features.py`.
    """

    rows: Float[Array, "rows row_columns"]
    devices: Float[Array, "devices device_columns"]
    gangs: Float[Array, "candidates gang_columns"]
    pairs: Float[Array, "candidates choices pair_columns"]
    device: Int[Array, "candidates choices"]  # -1 = none
    others: Float[Array, "others other_columns"]
    scene: Float[Array, " scene_columns"]  # of the whole system
    action_mask: Bool[Array, " actions"]
    decision: BoolScalar  # a decision is due; if not, the action is ignored, and the mask only allows to wait


class Episode(eqx.Module):
    """A scenario, and the state of its simulation."""

    world: World
    scenario: ScenarioArrays  # without its topology, which is in `Params`
    tables: Tables | None


class EnvState(eqx.Module):
    """An episode at a decision."""

    episode: Episode
    actions: Action | None  # [actions], by index
    mask: Bool[Array, " actions"] | None
    owed: FloatScalar  # cost that is not in a reward yet


class Outcome(eqx.Module):
    """Result of a step."""

    reward: FloatScalar
    done: BoolScalar
    info: dict[str, Array]


class FunctionalEnv:
    """Pure functions of keys, states, actions and scenarios. Made by `sy.envs.make`.

    An action is an index, or a `sy.Action`. `objective`: the rewards of an episode sum to minus the mean completion
    time in seconds ("completion"), minus the mean slow-down ("slowdown"), or minus the makespan in seconds
    ("makespan"). With `features=False` observations are None and actions have no indices; use
    `observation(state, params)` instead, as policies do.
    """

    def __init__(
        self,
        source: ScenarioSource,
        *,
        objective: str = COMPLETION,
        features: bool = True,
        micro_steps: int | None = None,
        gangs: int = STANDARD.gangs,
        devices: int = STANDARD.devices,
        preempts: int = STANDARD.preempts,
        configures: int = STANDARD.configures,
        contention: ContentionModel | None = None,
    ) -> None:
        if objective not in ENV_OBJECTIVES:
            raise InputError(f"the objective is {objective!r}", hint=f"use one of {', '.join(ENV_OBJECTIVES)}")
        if micro_steps is not None and micro_steps < 1:
            raise InputError(f"micro_steps is {micro_steps}", hint="use 1 or more, or None for whole decisions")
        if min(gangs, devices) < 1 or min(preempts, configures) < 0:
            raise InputError(
                f"gangs, devices, preempts and configures are {gangs}, {devices}, {preempts} and {configures}",
                hint="use 1 or more of the first two, and 0 or more of the others",
            )
        self.source, self.objective, self.features, self.micro_steps = source, objective, features, micro_steps
        self.contention = contention or Bottleneck()
        s = source.template
        most = s.job_slots * s.workload.kernel.shape[-1]
        there = s.topology.device_kind.shape[0]
        self.counts = min(gangs, most), min(devices, there), min(preempts, most), min(configures, most)
        self._run = {again: _runner(self, again) for again in (False, True)}

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def num_actions(self) -> int:
        """Number of actions: pairs of a gang and a device, then other actions, then to wait."""
        gangs, devices, preempts, configures = self.counts
        return gangs * devices + preempts + configures + 1

    def params(self, seeds: Iterable[int]) -> Params:
        """Scenarios of these seeds. Equal seeds give equal scenarios, here and in `sy.compare`."""
        return self.params_of(self.source.stack(seeds))

    def params_of(self, scenarios: ScenarioArrays) -> Params:
        """As `params`, for scenarios drawn already."""
        tables = _tables(scenarios.topology, without_arrivals(scenarios.workload)) if self.features else None
        return Params(scenarios, tables)

    def reset(self, key: Array, params: Params) -> tuple[Any, EnvState]:
        """Start an episode on a uniformly random scenario."""
        return self.reset_to(_drawn(key, params), params)

    def reset_to(self, number: Array, params: Params) -> tuple[Any, EnvState]:
        """Start an episode on the scenario with this index in `params`; the rest depends on actions only."""
        episode = self._beginning(number, params)
        if self.micro_steps is not None:
            return self._observed(episode, jnp.zeros(()), params)
        acts, key = jnp.asarray(False), jax.random.key(0)  # no action, and no episode after this one
        outcome, _, episode = self._run[False](episode, jnp.zeros(()), wait(), acts, key, params)
        return self._observed(episode, -outcome.reward, params)

    def step(
        self, key: Array, state: EnvState, action: Array | Action, params: Params
    ) -> tuple[Any, EnvState, Array, Array, dict[str, Array]]:
        """As `step_env`, with automatic reset: after an episode has ended, state and observation are of a new one."""
        return self._stepped(key, state, action, params, again=True)

    def step_env(
        self, key: Array, state: EnvState, action: Array | Action, params: Params
    ) -> tuple[Any, EnvState, Array, Array, dict[str, Array]]:
        """Carry out an action and run to the next decision. Returns observation, state, reward, done, info.

        An index that the mask forbids is refused: the first allowed action is carried out instead. An infeasible
        `sy.Action` acts as a wait. An episode that has ended does not change.
        """
        return self._stepped(key, state, action, params, again=False)

    def _stepped(
        self, key: Array, state: EnvState, action: Array | Action, params: Params, again: bool
    ) -> tuple[Any, EnvState, Array, Array, dict[str, Array]]:
        refused = jnp.asarray(False)
        if not isinstance(action, Action):
            if state.mask is None:
                raise InputError("the action is an index", hint="give a sy.Action, or make(…, features=True)")
            refused = ~take(state.mask, action)
            number = jnp.where(refused, first(state.mask), action)
            action = jax.tree.map(lambda x: take(x, number), state.actions)
        before = state.episode.world.core
        outcome, owed, episode = self._run[again](state.episode, state.owed, action, jnp.asarray(True), key, params)
        decided = outcome.info["decisions"] > before.decisions
        infeasible = outcome.info["refused"] > before.refused
        info = {**outcome.info, "decided": decided, "refused": infeasible | (refused & decided)}
        obs, state = self._observed(episode, owed, params)
        return obs, state, outcome.reward, outcome.done, info

    def observation(self, state: EnvState, params: Params) -> Observation:
        """What policies are shown at this point. `prepared` is the environment's `Tables`, not a policy's own."""
        return self._shown(state.episode, params)

    def _beginning(self, number: Array, params: Params) -> Episode:
        scenario = pick(params.scenarios, number)
        tables = jax.tree.map(lambda x: x[number], params.tables)
        # Strong types: a weakly typed leaf would make the second step compile again.
        world = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), initial(scenario))
        return Episode(world, replace(scenario, topology=None), tables)

    def _shown(self, episode: Episode, params: Params) -> Observation:
        return observe(episode.world, _whole(episode.scenario, params), False, episode.tables)

    def _observed(self, episode: Episode, owed: Array, params: Params) -> tuple[Any, EnvState]:
        if not self.features:
            return None, EnvState(episode, None, None, owed)
        features, actions = look(self._shown(episode, params), self.counts)
        due = decision_due(episode.world, _whole(episode.scenario, params))
        only_wait = jnp.arange(self.num_actions) == self.num_actions - 1
        mask = jnp.where(due, features.action_mask, only_wait)
        return replace(features, action_mask=mask, decision=due), EnvState(episode, actions, mask, owed)

    def policy(self, agent: Callable[[EnvFeatures], Array]) -> AgentPolicy:
        """An agent as a `sy.Policy`, for `sy.compare` and others.

        `agent` returns a score for each action; the allowed action with the highest score is carried out. It must be a
        pytree, such as an Equinox module.
        """
        return AgentPolicy(agent, self.counts)


class AgentPolicy(Policy):
    """The allowed action with an agent's highest score."""

    agent: Any
    counts: tuple[int, int, int, int] = eqx.field(static=True)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Tables:
        return Tables(graph_tables(topology, workload))

    def decide(self, key: Array, state: None, observation: Observation) -> tuple[None, Action]:
        features, actions = look(observation, self.counts)
        best = jnp.where(features.action_mask, self.agent(features), -jnp.inf).argmax()
        return None, jax.tree.map(lambda x: take(x, best), actions)


def look(observation: Observation, counts: tuple[int, int, int, int]) -> tuple[EnvFeatures, Action]:
    """The features of a decision, and the actions by index. `observation.prepared` holds the tables."""
    seen = extract_features(observation, *counts)
    mask = jnp.concatenate([seen.allowed.reshape(-1), seen.other_actions.allowed, seen.may_wait[None]])
    features = EnvFeatures(
        rows=seen.rows,
        devices=seen.devices,
        gangs=seen.gangs.features,
        pairs=seen.pairs,
        device=seen.device,
        others=seen.other_actions.features,
        scene=seen.scene,
        action_mask=mask,
        decision=jnp.asarray(True),
    )
    return features, jax.vmap(partial(action_at, seen))(jnp.arange(mask.shape[0]))


@jax.jit
def _tables(topology: TopologyArrays, workload: WorkloadArrays) -> Tables:
    return Tables(jax.vmap(lambda w: graph_tables(topology, w))(workload))


def _drawn(key: Array, params: Params) -> Array:
    return jax.random.randint(key, (), 0, params.size)


def _whole(s: ScenarioArrays, params: Params) -> ScenarioArrays:
    return replace(s, topology=params.scenarios.topology)


def _info(world: World) -> dict[str, Array]:
    jobs = world.core.jobs_done
    return {
        "decisions": world.core.decisions,
        "refused": world.core.refused,
        "stalled": world.stalled,  # it ended because the policy waited for ever: never with indices of actions
        "time_s": world.now.total,
        "jobs_done": jobs,
        "mean_completion_s": world.completion_sum.total / jnp.maximum(jobs, 1),  # of these
        "mean_slowdown": world.slowdown_sum.total / jnp.maximum(jobs, 1),
    }


class _Run(eqx.Module):
    """State of a step of the environment between steps of the simulator."""

    episode: Episode
    outcome: Outcome  # of the episode that the action belongs to
    owed: FloatScalar  # cost of the episode after it


def _micro_step(
    env: FunctionalEnv, run: _Run, action: Action, acts: BoolScalar, params: Params, alone: bool
) -> tuple[_Run, BoolScalar]:
    """One step of the simulator; also returns whether the episode ended in it."""
    s = _whole(run.episode.scenario, params)
    after = between_decisions(run.episode.world, s, env.contention, action, acts, alone)
    world, before, was = after.world, after.started, run.outcome
    # Jobs present while time passes, without one that arrives at the end of it.
    present = before.core.job >= 0
    if env.objective == MAKESPAN:
        rate = jnp.asarray(1.0)
    else:
        rate = jnp.where(present, rates(env.objective, s, before.core), 0).sum() / s.workload.jobs
    cost = rate * world.now.minus(before.now)
    ended = finished(world, s)
    outcome = Outcome(
        reward=was.reward - jnp.where(was.done, 0, cost),
        done=was.done | ended,
        info=jax.tree.map(lambda old, new: jnp.where(was.done, old, new), was.info, _info(world)),
    )
    owed = run.owed + jnp.where(was.done, cost, 0)
    return _Run(replace(run.episode, world=world), outcome, owed), ended & ~was.done


def _runner(env: FunctionalEnv, again: bool) -> Any:
    """A function `(episode, owed, action, acts, key, params) -> (outcome, owed, episode)`; it acts if `acts`.

    A single environment skips the parts of a step that have nothing to do. In a batch, the loop ends when a decision is
    due in all environments; those that get there earlier wait. After an episode has ended, another starts if `again`.
    """

    def looped(run: _Run, acts: Array, move: Any, waits: Any) -> tuple[Outcome, Array, Episode]:
        if env.micro_steps is None:
            run, _ = jax.lax.while_loop(
                lambda carry: carry[1].any() | waits(carry[0]),
                lambda carry: (move(*carry), jnp.zeros_like(acts)),
                (run, acts),
            )
        else:
            run = move(run, acts)
            if env.micro_steps > 1:
                none = jnp.zeros_like(acts)
                run = jax.lax.fori_loop(1, env.micro_steps, lambda _, run: move(run, none), run)
        return run.outcome, run.owed, run.episode

    def started(episode: Episode, owed: Array) -> _Run:
        return _Run(episode, Outcome(-owed, jnp.asarray(False), _info(episode.world)), jnp.zeros_like(owed))

    def waits_alone(run: _Run, params: Params) -> Array:
        s = _whole(run.episode.scenario, params)
        return ~decision_due(run.episode.world, s) & ~finished(run.episode.world, s)

    @jax.custom_batching.custom_vmap
    def one(episode: Episode, owed: Array, action: Action, acts: Array, key: Array, params: Params) -> Any:
        def move(run: _Run, acts: Array) -> _Run:
            run, over = _micro_step(env, run, action, acts, params, alone=True)
            if not again:
                return run
            # A loop that is seldom entered: it works in place, where a condition would copy its operands.
            fresh = jax.lax.while_loop(
                lambda carry: carry[0],
                lambda _: (jnp.asarray(False), env._beginning(_drawn(key, params), params)),
                (over, run.episode),
            )
            return replace(run, episode=fresh[1])

        return looped(started(episode, owed), acts, move, lambda run: waits_alone(run, params))

    @one.def_vmap
    def many(size: int, batched: Any, *arguments: Any) -> Any:
        if any(jax.tree.leaves(batched[-1])):
            raise InputError("environments of a batch share their params", hint="use in_axes=None for params")
        params = arguments[-1]
        episode, owed, action, acts, key = (
            jax.tree.map(lambda x, along: x if along else jnp.broadcast_to(x, (size, *jnp.shape(x))), x, along)
            for x, along in zip(arguments[:-1], batched[:-1], strict=True)
        )
        together = max(1, size // RESETS_AT_ONCE)

        def move(run: _Run, acts: Array) -> _Run:
            stepped = jax.vmap(lambda run, action, acts: _micro_step(env, run, action, acts, params, alone=False))
            run, over = stepped(run, action, acts)
            return replace(run, episode=fresh(run.episode, over)) if again else run

        def fresh(episode: Episode, over: Array) -> Episode:
            """Few episodes end at once: only these are gathered and reset."""

            def some(carry: tuple[Episode, Array]) -> tuple[Episode, Array]:
                episode, left = carry
                which = jnp.nonzero(left, size=together, fill_value=size)[0]
                new = jax.vmap(lambda key: env._beginning(_drawn(key, params), params))(key.at[which].get(mode="clip"))
                episode = jax.tree.map(lambda x, new: x.at[which].set(new, mode="drop"), episode, new)
                return episode, left.at[which].set(False, mode="drop")

            return jax.lax.while_loop(lambda carry: carry[1].any(), some, (episode, over))[0]

        run = jax.vmap(started)(episode, owed)
        result = looped(run, acts, move, lambda run: jax.vmap(lambda run: waits_alone(run, params))(run).any())
        return result, jax.tree.map(lambda _: True, result)

    return one
