from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symphony.lowering.readers.reading import Collector
from symphony.lowering.readers.tables import (
    any_text,
    blank_or,
    companion,
    has_columns,
    number,
    one_of,
    option_value,
    rate,
    read_table,
    text,
    whole,
)
from symphony.problem.errors import DataError, WorkloadError
from tests.lowering.readers.csv_files import write

COLUMNS = {"name": text, "gpus": whole(1, 8), "seconds": number()}


def test_rows_have_their_values_and_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, "gpus,other,name,seconds", "2,x,a,1.5", "", '8,y,"b, c",0')
    table = read_table(path, Collector(), COLUMNS)
    assert [dict(row) for row in table.rows] == [
        {"name": "a", "gpus": 2, "seconds": 1.5},
        {"name": "b, c", "gpus": 8, "seconds": 0.0},
    ]
    assert [row.line for row in table.rows] == [2, 4]
    assert table.where(table.rows[1]) == f"{path}: line 4"
    assert table.notes == ()


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes])
def test_packed_files_read_alike_whatever_their_name(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "table"
    path.write_bytes(pack("\ufeffname,gpus,seconds\r\na,2,1\r\n".encode()))  # type: ignore[operator]
    assert [dict(row) for row in read_table(path, Collector(), COLUMNS).rows] == [
        {"name": "a", "gpus": 2, "seconds": 1.0}
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("a,2", "it has 2 cells; the header has 3"),
        ("a,2,3,4", "it has 4 cells; the header has 3"),
        (" ,2,3", "name is ' ', and should be a text"),
        ("a,0,3", "gpus is '0', and should be a whole number from 1 to 8"),
        ("a,1.5,3", "gpus is '1.5'"),
        ("a,1_0,3", "gpus is '1_0'"),
        ("a,2,-1", "seconds is '-1', and should be a number from 0 to 1e+09"),
        ("a,2,nan", "seconds is 'nan'"),
        ("a,2,inf", "seconds is 'inf'"),
        ("a,2,1_0", "seconds is '1_0'"),
        ("a,2,", "seconds is ''"),
        ('a,2,"3', "this is not a line of CSV"),
    ],
)
def test_a_bad_row_is_an_error_with_its_line_or_a_problem(tmp_path: Path, line: str, what: str) -> None:
    path = write(tmp_path, "name,gpus,seconds", "good,1,1", line, "good,2,2")
    with pytest.raises(DataError) as caught:
        read_table(path, Collector(), COLUMNS)
    assert caught.value.where == f"{path}: line 3"
    assert what in caught.value.message
    collector = Collector(strict=False)
    table = read_table(path, collector, COLUMNS)
    assert [row["gpus"] for row in table.rows] == [1, 2]
    assert [problem.where for problem in collector.problems] == [f"{path}: line 3"]


def test_missing_and_repeated_columns_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column gpus, seconds; it has name, other"):
        read_table(write(tmp_path, "name,other", "a,b"), Collector(strict=False), COLUMNS)
    with pytest.raises(DataError, match="named twice"):
        read_table(write(tmp_path, "name,gpus,seconds,gpus"), Collector(strict=False), COLUMNS)


def test_columns_that_may_be_absent_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, "name,note", "a,n")
    table = read_table(path, Collector(), {"name": text}, optional={"note": any_text, "other": any_text})
    assert dict(table.rows[0]) == {"name": "a", "note": "n", "other": None}


def test_a_last_line_without_an_end_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text("name,gpus,seconds\na,2,123")
    assert "may be truncated" in read_table(path, Collector(), COLUMNS).notes[0]


def test_binary_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.csv"
    path.write_bytes(bytes(range(256)) * 8)
    with pytest.raises(DataError, match="UTF-8"):
        read_table(path, Collector(strict=False), COLUMNS)
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(DataError, match="no column"):
        read_table(path, Collector(strict=False), COLUMNS)


@given(st.text(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
def test_any_text_is_kept_or_reported(tmp_path: Path, body: str) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(b"name,gpus,seconds\na,1,1\n" + body.encode("utf-8", errors="ignore"))
    collector = Collector(strict=False)
    table = read_table(path, collector, COLUMNS)
    lines = path.read_bytes().decode().replace("\r\n", "\n").split("\n")[1:]
    assert len(table.rows) + len(collector.problems) == sum(bool(line.strip()) for line in lines)


def test_cells() -> None:
    assert blank_or(whole())("") is None
    assert blank_or(whole())("3") == 3
    assert one_of("a", "b")("b") == "b"
    assert (rate("0"), rate("0.5")) == (0.0, 0.5)
    for cell, wrong in ((one_of("a", "b"), "c"), (rate, "1e-9"), (rate, "-1"), (whole(), "9" * 5000)):
        with pytest.raises(ValueError, match=r"."):
            cell(wrong)


def test_sniffing_goes_by_the_header(tmp_path: Path) -> None:
    sniff = has_columns("a", "b", without=("z",))
    assert sniff(tmp_path, b"b,x,a\r\n1,2,3")
    assert sniff(tmp_path, "\ufeffa,b".encode())
    assert not sniff(tmp_path, b"a,x\nb,b")
    assert not sniff(tmp_path, b"a,b,z\n")
    assert not sniff(tmp_path, b"")
    assert not sniff(tmp_path, bytes(range(128, 256)))


def test_repeats_are_reported_with_the_line_they_repeat(tmp_path: Path) -> None:
    path = write(tmp_path, "name,gpus,seconds", "a,1,1", "b,1,1", "a,2,2")
    collector = Collector(strict=False)
    table = read_table(path, collector, COLUMNS).unique(collector, lambda row: row["name"])
    assert [row["name"] for row in table.rows] == ["a", "b"]
    assert [str(problem) for problem in collector.problems] == [f"{path}: line 4: it repeats line 2"]


def test_select_takes_text_or_numbers_and_says_what_there_is(tmp_path: Path) -> None:
    path = write(tmp_path, "load,n", "1.0,1", "0.5,2", "1.0,3", "real,4")
    table = read_table(path, Collector(), {"load": text, "n": whole()})
    assert table.select("load", None) is table
    for wanted in ("1.0", 1, 1.0, "1"):
        assert [row["n"] for row in table.select("load", wanted).rows] == [1, 3]
    chosen = table.select("load", "real")
    assert [row["n"] for row in chosen.rows] == [4]
    assert "1 of 4 rows with load real" in chosen.notes[0]
    with pytest.raises(WorkloadError, match=r"write load= one of 0\.5, 1\.0, real"):
        table.select("load", "2")


def test_options() -> None:
    assert option_value("x", "2.5", number()) == option_value("x", 2.5, number()) == 2.5
    assert option_value("x", "a", one_of("a", "b")) == "a"
    with pytest.raises(WorkloadError, match="option x: it is 'much'"):
        option_value("x", "much", number())
    with pytest.raises(WorkloadError, match="write x= and one of a, b"):
        option_value("x", "c", one_of("a", "b"))


def test_other_files_that_a_reader_needs(tmp_path: Path) -> None:
    jobs, usual = tmp_path / "jobs.csv", tmp_path / "rates.csv"
    with pytest.raises(DataError, match=r"needs rates\.csv[\s\S]*write rates=PATH"):
        companion(jobs, None, usual, hint="write rates=PATH")
    usual.touch()
    assert companion(jobs, None, usual, hint="write rates=PATH") == usual
    assert companion(jobs, "other.csv", usual, hint="write rates=PATH") == Path("other.csv")
