"""The functional environment: the simulator from outside, neither more nor less."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.baselines import EftBelief
from symphony.envs import EnvFeatures, EnvState, FunctionalEnv, Params
from symphony.scheduling import advance
from symphony.scheduling.policy import PLACE
from symphony.simulator.records import RunRecord
from tests.envs.small import SEEDS, decisions, described, small

MICRO_STEPS = 640  # enough for each of the scenarios to end, and for another after it
KEY = jax.random.key(0)


@cache
def simulated() -> list[RunRecord]:
    """The same scenarios in the bare simulator, by earliest finish."""
    env, _ = small(features=False)
    return sy.simulate([env.source.draw(seed) for seed in SEEDS], EftBelief())


@cache
def one_scenario(number: int) -> Params:
    """One of the scenarios."""
    return decisions()[0].params([SEEDS[number]])


def begin(number: int) -> tuple[EnvFeatures, EnvState]:
    """The first decision of a scenario."""
    return decisions()[1](jnp.asarray(0), one_scenario(number))


def act(number: int, state: EnvState, action: Any) -> Any:
    """Carry out an action on a scenario."""
    return decisions()[2](KEY, state, jnp.asarray(int(action)), one_scenario(number))


def first_allowed(obs: Any) -> np.int64:
    return np.argmax(obs.action_mask)


def test_a_policy_stepped_from_outside_completes_jobs_when_it_does_in_the_simulator() -> None:
    """Step by step of the simulator, side by side, so that every job's completion is seen when it happens.

    Where an episode has ended, the step returns the end of the old one, and the beginning of a new one.
    """
    env, params = small(features=False)

    def one(state: EnvState, key: jax.Array) -> tuple[EnvState, Any]:
        before = state.episode.world.core.job
        due = env.needs_action(state, params)
        _, state, reward, done, info = env.step(key, state, earliest(env, state, params), params)
        world = state.episode.world
        left = jnp.where(world.core.job != before, before, -1)
        return state, (left, world.now.whole, world.now.part, reward, done, info, due)

    def together(keys: jax.Array) -> Any:
        _, state = jax.vmap(env.reset_to, in_axes=(0, None))(jnp.arange(len(SEEDS)), params)
        return jax.lax.scan(jax.vmap(one), state, keys)[1]

    made = jax.jit(together)(jax.random.split(KEY, (MICRO_STEPS, len(SEEDS))))
    left, whole, part, reward, done, info, due = jax.tree.map(np.asarray, made)
    np.testing.assert_array_equal(due, info["decided"])
    now = whole + part.astype(float)
    means = [np.mean([job.completion_s for job in run.jobs]) for run in simulated()]
    drawn = []
    for number in range(len(SEEDS)):
        began = 0
        for end in np.flatnonzero(done[:, number]):
            episode = slice(began, end + 1), number
            cost = -reward[episode].sum()
            (which,) = np.flatnonzero(np.isclose(means, cost, rtol=1e-5))
            if began == 0:
                assert which == number
            else:
                drawn.append(int(which))
            run = simulated()[which]
            finish_s = {}
            for step, slot in zip(*np.nonzero(left[episode] >= 0), strict=True):
                at = began + step
                finish_s[int(left[at, number, slot])] = info["time_s"][at, number] if at == end else now[at, number]
            assert finish_s == pytest.approx({job.job: job.finish_s for job in run.jobs}, rel=1e-6)
            assert not info["stalled"][end, number] and info["jobs_done"][end, number] == len(run.jobs)
            assert info["decisions"][end, number] == run.decisions
            assert info["refused"][episode].sum() == run.refused == 0
            assert info["decided"][episode].sum() == run.decisions  # the other steps ignored what was answered
            assert info["mean_completion_s"][end, number] == pytest.approx(cost, rel=1e-5)
            assert now[end, number] < info["time_s"][end, number]  # the new one is at its beginning
            began = end + 1
        assert began > 0
    assert len(set(drawn)) > 1


def earliest(env: FunctionalEnv, state: EnvState, params: Params) -> sy.Action:
    """What eft-belief, which remembers nothing, would do."""
    return EftBelief().decide(KEY, None, env.observation(state, params))[1]


@pytest.mark.slow
def test_rewards_sum_to_the_makespan_with_two_steps_of_the_simulator_a_step() -> None:
    env, params = small(objective="makespan", features=False, micro_steps=2)
    step = jax.jit(lambda state: env.step_env(KEY, state, earliest(env, state, params), params))
    _, state = jax.jit(env.reset_to)(1, params)
    total, done, decided, steps = 0.0, False, 0, 0
    while not done:
        _, state, reward, done, info = step(state)
        total, decided, steps = total + float(reward), decided + int(info["decided"]), steps + 1
        assert reward <= 0 and not info["refused"]
    run = simulated()[1]
    assert info["jobs_done"] == 8 and info["decisions"] == decided == run.decisions < steps
    assert total == pytest.approx(-run.makespan_s, rel=1e-5)
    # What is over stays over.
    _, after, reward, done, info = step(state)
    assert done and reward == 0 and not info["decided"]
    assert float(after.episode.world.now.total) == float(state.episode.world.now.total)


def test_the_mask_allows_what_the_rules_accept() -> None:
    env = decisions()[0]
    topology = one_scenario(0).scenarios.topology

    @jax.jit
    def accepted(state: Any) -> jax.Array:
        s, core = state.episode.scenario, state.episode.world.core
        apply = lambda action: advance.apply(core, topology, s.workload, action, jnp.asarray(True))[2]  # noqa: E731
        return jax.vmap(apply)(state.actions)

    kinds: set[int] = set()
    forbidden = 0
    for number in range(len(SEEDS)):
        obs, state = begin(number)
        done = False
        rng = np.random.default_rng(number)
        while not done:
            mask, kind, taken = (np.asarray(x) for x in (obs.action_mask, state.actions.kind, accepted(state)))
            assert mask.shape == (env.num_actions,) and mask.any() and obs.decision
            assert taken[mask].all()
            # Preempting and configuring are also masked while a gang is overdue, though the core's rules allow them.
            assert not taken[~mask & (kind == PLACE)].any()
            kinds |= set(kind[mask].tolist())
            forbidden += int((~mask & (kind == PLACE)).sum())
            obs, state, _, done, info = act(number, state, rng.choice(np.flatnonzero(mask)))
            assert not info["refused"]
        assert not obs.decision and obs.action_mask.tolist() == [False] * (env.num_actions - 1) + [True]
    assert kinds == {0, 1, 2, 3} and forbidden > 0  # each kind of action was allowed at times


def test_a_forbidden_number_is_refused_and_the_first_allowed_action_carried_out() -> None:
    obs, state = begin(0)
    (forbidden, *_) = np.flatnonzero(~np.asarray(obs.action_mask))
    one, two = (act(0, state, action) for action in (forbidden, first_allowed(obs)))
    assert one[4].pop("refused") and not two[4].pop("refused")
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.slow
def test_side_by_side_and_alone_are_the_same() -> None:
    """Also where one takes longer to its next decision than another, and where one ends before another."""
    env, params = small(micro_steps=None)
    numbers = jnp.arange(len(SEEDS))
    together = jax.jit(jax.vmap(env.step_env, in_axes=(0, 0, 0, None)))
    obs, state = jax.jit(jax.vmap(env.reset_to, in_axes=(0, None)))(numbers, params)
    alone = [begin(number) for number in range(len(SEEDS))]
    keys = jax.random.split(KEY, len(SEEDS))
    ends = np.zeros(len(SEEDS), int)
    for turn in range(1000):
        action = np.argmax(obs.action_mask, axis=1)
        for number, one in enumerate(alone):
            same(jax.tree.map(lambda x, number=number: x[number], obs), one[0])
        obs, state, reward, done, _ = together(keys, state, action, params)
        alone = [act(number, one[1], action[number]) for number, one in enumerate(alone)]
        np.testing.assert_allclose(reward, [one[2] for one in alone], rtol=1e-4, atol=1e-6)
        ends = np.where(done & (ends == 0), turn, ends)
        if done.all():
            break
    assert len(set(ends.tolist())) > 1


def same(one: Any, other: Any) -> None:
    """Beliefs may differ by more than rounding: equally probable explanations are picked in any order."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-3), one, other)


