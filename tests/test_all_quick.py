"""`python -m benchmarks.all_quick`: how one benchmark ended is told from its process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import all_quick
from tests.waiting import SECONDS, has_ended, wait_until


def python(program: str, limit_s: float = SECONDS) -> all_quick.Outcome:
    return all_quick.run("one", [sys.executable, "-c", program], limit_s)


@pytest.mark.parametrize(
    ("program", "ended", "failed"),
    [
        ("print('a table')", "ok", False),
        ("raise SystemExit('no seeds')", "no seeds", True),
        ("raise SystemExit(3)", "status 3", True),
        ("raise SystemExit('no seeds\\n--------\\nFor simplicity, JAX has removed its frames')", "no seeds", True),
        ("import nobody_has_this.part", "skipped: needs nobody_has_this", False),
        ("import symphony.nothing", "ModuleNotFoundError: No module named 'symphony.nothing'", True),
        ("import benchmarks.common as c; c.data('no', 'such')", "skipped: needs {data}/no/such", False),
    ],
)
def test_how_it_ended_is_said_in_one_line(
    program: str, ended: str, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_DATA", "/nowhere")
    outcome = python(program)
    assert (outcome.ended, outcome.failed) == (ended.format(data="/nowhere"), failed)


def test_what_reaches_the_limit_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    inner = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(3600)"
    outcome = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])", limit_s=2.0)
    assert outcome.ended == "stopped after 2 s" and outcome.failed
    if started.exists():  # a machine that takes 2 s to start two interpreters has nothing to show here
        wait_until(lambda: has_ended(int(started.read_text())), "a process of a benchmark outlived it")


def test_cpu_seconds_include_those_of_started_processes() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    outcome = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])")
    assert outcome.cpu_s >= 0.3


def test_every_command_of_the_folder_is_a_benchmark() -> None:
    found = all_quick.names()
    assert {"simulator", "contention", "weights"} <= set(found)
    assert not {"common", "all_quick", "__init__", "results"} & set(found)
