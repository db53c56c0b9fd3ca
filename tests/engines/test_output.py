"""What work writes, in files: every line once and in order, whatever writes it, and never too much."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from symphony.engines import output
from symphony.engines.output import MAX_OUTPUT_BYTES, OUTPUT_FILE_BYTES, OutputLog, files
from symphony.engines.worker import MAX_PENDING_LINE, OutputRedirect


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "17" / "train-0")


def written(folder: str, rank: int = 0) -> list[bytes]:
    """Lines of all files of a worker, without their times; those that begin files with an arrow."""
    found = []
    for number, _ in files(folder).get(rank, []):
        first, *lines = Path(folder, f"{rank}.{number}").read_bytes().split(b"\n")
        found += [b"-> " + first, *lines] if lines[-1] else [b"-> " + first, *lines[:-1]]
    return [re.sub(rb"^(-> )?\d+\.\d{6} ", rb"\1", line) for line in found]


def test_nothing_is_made_before_something_is_written(folder: str) -> None:
    log = OutputLog(folder, "a")
    log.write(b"")
    log.close()
    assert not os.path.exists(os.path.dirname(folder))


def test_lines_are_whole_however_they_are_written(folder: str) -> None:
    log = OutputLog(folder, "a")
    for part in (b"lo", b"ss 0.5", b"\n", b"\n", b"two\nthree\nfo", b"ur"):
        log.write(part)
    assert written(folder) == [b"-> a 0", b"loss 0.5", b"", b"two", b"three", b"four"]  # at once
    log.close()
    assert Path(folder, "0.0").read_bytes().endswith(b"four\n")


def test_returns_end_lines_as_newlines_do(folder: str) -> None:
    log = OutputLog(folder, "a")
    for part in (b"\r 10%", b"\r 20%", b"\rdone\n", b"dos\r\nline\r", b"\n", b"\n", b"end\r", b"more"):
        log.write(part)
    log.close()
    assert written(folder) == [b"-> a 0", b" 10%", b" 20%", b"done", b"dos", b"line", b"", b"end", b"more"]


def test_every_run_and_every_worker_has_files_of_its_own(folder: str) -> None:
    OutputLog(folder, "a").write(b"killed wh")
    other = OutputLog(folder, "b", 1)
    other.write(b"other\n")
    second = OutputLog(folder, "b")
    second.write(b"again\n")
    assert written(folder) == [b"-> a 0", b"killed wh", b"-> b 0", b"again"]
    assert written(folder, 1) == [b"-> b 0", b"other"]


def test_the_newest_is_kept_and_it_is_never_too_much(folder: str) -> None:
    log, most = OutputLog(folder, "a"), 0
    for step in range(60_000):
        log.write(b"step %d %s\n" % (step, b"x" * 180))
        if step % 1_000 == 0:
            most = max(most, sum(size for _, size in files(folder)[0]))
    found = files(folder)[0]
    assert (
        sum(size for _, size in found) >= MAX_OUTPUT_BYTES - 2 * OUTPUT_FILE_BYTES
        and most <= MAX_OUTPUT_BYTES + OUTPUT_FILE_BYTES
    )
    lines = [line for line in written(folder) if not line.startswith(b"->")]
    steps = [int(line.split()[1]) for line in lines]
    assert steps == list(range(steps[0], 60_000)) and steps[0] > 0
    assert written(folder)[0] == b"-> a %d" % found[0][0]  # parts of one run
    log.write(b"y" * (3 * MAX_OUTPUT_BYTES) + b"\n")
    assert sum(size for _, size in files(folder)[0]) <= MAX_OUTPUT_BYTES + OUTPUT_FILE_BYTES


def test_runs_that_write_little_and_are_many_leave_few_files(folder: str) -> None:
    for number in range(3 * output.MAX_OUTPUT_FILES):
        OutputLog(folder, f"r{number}").write(b"begun\n")
    assert len(files(folder)[0]) == output.MAX_OUTPUT_FILES and written(folder)[-2:] == [b"-> r191 0", b"begun"]


def test_what_cannot_be_written_is_dropped_and_the_next_line_is_whole(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = OutputLog(str(tmp_path / "not" / "there" / "0"), "a")
    assert not nowhere.write(b"lost\n")  # a folder that this machine does not reach is not made
    nowhere.close()
    assert not (tmp_path / "not").exists()
    log = OutputLog(folder, "a")
    log.write(b"one\n")
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 25:
            return write(descriptor, bytes(data[:25]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "write", full)
    assert not log.write(b"this is too much\nfor this disk\n")
    monkeypatch.undo()
    assert log.write(b"two\n")
    assert written(folder)[:2] == [b"-> a 0", b"one"] and written(folder)[-1] == b"two"
    log.write(b"half a line")
    with monkeypatch.context() as again:
        again.setattr(output.os, "write", full)
        assert not log.write(b" too long")
    assert log.write(b"three\n") and written(folder)[-2:] == [b"half a line", b"three"]
    assert re.fullmatch(rb"\d+\.\d{6} three", Path(folder, "0.0").read_bytes().splitlines()[-1])


def test_a_line_without_an_end_waits_but_not_for_long(folder: str) -> None:
    printed = OutputRedirect(lambda: OutputLog)
    with printed.kept((folder, "a"), 0):
        sys.stdout.write("short")
        assert files(folder) == {}
        sys.stdout.write("x" * (MAX_PENDING_LINE + 1))
        assert written(folder)[1] == b"short" + b"x" * (MAX_PENDING_LINE + 1)
        for _ in range(MAX_PENDING_LINE + 1):
            sys.stdout.write(".")
        assert written(folder)[1].endswith(b"x" + b"." * (MAX_PENDING_LINE + 1))


def run(script: str, folder: str) -> int:
    """Where there is nothing of Symphony, nor threads of others, which a fork could break; the exit status."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {BEGIN}{script}"]
    return subprocess.run([*command, os.path.dirname(output.__file__), folder], check=False).returncode


BEGIN = """
import os, signal, threading
from output import OutputLog

log = OutputLog(sys.argv[2], "a")
"""
TALK = """
def talk(who):
    for step in range(4_000):
        log.write(b"%s %d %s\\n" % (who, step, b"z" * 200))

threads = [threading.Thread(target=talk, args=(who,)) for who in (b"first", b"second")]
for thread in threads:
    thread.start()
child = os.fork()  # while others may be writing
if not child:
    talk(b"forked")
    os._exit(0)
for thread in threads:
    thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""
KILLED = """
for step in range(100):
    log.write(b"step %d\\n" % step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_and_threads_of_a_kernel_write_whole_lines(folder: str) -> None:
    assert run(TALK, folder) == 0
    for who in (b"first", b"second", b"forked"):
        found = [line.split() for line in written(folder) if line.startswith(who)]
        assert [int(words[1]) for words in found] == list(range(4_000)) and {words[2] for words in found} == {
            b"z" * 200
        }


def test_what_is_killed_has_left_all_that_it_wrote(folder: str) -> None:
    assert run(KILLED, folder) == -signal.SIGKILL
    assert written(folder) == [b"-> a 0", *(b"step %d" % step for step in range(100))]


def test_only_files_are_found(folder: str, tmp_path: Path) -> None:
    """A job can make anything there; whoever opens a named pipe would wait for somebody to write to it."""
    OutputLog(folder, "a").write(b"line\n")
    os.mkfifo(os.path.join(folder, "0.7"))
    os.symlink("/dev/zero", os.path.join(folder, "0.8"))
    assert [number for number, _ in files(folder)[0]] == [0]
