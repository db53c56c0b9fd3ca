"""Logs of `perf stat`: real ones, made ones read back, and everything that can be wrong with one."""

from __future__ import annotations

import gzip
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symphony.problem.errors import DataError
from symphony.telemetry.samples import Column, Recording, record
from symphony.telemetry.sources import Replay
from symphony.telemetry.sources.perf_log import MAX_LOG_LINE_BYTES, PerfLines, lines_of, read_perf
from symphony.testing import check_counter_source
from tests.telemetry.sources.logs import (
    COUNT,
    EVENTS,
    PLACES,
    PLAIN,
    RUNNING,
    THREE,
    as_csv,
    as_json,
    line,
    read,
    recording,
    said,
)

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (Debian: linux-perf)")


# --- What perf writes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        as_json(PLAIN),
        as_json(PLAIN).replace(" : ", ": "),
        as_csv(PLAIN, ","),
        as_csv(PLAIN, ";"),
        as_csv(PLAIN, "\t"),
        as_csv(PLAIN, "|"),
        as_csv(PLAIN, " ~ "),
        as_json(PLAIN, decimals=True),
        as_csv(PLAIN, ",", decimals=True),
        as_csv(PLAIN, ";", point=","),
        as_csv(PLAIN, ";").replace("\n", "\r\n"),
        "\ufeff# started on Sun Nov 15 10:39:42 2026\n\n" + as_csv(PLAIN, ";"),
    ],
)
def test_all_forms_say_the_same(text: str, tmp_path: Path) -> None:
    log = read(text, tmp_path)
    assert said(log) == "" and list(log) == [""]
    found = log[""]
    assert [column.event for column in found.columns] == [event for event, _ in EVENTS]
    groups = [column.group for column in found.columns]
    assert groups == [0, 1, 1, 2, 2]
    np.testing.assert_allclose(found.start_s, [0, 0.1, 0.2], atol=1e-9)
    np.testing.assert_allclose(found.duration_s, 0.1)
    np.testing.assert_allclose(found.running_s, RUNNING)
    # 0.02% of the time is printed with one digit or none: what is always counted tells the enabled time to nine.
    np.testing.assert_allclose(found.enabled_s, 0.1, rtol=1e-9)
    np.testing.assert_allclose(found.count, COUNT, atol=0.5)  # perf prints whole numbers


def test_scaled_is_what_perf_printed(tmp_path: Path) -> None:
    found = read(as_json(PLAIN), tmp_path)[""]
    printed = [[round(c * 0.1 / r) for c, r in zip(*both, strict=True)] for both in zip(COUNT, RUNNING, strict=True)]
    np.testing.assert_allclose(found.scaled, printed, rtol=1e-12)


def test_places(tmp_path: Path) -> None:
    log = read(PLACES, tmp_path)
    assert list(log) == ["CPU0", "CPU1"] and log.units == {"cpu-clock": "msec", "page-faults": ""}
    assert log["CPU1"].count.tolist() == [[100.45, 5.0], [100.83, 3.0]]
    assert log["CPU0"].columns == (Column("cpu-clock", 0), Column("page-faults", 0))
    assert log["CPU0"].running_s[0, 0] == pytest.approx(0.100420082)
    assert [sample.where for sample in Replay(log).samples()] == ["CPU0", "CPU1"] * 2


def test_the_totals_at_the_end_are_not_another_window(tmp_path: Path) -> None:
    for totals in (line(time=""), "         summary,74,,page-faults,1000000,100.00,,\n"):
        text = line() + line(time="0.200000000") if totals.startswith("{") else PLACES
        log = read(text + totals, tmp_path)
        assert "--summary" in said(log) and all(len(one) == 2 for one in log.values())


