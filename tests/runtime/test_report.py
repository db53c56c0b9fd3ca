"""What is told of a job whose runs were stopped or lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from symphony.runtime.jobs import Attempt
from symphony.runtime.report import (
    ADMISSION,
    DEVICE,
    KILLED_RUN,
    LOST,
    NEVER_STARTED,
    PASS_ON,
    RESTART,
    RUN,
    START,
    JobHistory,
    TaskHistory,
    explain,
    time_parts,
    trace,
)
from symphony.training_jobs.live.progress import Progress


def attempt(began_s: float, seconds: float, ended: str, *, steps: tuple[int, int, int] | None = None) -> Attempt:
    """One that was expected to take a minute; `steps`: where it began, where it is, and how often it saved."""
    made = Attempt(("gpu0",), began_s, 60.0, 0.0, 0, began_s, seconds, False, ended)
    if steps is not None:
        made.progress = Progress("", steps[0], steps[1], steps[0], steps[2])
    return made


def told(*attempts: Attempt, steps: int = 0, over: bool = False) -> list[str]:
    task = TaskHistory("train-0", "train", attempts, 0.0, False, "waits for a device", steps)
    status, ended_s = ("done", 200.0) if over else ("running", math.nan)
    return explain(JobHistory("job 1", "g", status, 0.0, ended_s, "", [task]), 100.0).splitlines()[1:]


def test_to_wait_is_not_to_run() -> None:
    lines = told(attempt(2.0, 80.0, "stopped"), attempt(90.0, 40.0, "done"), over=True)
    assert "stopped after 80 s" in lines[0]
    assert "waited 8 s, took 40 s" in lines[1]  # not since it was ready at first


def test_what_was_stopped_waits_again_and_says_so() -> None:
    assert told(attempt(0.0, 80.0, "stopped"))[-1].endswith("waits for a device")
    assert not any("waits" in line for line in told(attempt(0.0, math.nan, "")))
    assert not any("waits" in line for line in told(attempt(0.0, 80.0, "stopped"), over=True))


def test_a_training_job_that_never_saves_is_told_of_also_when_it_was_lost() -> None:
    lost, again = attempt(0.0, 10.0, "killed", steps=(0, 50, 0)), attempt(11.0, math.nan, "", steps=(0, 9, 0))
    lines = told(lost, again, steps=100)
    assert lines[-1].endswith("9 of 100 steps; never saved, lost once; resumed from step 0")
    done = told(attempt(0.0, 10.0, "done", steps=(0, 40, 1)), steps=100, over=True)
    assert done[-1].endswith("returned after 40 of 100 steps; saved once")
    done = told(attempt(0.0, 10.0, "done", steps=(0, 100, 1)), steps=100, over=True)
    assert done[-1].endswith("  100 of 100 steps; saved once")
    silent = told(attempt(0.0, 10.0, "done", steps=(0, 0, 0)), steps=100, over=True)
    assert silent[-1].endswith("returned without reporting any of its 100 steps; never saved")
    assert "expected 60 s, × or ÷ 1.0 at its start" in lines[1]  # what is expected by now is a forecast's to say


def test_a_trace_has_names_waiting_times_transfers_and_arrows_for_what_is_read() -> None:
    late = attempt(22.0, 1.0, "done")
    late.sent_s = 21.5
    tasks = [
        TaskHistory("a", "k", [attempt(10.0, 5.0, "killed"), attempt(16.0, 4.0, "done")], 8.0, False, "", size=3_000),
        TaskHistory("b", "k", [attempt(11.0, 2.0, "done")], 11.0, False, "", size=1_000_000),
        TaskHistory("c", "k", [late], 20.0, False, "", 0, [0, 1]),
        TaskHistory("d", "k", [], math.nan, False, "", 0, [2]),
    ]
    events = trace(JobHistory("job 1", "g", "running", 8.0, math.nan, "", tasks))["traceEvents"]
    named = {(one["name"], one["pid"], one.get("tid")): one["args"]["name"] for one in events if one["ph"] == "M"}
    assert named["process_name", 0, None] == "waiting" and named["process_name", 1, None] == "gpu0"
    assert (named["thread_name", 1, 1], named["thread_name", 1, 2]) == ("slot 1", "slot 2")
    waits = {(one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in events if one.get("cat") == "waiting"}
    assert waits == {("a waits", 0.0, 2.0), ("a waits", 7.0, 1.0), ("c waits", 12.0, 1.5)}
    [moved] = [one for one in events if one.get("cat") == "transfer"]
    assert (moved["name"], moved["ts"] / 1e6, moved["dur"] / 1e6, moved["tid"]) == ("c gets 1.003 MB", 13.5, 0.5, 1)
    assert moved["args"] == {"from": {"a": "gpu0", "b": "gpu0"}}
    arrows = [(one["ph"], one["id"], one["ts"] / 1e6, one["tid"]) for one in events if one["ph"] in "sf"]
    assert arrows == [("s", 1, 12.0, 1), ("f", 1, 14.0, 1), ("s", 2, 5.0, 2), ("f", 2, 14.0, 1)]


def run(sent_s: float, began_s: float, ended_s: float, ended: str = "done") -> Attempt:
    return Attempt(("cpu0",), sent_s, 1.0, 0.0, began_s=began_s, seconds=ended_s - began_s, ended=ended)


def history(*tasks: TaskHistory, ended_s: float = math.nan, status: str = "running") -> JobHistory:
    return JobHistory("job 1", "g", status, 100.0, ended_s, "", tasks)


def task(name: str, ready_s: float, *attempts: Attempt, reads: tuple[int, ...] = ()) -> TaskHistory:
    return TaskHistory(name, name, attempts, ready_s, False, "waits", reads=reads)


def test_the_parts_of_a_jobs_time_add_up_to_it() -> None:
    """Admitted after 2 s; a lost run, another one, and a task that needs its value. `quick` does not matter."""
    first = task("first", 102.0, run(105.0, 106.0, 110.0, "killed by signal 9"), run(111.0, 111.5, 121.5))
    quick = task("quick", 102.0, run(102.0, 102.0, 103.0))
    second = task("second", 122.0, run(130.0, 132.0, 149.0), reads=(0, 1))
    found = time_parts(history(first, quick, second, ended_s=150.0, status="done"), 999.0)
    assert found == pytest.approx(
        {ADMISSION: 2.0, DEVICE: 3.0 + 1.0 + 8.0, START: 1.0 + 0.5 + 2.0, RUN: 27.0, LOST: 4.0, PASS_ON: 0.5 + 1.0}
        | {RESTART: 0.0}
    )
    assert sum(found.values()) == pytest.approx(50.0)
    text = explain(history(first, quick, second, ended_s=150.0, status="done"), 999.0).splitlines()[0]
    assert text.startswith("job 1: done after 50 s = 2 s waiting for admission + 12 s waiting for a device + ")


def test_the_time_before_a_restart_of_the_service_is_not_a_wait_for_admission() -> None:
    one = replace(history(task("a", 113.0, run(114.0, 114.0, 120.0)), ended_s=120.0, status="done"), restarts=(112.0,))
    found = {name: seconds for name, seconds in time_parts(one, 999.0).items() if seconds}
    assert found == {RESTART: 12.0, ADMISSION: 1.0, DEVICE: 1.0, RUN: 6.0}


@pytest.mark.parametrize(
    ("tasks", "part"),
    [
        ([task("a", math.nan)], ADMISSION),
        ([task("a", 100.0)], DEVICE),
        ([task("a", 100.0, run(100.0, math.nan, math.nan, ""))], RUN),
        ([task("a", 100.0, run(100.0, 100.0, 100.0)), task("b", 100.0, reads=(0,))], DEVICE),
        ([task("a", 100.0, run(100.0, 100.0, 120.0, KILLED_RUN)), task("b", math.nan, reads=(0,))], LOST),
    ],
)
def test_parts_of_the_time_of_jobs_that_have_not_finished(tasks: list[TaskHistory], part: str) -> None:
    found = time_parts(history(*tasks, ended_s=120.0 if part == LOST else math.nan), 120.0)
    assert {name: seconds for name, seconds in found.items() if seconds} == {part: 20.0}


def test_tasks_that_were_killed_or_never_started_are_told_of() -> None:
    failed = task("failed", 100.0, run(100.0, 100.0, 110.0, "boom"))
    killed = task("killed", 100.0, run(100.0, 100.0, 110.0, KILLED_RUN))
    lines = explain(history(failed, killed, task("never", 100.0), ended_s=110.0, status="failed"), 999.0).splitlines()
    assert "killed, because the job had ended after 10 s" in lines[2] and lines[3].endswith(NEVER_STARTED)
