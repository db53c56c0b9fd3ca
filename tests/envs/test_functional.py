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
from tests.envs.small import SEEDS, described, small

MICRO_STEPS = 320  # enough for each of the scenarios to end
KEY = jax.random.key(0)


@cache
def simulated() -> list[RunRecord]:
    """The same scenarios in the bare simulator, by earliest finish."""
    env, _ = small(features=False)
    return sy.simulate([env.source.draw(seed) for seed in SEEDS], EftBelief())


@cache
def programs(env: FunctionalEnv) -> tuple[Any, Any]:
    """Reset to a number, and a step without a new episode; of one environment by itself."""
    return jax.jit(env.reset_to), jax.jit(env.step_env)


def first_allowed(obs: Any) -> np.int64:
    """Of NumPy's type, as all actions here: a number of Python's would compile a step of its own."""
    return np.argmax(obs.action_mask)


def test_a_policy_stepped_from_outside_completes_jobs_when_it_does_in_the_simulator() -> None:
    """Step by step of the simulator, side by side, so that every job's completion is seen when it happens."""
    env, params = small(features=False)

    def one(state: EnvState, _: None) -> tuple[EnvState, Any]:
        before = state.episode.world.core.job
        due = env.needs_action(state, params)
        _, state, reward, done, info = env.step_env(KEY, state, earliest(env, state, params), params)
        world = state.episode.world
        left = jnp.where(world.core.job != before, before, -1)
        return state, (left, world.now.whole, world.now.part, reward, done, info, due)

    def whole(number: jax.Array) -> Any:
        _, state = env.reset_to(number, params)
        return jax.lax.scan(one, state, None, length=MICRO_STEPS)[1]

    made = jax.jit(jax.vmap(whole))(jnp.arange(len(SEEDS)))
    left, seconds, part, reward, done, info, due = jax.tree.map(np.asarray, made)
    np.testing.assert_array_equal(due, info["decided"])
    for number, run in enumerate(simulated()):
        assert done[number, -1] and not info["stalled"][number, -1]
        finish_s = {}
        for step, slot in zip(*np.nonzero(left[number] >= 0), strict=True):
            finish_s[int(left[number, step, slot])] = seconds[number, step] + np.float64(part[number, step])
        assert finish_s == pytest.approx({job.job: job.finish_s for job in run.jobs}, rel=1e-6)
        assert info["decisions"][number, -1] == run.decisions
        assert info["refused"][number].sum() == run.refused == 0
        assert info["decided"][number].sum() == run.decisions  # the other steps ignored what was answered
        mean_s = np.mean([job.completion_s for job in run.jobs])
        assert reward[number].sum() == pytest.approx(-mean_s, rel=1e-5)


def earliest(env: FunctionalEnv, state: EnvState, params: Params) -> sy.Action:
    """What eft-belief, which remembers nothing, would do."""
    return EftBelief().decide(KEY, None, env.observation(state, params))[1]


@pytest.mark.parametrize("objective", ["slowdown", "makespan"])  # completion: above
def test_rewards_sum_to_the_objective(objective: str) -> None:
    env, params = small(objective=objective, features=False, micro_steps=None)
    step = jax.jit(lambda state: env.step_env(KEY, state, earliest(env, state, params), params))
    _, state = jax.jit(env.reset_to)(1, params)
    total, done, decisions = 0.0, False, 0
    while not done:
        _, state, reward, done, info = step(state)
        total, decisions = total + float(reward), decisions + 1
        assert reward <= 0 and info["decided"] and not info["refused"]
    run = simulated()[1]
    assert info["jobs_done"] == 8 and info["decisions"] == decisions == run.decisions
    costs = {"slowdown": np.mean([job.slowdown for job in run.jobs]), "makespan": run.makespan_s}
    assert total == pytest.approx(-costs[objective], rel=1e-5)
    # What is over stays over.
    _, after, reward, done, info = step(state)
    assert done and reward == 0 and not info["decided"]
    assert float(after.episode.world.now.total) == float(state.episode.world.now.total)


def test_the_mask_allows_what_the_rules_accept() -> None:
    env, params = small(micro_steps=None)
    reset, step = programs(env)
    topology = params.scenarios.topology

    @jax.jit
    def accepted(state: Any) -> jax.Array:
        s, core = state.episode.scenario, state.episode.world.core
        apply = lambda action: advance.apply(core, topology, s.workload, action, jnp.asarray(True))[2]  # noqa: E731
        return jax.vmap(apply)(state.actions)

    kinds: set[int] = set()
    forbidden = 0
    for number in range(len(SEEDS)):
        obs, state = reset(number, params)
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
            obs, state, _, done, info = step(KEY, state, rng.choice(np.flatnonzero(mask)), params)
            assert not info["refused"]
        assert not obs.decision and obs.action_mask.tolist() == [False] * (env.num_actions - 1) + [True]
    assert kinds == {0, 1, 2, 3} and forbidden > 0  # each kind of action was allowed at times


