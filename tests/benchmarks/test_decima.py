"""The network without hardware structure: it keeps the rules, uses no hardware, and can be trained by our trainer."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.decima import DecimaNetwork, decima, load
from symphony.learning.train import RoundSize, train
from symphony.policies import save
from symphony.scheduling.policy import PLACE, WAIT, place
from tests.learning.test_train import METHOD, RIVALS, ROUGH, small
from tests.scheduling.by_hand import FPGA, GPU, cluster, decision, dot, shared_books, work


@pytest.fixture(scope="module")
def policy():
    return decima(jax.random.key(0))


def test_a_gang_goes_to_the_fastest_idle_device_and_waits_if_there_is_none(policy) -> None:
    books = shared_books(work(dot("any"), dot("train")))
    assert decision(policy, books.observe(policy=policy))[0] == PLACE
    assert books.decide(place(1, GPU))
    assert decision(policy, books.observe(policy=policy)) == (PLACE, 0, FPGA)
    for device in range(4):
        if device != GPU:
            books.fail(device)
    assert decision(policy, books.observe(policy=policy))[0] == WAIT


def test_a_job_beyond_its_limit_falls_behind(policy) -> None:
    network = policy.network
    books = shared_books(work(dot("any"), dot("any")))
    shown = books.observe(policy=policy)
    seen = eqx.filter_jit(network.features)(shown)
    assert seen.gangs.features.shape[-1] == 3 and int(seen.allowed.sum()) == 2
    wide = replace(seen, gangs=replace(seen.gangs, features=seen.gangs.features.at[0, 1].set(1.0)))
    nodes = shown.prepared.nodes

    def scores(seen):
        return network.score_actions(seen, network.embed(shown.topology, nodes, seen), jnp.zeros(1)).scores

    narrow, fell = jax.jit(scores)(seen), jax.jit(scores)(wide)
    assert float(fell[0] - fell[1]) < float(narrow[0] - narrow[1]) - 1


@pytest.mark.slow
def test_the_trainer_trains_it_and_it_can_be_read_again(tmp_path) -> None:
    size = RoundSize(pool=2, scenarios=2, group=2, validation=2, every=1)
    start = decima(jax.random.key(1))
    trained, history = train(
        topology=cluster(), workload=small, disturbances=ROUGH, rounds=2, start=start, size=size, method=METHOD,
        rivals=RIVALS, checkpoint=tmp_path,
    )  # fmt: skip
    assert len(history) == 2 and history[-1].decisions > 0
    save(tmp_path / "decima.policy", trained.network)
    again = load(tmp_path / "decima.policy").network
    assert isinstance(again, DecimaNetwork)
    np.testing.assert_array_equal(again.critic.layers[0].weight, trained.network.critic.layers[0].weight)
