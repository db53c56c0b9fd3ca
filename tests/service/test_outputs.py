"""What jobs have written, read line by line: all of it once, from wherever one stopped, and bounded."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.engines import output
from symphony.engines.output import OutputLog
from symphony.service import outputs
from symphony.service.outputs import DROPPED_MARK, MAX_LINE_BYTES, NEW_RUN_MARK, OutputPosition, Outputs, trim
from symphony.training_jobs.live.checkpoint_folders import safe_folder_name
from tests.waiting import wait_until

TASK = "train 0"
BEGIN = OutputPosition()


def log(root: Path, job: int = 1, number: int = 0, rank: int = 0) -> OutputLog:
    told = Outputs(root).of(job, TASK, number)
    assert told is not None
    return OutputLog(told.folder, told.run, rank)


def lines(
    root: Path, spot: OutputPosition = BEGIN, ended: bool = False, most: int | None = None
) -> tuple[list[str], OutputPosition]:
    """What can be read, marks in brackets, and up to where it was read."""
    [stream] = Outputs(root).streams(1, {safe_folder_name(TASK): TASK})
    found = []
    for line in itertools.islice(stream.lines(spot, ended=ended), most):
        found.append(f"<{line.text}>" if line.mark else line.text)
        spot = line.next_position
    return found, spot


def test_lines_come_when_they_are_whole_and_once(tmp_path: Path) -> None:
    first = log(tmp_path)
    first.write("loss 0,5 €\nhalf".encode())
    found, spot = lines(tmp_path)
    assert found == ["loss 0,5 €"] and lines(tmp_path, spot)[0] == []
    assert lines(tmp_path, spot, ended=True)[0] == ["half"]
    first.write(b" a line\n\xff\xfe not UTF-8\n")
    found, spot = lines(tmp_path, spot)
    assert found == ["half a line", "\ufffd\ufffd not UTF-8"]
    first.write(b"killed he")
    log(tmp_path, number=1).write(b"again\n")
    assert lines(tmp_path, spot)[0] == ["killed he", f"<{NEW_RUN_MARK}>", "again"]


def test_time_is_that_of_the_line(tmp_path: Path) -> None:
    before = time.time()
    log(tmp_path).write(b"x\n")
    [stream] = Outputs(tmp_path).streams(1, {safe_folder_name(TASK): TASK})
    [line] = stream.lines(BEGIN, ended=False)
    assert before - 1e-5 <= line.at <= time.time()
    assert (stream.task, stream.rank) == (TASK, 0)


def test_a_line_without_an_end_is_cut_between_characters(tmp_path: Path) -> None:
    first, text = log(tmp_path), "x" + "€" * MAX_LINE_BYTES
    first.write(text.encode())
    found, spot = lines(tmp_path)
    assert len(found) == 3 and all(len(one.encode()) <= MAX_LINE_BYTES for one in found)
    first.write(b"!\n")
    assert "".join([*found, *lines(tmp_path, spot)[0]]) == text + "!"
    whole, pieces, spot = lines(tmp_path)[0], list[str](), BEGIN
    for _ in whole:  # one at a time: one can go on from within a line, too
        [piece], spot = lines(tmp_path, spot, most=1)
        pieces.append(piece)
    assert pieces == whole and "".join(whole) == text + "!"


def test_what_was_dropped_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "OUTPUT_FILE_BYTES", 1_000)
    monkeypatch.setattr(output, "MAX_OUTPUT_BYTES", 5_000)
    first = log(tmp_path)
    first.write(b"0\n")
    _, early = lines(tmp_path)
    for step in range(1, 1_000):
        first.write(b"%d\n" % step)
    for spot in (BEGIN, early):
        found, then = lines(tmp_path, spot)
        assert found[0] == f"<{DROPPED_MARK}>"
        steps = [int(one) for one in found[1:]]
        assert steps == list(range(steps[0], 1_000)) and steps[0] > 100
        assert lines(tmp_path, then)[0] == []


def test_a_file_that_goes_while_it_is_read_is_told_of(tmp_path: Path) -> None:
    for number in range(3):
        log(tmp_path, number=number).write(b"run %d\n" % number)
    [stream] = Outputs(tmp_path).streams(1, {safe_folder_name(TASK): TASK})
    (stream.folder / "0.1").unlink()
    found = list(stream.lines(BEGIN, ended=False))
    assert [line.text for line in found] == ["run 0", DROPPED_MARK, NEW_RUN_MARK, "run 2"]
    assert found[1].at <= found[2].at  # not when the file was written to last: what others wrote meanwhile comes later
    [again] = Outputs(tmp_path).streams(1, {safe_folder_name(TASK): TASK})
    os.utime(again.folder / "0.2")
    assert list(again.lines(found[0].next_position, ended=False)) == found[1:]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r", b"\r\n", b"y" * 70]), st.integers(0, 3)),
        max_size=40,
    )
)
def test_whoever_reads_in_pieces_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[bytes, int]]
) -> None:
    """0: nothing; 1: somebody reads; 2: a new run begins; 3: he reads one line and no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "OUTPUT_FILE_BYTES", 300)
        patch.setattr(outputs, "MAX_LINE_BYTES", 50)
        patch.setattr(outputs, "FIRST_READ_BYTES", 7)
        patch.setattr(outputs, "READ_BLOCK_BYTES", 31)
        root, number, spot = tmp_path_factory.mktemp("root"), 0, BEGIN
        writer, read = log(root), list[str]()
        writer.write(b"begin\n")
        for data, then in pieces:
            writer.write(data)
            if then == 2:
                number += 1
                writer = log(root, number=number)
            elif then:
                found, spot = lines(root, spot, most=1 if then == 3 else None)
                read += found
        found, spot = lines(root, spot, ended=True)
        assert "".join(read + found) == "".join(lines(root, ended=True)[0])
        assert lines(root, spot, ended=True)[0] == []


