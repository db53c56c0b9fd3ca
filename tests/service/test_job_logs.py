"""The log of a job, while it runs: every line that it writes, once and in order, through whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import symphony as sy
from symphony.engines.local import LocalEngine
from symphony.engines.output import MAX_OUTPUT_BYTES, OUTPUT_FILE_BYTES, OutputLog
from symphony.service import job_logs, tables, views
from symphony.service.client import RemoteJob
from symphony.service.database import open_database
from symphony.service.graph_file import load
from symphony.service.job_logs import Cursor
from symphony.service.outputs import DROPPED_MARK, NEW_RUN_MARK, OutputPosition, Outputs, Stream
from symphony.service.service import Limits
from symphony.service.state import BROKE, ENDED, FINISHED, STOPPED, JournalEvent, text_of
from symphony.service.wire import LogLine, Logs
from tests.runtime.machines import machine
from tests.service.kernels import add, one
from tests.service.places import SECONDS, Place, place, wait_until
from tests.service.serve_process import Serve

PROGRAM = r"""
import os, pathlib, sys, time

folder, begin = pathlib.Path(os.environ["SYMPHONY_FOLDER"]), int(os.environ["SYMPHONY_STEP"])
for step in range(begin + 1, int(os.environ["SYMPHONY_STEPS"]) + 1):
    print(f"step {step}")
    (folder / "step").write_text(str(step))
    if step == 2:
        sys.stderr.buffer.write(b"not \xff UTF-8\n")
        (folder / "saved").write_text("2")
        while not begin:
            time.sleep(0.01)
print("end", end="")
"""
TOML = """
name = "program"

