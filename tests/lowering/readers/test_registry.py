"""Which format a file is in, and what happens to files in none."""

from __future__ import annotations

import gzip
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.lowering.family import file_options, reader_options
from symphony.lowering.readers.reading import (
    HEAD_BYTES,
    Collector,
    FileContents,
    Format,
    SkippedRecord,
    read_bytes,
    read_head,
)
from symphony.problem.errors import DataError, InputError, WorkloadError
from tests.data import data

OURS = '{"format": "symphony-workload/1", "kernels": [], "graphs": [], "jobs": []}\n'


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("wfinstances", "helloworld"), "wfformat"),
        (("wfinstances", "nextflow", "bacass-dirt02-001.json.gz"), "wfformat"),
        (("tpch-cloudlab",), "tpch"),
        (("starpu-perfmodels",), "starpu"),
        (("socrates", "job_Top.txt"), "socrates"),
        (("dagbench", "mec"), "dagbench"),
        (("readys-graphs", "cholesky_4.txt.gz"), "readys"),
        (("gavel", "isolated_throughput.csv"), "gavel-rates"),
        (("gavel", "colocated_pairs.csv"), "gavel-pairs"),
        (("gavel", "traces", "small_test.csv"), "gavel-jobs"),
        (("pollux", "workloads.csv.gz"), "pollux-jobs"),
        (("shockwave", "traces", "dynamic_120jobs_100.csv"), "shockwave-jobs"),
        (("muri", "trace1.csv.gz"), "muri-jobs"),
        (("philly", "jobs.csv.gz"), "philly-jobs"),
        (("openb", "openb_pod_list_default.csv.gz"), "openb-pods"),
    ],
)
def test_real_files_are_told_by_their_content(parts: tuple[str, ...], name: str) -> None:
    assert readers.sniff(data(*parts)).name == name


def test_names_are_unique_and_every_option_can_be_said_in_a_spec() -> None:
    names = [known.name for known in readers.FORMATS]
    assert len(set(names)) == len(names)
    for known in readers.FORMATS:
        assert known.about and readers.named(known.name) is known
        own = reader_options(known)
        assert not own.keys() & file_options().keys(), known.name
        assert {key for key, _ in own.values()} == readers.options(known).keys()


def test_a_name_does_not_matter_and_neither_does_compression(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv", OURS.encode()),
        ("b", gzip.compress(OURS.encode())),
        ("c.json", lzma.compress(OURS.encode())),
        ("d.txt", b"\xef\xbb\xbf" + OURS.encode()),
        ("e.txt", gzip.compress(b"\xef\xbb\xbf" + OURS.encode())),
    ):
        (tmp_path / name).write_bytes(content)
        assert readers.sniff(tmp_path / name).name == "symphony"
        assert readers.read(tmp_path / name).source == str(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),  # the time would make tests of two workers differ
        (bytes(range(256)) * 40, "binary data"),
        (b"a,b,c\n1,2,3\n", "none of the formats symphony"),
        (b"\xff\xfe\x00{", "binary data"),
        (b"\x1f\x8b" + b"rubbish" * 20, "the compressed file is damaged"),
        (b"\xfd7zXZ\x00" + b"rubbish" * 20, "the compressed file is damaged"),
    ],
)
def test_what_is_in_no_format_is_refused_with_the_file_and_a_hint(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        readers.sniff(path)
    assert what in caught.value.message and caught.value.where == str(path) and caught.value.hint


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("week,submit_s,duration_s,vc", "for philly-jobs, it lacks num_gpus; symphony workload formats"),
        ("week;submit_s;duration_s;num_gpus;vc", "separate the columns by commas; symphony workload formats"),
        ("a,b,c", "symphony workload formats"),
    ],
)
def test_a_table_that_is_nearly_in_a_format_is_told_what_it_lacks(tmp_path: Path, header: str, hint: str) -> None:
    (tmp_path / "x.csv").write_text(header + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        readers.sniff(tmp_path / "x.csv")
    assert caught.value.hint.startswith(hint)


def test_a_folder_in_no_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello", encoding="utf-8")
    with pytest.raises(DataError, match="a folder in none of the formats") as caught:
        readers.sniff(tmp_path)
    assert "--format" in caught.value.hint


def test_a_missing_file_is_answered_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="no such file") as caught:
        readers.read(tmp_path / "job.csv")
    assert "jobs.csv" in caught.value.hint and "job.csv" in caught.value.where
    with pytest.raises(DataError, match="no such file"):
        readers.read(tmp_path / "nowhere" / "x.csv")


def test_two_matching_formats_are_named_and_one_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = replace(readers.named("symphony"), name="twin")
    monkeypatch.setattr(readers, "FORMATS", (*readers.FORMATS, twin))
    path = tmp_path / "x.json"
    path.write_text(OURS, encoding="utf-8")
    with pytest.raises(DataError, match="looks like each of symphony, twin") as caught:
        readers.sniff(path)
    assert "--format symphony" in caught.value.hint
    assert readers.read(path, "twin").format == "twin"


def test_unknown_formats_and_options_are_answered_with_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(OURS, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        readers.read(path, "wfformt")
    assert "did you mean 'wfformat'" in caught.value.hint
    with pytest.raises(InputError, match="format symphony has no option 'week'"):
        readers.read(path, week=3)


def fussy(path: Path, collector: Collector, *, limit: int = 2, name: str | None = None) -> FileContents:
    """A format whose lines are bad from `limit` on."""
    for number in range(1, 6):
        if number > limit:
            collector.bad(f"{path}: line {number}", "it is bad")
    if name:
        raise WorkloadError("it has no task", where=f"graph {name!r}", hint="add a task")
    return FileContents()


@pytest.fixture
def fussy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    known = Format("fussy", "lines", lambda path, head: head.startswith(b"fussy"), fussy)
    monkeypatch.setattr(readers, "FORMATS", (*readers.FORMATS, known))
    path = tmp_path / "fussy.txt"
    path.write_text("fussy\n", encoding="utf-8")
    return path


def test_strict_refuses_the_first_bad_record_and_lenient_lists_all(fussy_file: Path) -> None:
    with pytest.raises(DataError, match=r"line 3: it is bad") as caught:
        readers.read(fussy_file)
    assert "--keep-good" in caught.value.hint
    problems = readers.read(fussy_file, strict=False).problems
    assert problems == tuple(SkippedRecord(f"{fussy_file}: line {n}", "it is bad") for n in (3, 4, 5))
    assert readers.read(fussy_file, limit=9).problems == ()
    assert readers.options(readers.sniff(fussy_file)) == {"limit": 2, "name": None}


def test_errors_of_a_graph_or_kernel_name_the_file_too(fussy_file: Path) -> None:
    with pytest.raises(DataError) as caught:
        readers.read(fussy_file, limit=9, name="g")
    assert caught.value.where == f"{fussy_file}: graph 'g'" and caught.value.hint == "add a task"


def test_heads_are_short_and_those_of_truncated_files_can_be_seen(tmp_path: Path) -> None:
    long = (OURS * 4000).encode()
    whole = gzip.compress(long)
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    assert read_head(tmp_path / "cut.gz") == long[:HEAD_BYTES]
    assert read_head(tmp_path) == b""
    for cut in (whole[: len(whole) // 2], whole[:100] + b"\xff\xff\xff" + whole[103:]):
        (tmp_path / "cut.gz").write_bytes(cut)
        with pytest.raises(DataError, match="damaged"):
            read_bytes(tmp_path / "cut.gz")
