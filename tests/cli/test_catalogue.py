"""`symphony catalogue`, as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from symphony.cli.catalogue import app
from symphony.problem.errors import InputError
from symphony.telemetry import catalogue, machine
from tests.telemetry.packing import deb, kernel, tar, unpacked
from tests.telemetry.small import PERF_LIST, files


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache, a CPU and a wide terminal of the test's own."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "cpuid", lambda *root: "GenuineIntel-6-55-4")
    monkeypatch.setattr(machine, "architecture", lambda: "x86")


@pytest.fixture
def tree(tmp_path: Path) -> str:
    return str(unpacked(tmp_path / "tree", files()))


def run(*arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=given, catch_exceptions=False)


def test_add_says_what_was_added_and_what_the_cpu_is(tree: str) -> None:
    output = run("add", tree).stdout
    assert "added 4 catalogues: 14 events, 9 metrics" in output
    assert "this machine's CPU is x86/tiny" in output


def test_add_says_what_was_left_out(tree: str) -> None:
    Path(tree, "arm64/standard.json").write_text('[{"EventName": "CPU_CYCLES"},]')
    output = run("add", tree).stdout
    assert "added 4 catalogues: 13 events, 8 metrics" in output
    what = "left out: arm64/maker/small-1/core.json, record 2 (STALL): there is no standard event STALL in the files"
    assert f"{what} beside mapfile.csv, and 1 more (--json lists them all)" in output
    assert f"{what} beside mapfile.csv, and 1 more" in run("show", "small-1").stdout
    listed = {entry["name"]: len(entry["left_out"]) for entry in json.loads(run("list", "--json").stdout)}
    assert listed["arm64/maker/small-1"] == 2 and listed["x86/tiny"] == 0


def test_add_a_package(tmp_path: Path) -> None:
    (tmp_path / "source.deb").write_bytes(deb(tar({"usr/src/linux-source-9.9.tar.xz": tar(kernel(files()))})))
    assert "added 4 catalogues" in run("add", str(tmp_path / "source.deb")).stdout


def test_add_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "added perf-list: 4 events, 1 metrics" in run("add", "-", given=json.dumps(PERF_LIST).encode()).stdout


def test_add_from_perf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony.telemetry.perf_list.run", lambda: json.dumps(PERF_LIST).encode())
    assert [entry["name"] for entry in json.loads(run("add", "--perf", "--json").stdout)] == ["perf-list"]


def test_add_notes_a_cpu_without_a_listing(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is x86/tiny, which has not been added" in run("add", f"{tree}/x86/mix").stdout
    monkeypatch.setattr(machine, "cpuid", lambda *root: "SomeVendor-1-2-3")
    assert "none of them is for this machine's CPU (SomeVendor-1-2-3)" in run("add", tree).stdout


def test_add_takes_what_is_installed(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony.cli.catalogue.installed_source", lambda: Path(tree))
    assert "added 4 catalogues" in run("install").stdout
    monkeypatch.setattr("symphony.cli.catalogue.installed_source", lambda: None)
    with pytest.raises(InputError, match="no kernel source in /usr/src"):
        run("add")


def test_list_marks_the_cpu_at_hand(tree: str) -> None:
    assert "catalogue add PATH" in run("list").stdout
    run("add", tree)
    output = run("list").stdout
    assert re.search(r"^ \* +x86/tiny +6 +1 +4 ", output, re.MULTILINE)
    assert re.search(r"^ +x86/mix +2 +0 +3 ", output, re.MULTILINE)
    assert "architectural" in output
    entries = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in entries if entry["this_cpu"]] == ["x86/tiny"]


def test_show_counts_by_unit(tree: str) -> None:
    run("add", tree)
    output = run("show", "tiny").stdout
    assert re.search(r"^ core +6 +2 +2 +4", output, re.MULTILINE)
    assert re.search(r"^ BUS +1 +4 +1 +0", output, re.MULTILINE)
    assert "assumed" not in output and "assumed" in run("show", "mix").stdout


def test_show_without_a_name_is_the_cpu_at_hand(tree: str) -> None:
    assert run("show").stdout.startswith("architectural")
    run("add", tree)
    assert run("show").stdout.startswith("x86/tiny")


def test_show_finds_events(tree: str) -> None:
    run("add", tree)
    output = run("show", "tiny", "--events", "cache.").stdout
    assert re.search(r"^ CACHE.MISS +core +event=0x24,umask=0x2 +0 ", output, re.MULTILINE)
    assert "TICKS" not in output
    assert "fixed 1" in run("show", "tiny", "--events", "t*s").stdout
    assert "CACHE.ALL" not in run("show", "tiny", "--events", "c*s").stdout
    assert "no event has 'zzz'" in run("show", "tiny", "--events", "zzz").stdout


def test_show_finds_metrics_by_name_and_group(tree: str) -> None:
    run("add", tree)
    output = run("show", "tiny", "--metrics", "ratio").stdout
    assert "100 × (1 - miss_ratio)" in output and "duration_time" not in output
    assert "miss_ratio" in run("show", "tiny", "--metrics", "memory").stdout
    assert "no metric has 'zzz'" in run("show", "tiny", "--metrics", "zzz").stdout


def test_show_as_json(tree: str) -> None:
    run("add", tree)
    whole = json.loads(run("show", "tiny", "--json").stdout)
    assert len(whole["events"]) == 7 and len(whole["metrics"]) == 4 and whole["groups"] == {"Cache": "Caches."}
    some = json.loads(run("show", "tiny", "--json", "--events", "offcore").stdout)
    assert [event["terms"] for event in some["events"]] == [{"offcore_rsp": "0x10001"}]
    assert some["metrics"] == [] and some["events"][0]["perf"] == "event=0xb7,offcore_rsp=0x10001"


def test_json_has_what_was_asked_for(tree: str) -> None:
    """Every unit that the table has, and the groups of the metrics that there are."""
    run("add", tree)
    whole = json.loads(run("show", "tiny", "--json").stdout)
    assert {pmu["unit"] for pmu in whole["pmus"]} >= {event["unit"] for event in whole["events"]}
    none = json.loads(run("show", "tiny", "--metrics", "zzz", "--json").stdout)
    assert none["metrics"] == [] and none["groups"] == {}


def test_names_with_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    odd = files(core=b'[{"EventName": "A[red]", "BriefDescription": "[bold]x[/] :smile:"}]')
    catalogue.add(unpacked(tmp_path / "odd", odd))
    output = run("show", "tiny", "--events", "*").stdout
    assert "A[red]" in output and "[bold]x[/] :smile:" in output


def test_graph_draws_the_net_of_some_events(tree: str, tmp_path: Path) -> None:
    run("add", tree)
    said = run("graph", "tiny", "--events", "cache.", "--metrics", "miss_ratio", "-o", str(tmp_path / "net.svg")).stdout
    assert "2 events to count, 1 derived" in said
    assert (tmp_path / "net.svg").read_text().startswith("<svg ")
    drawn = json.loads(run("graph", "tiny", "--events", "cache.", "--json").stdout)
    assert {node["name"]: node["kind"] for node in drawn["nodes"]} == {
        "cache.all": "derived",
        "cache.hit": "free",
        "cache.miss": "free",
        "cache.all = hit + miss": "sum",
    }
    assert {"from": "cache.all = hit + miss", "to": "cache.all"} in drawn["edges"]


def test_graph_of_metrics_by_pattern(tree: str) -> None:
    run("add", tree)
    assert (
        run("graph", "tiny", "--metrics", "miss_*", "--json").stdout
        == run("graph", "tiny", "--metrics", "miss_ratio", "--json").stdout
    )


def test_graph_draws_the_use_of_a_topologys_rows(tree: str, tmp_path: Path) -> None:
    run("add", tree)
    rows = {"host/nic", "host/xeon-0/compute"}
    drawn = json.loads(run("graph", "tiny", "--events", "cache.", "-t", "machine", "--json").stdout)
    assert rows <= {node["name"] for node in drawn["nodes"] if node["kind"] == "row"}
    assert {"from": "net.receive_bytes", "to": "host/nic"} in drawn["edges"]
    said = run("graph", "tiny", "--events", "cache.", "-t", "machine", "-o", str(tmp_path / "net.svg")).stdout
    assert "no counter shows" in said and "host/s0/cache" in said and "host/nic" not in said
    other = ("graph", "tiny", "--events", "cache.", "-t", "paper", "--json", "--machine", "power8-k80-1")
    assert "power8-k80-1/nic" in {node["name"] for node in json.loads(run(*other).stdout)["nodes"]}
    here = json.loads(run("graph", "--json").stdout)["nodes"]  # of this machine's CPU: this machine's rows
    assert any(node["kind"] == "row" for node in here)


def test_narrow_terminals_keep_names_whole(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("add", tree)
    monkeypatch.setenv("COLUMNS", "80")
    assert "core events  other events  metrics" in run("list").stdout
    wide = max((event.name for event in catalogue.load("tiny").events), key=len)
    assert wide in run("show", "tiny", "--events", "*").stdout


def test_graph_by_default_and_in_vain(tree: str, tmp_path: Path) -> None:
    assert "ipc" in {node["name"] for node in json.loads(run("graph", "--json").stdout)["nodes"]}
    run("add", tree)
    for arguments in (
        ("tiny",),
        ("tiny", "--json", "--events", "zzz"),
        ("tiny", "--json", "--metrics", "zzz"),
        ("tiny", "-o", str(tmp_path / "no" / "net.svg")),
        ("tiny", "-o", str(tmp_path / "net.txt")),
        ("tiny", "--json", "--metrics", "zzz*"),
        ("tiny", "--json", "--events", "cache.", "--machine", "host"),
        ("tiny", "--json", "--events", "cache.", "-t", "machine", "--machine", "zzz"),
    ):
        with pytest.raises(InputError):
            run("graph", *arguments)
