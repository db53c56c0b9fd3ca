"""`symphony topology`, as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from symphony.cli.topology import app
from symphony.problem import topologies, topology_file
from symphony.problem.errors import InputError, TopologyError
from symphony.problem.topology import Topology

GUIDE = (Path(__file__).parents[2] / "docs/guides/topologies.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal wide enough that nothing is folded."""
    monkeypatch.setenv("COLUMNS", "160")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_list_names_every_built_in() -> None:
    output = run("list").stdout
    assert all(name in output for name in topologies.names())
    assert [entry["name"] for entry in json.loads(run("list", "--json").stdout)] == list(topologies.names())


def test_show_draws_what_the_guide_draws(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[0])
    drawn = next(text for text in re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL) if text.startswith("lab"))
    lines = [line.rstrip() for line in run("show", str(tmp_path / "lab.toml")).stdout.splitlines()]
    assert lines[: len(drawn.splitlines())] == drawn.splitlines()


def test_show_counts_kinds_and_rows() -> None:
    output = run("show", "machine").stdout
    assert re.search(r"^ fpga +fpga +1 +2 +8 GB +200 ms", output, re.MULTILINE)
    assert re.search(r"^ link +5 +6 GB/s to 12 GB/s +an accelerator's own PCIe link", output, re.MULTILINE)
    assert re.search(r"^ switch +2 +12 GB/s ", output, re.MULTILINE)


def test_show_collapses_what_is_alike() -> None:
    output = run("show", "fat-tree:10000").stdout
    assert "rack r0 … r153 ×52" in output
    assert len(output.splitlines()) < 80


def test_show_keeps_apart_what_differs_in_capacity(tmp_path: Path) -> None:
    text = topology_file.dumps(topologies.topology("gpu24")).replace('"1.25 GB/s"', '"9 GB/s"', 1)
    (tmp_path / "odd.toml").write_text(text)
    output = run("show", str(tmp_path / "odd.toml")).stdout
    assert "machine v100-0  nic 9 GB/s" in output
    assert "machine v100-1 … v100-7 ×7  nic 1.25 GB/s" in output


def test_show_lists_devices() -> None:
    output = run("show", "machine", "--devices").stdout
    assert "s0/sw0 (socket to cluster)" in output
    assert re.search(r"^ host/xeon-1 +xeon +host/xeon-0 ", output, re.MULTILINE)


def test_show_as_json() -> None:
    content = json.loads(run("show", "paper", "--json").stdout)
    assert (content["devices"], content["machines"], content["racks"]) == (26, 12, 1)
    assert {kind["name"]: kind["devices"] for kind in content["device_kinds"]}["k80"] == 6
    memory = next(kind for kind in content["resource_kinds"] if kind["kind"] == "memory")
    assert memory == {"kind": "memory", "rows": 16, "unit": "bytes/s", "least": 76.8e9, "most": 115e9}
    assert "device_list" not in content
    assert len(json.loads(run("show", "paper", "--json", "--devices").stdout)["device_list"]) == 26


def test_names_with_brackets_are_text(tmp_path: Path) -> None:
    text = topology_file.dumps(topologies.topology("machine")).replace("v100", "[red]")
    (tmp_path / "odd.toml").write_text(text)
    assert "[red] ×2" in run("show", str(tmp_path / "odd.toml")).stdout


def test_show_of_something_unknown_raises_a_typed_error() -> None:
    with pytest.raises(TopologyError, match="did you mean 'machine'"):
        run("show", "machin")


def test_validate_reports_every_file(tmp_path: Path) -> None:
    good, bad, missing = (tmp_path / name for name in ("good.toml", "bad.toml", "missing.toml"))
    topology_file.write(topologies.topology("machine"), good)
    bad.write_text("naem = 1\n")
    result = run("validate", str(bad), str(good), str(missing))
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert f"error: {bad}:1: naem: unknown key 'naem'" in lines
    assert any("hint: write 'name' instead?" in line for line in lines)
    assert f"valid: {good}: machine: 7 devices (2 xeon, 2 v100, 2 p100, 1 fpga) on 1 machine in 1 rack" in lines
    assert f"error: {missing}: there is no such file" in lines

    result = run("validate", "--json", str(bad), str(good))
    assert result.exit_code == 2
    content = json.loads(result.stdout)
    assert [entry["valid"] for entry in content] == [False, True]
    assert content[0]["where"] == f"{bad}:1: naem"


def test_validate_of_good_files_succeeds(tmp_path: Path) -> None:
    topology_file.write(topologies.topology("paper"), tmp_path / "paper.toml")
    assert run("validate", str(tmp_path / "paper.toml")).exit_code == 0


def test_discover_draws_notes_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    result = run("discover", "-o", str(path))
    assert result.exit_code == 0
    assert f"written to {path}" in result.stdout
    written = topology_file.read(path)
    assert f"{written.name}: " in result.stdout
    for note in re.findall(r"^# - (.*)$", path.read_text(), re.MULTILINE):
        assert f"note: {note}" in result.stdout


def test_discover_as_json_is_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    content: dict[str, Any] = json.loads(run("discover", "--json", "-o", str(path)).stdout)
    assert isinstance(content["notes"], list)
    assert content["devices"] == len(content["device_list"]) == len(topology_file.read(path).devices)


def test_discover_into_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it cannot be written"):
        run("discover", "-o", str(tmp_path / "no" / "such" / "folder.toml"))


def test_a_topology_without_memory_limit_is_valid_json(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(
        '[device.core]\ntype = "cpu"\n[[machine]]\nname = "m"\n[[machine.socket]]\ndevices = ["core"]\n'
    )
    topology: Topology = topology_file.read(tmp_path / "plain.toml")
    assert topology.kinds[0].memory == float("inf")
    output = run("show", str(tmp_path / "plain.toml"), "--json").stdout
    assert "Infinity" not in output
    assert json.loads(output)["device_kinds"][0]["memory"] is None
    assert "no limit" in run("show", str(tmp_path / "plain.toml")).stdout
