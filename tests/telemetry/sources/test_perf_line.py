"""Lines of `perf stat`, in all their forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.problem.errors import DataError
from symphony.telemetry.samples import Column
from tests.telemetry.sources.logs import (
    PLACES,
    line,
    read,
    said,
)


@pytest.mark.parametrize(
    ("text", "where", "count"),
    [
        ("     0.1,S0,2,6730,,page-faults,204204182,100.00,32.958,K/sec", "S0", 6730),
        ("     0.1,S0-D0-C1,1,79,,page-faults,100309689,100.00,787.563,/sec", "S0-D0-C1", 79),
        ("     0.1,ksoftirqd/1-22,7,,page-faults,62693,100.00,0.001,/sec", "ksoftirqd/1-22", 7),
        ("     0.1,4,,page-faults,/user.slice,62693,100.00,,", "/user.slice", 4),
        ("     0.1,75,,page-faults,0.67%,749321,100.00,104.111,K/sec", "", 75),
        ("     0.1,CPU3,75,,page-faults,0.67%,749321,100.00,104.111,K/sec", "CPU3", 75),
    ],
)
def test_csv_columns(text: str, where: str, count: float, tmp_path: Path) -> None:
    log = read(text.replace("0.1,", "0.100000000,", 1) + "\n", tmp_path)
    assert said(log) == "" and list(log) == [where]
    assert log[where].columns == (Column("page-faults", 0),) and log[where].count.tolist() == [[count]]


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ('"cpu" : "3", ', "CPU3"),
        ('"core" : "S0-D0-C1", "aggregate-number" : 1, ', "S0-D0-C1"),
        ('"core" : "S0-D0-C1", "counters" : 1, ', "S0-D0-C1"),
        ('"socket" : "S0", "aggregate-number" : 2, ', "S0"),
        ('"node" : "N1", "aggregate-number" : 2, ', "N1"),
        ('"die" : "S0-D0", "aggregate-number" : 2, ', "S0-D0"),
        ('"cache" : "S0-D0-L3-ID0", "counters" : 2, ', "S0-D0-L3-ID0"),
        ('"thread" : "make-12", ', "make-12"),
        ('"cgroup" : "/user.slice", ', "/user.slice"),
    ],
)
def test_json_places(more: str, where: str, tmp_path: Path) -> None:
    log = read(line(more=more), tmp_path)
    assert said(log) == "" and list(log) == [where]


def test_newer_perf_quotes_metrics_and_prints_more_of_them(tmp_path: Path) -> None:
    newer = line().replace('"metric-value" : 0.0', '"metric-value" : "0.5", "metric-threshold" : "good"')
    more = '{"interval" : 0.100000000, "metric-value" : "12.5", "metric-unit" : "%  tma_frontend_bound"}\n'
    log = read(newer + more, tmp_path)
    assert said(log) == "" and log[""].count.tolist() == [[74.0]]
    for place in ("CPU1,", "S0,2,", ""):
        log = read(f"{PLACES}     0.201082104,{place},,,,,0.20,stalled cycles per insn\n", tmp_path)
        assert said(log) == ""


def test_names_may_hold_the_separator(tmp_path: Path) -> None:
    text = "     0.100000000,12,,cpu/event=0x3c,umask=0x0/,749321,100.00,,\n"
    assert read(text, tmp_path)[""].columns[0].event == "cpu/event=0x3c,umask=0x0/"
    text = "     0.100000000:12::page-faults:u:749321:100.00::\n"
    assert read(text, tmp_path)[""].columns[0].event == "page-faults:u"


def test_decimal_commas(tmp_path: Path) -> None:
    text = "0,100170548;0,66;msec;cpu-clock;661160;100,00;0,007;CPUs utilized\n"
    log = read(text, tmp_path)
    assert log[""].count.tolist() == [[0.66]] and log[""].duration_s.tolist() == [0.100170548]
    mended = line("0,100170548", "0,66").replace("100.00", "100,00").replace("0.0", "nan")
    log = read(mended, tmp_path)
    assert log[""].count.tolist() == [[0.66]] and log[""].duration_s.tolist() == [0.100170548]
    with pytest.raises(DataError, match=r"line 1: commas separate both fields and decimals.*-x ';'"):
        read(text.replace(";", ","), tmp_path)
    log = read(PLACES + text.replace(";", ","), tmp_path)
    assert "line 9: commas separate both fields and decimals" in said(log)
