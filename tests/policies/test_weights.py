"""Policies in files."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import weights
from symphony import policies
from symphony.policies import SHIPPED, Network, Sizes, load, named, save
from symphony.policies.weights import mean
from symphony.problem.errors import DataError, InputError
from symphony.simulator.run import simulate
from tests.baselines.cheap import cheap_scenario


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    network = Network(jax.random.key(3), Sizes(width=8, memory=8))
    save(tmp_path / "mine.policy", network, {"trained on": "eeg"})
    policy, card = load(tmp_path / "mine.policy")
    assert card == {"trained on": "eeg"}
    assert policy.network.sizes == network.sizes
    for one, other in zip(jax.tree.leaves(network), jax.tree.leaves(policy.network), strict=True):
        np.testing.assert_array_equal(one, other)
    assert named(str(tmp_path / "mine.policy")).name == "symphony"


def test_arrays_of_other_sizes_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "mine.policy", Network(jax.random.key(3), Sizes(width=8, memory=8)))
    content = (tmp_path / "mine.policy").read_bytes()
    (tmp_path / "mine.policy").write_bytes(content.replace(b'"width": 8', b'"width": 16', 1))
    with pytest.raises(DataError, match=r"in place of float32\[.*, 16\]"):
        load(tmp_path / "mine.policy")


def test_a_policy_keeps_the_objective_that_it_was_trained_for(tmp_path: Path) -> None:
    save(tmp_path / "mine.policy", Network(jax.random.key(3), Sizes(width=8, memory=8)), {"objective": "tail"})
    assert load(tmp_path / "mine.policy")[0].objective.tolist() == [0, 1, 0, 0]
    shipped = named(SHIPPED)
    assert shipped.objective.tolist() == [1, 0, 0, 0] and not shipped.network.objective.any()


def test_the_shipped_policy_says_where_it_comes_from_and_runs() -> None:
    policy, card = load(Path(policies.__file__).with_name("symphony.policy"))
    assert {"command", "topologies", "workloads", "against"} <= set(card)
    assert card["against"] < 1
    assert len(Path(policies.__file__).with_name("symphony.policy").read_bytes()) < 5_000_000
    (run,) = simulate([cheap_scenario()], named(SHIPPED))
    assert run.refused == 0 and len(run.jobs) == 8
    for one, other in zip(jax.tree.leaves(policy), jax.tree.leaves(named(SHIPPED)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_the_shipped_weights_were_trained_on_can_be_drawn_again() -> None:
    _, card = load(Path(policies.__file__).with_name("symphony.policy"))
    found = [kind.course for kind in weights.kinds(quick=False)]
    # The heavy-tailed work, which has no spec, was added after they were trained.
    specs = dict.fromkeys(spec for course in found for spec in course.workloads if isinstance(spec, str))
    assert card["workloads"] == list(specs)
    assert len(card["topologies"]) == len({course.topology.name for course in found})
    for course in found:
        drawn = [course.scenario(number).workload for number in range(len(course.workloads))]
        assert {len(workload.jobs) for workload in drawn} == ({1} if "jobs=1" in course.workloads[0] else {24})
    turns = sorted(turn for kind in weights.kinds(quick=False) for turn in kind.turns)
    assert turns == list(range(8))


def test_the_mean_of_networks_is_that_of_their_numbers(tmp_path: Path) -> None:
    one, other = (Network(jax.random.key(seed), Sizes(width=8, memory=8)) for seed in (1, 2))
    both = mean([one, other])
    assert both.sizes == one.sizes
    for x, y, z in zip(*map(jax.tree.leaves, (one, other, both)), strict=True):
        np.testing.assert_allclose(z, (np.asarray(x) + np.asarray(y)) / 2, rtol=1e-6)
    for network in (one, other, other):
        weights.add_to_mean(tmp_path / "mean.policy", network)
    kept, card = load(tmp_path / "mean.policy")
    assert card["looks"] == 3
    for x, y in zip(*map(jax.tree.leaves, (kept.network, mean([one, other, other]))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)


def test_files_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.policy")
    for content in (
        b"",
        b"\x00\xff\x10",
        b"{}\n",
        b'{"format": "symphony.policy/1", "sizes": {"wings": 2}, "card": {}}\n',
    ):
        (tmp_path / "bad.policy").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.policy"):
            load(tmp_path / "bad.policy")


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "whole.policy", Network(jax.random.key(3), Sizes(width=8, memory=8)))
    whole = (tmp_path / "whole.policy").read_bytes()
    (tmp_path / "cut.policy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.policy"):
        load(tmp_path / "cut.policy")