[[task]]
name = "train"
command = [{python}, {program}]
[task.training]
steps = 4
"""


@sy.training(steps=6)
def talks(job):
    """Writes a line for each step; saves after two of them, and goes on when it is run again."""
    import time

    for step in job.steps():
        print("step", step)
        if step == job.began + 2 < job.total:
            job.save(step)
            while True:
                time.sleep(0.005)
                if job.save_now:
                    job.save(step)


@sy.kernel
def says(lines, path="", *after):
    """Writes lines, and waits for a file."""
    import os
    import time

    for line in lines:
        print(line)
    while path and not os.path.exists(path):
        time.sleep(0.005)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("served") / "state") as found:
        yield found


def shown(lines: list[LogLine]) -> list[str]:
    """Without times, and without how long things took."""
    marks = {"event": "", "output": "| ", "mark": "--- "}
    return [marks[line.kind] + line.text.split(" on here/cpu")[0] for line in lines]


def wrote(job: RemoteJob) -> list[str]:
    return [line.text for line in job.logs().lines if line.kind == "output"]


def ended(job: RemoteJob) -> list[LogLine]:
    """All of its log, when it is over and the journal says so."""
    job.result(SECONDS)
    wait_until(lambda: job.logs().over)
    return job.logs().lines


def kill_its_process(served: Place) -> None:
    engine: Any = served.service.cluster._engine
    while not hasattr(engine, "_slots"):
        engine = engine._engine
    [process] = [slot.worker.pid for slot in engine._slots if slot.work]
    os.kill(process, signal.SIGKILL)


class Following(threading.Thread):
    """Somebody who reads along."""

    def __init__(self, job: RemoteJob) -> None:
        super().__init__(daemon=True)
        self.lines: list[LogLine] = []
        self._job = job
        self.start()

    def run(self) -> None:
        for line in self._job.follow():
            self.lines.append(line)


def test_a_training_job_is_heard_while_it_runs_and_through_all_of_its_runs(served: Place) -> None:
    with served.connect("ann") as ann, served.connect("ann") as again:
        job = ann.submit(one(talks))
        follows = Following(again.job(job.id))
        wait_until(lambda: "| step 2" in shown(follows.lines))
        assert job.view().status == "running" and shown(follows.lines)[1:] == ["| step 1", "| step 2"]
        [run] = served.service.running.admitted[job.id].state.runs
        loop = served.service.cluster._loop
        served.service.cluster._loop.post(lambda: loop.saving.stop(run))  # as when a policy preempts it
        wait_until(lambda: "| step 4" in shown(follows.lines))
        kill_its_process(served)
        job.result(SECONDS)
        follows.join(SECONDS)
        assert shown(follows.lines) == [
            "accepted: 1 task, from ann",
            "| step 1",
            "| step 2",
            "talks-0: stopped",
            f"--- {NEW_RUN_MARK}",
            "| step 3",
            "| step 4",
            "talks-0: its process was ended by SIGKILL,",
            f"--- {NEW_RUN_MARK}",
            "| step 5",
            "| step 6",
            "talks-0: done",
            "done",
        ]
        assert job.logs().lines == follows.lines  # when it is over, too
        assert {line.task for line in follows.lines if line.kind != "event"} == {"talks-0"}


def test_a_program_that_trains_is_heard_and_its_value_is_what_the_last_run_printed(
    served: Place, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = {"python": json.dumps(sys.executable), "program": json.dumps(str(tmp_path / "train.py"))}
    (tmp_path / "graph.toml").write_text(TOML.format(**words))
    with served.connect("ann") as ann:
        job = ann.submit(load(str(tmp_path / "graph.toml"), {}))
        wait_until(lambda: wrote(job) == ["step 1", "step 2", "not \ufffd UTF-8"])
        wait_until(lambda: (told := job.view().training) is not None and told.saved == 2)
        kill_its_process(served)
        assert job.result(SECONDS) == "step 3\nstep 4\nend"
        assert wrote(job) == ["step 1", "step 2", "not \ufffd UTF-8", "step 3", "step 4", "end"]


def test_what_was_written_outlives_the_service_and_whoever_follows_goes_on(tmp_path: Path) -> None:
    serving = Serve(tmp_path / "state")
    with serving.connect() as ann:
        job = ann.submit(one(talks))
        wait_until(lambda: "step 2" in wrote(job))
        before = job.logs()
    serving.kill()
    serving = Serve(tmp_path / "state")
    try:
        with serving.connect() as ann:
            job = ann.job(job.id)
            wait_until(lambda: "step 4" in wrote(job))
            died = "the service crashed and was started again"
            assert [died, f"--- {NEW_RUN_MARK}", "| step 3", "| step 4"] == shown(job.logs(before.next).lines)
            assert shown(job.logs().lines)[1:3] == ["| step 1", "| step 2"]
    finally:
        serving.kill()


def test_any_kernel_is_heard_by_its_own_user(served: Place, tmp_path: Path) -> None:
    with served.connect("ann") as ann, served.connect("bob") as bob:
        mine = ann.submit(one(says, ["mine"], str(tmp_path / "go")))
        other = bob.submit(one(says, ["another's"]))
        wait_until(lambda: wrote(mine) == ["mine"])
        other.result(SECONDS)
        assert mine.view().status == "running" and wrote(other) == ["another's"]
        with pytest.raises(sy.UnknownJobError):
            bob._ask("GET", f"/v1/jobs/{mine.id}/logs")
        (tmp_path / "go").touch()
        mine.result(SECONDS)


def test_whoever_asks_before_a_job_is_written_down_hears_it_later(served: Place) -> None:
    with served.connect("ann") as ann:
        first = ann.submit(one(says, ["one"]))
        assert "| one" in shown(ended(first))
        before = replace(served.service.state.jobs[first.id], id=first.id + 1)  # as the state has it before the journal
        assert views.logs(served.service, before, "").lines == []
        second = ann.submit(one(says, ["two"]))
        assert second.id == before.id and "| two" in shown(ended(second))


def test_a_request_waits_for_the_next_line_and_for_nothing_once_it_is_over(served: Place, tmp_path: Path) -> None:
    @sy.kernel
    def later(path):
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.005)
        print("came")
        while not os.path.exists(path + "2"):
            time.sleep(0.005)

    with served.connect("ann") as ann:
        job = ann.submit(one(later, str(tmp_path / "go")))
        before, after = job.logs().next, list[str]()

        def ask() -> None:
            with served.connect("ann") as again:
                [page] = again.job(job.id)._pages(before, 60.0)
                after.extend(shown(page.lines))

        asks = threading.Thread(target=ask)
        asks.start()
        wait_until(lambda: any(device.running for device in ann.state().devices))
        (tmp_path / "go").touch()
        asks.join(SECONDS)
        assert after == ["| came"]  # and there is no event that would have told of it
        (tmp_path / "go2").touch()
        ended(job)
        last = job.logs()
        assert last.over and next(job._pages(last.next, 60.0)).over


def test_workers_of_a_gang_are_told_apart(tmp_path: Path) -> None:
    @sy.kernel(device="accelerator", workers=2)
    def both(rank, size):
        print(f"{rank} of {size}")

    with (
        place(tmp_path / "state", engine=lambda: LocalEngine(machine(others=2))) as found,
        found.connect("ann") as ann,
    ):
        job = ann.submit(one(both))
        told = {(line.rank, line.text) for line in ended(job) if line.kind == "output"}
        assert told == {(0, "0 of 2"), (1, "1 of 2")}


def test_one_that_writes_too_much_keeps_its_newest_lines_and_others_run(served: Place, tmp_path: Path) -> None:
    @sy.kernel
    def chatty(path):
        import os

        step = 0
        while not os.path.exists(path):
            print(step, "x" * 1_000)
            step += 1
        return step

    with served.connect("ann") as ann:
        job = ann.submit(one(chatty, str(tmp_path / "enough")))
        kept = served.service.outputs._root / str(job.id)
        wait_until(lambda: any(int(path.name.split(".")[1]) > 9 for path in kept.rglob("0.*")))
        assert ann.submit(one(add, 1, 1)).result(SECONDS) == 2
        (tmp_path / "enough").touch()
        lines = [line for line in ended(job) if line.kind != "event"]
        assert sum(path.stat().st_size for path in kept.rglob("0.*")) <= MAX_OUTPUT_BYTES + OUTPUT_FILE_BYTES
        assert (lines[0].kind, lines[0].text) == ("mark", DROPPED_MARK)
        found = [int(line.text.split()[0]) for line in lines[1:]]
        assert found == list(range(found[0], job.result())) and found[0] > 0


def test_one_that_writes_without_end_can_be_read_while_it_does(
    served: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is, is what there was when it was asked for: nobody is kept until the job has ended."""

    @sy.kernel
    def endless(path, seconds):
        import os
        import time

        end = time.monotonic() + seconds
        while not os.path.exists(path) and time.monotonic() < end:
            print("and on")
            time.sleep(1e-4)

    with served.connect("ann") as ann:
        job = ann.submit(one(endless, str(tmp_path / "enough"), SECONDS))
        kept = served.service.outputs._root / str(job.id)
        wait_until(lambda: sum(path.stat().st_size for path in kept.rglob("0.*")) > 20_000)
        with monkeypatch.context() as slowly:
            slowly.setattr(job_logs, "MAX_PAGE_LINES", 4)
            found = job.logs()
        assert not found.over and ann.job(job.id).status == "running"
        assert job.logs(found.next).lines
        (tmp_path / "enough").touch()
        assert ended(job)[-1].text == "done"


