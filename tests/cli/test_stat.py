"""`symphony stat`, as a user meets it: a perf that counts a made-up CPU, the real one, and logs."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from symphony.cli import stat as command
from symphony.problem.errors import DataError, InputError
from symphony.telemetry import catalogue, event_selection, machine, verdicts
from tests.cli.command import symphony
from tests.telemetry import demo
from tests.telemetry.packing import unpacked
from tests.telemetry.sources.logs import as_csv, as_json
from tests.waiting import SECONDS

app = typer.Typer()
app.command(context_settings=command.SETTINGS)(command.stat)
needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (Debian: linux-perf)")
KEYS = [
    "time",
    "duration",
    "place",
    "kind",
    "name",
    "value",
    "std",
    "lower",
    "upper",
    "unit",
    "counted",
    "derived",
    "rate",
    "runs",
    "over_runs",
    "missing",
]
Json = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache, a CPU and a folder of the test's own."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "cpuid", lambda *root: demo.CPUID)
    monkeypatch.setattr(machine, "architecture", lambda: "x86")
    monkeypatch.chdir(tmp_path)
    demo.add()


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A perf that counts the demo CPU; gives the events of the last call."""
    (tmp_path / "bin").mkdir()
    demo.perf(tmp_path / "bin", windows=60)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(event_selection, "core_device", lambda: "cpu")

    def asked() -> list[str]:
        words = json.loads((tmp_path / "bin" / "arguments").read_text().splitlines()[-1])
        return [words[at + 1] for at, word in enumerate(words) if word == "-e"]

    return asked


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "perf.json"
    file.write_text(as_json({"": demo.recording(60)}, decimals=True))
    return file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def lines(text: str) -> Json:
    return [json.loads(line) for line in text.splitlines()]


def counts(text: str) -> Json:
    """The lines about events and metrics."""
    return [one for one in lines(text) if one["kind"] in ("event", "metric")]


def truth(event: str) -> float:
    return float(demo.program(60)[event].sum())


# --- Live --------------------------------------------------------------------------------------------------


def test_the_first_run_counts_everything_and_the_second_what_is_free(perf: Callable[[], list[str]]) -> None:
    result = run("-j", "-M", "TopdownL1", "--", "true")
    assert result.exit_code == 0
    assert any("name=top.slots/" in group for group in perf())
    assert [one.accepted for one in verdicts.load("x86/demo") if "top.slots" in one.identity.events] == [True]
    again = lines(run("-j", "-e", "top.slots,top.front", "-M", "TopdownL1", "--explain", "--", "true").stderr)
    assert not any("top.slots" in group for group in perf())
    slots = next(one for one in again if one.get("name") == "top.slots")
    assert slots["derived"] and slots["counted"] == 0
    assert slots["lower"] <= truth("top.slots") <= slots["upper"]
    shares = [one["value"] for one in again if one["kind"] == "metric"]
    assert len(shares) == 4 and sum(shares) == pytest.approx(100)
    assert {"kind": "derived", "events": ["top.slots"]} in again
    assert [one["used"] for one in again if one["kind"] == "identity"] == [True]
    audited = run("--audit", "-M", "TopdownL1", "--", "true")
    assert any("name=top.slots/" in group for group in perf())
    assert "1 of 1 identities hold; the verdicts are stored in" in audited.stderr


