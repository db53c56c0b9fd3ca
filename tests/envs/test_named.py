"""Scenarios by name, and arrays of equal shapes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import symphony as sy
from symphony.envs.named import SCENARIOS, ScenarioSource, parts_of, scenario_source
from symphony.simulator.scenario_source import scenario


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("genomics", ("paper", "variant-calling?jobs=20")),
        ("paper/variant-calling?jobs=20", ("paper", "variant-calling?jobs=20")),
        ("fat-tree:64/traces/jobs.csv", ("fat-tree:64", "traces/jobs.csv")),
        ("my/clusters/two.toml/layered:4", ("my/clusters/two.toml", "layered:4")),
    ],
)
def test_a_name_is_a_topology_and_a_workload(name: str, parts: tuple[str, str]) -> None:
    assert parts_of(name) == parts


@pytest.mark.parametrize(("name", "hint"), [("genomix", "did you mean 'genomics'"), ("machine/", "TOPOLOGY/WORKLOAD")])
def test_a_name_that_is_none_is_answered_with_those_that_are(name: str, hint: str) -> None:
    with pytest.raises(sy.InputError, match="unknown scenario") as error:
        parts_of(name)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", None, None), "either a name or"),
        (("tiny", "machine", None), "either a name or"),
        (("", "machine", None), "topology or workload is missing"),
    ],
)
def test_a_scenario_is_named_or_described(arguments: tuple[str, str | None, str | None], message: str) -> None:
    with pytest.raises(sy.InputError, match=message):
        scenario_source(*arguments)


@pytest.mark.parametrize("name", SCENARIOS)
def test_named_scenarios_can_be_drawn(name: str) -> None:
    assert len(scenario_source(name, None, None).draw(7).workload.jobs) >= 6


def test_scenarios_are_those_of_a_comparison_and_all_of_one_shape() -> None:
    source = scenario_source("machine/layered:3?jobs=2&graphs=2", None, None)
    assert source.draw(5) == scenario(sy.topology("machine"), "layered:3?jobs=2&graphs=2", 5)
    batch = source.stack(range(4))
    again = source.stack([2])
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x: x[2:3], batch.workload), again.workload)


def test_a_scenario_that_needs_more_space_enlarges_those_after_it() -> None:
    def growing(topology: sy.Topology, seed: int) -> sy.Workload:
        return sy.workload(f"layered:{seed}?jobs=2&graphs=2", topology, seed)

    source = ScenarioSource("machine", growing)
    tasks = [source.stack([seed]).workload.kernel.shape[-1] for seed in (3, 12, 3)]
    assert tasks == [3, 12, 12]
    assert source.name.startswith("machine/")
