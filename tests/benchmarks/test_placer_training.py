"""Training of the learned choice: episodes by hand, gradients through the inner step, members all used."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import placer_training
from benchmarks.placer import network
from benchmarks.placer_training import (
    DISCOUNT,
    ROUND_S,
    JobLists,
    SpeedWorld,
    SpeedWorlds,
    episode,
    job_lists,
    speed_worlds,
    train,
)
from symphony.problem.errors import InputError
from symphony.training_jobs.beliefs import Beliefs, JobDescriptions

pytestmark = pytest.mark.slow  # only the benchmark trains it


def small(members: int = 2) -> SpeedWorlds:
    """Two kernels of one GPU each and one of two, on two kinds; members differ."""
    rng = np.random.default_rng(0)
    unit_s = np.asarray([[1.0, 2.0], [1.0, 4.0], [2.0, 2.5]])
    kept = np.full((3, 3, 2), 0.8) * (np.arange(3) < 2)[:, None, None] * (np.arange(3) < 2)[:, None]
    every = SpeedWorld(unit_s * np.exp(rng.normal(0, 0.3, (members, 3, 2))), np.stack([kept] * members))
    believed, others = (
        jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), x) for x in (SpeedWorld(unit_s, kept), every)
    )
    return SpeedWorlds(believed, jnp.full((3, 2), 0.3), others, jnp.asarray([1, 1, 2]), jnp.asarray([2, 2]))


def of(kernel: list[int], arrival: list[float], length: list[float]) -> JobLists:
    return JobLists(jnp.asarray(kernel), jnp.asarray(arrival), jnp.asarray(length))


def sure() -> eqx.nn.MLP:
    return network(jax.random.key(0))


def cost(one: JobLists, w: SpeedWorlds, true: SpeedWorld) -> float:
    """Least of a few episodes: actions are drawn, and waiting is possible."""
    keys = jax.random.split(jax.random.key(1), 16)
    play = jax.jit(jax.vmap(lambda key: episode(sure(), w, true, one, key, 12, history=False).cost.sum()))
    return float(play(keys).min())


def test_a_job_alone_costs_its_length() -> None:
    w = small()
    assert cost(of([0], [0.0], [5 * ROUND_S]), w, w.believed) == pytest.approx(5.0, rel=1e-4)


def test_a_world_that_is_slower_than_believed_costs_more() -> None:
    w = small()
    slow = SpeedWorld(2 * w.believed.unit_s, w.believed.kept)
    assert cost(of([0], [0.0], [5 * ROUND_S]), w, slow) == pytest.approx(10.0, rel=1e-4)


def test_what_is_not_done_at_the_end_is_charged() -> None:
    w = small()
    assert cost(of([2], [0.0], [20 * ROUND_S]), w, w.believed) == pytest.approx(20.0, rel=1e-4)


@pytest.fixture(scope="module")
def played() -> tuple[SpeedWorlds, placer_training.EpisodeSteps, jax.Array]:
    w = small()
    some = job_lists(0, w, 2, 6, 3.0)
    play = eqx.filter_jit(placer_training._episodes)
    steps = play(sure(), w, jnp.arange(2), some, jax.random.key(2), 4, 12, history=False, own=False)
    return w, steps, placer_training._advantage(steps.cost)


def test_an_action_is_compared_with_other_episodes_of_the_same_list(played: tuple) -> None:  # type: ignore[type-arg]
    _, steps, advantage = played
    assert steps.cost.shape == (2, 4, 12)
    assert np.allclose(advantage.mean(axis=1), 0, atol=1e-4) and float(advantage.std()) > 0.5


def test_an_inner_step_improves_what_was_played_and_the_outer_gradient_goes_through_it(played: tuple) -> None:  # type: ignore[type-arg]
    _, steps, advantage = played
    before, after = sure(), placer_training._inner_step(sure(), steps, advantage)
    assert float(placer_training._loss(after, steps, advantage)) < float(
        placer_training._loss(before, steps, advantage)
    )

    def outer(weights: eqx.nn.MLP, *, through: bool) -> jax.Array:
        gradient = eqx.filter_grad(placer_training._loss)(weights, steps, advantage)
        kept = jax.tree.map(
            lambda g: -placer_training.INNER_STEP * (g if through else jax.lax.stop_gradient(g)), gradient
        )
        return placer_training._loss(eqx.apply_updates(weights, kept), steps, advantage)

    both = [eqx.filter_grad(lambda w, t=t: outer(w, through=t))(before) for t in (True, False)]
    through, plain = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(eqx.filter(g, eqx.is_array))]) for g in both)
    assert np.linalg.norm(through - plain) > 1e-4 * np.linalg.norm(plain) > 0


def test_every_member_is_a_scenario_and_weights_move() -> None:
    w = small()
    found = train(w, how="meta", steps=2, batch=2, repeats=4, jobs=6, rounds=12)
    assert found.used.tolist() == [2, 2] and len(found.costs) == 2
    assert [step for step, _ in found.validation_costs] == [0, 2]
    assert any(float(jnp.abs(a - b).max()) > 0 for a, b in zip(*(jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in
               (found.weights, network(jax.random.fold_in(jax.random.key(0), 0)))), strict=True))  # fmt: skip


def test_the_answer_is_what_did_best_on_lists_that_were_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged before and after one step, by a judge who likes the weights less and less."""
    said = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(placer_training, "mean_cost", lambda *args: next(said))
    found = train(small(), how="meta", steps=2, batch=2, repeats=4, jobs=6, rounds=12, goes_on=lambda step: step < 1)
    assert found.validation_costs == [(0, 1.0)] and len(found.costs) == 1
    untrained = network(jax.random.fold_in(jax.random.key(0), 0))
    assert eqx.tree_equal(found.weights, untrained)


def test_what_an_action_leads_to_counts_less_the_later_it_comes() -> None:
    """Two episodes of a list, of which one costs 1 more in the last of three rounds."""
    advantage = placer_training._advantage(jnp.asarray([[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]))
    assert np.allclose(advantage[0, 1] / advantage[0, 1, 2], [DISCOUNT**2, DISCOUNT, 1.0], rtol=1e-4)
    assert np.allclose(advantage[0, 0], -advantage[0, 1])


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="sarsa"):
        train(small(), how="sarsa")
    with pytest.raises(InputError, match="members alike"):
        train(small(), how="history", batch=3)


def test_worlds_are_what_members_say_and_gangs_are_spread_where_no_machine_holds_them() -> None:
    unit_s = np.stack([np.full((2, 2), 1.0), np.full((2, 2), 1.5)], axis=-1)
    described = JobDescriptions(np.zeros((2, 3)), np.zeros((2, 2)), np.arange(2), unit_s, np.full((2, 2, 2), 0.8))
    w = speed_worlds(Beliefs(described), np.asarray([1, 2]), np.asarray([4, 4]), np.asarray([1, 2]))
    # An ensemble that has seen nothing is not trusted: all members say what is guessed.
    assert np.allclose(w.members.unit_s, np.asarray([[1.0, 1.0], [1.5, 1.0]]), rtol=1e-4)
    assert np.allclose(w.believed.kept[0, 0], 0.8, rtol=1e-4) and np.allclose(w.believed.kept[1], 0)