@needs_perf
@pytest.mark.parametrize("form", [["-j"], ["-x", ","], ["-x", ";"]])
@pytest.mark.parametrize("options", [["-I", "20"], ["-I", "20", "-r", "2"], [], ["-r", "2"]])
def test_perf_of_this_machine(form: list[str], options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "perf.log"
    events = ["-e", "{page-faults,context-switches}", "-e", "page-faults,task-clock", "-e", "duration_time"]
    work = [sys.executable, "-S", "-c", "[bytearray(1 << 20) for _ in range(30)]"]
    done = subprocess.run(
        ["perf", "stat", "-o", path, *form, *options, *events, "--", *work], capture_output=True, check=False, text=True
    )
    if done.returncode:
        pytest.skip(f"perf does not count here: {done.stderr[:200]}")
    log = read_perf(path)
    assert list(log) == [""] and log.units["task-clock"] == "msec"
    found = log[""]
    names = ["page-faults", "context-switches", "page-faults", "task-clock", "duration_time"]
    assert [column.event for column in found.columns] == names
    first, second = np.nansum(found.count[:, 0]), np.nansum(found.count[:, 2])
    assert first == second > 30
    if "-r" not in options:  # their mean is rounded, and the last interval is of the last run
        assert found.duration_s.sum() == pytest.approx(np.nansum(found.count[:, 4]) / 1e9, rel=0.05)
        assert np.nansum(found.count[:, 3]) / 1e3 == pytest.approx(found.running_s[:, 3].sum(), rel=0.02)


@needs_perf
def test_perf_of_this_machine_by_cpu() -> None:
    command = ["perf", "stat", "-a", "-A", "-I", "20", "-j", "-e", "cpu-clock,cycles", "--", "sleep", "0.05"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"perf may not count the whole machine here: {done.stderr[:200]!r}")
    source = PerfLines(done.stderr.splitlines(keepends=True))
    found = record(source.samples())
    assert "CPU0" in found and np.isfinite(found["CPU0"].count[:, 0]).all()


# --- A source as any other ---------------------------------------------------------------------------------


def test_lines_are_a_counter_source() -> None:
    check_counter_source(PerfLines(as_json(PLAIN).splitlines(keepends=True)))
    check_counter_source(PerfLines(as_csv(PLAIN, ";").splitlines()))


def test_samples_come_while_lines_do() -> None:
    seen = 0

    def lines():  # type: ignore[no-untyped-def]
        nonlocal seen
        for text in as_json(PLAIN).splitlines(keepends=True):
            seen += 1
            yield text

    samples = PerfLines(lines(), look_ahead=1).samples()
    assert next(samples).start_s == 0.0 and seen == 6  # the first line of the next window
    assert next(samples).start_s == pytest.approx(0.1) and seen == 10  # by now it is known which line is the last


def test_a_window_with_more_lines_than_the_one_before() -> None:
    """The first window lacks its last line: the second loses it too, and from the third on it is there."""
    lines = as_json(PLAIN).splitlines()
    source = PerfLines(lines[:4] + lines[5:])
    found = record(source.samples())[""]
    assert len(found.columns) == 5 and np.isnan(found.count[:2, 4]).all()
    assert np.isfinite(found.count[2]).all() and "line 9: the clock stands still" in said(source)


# --- Bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (THREE + line(time="0.400000000")[:70], "line 4: the last line is cut short"),
        (THREE + "make: warning: Clock skew\n", "line 4: not a line of perf stat: 'make: warning: Clock skew'"),
        (THREE + "\x00\x01\x02\xff\n", "line 4: not a line of perf stat"),
        (THREE + PLACES, "line 4: a line of perf stat -x in a log of perf stat -j (and 7 more like it)"),
        (PLACES + line(), "line 9: a line of perf stat -j in a log of perf stat -x"),
        (PLACES + PLACES.replace(",", ";"), "line 9: fields with ';' between them in a log with ','"),
        (THREE + line("0.4", "<not counted>", run="0"), "line 4: page-faults was not counted"),
        (THREE + line("0.4", "<not supported>", run="0"), "line 4: page-faults was not supported"),
        (THREE + line("0.4", "-5"), "line 4: the count of page-faults is negative"),
        (THREE + line("0.4", str(2**32 - 3), run=str(10**8)), "line 4: the count of page-faults is close to 2^32"),
        (THREE + line("0.4", str(2**48 - 3), run=str(10**12)), "line 4: the count of page-faults is close to 2^48"),
        (THREE + line("0.4", run=str(10**14)), "line 4: the run time of page-faults is impossibly long"),
        (THREE + line("0.4", str(2**48 - 3)), "line 4: the count of page-faults is impossibly large"),
        (THREE + line("0.4", str(2**64 - 3)), "line 4: the count of page-faults is impossibly large"),
        (THREE + line("0.4", "9" * 400), "line 4: the count of page-faults is impossibly large"),
        (THREE + line("0.4", "1.234.567"), "line 4: the count of page-faults is '1.234.567', which is not a number"),
        (THREE + line("0.4", "1,234.5"), "line 4: the count of page-faults is '1,234.5', which is not a number"),
        (THREE + line("0.4", run="-1"), "line 4: the run time of page-faults is impossible or missing"),
        (THREE + line("0.4").replace("100.00", "250.00"), "line 4: the percentage of run time of page-faults"),
        (THREE + line("0.4").replace('"unit" : ""', '"unit" : "MiB"'), "the unit of page-faults changes from '' to"),
        (THREE + line("0.4", event=""), "line 4: a count without the name of its event"),
        (THREE + line("-4.0"), "line 4: the time of page-faults is impossible"),
        (THREE + '{"interval" : 0.4}{"metric-value" : ""}\n', "line 4: the line has metrics only"),
        (THREE + "[" * 5000 + "\n", "line 4: not a line of perf stat"),
        (THREE + '{"counter-value" : ' + "1" * 5000 + "}\n", "line 4: not a line of perf stat"),
        (THREE + line("0.15"), "line 4: the clock goes back: from 0.3 s to 0.15 s"),
        (THREE + line("500.0"), "line 4: the clock jumps: by 500 s, where windows last 0.1 s; the window is left out"),
        (THREE + line("0.4") + line("0.4"), "line 5: the clock stands still"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, what: str, tmp_path: Path) -> None:
    log = read(text.encode("latin-1"), tmp_path)
    assert f"perf.log, {what}" in said(log) or f"perf.log, line 4: {what}" in said(log)
    assert len(log.problems) == 1
    for one in log.values():
        good = one.count[np.isfinite(one.count)]
        assert len(good) >= 2 and (good >= 0).all() and good.max() < 1000


def test_a_count_that_is_not_known_has_no_run_time(tmp_path: Path) -> None:
    """So that nobody takes it for a zero, or for a measurement."""
    found = read(THREE + line("0.4", "-5") + line("0.5", "<not supported>", run="0"), tmp_path)[""]
    assert np.isnan(found.count[3:]).all() and found.running_s[3:].tolist() == [[0.0], [0.0]]


def test_large_counts_are_common_for_some_events(tmp_path: Path) -> None:
    """Close to 2^32, but so were the others."""
    values = ["4000000000", "4200000000", "4100000000", str(2**32 - 3)]
    log = read("".join(line(f"{1 + k}.0", value, "cycles", "900000000") for k, value in enumerate(values)), tmp_path)
    assert said(log) == "" and np.isfinite(log[""].count).all()


@pytest.mark.parametrize(
    "text",
    [b"", b"\n\n", b"# started on Sun\n", b"\x89PNG\r\n\x1a\n" * 50, line(value="<not supported>", run="0").encode()],
)
def test_nothing_at_all_is_an_error(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no count of perf stat in it") as error:
        read(text, tmp_path)
    assert "perf.log" in error.value.where and "perf stat -I" in error.value.hint


def test_no_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_perf(path)


def test_a_packed_file_that_is_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    packed = gzip.compress(as_json(PLAIN).encode())
    log = read(packed[:-20], tmp_path)
    assert len(log[""]) >= 1 and "the rest cannot be decompressed" in said(log)
    np.testing.assert_allclose(log[""].count[0], COUNT[0], atol=0.5)
    with pytest.raises(DataError, match=r"no count of perf stat in it; perf.log, line 1: .*decompressed"):
        read(packed[:12], tmp_path)


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "perf.log"
    path.write_bytes(b"x" * (3 * MAX_LOG_LINE_BYTES + 5) + b"\n" + line().encode())
    with path.open("rb") as file:
        assert [len(text) for text in lines_of(file)] == [MAX_LOG_LINE_BYTES, len(line())]
    log = read_perf(path)
    assert log[""].count.tolist() == [[74.0]] and "line 1: not a line of perf stat" in said(log)


# --- Any input ---------------------------------------------------------------------------------------------

VALID = (
    (as_json(PLAIN) + as_csv({"CPU0": PLAIN[""], "CPU1": PLAIN[""]}, ",") + THREE).encode().splitlines(keepends=True)
)


def drain(lines: list[bytes] | list[str]) -> None:
    source = PerfLines(lines)
    for one in record(source.samples()).values():
        assert (one.duration_s > 0).all() and (np.diff(one.start_s) > 0).all()
        known = np.isfinite(one.count)
        assert (one.count[known] >= 0).all() and not np.isinf(one.count).any()
        assert (one.running_s[known] > 0).all() and (one.running_s <= one.enabled_s * (1 + 1e-9)).all()
    assert all(", line " in problem.where for problem in source.problems)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=8))