def test_jobs_that_are_forgotten_and_what_is_too_much_goes_the_oldest_first(tmp_path: Path) -> None:
    for job in range(1, 6):
        log(tmp_path, job).write(b"z" * 1_000 + b"\n")
        os.utime(tmp_path / str(job) / safe_folder_name(TASK) / "0.0", (job, job))
    (tmp_path / "not-a-job").mkdir()
    trim(tmp_path, {2, 3, 4}, {2}, 4, 100_000)  # 5 came meanwhile
    assert {path.name for path in tmp_path.iterdir()} == {"2", "3", "4", "5", "not-a-job"}
    (tmp_path / "6").write_text("made by a job")
    trim(tmp_path, {2, 3, 4, 5, 6}, {2}, 6, 20_000)  # on disk, a file and its folder have 8,192
    left = {path.name for path in tmp_path.iterdir() if any(path.rglob("0.0"))}
    assert left == {"4", "5"}
    assert not any((tmp_path / "2").iterdir())


def test_whoever_follows_misses_nothing_that_comes_after_all_was_removed(tmp_path: Path) -> None:
    first = log(tmp_path)
    for step in range(20):
        first.write(b"step %d\n" % step)
    _, spot = lines(tmp_path)
    trim(tmp_path, {1}, (), 1, 0)  # of those that are running, too
    assert lines(tmp_path, spot)[0] == [f"<{DROPPED_MARK}>"] == lines(tmp_path)[0]
    first.write(b"on\n")
    second = log(tmp_path, number=1)
    for step in range(20, 40):
        second.write(b"step %d\n" % step)
    came = ["on", f"<{NEW_RUN_MARK}>", *(f"step {step}" for step in range(20, 40))]
    assert lines(tmp_path, spot)[0] == [f"<{DROPPED_MARK}>", *came]
    _, spot = lines(tmp_path)
    for _ in range(2):
        trim(tmp_path, {1}, (), 1, 0)
    log(tmp_path, number=2).write(b"end\n")
    assert lines(tmp_path, spot)[0] == [f"<{DROPPED_MARK}>", f"<{NEW_RUN_MARK}>", "end"]
    assert len(list((tmp_path / "1" / safe_folder_name(TASK)).iterdir())) == 2
    trim(tmp_path, {1}, (), 1, 0)
    _, spot = lines(tmp_path)
    log(tmp_path, 2).write(b"another\n")
    trim(tmp_path, {1, 2}, (), 2, 0)
    assert lines(tmp_path, spot)[0] == []  # of what is empty, nothing is dropped


def test_output_is_trimmed_as_often_as_that_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, took_s = 100.0, 0.0
    kept = Outputs(tmp_path)
    monkeypatch.setattr(outputs, "time", SimpleNamespace(monotonic=lambda: now_s))

    def slow(*_: object) -> None:
        nonlocal now_s
        now_s += took_s

    monkeypatch.setattr(outputs, "trim", slow)
    for seconds, pause_s in ((0.001, 2.0), (0.5, 25.0), (30.0, 60.0)):
        assert kept.due
        began_s, took_s = now_s, seconds
        kept.trim((), (), 0, 0)
        wait_until(lambda: not kept._trimming.locked())
        now_s = began_s + pause_s - 0.01
        assert not kept.due
        now_s = began_s + pause_s


def test_what_a_job_links_to_is_neither_read_nor_touched(tmp_path: Path) -> None:
    """The job may be another user of the system than the service."""
    elsewhere, root, name = tmp_path / "elsewhere", tmp_path / "root", safe_folder_name(TASK)
    elsewhere.mkdir()
    for number in range(2):
        (elsewhere / f"0.{number}").write_text("1.000000 a 0\n1.000000 secret\n")
    (root / "1").mkdir(parents=True)
    (root / "1" / name).symlink_to(elsewhere)
    assert Outputs(root).streams(1, {name: TASK}) == []
    log(root, 2).write(b"line\n")
    [stream] = Outputs(root).streams(2, {name: TASK})
    path = root / "2" / name / "0.0"
    for replace in (path.symlink_to, path.hardlink_to, lambda _: os.mkfifo(path)):  # after its size was read
        path.unlink()
        replace(elsewhere / "0.0")
        assert list(stream.lines(BEGIN, ended=True)) == []
    path.unlink()
    (root / "2" / name / "0.1").symlink_to(tmp_path / "made")
    log(root, 2).write(b"line\n")
    trim(root, {1, 2}, (), 2, 0)
    assert sorted(one.name for one in elsewhere.iterdir()) == ["0.0", "0.1"] and not (tmp_path / "made").exists()


def test_without_a_folder_nothing_is_kept() -> None:
    nothing = Outputs(None)
    assert nothing.of(1, TASK, 0) is None and nothing.streams(1, {safe_folder_name(TASK): TASK}) == []
    nothing.trim((), (), 5, 0)