def test_rewards_of_whole_decisions_sum_to_the_slowdown_of_one_episode_after_the_other() -> None:
    """A single environment, which starts a new episode where one has ended."""
    env, params = small(objective="slowdown", micro_steps=None, features=False)

    def one(state: EnvState, key: jax.Array) -> tuple[EnvState, Any]:
        _, state, reward, done, info = env.step(key, state, earliest(env, state, params), params)
        return state, (reward, done, info, state.episode.world.now.total, env.needs_action(state, params))

    made = jax.jit(lambda keys: jax.lax.scan(one, env.reset_to(0, params)[1], keys)[1])(jax.random.split(KEY, 500))
    reward, done, info, now, decision = jax.tree.map(np.asarray, made)
    assert info["decided"].all() and decision.all() and not info["refused"].any()
    known = [np.mean([job.slowdown for job in run.jobs]) for run in simulated()]
    seen, began = [], 0
    for end in np.flatnonzero(done):
        cost = -reward[began : end + 1].sum()
        assert cost == pytest.approx(info["mean_slowdown"][end], rel=1e-5)
        (which,) = np.flatnonzero(np.isclose(known, cost, rtol=1e-5))
        assert info["jobs_done"][end] == 8 and info["decisions"][end] == simulated()[which].decisions
        assert now[end] < info["time_s"][end]  # the new one is at its first decision
        seen.append(int(which))
        began = end + 1
    assert seen[0] == 0 and len(set(seen)) > 1  # the first was asked for, others were drawn