def test_any_bytes(lines: list[bytes]) -> None:
    drain(lines)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_text(lines: list[str]) -> None:
    drain(lines)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_damage(data: st.DataObject) -> None:
    """Lines of perf in any order, with characters changed."""
    lines = []
    for number in data.draw(st.lists(st.integers(0, len(VALID) - 1), max_size=25)):
        text = bytearray(VALID[number])
        for at, byte in data.draw(
            st.lists(st.tuples(st.integers(0, 400), st.sampled_from(b'0919.,;"-:{}\n\x00e')), max_size=3)
        ):
            text[at % len(text)] = byte
        lines.append(bytes(text[: data.draw(st.sampled_from([None, None, None, 40, 90]))]))
    drain(lines)


@st.composite
def recordings(draw: st.DrawFn) -> dict[str, Recording]:
    """Groups that take turns, at one or two places, beside an event that is always counted."""
    groups, windows = draw(st.integers(1, 3)), draw(st.integers(3, 5))
    events = [("always", 0)] + [(f"e{number}", group) for group in range(1, groups + 1) for number in (0, group)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = {}
    for where in draw(st.sampled_from([[""], ["CPU0", "CPU7"]])):
        share = rng.dirichlet(np.ones(groups), windows) * 0.9 + 0.1 / groups
        running = np.round(np.concatenate([np.ones((windows, 1)), np.repeat(share, 2, axis=1)], axis=1) * 0.1, 9)
        count = rng.integers(0, 10**9, running.shape)
        found[where] = recording(events, count, running, 0.1, where=where)
    return found


@settings(max_examples=60, deadline=None)
@given(recordings(), st.sampled_from(["json", ",", ";", "\t"]))
def test_what_was_written_is_read_back(written: dict[str, Recording], form: str) -> None:
    text = as_json(written) if form == "json" else as_csv(written, form)
    source = PerfLines(text.splitlines(keepends=True))
    found = record(source.samples())
    assert list(found) == list(written) and not source.problems
    for where, one in written.items():
        back = found[where]
        assert len(set(zip(one.columns, back.columns, strict=True))) == len(one.columns)
        if one.columns[-1].group > 1:  # else there is nothing to take turns with, and all are always counted
            assert back.columns == one.columns
        np.testing.assert_allclose(back.start_s, one.start_s, atol=1e-9)
        np.testing.assert_allclose(back.running_s, one.running_s, rtol=1e-12)
        np.testing.assert_allclose(back.enabled_s, one.enabled_s, rtol=1e-9)
        # The printed count is whole.
        np.testing.assert_allclose(back.scaled, one.scaled, atol=0.5 + 1e-6)


def test_a_mapping_of_recordings(tmp_path: Path) -> None:
    log = read(PLACES, tmp_path)
    assert len(log) == 2 and math.isclose(log["CPU0"].count[0, 0], 100.42)
