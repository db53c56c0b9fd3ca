"""Fields that are checked, and records that are reported."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from symphony.lowering.readers.parsing import (
    BadRecord,
    bare_name,
    file_or_folder,
    files_of_format,
    load_json,
    number,
    number_from,
    record,
    text,
    whole_from,
)
from symphony.lowering.readers.reading import Collector
from symphony.problem.errors import DataError, WorkloadError


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "3", None, True, [1], 10**400])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(BadRecord, match=r"^cost is .*, not a number 0 or more$"):
        number(value, "cost")


def test_bounds_of_numbers() -> None:
    assert number(0, "cost") == 0.0
    assert number(7, "cost", most=7) == 7.0
    with pytest.raises(BadRecord, match="above 0"):
        number(0, "cost", above_zero=True)
    with pytest.raises(BadRecord, match="at most 7"):
        number(8, "cost", most=7)


def test_numbers_in_text() -> None:
    assert number_from(" 1e3 ", "mean") == 1000.0
    assert whole_from("12", "n") == 12
    for bad in ("", "x", "-1", "nan", "inf"):
        with pytest.raises(BadRecord):
            number_from(bad, "mean")
    for bad in ("", "1.0", "-1", "٣", "9" * 5000):
        with pytest.raises(BadRecord):
            whole_from(bad, "n")
    with pytest.raises(BadRecord, match="not a name"):
        text(" ", "id")


def test_a_strict_collector_ends_at_the_first_bad_record() -> None:
    with pytest.raises(DataError, match=r"x\.csv: line 3: size is 0"), record(Collector(), "x.csv: line 3"):
        raise BadRecord("size is 0")


def test_a_lenient_collector_keeps_what_went_wrong() -> None:
    collector = Collector(strict=False)
    for error in (
        BadRecord("first"),
        WorkloadError("second", where="graph 'g'"),
        DataError("third", where="y.csv"),
    ):
        with record(collector, "x.csv"):
            raise error
    assert [str(problem) for problem in collector.problems] == [
        "x.csv: first",
        "x.csv: graph 'g': second",
        "y.csv: third",
    ]


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), record(Collector(strict=False), "x.csv"):
        _ = 1 / 0


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b/two.json.gz", "one.json", "readme.txt", "one.json.bak"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(b"{}") if name.endswith("gz") else b"{}")
    files, notes = files_of_format(tmp_path, lambda head: head == b"{}", ".json")
    assert [bare_name(file, tmp_path) for file in files] == ["b/two", "one"] and notes == ()
    assert bare_name(tmp_path / "one.json", tmp_path / "one.json") == "one"
    assert file_or_folder(lambda head: head == b"{}", ".json")(tmp_path, b"")
    assert not file_or_folder(lambda head: head == b"[]", ".json")(tmp_path, b"")
    assert file_or_folder(lambda head: head == b"[]", ".json")(tmp_path / "one.json", b"[]")


def test_damaged_files_of_a_folder_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_bytes(b"{}")
    (tmp_path / "other.json").write_bytes(b"[]")
    (tmp_path / "bad.json.gz").write_bytes(b"\x1f\x8b\x08\xff\xff garbage that is no gzip stream")
    files, notes = files_of_format(tmp_path, lambda head: head == b"{}", ".json")
    assert [file.name for file in files] == ["bad.json.gz", "good.json"]
    assert notes == ("1 files in the folder are of another format, and were ignored.",)
    with pytest.raises(DataError, match="no file in it is of this format"):
        files_of_format(tmp_path, lambda head: True, ".csv")


def test_json_errors_say_where(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1,\n "b": }')
    with pytest.raises(DataError, match=r"x\.json: line 2, column 7"):
        load_json(tmp_path / "x.json")
    for text_ in ("[" * 100_000, "9" * 10_000):
        (tmp_path / "x.json").write_text(text_)
        with pytest.raises(DataError, match=r"x\.json"):
            load_json(tmp_path / "x.json")