@cache
def _returns(number: int) -> float:
    """The return of an episode whose first allowed action is taken throughout."""
    obs, state = begin(number)
    total, done = 0.0, False
    while not done:
        obs, state, reward, done, _ = act(number, state, first_allowed(obs))
        total += float(reward)
    return total


class FirstListed(eqx.Module):
    """An agent that likes actions the less, the higher their number."""

    def __call__(self, features: EnvFeatures) -> jax.Array:
        """Scores."""
        return -jnp.arange(features.action_mask.shape[0])


def test_an_agent_is_a_policy_that_decides_as_it_does_in_the_environment() -> None:
    env = decisions()[0]
    runs = sy.simulate([env.source.draw(seed) for seed in SEEDS], env.policy(FirstListed()))
    for number, run in enumerate(runs):
        mean_s = np.mean([job.completion_s for job in run.jobs])
        assert mean_s == pytest.approx(-_returns(number), rel=1e-5)


def test_reset_takes_any_scenario_and_equal_keys_take_the_same() -> None:
    env, params = small(features=False)
    reset = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
    keys = jax.random.split(KEY, 32)
    (_, one), (_, two) = reset(keys, params), reset(keys, params)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert len(np.unique(one.episode.scenario.counter_error[:, 0])) == len(SEEDS)


def test_a_step_is_compiled_once() -> None:
    """A state that comes out of a step has the types of one that comes out of a reset."""
    obs, first = begin(0)
    _, second, *_ = act(0, first, first_allowed(obs))
    types = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(state)] for state in (first, second)]
    assert jax.tree.structure(first) == jax.tree.structure(second) and types[0] == types[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "profit"}, "objective is 'profit'"),
        ({"micro_steps": 0}, "micro_steps is 0"),
        ({"gangs": 0}, "are 0, 8, 4 and 4"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sy.InputError, match=message):
        sy.envs.make(**described(), seeds=SEEDS, **options)


def test_numbers_of_actions_need_features() -> None:
    env, params = small(features=False)
    _, state = jax.eval_shape(env.reset_to, 0, params)
    with pytest.raises(sy.InputError, match=r"give a sy\.Action"):
        jax.eval_shape(env.step, KEY, state, jnp.asarray(0), params)
