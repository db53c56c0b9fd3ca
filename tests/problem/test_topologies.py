"""The built-in topologies and the names by which they are found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem import topologies, topology_file
from symphony.problem.errors import LimitError, TopologyError


def test_names() -> None:
    assert topologies.names() == ("machine", "paper", "gpu24", "fat-tree:N")


def test_machine() -> None:
    topology = topologies.topology("machine")
    assert topology.kind_counts == {"xeon": 2, "v100": 2, "p100": 2, "fpga": 1}
    assert len(topology.machines) == 1
    assert Counter(row.kind for row in topology.resources)["switch"] == 2
    assert topology.kind_of["fpga"].reconfigurable


def test_paper() -> None:
    topology = topologies.topology("paper")
    assert topology.kind_counts == {"power8": 12, "xeon": 4, "k40": 2, "k80": 6, "fpga": 2}
    hosts = {kind: {d.machine for d in topology.devices if d.kind == kind} for kind in topology.kind_of}
    assert (len(hosts["power8"]), len(hosts["xeon"])) == (10, 2)
    assert hosts["k40"] | hosts["k80"] | hosts["fpga"] <= hosts["power8"]


def test_gpu24() -> None:
    topology = topologies.topology("gpu24")
    assert topology.kind_counts == {"v100": 8, "p100": 8, "k80": 8}
    assert len(topology.machines) == 24
    assert {kind.type for kind in topology.kinds} == {"gpu"}
    assert Counter(row.kind for row in topology.resources)["nic"] == 24


@pytest.mark.parametrize("name", ["machine", "paper", "gpu24", "fat-tree:64"])
def test_every_device_has_compute_and_a_way_out(name: str) -> None:
    topology = topologies.topology(name)
    kind = {row.name: row.kind for row in topology.resources}
    for device in topology.devices:
        assert {"compute", "nic"} <= {kind[hop.resource] for hop in device.route}


@given(st.integers(1, 400))
@settings(max_examples=30, deadline=None)
def test_fat_tree_has_as_many_devices_as_asked_for(devices: int) -> None:
    topology = topologies.topology(f"fat-tree:{devices}")
    assert len(topology.devices) == devices
    assert set(Counter(d.machine for d in topology.devices).values()) <= {8, devices % 8}
    assert all(len({d.kind for d in topology.devices if d.machine == m}) == 1 for m in topology.machines)
    assert len({d.rack for d in topology.devices}) == -(-devices // 64)


def test_fat_tree_uplinks_are_oversubscribed_and_generations_mixed() -> None:
    topology = topologies.topology("fat-tree:128")
    rows = {row.name: row.capacity for row in topology.resources}
    inside = sum(rows[f"{m}/nic"] for m in topology.machines if m in {f"m{i}" for i in range(8)})
    assert rows["r0/uplink"] < inside
    assert set(topology.kind_counts) == {"p100", "v100", "a100"}
    assert min(topology.kind_counts.values()) >= 40


def test_fat_tree_of_ten_thousand() -> None:
    assert len(topologies.topology("fat-tree:10000").devices) == 10_000


@pytest.mark.parametrize(
    ("name", "error", "message", "hint"),
    [
        ("fat-tree:abc", TopologyError, "'abc' is not a number of devices", "fat-tree:64"),
        ("fat-tree:", TopologyError, "'' is not a number", "fat-tree:64"),
        ("fat-tree", TopologyError, "'' is not a number", "fat-tree:64"),
        ("fat-tree:N", TopologyError, "'N' is not a number", "fat-tree:64"),
        ("fat-tree:0", TopologyError, "cannot have 0 devices", "fat-tree:64"),
        ("fat-tree:-8", TopologyError, "cannot have -8 devices", "fat-tree:64"),
        ("fat-tree:nan", TopologyError, "cannot have nan devices", "fat-tree:64"),
        ("fat-tree:2.5", TopologyError, "cannot have 2.5 devices", "fat-tree:64"),
        ("fat-tree:1e9", LimitError, "1,000,000,000", "limits"),
        ("papper", TopologyError, "unknown topology 'papper'", "did you mean 'paper'?"),
        ("fattree:64", TopologyError, "unknown topology", "did you mean 'fat-tree'?"),
        (
            "xyz",
            TopologyError,
            "unknown topology 'xyz'",
            "the built-in topologies are machine, paper, gpu24, fat-tree:N",
        ),
        ("", TopologyError, "", "toml"),
        ("cellar.toml", TopologyError, "there is no such file", "TOML"),
    ],
)
def test_names_that_mean_nothing(name: str, error: type[Exception], message: str, hint: str) -> None:
    with pytest.raises(error) as caught:
        topologies.topology(name)
    assert message in caught.value.message  # type: ignore[attr-defined]
    assert hint.lower() in caught.value.hint.lower()  # type: ignore[attr-defined]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = topologies.topology("machine")
    for name in ("mine", "paper"):
        topology_file.write(machine, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert topologies.topology("mine") == machine
    assert topologies.topology(tmp_path / "mine") == machine
    assert topologies.topology(Path("paper")) == machine  # a path is a path
    assert topologies.topology("paper").name == "paper"  # and a name a name