def test_a_forbidden_number_is_refused_and_the_first_allowed_action_carried_out() -> None:
    env, params = small(micro_steps=None)
    reset, step = programs(env)
    obs, state = reset(0, params)
    (forbidden, *_) = np.flatnonzero(~np.asarray(obs.action_mask))
    one, two = (step(KEY, state, action, params) for action in (forbidden, first_allowed(obs)))
    assert one[4].pop("refused") and not two[4].pop("refused")
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_side_by_side_and_alone_are_the_same() -> None:
    """Also where one takes longer to its next decision than another, and where one ends before another."""
    env, params = small(micro_steps=None)
    reset, step = programs(env)
    numbers = jnp.arange(len(SEEDS))
    together = jax.jit(jax.vmap(env.step_env, in_axes=(0, 0, 0, None)))
    obs, state = jax.jit(jax.vmap(env.reset_to, in_axes=(0, None)))(numbers, params)
    alone = [reset(number, params) for number in range(len(SEEDS))]
    keys = jax.random.split(KEY, len(SEEDS))
    ends = np.zeros(len(SEEDS), int)
    for turn in range(1000):
        action = np.argmax(obs.action_mask, axis=1)
        for number, one in enumerate(alone):
            same(jax.tree.map(lambda x, number=number: x[number], obs), one[0])
        obs, state, reward, done, _ = together(keys, state, action, params)
        alone = [step(KEY, one[1], action[number], params) for number, one in enumerate(alone)]
        np.testing.assert_allclose(reward, [one[2] for one in alone], rtol=1e-4, atol=1e-6)
        ends = np.where(done & (ends == 0), turn, ends)
        if done.all():
            break
    assert len(set(ends.tolist())) > 1


def same(one: Any, other: Any) -> None:
    """Beliefs may differ by more than rounding: equally probable explanations are picked in any order."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-3), one, other)


@pytest.mark.parametrize(("micro_steps", "steps"), [(None, 250), (2, 400)])
def test_step_begins_a_new_episode_where_one_has_ended(micro_steps: int | None, steps: int) -> None:
    """What it answers is the end of the old one, and the beginning of the new. By itself, and side by side."""
    env, params = small(micro_steps=micro_steps, features=False)
    size = 3

    def one(state: EnvState, key: jax.Array) -> tuple[EnvState, Any]:
        _, state, reward, done, info = env.step(key, state, earliest(env, state, params), params)
        return state, (reward, done, info, state.episode.world.now.total, env.needs_action(state, params))

    def alone(keys: jax.Array) -> Any:
        return jax.lax.scan(one, env.reset_to(0, params)[1], keys)[1]

    def together(keys: jax.Array) -> Any:
        _, state = jax.vmap(env.reset_to, in_axes=(0, None))(jnp.zeros(size, int), params)
        return jax.lax.scan(jax.vmap(one), state, keys)[1]

    keys = jax.random.split(KEY, (steps, size))
    if micro_steps is None:
        run = jax.jit(alone)
        made = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *(run(keys[:, number]) for number in range(size)))
    else:
        made = jax.jit(together)(keys)
    reward, done, info, now, decision = jax.tree.map(np.asarray, made)
    known = [np.mean([job.completion_s for job in run.jobs]) for run in simulated()]
    seen = []
    for number in range(size):
        began = 0
        for end in np.flatnonzero(done[:, number]):
            assert info["jobs_done"][end, number] == 8
            assert now[end, number] < info["time_s"][end, number]  # the new one is at its first decision, or before
            assert decision[end, number] or micro_steps
            cost = -reward[began : end + 1, number].sum()
            assert cost == pytest.approx(info["mean_completion_s"][end, number], rel=1e-5)
            (which,) = np.flatnonzero(np.isclose(known, cost, rtol=1e-5))
            assert which == 0 or began > 0  # the first scenario is the one that was asked for
            seen.append(int(which))
            began = end + 1
        assert began > 0
    assert len(set(seen)) > 1  # others were drawn


@cache
def _returns(number: int) -> float:
    """The return of an episode whose first allowed action is taken throughout."""
    env, params = small(micro_steps=None)
    reset, step = programs(env)
    obs, state = reset(number, params)
    total, done = 0.0, False
    while not done:
        obs, state, reward, done, _ = step(KEY, state, first_allowed(obs), params)
        total += float(reward)
    return total


class FirstListed(eqx.Module):
    """An agent that likes actions the less, the higher their number."""

    def __call__(self, features: EnvFeatures) -> jax.Array:
        """Scores."""
        return -jnp.arange(features.action_mask.shape[0])


def test_an_agent_is_a_policy_that_decides_as_it_does_in_the_environment() -> None:
    env, _ = small(micro_steps=None)
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
    env, params = small(micro_steps=None)
    reset, step = programs(env)
    obs, first = reset(0, params)
    _, second, *_ = step(KEY, first, first_allowed(obs), params)
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
    _, state = env.reset_to(0, params)
    with pytest.raises(sy.InputError, match=r"give a sy\.Action"):
        env.step(KEY, state, jnp.asarray(0), params)