def test_a_service_keeps_no_more_of_all_jobs_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path / "state") as found, found.connect("ann") as ann:
        first = ann.submit(one(says, ["before"]))
        assert "| before" in shown(ended(first))
    with place(tmp_path / "state", limits=Limits(output_bytes=0)) as found, found.connect("ann") as ann:
        wait_until(lambda: wrote(ann.job(first.id)) == [])  # when it starts …
        second = ann.submit(one(says, ["now"], str(tmp_path / "go")))
        wait_until(lambda: wrote(second) == ["now"])
        (tmp_path / "go").touch()
        second.result(SECONDS)
        with monkeypatch.context() as often:
            often.setattr("symphony.service.service.SWEEP_INTERVAL_S", -1.0)  # … and now and then
            wait_until(lambda: ann.submit(one(add, 1)).result(SECONDS) == 1 and wrote(second) == [])


def test_a_log_is_read_in_parts_and_cursors_stay_short(served: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = sy.graph("many")
    before: tuple = ()
    for number in range(12):
        before = (graph.task(says, [f"{number} {line}" for line in range(5)], "", *before),)
    with served.connect("ann") as ann:
        job = ann.submit(graph)
        ended(job)
        whole = job.logs()
        for number in range(12):
            mine = [line.text for line in whole.lines if line.text.startswith(f"{number} ")]
            assert mine == [f"{number} {line}" for line in range(5)]
        assert whole.next.isdecimal()  # all tasks have ended
        monkeypatch.setattr(job_logs, "MAX_PAGE_LINES", 3)
        pages = list(job._pages(""))
        assert [line for page in pages for line in page.lines] == whole.lines
        assert len(pages) == -(-len(whole.lines) // 3) and pages[-1].next == whole.next
        assert max(len(Cursor.parse(page.next).positions) for page in pages) == 1  # only of what has not ended


def test_the_command_shows_lines_as_they_come(served: Place, tmp_path: Path) -> None:
    environment = os.environ | {"SYMPHONY_URL": served.server.url, "SYMPHONY_TOKEN": served.token("ann")}
    with served.connect("ann") as ann:
        job = ann.submit(one(says, ["loss 0.5"], str(tmp_path / "go")))
        command = [sys.executable, "-c", "from symphony.cli import main; main()", "logs", str(job.id), "-f"]
        told = {"stdout": subprocess.PIPE, "text": True, "env": environment}
        with subprocess.Popen(command, **told) as plain, subprocess.Popen([*command, "--json"], **told) as as_json:
            assert plain.stdout is not None and as_json.stdout is not None
            assert "accepted" in plain.stdout.readline()
            assert plain.stdout.readline().endswith("says-0 | loss 0.5\n")  # it is running
            assert json.loads(as_json.stdout.readline())["kind"] == "event"
            line = json.loads(as_json.stdout.readline())
            assert (line["kind"], line["task"], line["rank"], line["text"]) == ("output", "says-0", 0, "loss 0.5")
            assert job.view().status == "running"
            (tmp_path / "go").touch()
            assert plain.stdout.read().splitlines()[-1].endswith("done")
            assert json.loads(as_json.stdout.read().splitlines()[-1])["text"] == "done"


@pytest.mark.parametrize("wrong", ["x", "-1", "1_", "1_0.0.1", "1_0.0.1.-2", "9" * 19])
def test_a_cursor_that_is_none_is_refused(served: Place, wrong: str) -> None:
    with served.connect("ann") as ann:
        job = ann.submit(one(add, 1))
        with pytest.raises(sy.InputError):
            job.logs(wrong)
    with pytest.raises(sy.InputError):
        Cursor.parse(wrong)


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = Cursor(17, {(0, 0): OutputPosition(2, 4096), (3, 1): OutputPosition(0, 12)})
    assert str(cursor) == "17_0.0.2.4096_3.1.0.12" and Cursor.parse(str(cursor)) == cursor
    assert Cursor.parse("") == Cursor() and Cursor.parse("7") == Cursor(7)


# -------------------------------------------------------------------- order, by hand


class Journal:
    """Events of one job, without a service."""

    def __init__(self, folder: Path) -> None:
        self.database = open_database("", folder)
        self.outputs = Outputs(folder / "output")
        self._events = 0

    def add(self, kind: str, **data: Any) -> None:
        self._events += 1
        told = {"name": "t", "device": "d", "seconds": 1.0, **data}
        row = {"id": self._events, "at": time.time(), "job": 1, "kind": kind, "task": 0, "seconds": 1.0}
        with self.database.begin() as connection:
            connection.execute(sa.insert(tables.events), [row | {"data": json.dumps(told)}])

    def log(self, number: int) -> OutputLog:
        told = self.outputs.of(1, "t", number)
        assert told is not None
        return OutputLog(told.folder, told.run)

    def read(self, outputs: Outputs | None = None, after: str = "") -> Logs:
        return job_logs.read(self.database, outputs or self.outputs, 1, {"t": (0, "t")}, Cursor.parse(after))


def test_what_comes_while_one_looks_is_not_told_before_what_it_follows_upon(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.log(0).write(b"first\n")

    class Late(Outputs):
        """A run ends, and the next begins, just before the files are looked at."""

        looks = 0

        def streams(self, job: int, tasks: Any) -> list[Stream]:
            self.looks += 1
            if self.looks == 1:
                journal.add(STOPPED)
                journal.log(1).write(b"second\n")
            return super().streams(job, tasks)

    late = Late(tmp_path / "output")
    told = shown(journal.read(late).lines)
    assert [line.split(":")[0] for line in told] == [
        "| first",
        "t",
        f"--- {NEW_RUN_MARK}",
        "| second",
    ] and late.looks == 2
    journal.database.dispose()


def test_it_is_over_when_its_end_is_written_down_and_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.log(0).write(b"killed wh")
    assert not journal.read().over and journal.read().lines == []
    journal.add(ENDED, status="cancelled")
    page = journal.read()
    assert page.over and shown(page.lines) == ["| killed wh", "cancelled"]
    assert journal.read(after=page.next).over and journal.read(after=page.next).lines == []
    journal.database.dispose()


def test_a_line_that_was_cut_off_comes_before_the_end_of_its_task_and_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.log(0).write(b"killed wh")
    journal.add(BROKE, error={"message": "its process was ended"})
    page = journal.read()
    assert shown(page.lines) == ["| killed wh", "t: its process was ended"] and not page.over
    journal.add(ENDED, status="failed")
    assert shown(journal.read(after=page.next).lines) == ["failed"]
    journal.database.dispose()


def test_it_is_not_over_while_there_is_more_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "MAX_PAGE_LINES", 1)
    journal = Journal(tmp_path)
    journal.log(0).write(b"one\n")
    journal.add(ENDED, status="done")
    first = journal.read()
    last = journal.read(after=first.next)
    assert (shown(first.lines), first.more, first.over) == (["| one"], True, False)
    assert (shown(last.lines), last.more, last.over) == (["done"], False, True)
    journal.database.dispose()


def test_what_a_task_wrote_comes_before_its_end_whatever_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    with monkeypatch.context() as ahead:
        ahead.setattr("symphony.engines.output.time.time", lambda now=time.time: now() + 3_600.0)
        log = journal.log(0)
        log.write(b"one\ntwo\n")
        log.close()
    journal.add(FINISHED)
    told = shown(journal.read().lines)
    assert told[:2] == ["| one", "| two"] and told[2].startswith("t: done")
    journal.database.dispose()


@pytest.mark.parametrize(
    ("seconds", "said"), [(1.87e-6, "1.87 us"), (0.0002374, "237 us"), (1.9, "1.9 s"), (86_400.0, "24 h")]
)
def test_times_are_in_units_that_people_read(seconds: float, said: str) -> None:
    data = {"name": "train-0", "device": "here/cpu", "seconds": seconds}
    finished, stopped = (text_of(JournalEvent(1, 0.0, 1, kind, 0, seconds, data)) for kind in (FINISHED, STOPPED))
    assert finished == f"train-0: done on here/cpu in {said}"
    assert stopped == f"train-0: stopped on here/cpu after {said}; it resumes from step 0"