def test_groups_fit_the_counters_and_are_counted_twice(perf: Callable[[], list[str]]) -> None:
    run("-M", "TopdownL1", "--", "true")
    groups = [group for group in perf() if "top." in group]
    assert groups[: len(groups) // 2] == groups[len(groups) // 2 :]
    assert all(group.startswith("{") and group.count("name=top.") <= 2 for group in groups)
    assert all("inst_retired.any" in group for group in groups)
    run("-M", "TopdownL1", "--counters", "5", "--", "true")
    assert len([group for group in perf() if "top." in group]) == 1


def test_the_table(perf: Callable[[], list[str]]) -> None:
    said = run("-e", "top.back,{page-faults,task-clock}", "-M", "front", "--", "true").stderr
    assert " Counts of 'true' (x86/demo, 60 windows):" in said
    assert re.search(r"^ +[\d,]{9,} ± \d\.\d\d% +top\.back +[\d.,]+ [GM]/s +\(\d\d\.\d%\)$", said, re.MULTILINE)
    assert re.search(r"^ +180 +page-faults +[\d.]+ k?/s$", said, re.MULTILINE)
    assert re.search(r"^ +6,000\.00 +msec +task-clock +[\d.]+ CPUs$", said, re.MULTILINE)
    assert re.search(r"^ +\d\d\.\d+ ± \d\.\d+ +% +front$", said, re.MULTILINE)
    assert re.search(r"^ +\d+\.\d{6} +seconds elapsed$", said, re.MULTILINE)  # of the command, not of made-up windows
    assert "\x1b" not in said


def test_a_command_is_repeated_and_means_have_two_errors(perf: Callable[[], list[str]], tmp_path: Path) -> None:
    script = ["--", "sh", "-c", "echo x >> ran; exit $(($(wc -l < ran) == 2))"]
    result = run("-r", "3", "-j", "-e", "top.back,page-faults", *script)
    assert (tmp_path / "ran").read_text() == "x\n" * 3 and result.exit_code == 1
    back, faults = counts(result.stderr)
    assert (back["runs"], faults["runs"], faults["value"], faults["over_runs"]) == (3, 3, 180, 0)
    assert back["lower"] <= truth("top.back") <= back["upper"] and back["over_runs"] is not None
    once = counts(run("-j", "-e", "page-faults", "--", "true").stderr)[0]
    assert once["rate"] * once["duration"] == pytest.approx(once["value"])  # of the command's time, as all rows
    assert (
        once["runs"] == 1 and once["over_runs"] is None and once["rate"] > once["value"]
    )  # in much less than a second
    table = run("-r", "2", "-e", "page-faults", "--", "true").stderr
    assert "60 windows), 2 runs:" in table and table.count("Counts of") == 1
    assert re.search(r"seconds elapsed   ± .*% over runs$", table, re.MULTILINE)


def test_levels_of_the_top_down_method(perf: Callable[[], list[str]]) -> None:
    table = run("--level", "2", "--", "true").stderr
    assert re.search(r"%       front$", table, re.MULTILINE) and re.search(r"%         late$", table, re.MULTILINE)
    shares = {one["name"]: one["value"] for one in counts(run("-j", "--level", "2", "--", "true").stderr)}
    assert list(shares) == ["front", "late", "narrow", "bad", "back", "retiring"]
    best = max(("front", "bad", "back", "retiring"), key=lambda name: shares[name])
    assert f"largest   {best} " in table


def test_intervals(perf: Callable[[], list[str]]) -> None:
    found = lines(run("-I", "1000", "-j", "-e", "top.back,task-clock", "--", "true").stderr)
    assert [one["time"] for one in found if one["name"] == "top.back"] == pytest.approx([1, 2, 3, 4, 5, 6])
    exact = demo.program(60)["top.back"].reshape(6, -1).sum(axis=1)
    back = [one for one in found if one["name"] == "top.back"]
    assert np.mean([one["lower"] <= t <= one["upper"] for one, t in zip(back, exact, strict=True)]) >= 0.8
    assert {one["value"] for one in found if one["name"] == "task-clock"} == {1000.0}
    table = run("-I", "500", "-e", "top.back", "--", "true").stderr.splitlines()
    assert table[0].startswith("#") and len(table) == 13


def test_fields(perf: Callable[[], list[str]]) -> None:
    rows = [line.split(";") for line in run("-x", ";", "-e", "task-clock,top.back", "--", "true").stderr.splitlines()]
    assert rows[0][:5] == ["6000", "msec", "task-clock", "6000000000", "100.00"]
    assert rows[1][2] == "top.back" and float(rows[1][5]) <= truth("top.back") <= float(rows[1][6])


def test_output_to_a_file_and_a_status_of_the_commands(perf: Callable[[], list[str]], tmp_path: Path) -> None:
    result = run("-o", "out.json", "-j", "-e", "top.back", "--", "sh", "-c", "exit 7")
    assert result.exit_code == 7 and result.stderr == ""
    assert [one["name"] for one in lines((tmp_path / "out.json").read_text())] == ["top.back"]
    assert run("-e", "top.back", "--", "sh", "-c", "kill -9 $$").exit_code == 128 + 9


def test_json_has_the_same_keys_on_every_line(perf: Callable[[], list[str]]) -> None:
    for one in lines(run("-j", "-e", "task-clock,top.back", "-M", "speed", "--", "true").stderr):
        assert list(one) == KEYS


def test_a_perf_that_may_not_count_hands_over_to_the_kernel(
    perf: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bin" / "perf"
    file.write_text(
        f"#!{sys.executable} -S\nimport sys\nsys.exit('Error: access to performance monitoring is limited')"
    )
    result = run("-j", "--", "sh", "-c", "sleep 0.3; exit 3")
    assert result.exit_code == 3
    found = lines(result.stderr)
    assert [one["text"][:25] for one in found if one["kind"] == "note"][:1] == ["counting is not permitted"]
    assert any(one.get("place") == "machine" and one["value"] is not None for one in found)


def test_a_perf_that_prints_nothing_is_told_of(
    perf: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bin" / "perf"
    file.write_text(re.sub(r"(?m)^for window in .*(\n .*)*", "", file.read_text()))
    found = lines(run("-j", "--", "true").stderr)
    assert {one["missing"] for one in found if one["kind"] == "event" and not one["place"]} == {"not counted"}
    assert any(one["kind"] == "warning" and "without printing any count" in one["text"] for one in found)


def test_counts_of_the_machine_cover_the_commands_time_and_are_marked() -> None:
    result = run("-j", "-e", "psi.cpu.some_us,stat.idle_us", "--", "true")
    found = counts(result.stderr)
    table = run("-e", "psi.cpu.some_us", "--", "true").stderr
    elapsed = re.search(r"([\d.]+) +seconds elapsed", table)
    assert {one["place"] for one in found} == {"machine"}
    assert elapsed and re.search(r"^ machine .* psi\.cpu\.some_us$", table, re.MULTILINE)
    assert re.search(r"machine +the whole machine", table)


@pytest.mark.parametrize("interval", [[], ["-I", "100"]])
def test_what_was_asked_for_is_told_of_and_nothing_else(interval: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None if name == "perf" else which(name, *rest))
    result = run("-j", *interval, "-e", "top.back,task-clock", "-M", "front", "--", "sh", "-c", "sleep 0.2; exit 3")
    note, *found = lines(result.stderr)
    assert result.exit_code == 3 and note["kind"] == "note" and "instead" not in note["text"]
    assert [one["name"] for one in found] == ["top.back", "task-clock", "front"]
    assert {one["missing"] for one in found} == {"not supported"}
    assert all(one[end] is None for one in found for end in ("value", "std", "lower", "upper"))
    named = ["psi.cpu.some_us", "psi.no.such_us"]
    found = counts(run("-j", "-e", ",".join(named), "--", "sleep", "0.2").stderr)
    assert [one["name"] for one in found] == named and found[1]["missing"] == "not counted"
    assert {one["unit"] for one in found} == {"us"}
    table = run("-e", "top.back", "--explain", "--", "true").stderr
    assert re.search(r"<not supported> +top\.back$", table, re.MULTILINE)
    assert "No counter of the CPU was used" in table and "±" not in table and "No identity" not in table


def test_without_perf_there_is_one_line_and_what_the_kernel_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None if name == "perf" else which(name, *rest))
    result = run("-j", "--", "sh", "-c", "sleep 0.3; exit 5")
    found = lines(result.stderr)
    assert result.exit_code == 5
    assert [one["kind"] for one in found].count("note") == 1 and "perf is not installed" in found[0]["text"]
    assert {one["place"] for one in found[1:]} == {"machine"}


# --- The real thing ----------------------------------------------------------------------------------------


@needs_perf
def test_real_software_events(tmp_path: Path) -> None:
    """What the command prints is untouched, what it ends with is passed on, and counts are exact."""
    events = "task-clock,context-switches,page-faults"
    done = symphony("stat", "-j", "-e", events, "--", "sh", "-c", "echo out; sleep 0.2; exit 3", folder=tmp_path)
    if "counting is not permitted" in done.stderr:
        pytest.skip("perf does not count here")
    assert done.returncode == 3 and done.stdout == "out\n"
    found = {one["name"]: one for one in lines(done.stderr) if one["kind"] == "event"}
    assert list(found) == events.split(",")
    assert found["page-faults"]["value"] > 0 and found["page-faults"]["std"] == 0
    assert 0 < found["task-clock"]["value"] < 200 and found["task-clock"]["unit"] == "msec"


@needs_perf
@pytest.mark.skipif(event_selection.core_device() is not None, reason="this machine has a PMU")
def test_no_pmu_is_said_in_one_line(tmp_path: Path) -> None:
    done = symphony("stat", "-e", "cycles,task-clock", "--", "sleep", "0.1", folder=tmp_path)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 0
    assert said[0].startswith("note: this machine has no performance counters")
    assert re.search(r"<not supported> +cycles", done.stderr) and "Traceback" not in done.stderr
    assert re.search(r"[\d.]+ +msec +task-clock", done.stderr)


def test_control_c_prints_what_there_is(tmp_path: Path) -> None:
    # Whoever runs tests in the background of a shell has them ignore the signal; the command is as in the foreground.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heeds}; from symphony.cli import main; main()"
    arguments = ["stat", "-I", "100", "-j", "-e", "psi.cpu.some_us,stat.context_switches", "--", "sleep", "60"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # it counts
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert json.loads(first)["kind"] == "event"
    assert "Traceback" not in rest and process.returncode == 128 + signal.SIGTERM


# --- Logs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_log_is_corrected(form: str, tmp_path: Path) -> None:
    recorded = {"": demo.recording(60)}
    text = as_json(recorded, decimals=True) if form == "json" else as_csv(recorded, ";", decimals=True)
    (tmp_path / "log").write_text(text)
    found = counts(run("--replay", "log", "-j").stdout)
    rows = {one["name"]: one for one in found}
    assert list(rows) == [*dict.fromkeys(event for group in demo.GROUPS for event in group), *demo.SHARES]
    assert sum(rows[share]["value"] for share in demo.SHARES) == pytest.approx(100)
    assert all(one["lower"] >= 0 for one in found)
    inside = [rows[event]["lower"] <= truth(event) <= rows[event]["upper"] for event in demo.PARTS]
    assert sum(inside) >= 3


def test_a_log_with_all_that_can_be_wrong(log: Path) -> None:
    """Lines that are cut, foreign or doubtful, and an event that nobody knows: warnings with their lines."""
    good = log.read_text().splitlines()
    strange = good[0].replace('"event" : "inst_retired.any"', '"event" : "who.knows"')
    lost = re.sub(r'"counter-value" : "\d+"', '"counter-value" : "<not counted>"', good[10])
    lost = re.sub(r'"event-runtime" : \d+', '"event-runtime" : 0', lost)
    bad = [strange, *good[:10], lost, *good[11:40], "garbage", good[40][:50], *good[41:], good[-1][:30]]
    log.write_text("\n".join(bad))
    result = run("--replay", str(log), "-j")
    assert result.exit_code == 0 and result.stderr == ""
    found = lines(result.stdout)
    assert any(one["kind"] == "warning" and one["text"].startswith("perf.json, line") for one in found)
    rows = {one["name"]: one for one in counts(result.stdout)}
    assert rows["who.knows"]["value"] is not None
    assert (
        rows["top.back"]["lower"] <= truth("top.back") * 1.02 and rows["top.back"]["upper"] >= truth("top.back") * 0.98
    )


def test_what_to_show_of_a_log(log: Path) -> None:
    found = counts(run("--replay", str(log), "-j", "-e", "TOP.BACK", "-M", "speed").stdout)
    assert [one["name"] for one in found] == ["top.back", "speed"]
    with pytest.raises(InputError, match="is not in the log"):
        run("--replay", str(log), "-e", "nothing.at.all")
    with pytest.raises(InputError, match="has no metric fron") as caught:
        run("--replay", str(log), "-M", "fron")
    assert "did you mean front" in caught.value.hint


def test_a_log_of_another_cpu_is_noticed(log: Path) -> None:
    log.write_text(log.read_text().replace('"top.', '"bottom.').replace('"inst_retired.any"', '"some.thing"'))
    result = run("--replay", str(log), "--audit")
    assert "warning: 1 of 7 events are in x86/demo: name the CPU that was counted, --cpu NAME" in result.stderr
    assert not verdicts.file("x86/demo").exists()


def test_what_a_machine_cannot_count_is_told_apart(log: Path) -> None:
    there = log.read_text().splitlines()
    never = re.sub(r'"counter-value" : "\S+"', '"counter-value" : "<not supported>"', there[0])
    never = re.sub(r'"event-runtime" : \d+', '"event-runtime" : 0', never).replace("inst_retired.any", "no.such")
    log.write_text("\n".join([never, *there]))
    rows = {one["name"]: one for one in counts(run("--replay", str(log), "-j").stdout)}
    assert rows["no.such"]["missing"] == "not supported" and rows["top.back"]["missing"] is None
    assert re.search(r"<not supported> +no\.such$", run("--replay", str(log)).stdout, re.MULTILINE)


def test_logs_that_are_packed_or_piped(log: Path) -> None:
    plain = counts(run("--replay", str(log), "-j", "-e", "top.back").stdout)
    packed = log.with_suffix(".gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert counts(run("--replay", str(packed), "-j", "-e", "top.back").stdout) == plain
    for content in (log.read_bytes(), packed.read_bytes()):
        piped = CliRunner().invoke(app, ["--replay", "-", "-j", "-e", "top.back"], input=content)
        assert counts(piped.stdout) == plain


def test_two_kinds_of_cores(tmp_path: Path) -> None:
    """Metrics of one name, of each kind of core: that of the large cores is computed from their counts."""
    records: list[dict[str, str]] = []
    for unit, code, factor in (("cpu_atom", "1", 100), ("cpu_core", "2", 3)):
        records.append({"EventName": "OPS", "EventCode": code, "Unit": unit})
        records.append({"MetricName": "speed", "MetricExpr": f"{unit}@OPS@ * {factor}", "Unit": unit})
        records.append({"MetricName": "twice", "MetricExpr": "speed * 2", "Unit": unit})
    catalogue.add(unpacked(tmp_path / "tree", {"x86/mapfile.csv": b"", "x86/two/a.json": json.dumps(records).encode()}))
    rows = [
        f"{k}.000000000,{count},,{unit}/OPS/,1000000000,100.00,,\n"
        for k in range(1, 6)
        for unit, count in (("cpu_core", 7), ("cpu_atom", 5))
    ]
    (tmp_path / "two.csv").write_text("".join(rows))
    asked = ("--replay", "two.csv", "--cpu", "two", "-j", "-e", "cpu_core/OPS/,cpu_atom/OPS/", "-M", "speed,twice")
    found = lines(run(*asked).stdout)
    assert {row["name"]: row["value"] for row in found if "value" in row} == {
        "cpu_core/OPS/": 35,
        "cpu_atom/OPS/": 25,
        "speed": 105,
        "twice": 210,
    }
    assert any("mean those of cpu_core" in row.get("text", "") for row in found)


def test_a_ratio_of_events_that_never_happened_is_unknown(tmp_path: Path) -> None:
    names = ("cycles", "instructions", "branches", "branch-misses")
    rows = [
        f"{k}.000000000,{7 * at // 2},,{name},1000000000,100.00,,\n"
        for k in range(1, 6)
        for at, name in enumerate(names)
    ]
    (tmp_path / "idle.csv").write_text("".join(rows).replace(",3,,instructions", ",0,,instructions"))
    found = lines(run("--replay", "idle.csv", "-j", "--cpu", "architectural").stdout)
    values = {row["name"]: row["value"] for row in found if row["kind"] == "metric"}
    assert values == {"ipc": None, "branch_miss_rate": pytest.approx(100 * 10 / 7, rel=0.05)}


def test_programs_and_the_kernel_are_two_events(tmp_path: Path) -> None:
    readings = [("cycles:u", 7e8), ("cycles:k", 3e8), ("instructions:u", 1e9)]
    rows = [f"{k}.000000000;{count:.0f};;{name};1000000000;100.00;;" for k in range(1, 11) for name, count in readings]
    (tmp_path / "both.csv").write_text("\n".join(rows) + "\n")
    found = {row["name"]: row["value"] for row in lines(run("--replay", "both.csv", "-j").stdout)}
    assert found["cycles:u"] == 7e9 and found["cycles:k"] == 3e9
    (one,) = lines(run("--replay", "both.csv", "-j", "-e", "cycles:k").stdout)
    assert one["name"] == "cycles:k" and one["value"] == 3e9


def test_a_log_does_not_have_this_machines_constants(tmp_path: Path) -> None:
    """`frequency` divides by the CPUs of the machine that was counted."""
    line = "1.000000000;8000000000;;cycles;8000000000;100.00;;\n"
    (tmp_path / "log").write_text(line + line.replace("1.0", "2.0", 1))
    asked = ("--replay", "log", "--cpu", "architectural", "-M", "frequency", "-j")
    unknown = run(*asked)
    assert counts(unknown.stdout)[0]["value"] is None and "--constant num_cpus_online=" in unknown.stdout
    told = run(*asked, "--constant", "num_cpus_online=4")
    assert lines(told.stdout)[0]["value"] == pytest.approx(2.0, rel=1e-3) and "constant" not in told.stdout
    assert lines(run(*asked, "--constant", "here").stdout)[0]["value"] > 0
    for wrong, said in (("cpus=4", "there is no constant 'cpus'"), ("slots=many", "no value")):
        with pytest.raises(InputError, match=said):
            run(*asked, "--constant", wrong)


def test_how_long_a_log_without_intervals_was_is_said_to_be_about(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1.50;msec;task-clock;1500000;100.00;0.8;CPUs utilized\n")
    assert re.search(r"^ +about 0\.0019 +seconds elapsed$", run("--replay", "log").stdout, re.M)
    with (tmp_path / "log").open("a") as file:
        file.write("1900000;ns;duration_time;1900000;100.00;;\n")
    assert re.search(r"^ +0\.001900 +seconds elapsed$", run("--replay", "log").stdout, re.M)


def test_places_of_a_log(tmp_path: Path) -> None:
    both = {where: demo.recording(20, seed, where) for seed, where in enumerate(("CPU0", "CPU1"))}
    (tmp_path / "log").write_text(as_json(both, decimals=True))
    found = counts(run("--replay", "log", "-j", "-I", "1000", "-e", "top.back").stdout)
    assert [(one["time"], one["place"]) for one in found] == [
        (pytest.approx(time_s), where) for time_s in (1, 2) for where in ("CPU0", "CPU1")
    ]
    assert re.search(r"^ +CPU1 +[\d,]+ ± [\d.]+% +top\.back", run("--replay", "log", "-e", "top.back").stdout, re.M)


def test_explanations_name_what_was_used_and_rejected(log: Path) -> None:
    said = run("--replay", str(log), "--explain", "--audit").stdout
    assert re.search(r"✓ top\.slots = front \+ bad \+ back \+ retired +\[umask union\]\n +holds: ", said)
    assert "  1. inst_retired.any, top.front, top.bad" in said
    assert verdicts.file("x86/demo").exists()


def test_a_picture_of_the_bands(log: Path, tmp_path: Path) -> None:
    run("--replay", str(log), "-M", "TopdownL1", "--plot", "bands.svg")
    drawn = (tmp_path / "bands.svg").read_text()
    assert drawn.startswith("<?xml") and "</svg>" in drawn


def test_prometheus(log: Path) -> None:
    """While a log is replayed at its own pace, its newest window can be read; afterwards nobody listens."""
    short = demo.recording(12)
    log.write_text(as_json({"": short}, decimals=True))
    arguments = [
        "stat",
        "--replay",
        str(log),
        "--prometheus",
        "0",
        "-e",
        "top.back",
        "-M",
        "front",
        "--cpu",
        "x86/demo",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", "from symphony.cli import main; main()", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
        assert address
        page = ""
        while "symphony_metric_mean{" not in page and process.poll() is None:
            with urllib.request.urlopen(address[0], timeout=SECONDS) as answer:
                page = answer.read().decode()
            time.sleep(0.05)
    assert re.search(r'^symphony_event_mean\{event="top.back",place="",unit=""\} [\d.e+]+$', page, re.MULTILINE)
    assert re.search(r'^symphony_metric_stddev\{metric="front",place="",unit="%"\} [\d.e+-]+$', page, re.MULTILINE)
    with pytest.raises(OSError):
        urllib.request.urlopen(address[0], timeout=SECONDS)


def test_one_window_is_nothing_to_serve(log: Path) -> None:
    log.write_text(as_json({"": demo.recording(1)}, decimals=True))
    with pytest.raises(InputError, match="one window"):
        run("--replay", str(log), "--prometheus", "0")


# --- Mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["-e", "top.bak", "--", "true"], "x86/demo has no event top.bak", "did you mean top.back"),
        (["-M", "topdownL3", "--", "true"], "has no metric topdownL3", "did you mean topdownl2"),
        ([], "nothing to count", "-- CMD"),
        (["-e", "{a,b", "-a"], "not a list of events", "'{a,b},c'"),
        (["-p", "abc"], "not a list of process numbers", "-p 4711"),
        (["-p", "999999999"], "no process 999999999", "ps -e"),
        (["-p", "1", "-a"], "-p beside", "choose"),
        (["-A", "--", "true"], "-A needs CPUs", "add -a"),
        (["-r", "3", "-a"], "-r repeats a command", "-r 5 -- CMD"),
        (["--level", "3", "--", "true"], "x86/demo has no level 3", "it has 1, 2: --level 2"),
        (["-C", "x"], "-C 'x' is not a list of CPUs", "-C 0-3,8"),
        (["-C", "0,3-1"], "is not a list of CPUs", "-C 0-3,8"),
        (["-C", "0-99999"], "there is no CPU 99999", "lscpu"),
        (["-M", "ipc", "--", "true"], "has no metric ipc", "--cpu architectural"),
        (["--replay", "log", "--counters", "2"], "--counters beside --replay", "leave it out"),
        (["--", "no-such-command"], "no command 'no-such-command'", "path"),
        (["-j", "-x", ",", "--", "true"], "both -j and -x", "choose"),
        (["--replay", "log", "--", "true"], "--replay reads a log", "leave out"),
        (["--plot", "bands.txt", "--", "true"], "is not the name of a picture", ".svg"),
        (["--plot", "no/bands.svg", "--", "true"], "cannot be written", "folder"),
        (["-o", "no/out", "--", "true"], "-o no/out cannot be written", "folder"),
        (["--cpu", "deno", "--", "true"], "no catalogue deno", "did you mean demo"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_found_before_anything_runs(arguments: list[str], message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        run(*arguments)
    assert message in caught.value.message and hint in caught.value.hint


def test_a_log_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing\n")
    for file in ("log", "missing"):
        with pytest.raises(DataError):
            run("--replay", file)
