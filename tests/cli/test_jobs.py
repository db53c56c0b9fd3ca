"""The commands that talk to a service: one that runs here, reached as users reach it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from symphony.cli.jobs import _text, table
from symphony.service.wire import JobView, TrainingView
from tests.cli.command import symphony_here
from tests.service.places import Place, place

GRAPH = """
import symphony as sy

@sy.kernel
def double(x):
    if x == "bad":
        raise LookupError("no such thing")
    if x == "sleep":
        import time
        time.sleep(3600)
    return 2 * x

def graph(x=21):
    made = sy.graph("double")
    made.task(double, x)
    return made
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture
def folder(here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYMPHONY_URL", here.server.url)
    monkeypatch.setenv("SYMPHONY_TOKEN", here.token("ann"))
    (tmp_path / "graph.py").write_text(GRAPH)
    return tmp_path


def test_a_graph_is_submitted_and_looked_at(folder: Path) -> None:
    waited = symphony_here("submit", "graph.py", "--wait", "-a", "x=4", folder=folder)
    assert "is accepted; follow it with: symphony logs" in waited.stderr
    assert (waited.stdout, waited.returncode) == ("8\n", 0)
    told = json.loads(symphony_here("submit", "graph.py", "--wait", "--json", folder=folder).stdout)
    assert told["result"] == 42
    number = str(told["job"]["id"])
    listed = symphony_here("jobs", folder=folder).stdout
    assert listed.splitlines()[1].split()[:3] == [number, "double", "done"]
    assert json.loads(symphony_here("jobs", "--json", "-n", "1", folder=folder).stdout)[0]["id"] == int(number)
    assert "double-0" in symphony_here("job", number, folder=folder).stdout
    assert json.loads(symphony_here("job", number, "--json", folder=folder).stdout)["tasks"][0]["status"] == "done"
    assert symphony_here("logs", number, "--follow", folder=folder).stdout.splitlines()[-1].endswith("done")
    assert "double-0  on here/cpu" in symphony_here("explain", number, folder=folder).stdout
    assert json.loads(symphony_here("explain", number, "--json", folder=folder).stdout)["text"]
    assert symphony_here("result", number, folder=folder).stdout == "42\n"
    symphony_here("trace", number, "-o", "x.json", folder=folder)
    assert json.loads((folder / "x.json").read_text())["traceEvents"]
    assert json.loads(symphony_here("trace", number, "--json", folder=folder).stdout)["traceEvents"]
    assert "no file is named" in symphony_here("trace", number, folder=folder).stderr
    assert json.loads(symphony_here("cancel", number, "--json", folder=folder).stdout)["status"] == "done"
    assert symphony_here("cancel", number, folder=folder).stdout == f"job {number} had ended before: done\n"


def test_a_job_ends_at_its_time_limit(folder: Path) -> None:
    late = symphony_here("submit", "graph.py", "--wait", "-a", "x=sleep", "--time", "0.2s", folder=folder)
    assert late.returncode and "job" in late.stderr and "still running after 200 ms, its time limit" in late.stderr
    last = json.loads(symphony_here("jobs", "--json", "-n", "1", folder=folder).stdout)[0]
    assert last["status"] == "failed" and last["time_limit_s"] == 0.2
    wrong = symphony_here("submit", "graph.py", "--time", "soon", folder=folder)
    assert wrong.returncode == 2 and "--time: 'soon' is not a quantity" in wrong.stderr


def test_queues_and_priorities_are_listed_where_there_are_any(folder: Path, here: Place) -> None:
    plain = symphony_here("submit", "graph.py", "--wait", folder=folder)
    assert plain.returncode == 0
    head = symphony_here("jobs", "-n", "1", folder=folder).stdout.splitlines()[0].split()
    assert head == ["job", "name", "status", "tasks", "submitted", "took"]
    urgent = ["--token", here.token("ann", priority=5)]
    symphony_here("submit", "graph.py", "--queue", "night", "--priority", "5", "--wait", *urgent, folder=folder)
    head, last, before = (line.split() for line in symphony_here("jobs", "-n", "2", folder=folder).stdout.splitlines())
    assert head == ["job", "name", "queue", "priority", "status", "tasks", "submitted", "took"]
    assert last[1:6] == ["double", "night", "5", "done", "1/1"] and before[1:5] == ["double", "0", "done", "1/1"]
    told = json.loads(symphony_here("jobs", "-n", "1", "--json", folder=folder).stdout)[0]
    assert (told["queue"], told["priority"]) == ("night", 5)


def test_headings_are_whole_in_a_narrow_terminal() -> None:
    """Names and steps are folded; the rest is too short to be."""
    trains = TrainingView(steps=60, step=26, saved=26, per_s=4.98)
    told = {"user": "root", "name": "resnet-17-again", "queue": "night", "priority": 3, "status": "running"}
    view = JobView(
        id=131,
        accepted_s=time.time(),
        ended_s=None,
        seconds=1.0,
        tasks=1,
        finished=0,
        error=None,
        change=1,
        **told,
        training=trains,
    )
    out = io.StringIO()
    Console(file=out, width=80).print(table([view], everybody=True))
    head = ["job", "name", "user", "queue", "priority", "status", "tasks", "steps", "submitted", "took"]
    assert out.getvalue().splitlines()[0].split() == head


def test_the_same_submission_twice_is_one_job(folder: Path) -> None:
    first, second = (symphony_here("submit", "graph.py", "--key", "k", folder=folder).stdout for _ in range(2))
    assert first == second and first.strip().isdigit()


def test_errors_are_two_lines(folder: Path, here: Place) -> None:
    missing = symphony_here("job", "9999", folder=folder)
    assert missing.stderr.splitlines() == ["error: there is no job 9999", "hint: symphony jobs lists yours"]
    refused = symphony_here("jobs", "--token", "sy_x", folder=folder)
    assert refused.returncode == 2 and "invalid token" in refused.stderr
    assert "--arg" in symphony_here("submit", "graph.py", "-a", "x", folder=folder).stderr


def test_what_a_kernel_raised_comes_with_the_traceback_that_its_hint_promises(folder: Path) -> None:
    failed = symphony_here("submit", "graph.py", "--wait", "-a", "x=bad", folder=folder)
    accepted, error, hint, _, head, *_, last = failed.stderr.splitlines()
    assert "is accepted; follow it with: symphony logs" in accepted
    assert failed.returncode == 2 and "'double' raised LookupError: no such thing" in error and "below" in hint
    assert head.startswith("Traceback") and 'File "graph.py", line 7, in double' in failed.stderr
    assert last == "LookupError: no such thing"


def test_top_shows_devices_users_and_jobs(folder: Path) -> None:
    symphony_here("submit", "graph.py", "--wait", folder=folder)
    shown = symphony_here("top", "--looks", "1", folder=folder).stdout
    assert "here/cpu" in shown and "0/2" in shown and "ann" in shown and " decisions, " in shown and "p50" in shown
    assert json.loads(symphony_here("top", "--json", folder=folder).stdout)["decisions"]["turns"] > 0


def test_profiles_are_shown_and_exported(folder: Path) -> None:
    symphony_here("submit", "graph.py", "--wait", folder=folder)
    assert "ann:graph.double" in symphony_here("profile", folder=folder).stdout
    assert "wrote 1 profiles" in symphony_here("profile", "double", "-o", "mine.json", folder=folder).stdout
    rows = json.loads(symphony_here("profile", "--file", "mine.json", "--json", folder=folder).stdout)
    assert [row["kernel"] for row in rows] == ["ann:graph.double"] and rows[0]["runs"] > 0
    assert symphony_here("profile", "--file", "nowhere.json", folder=folder).returncode == 2
    bad = symphony_here("profile", "--file", "graph.py", folder=folder)
    assert bad.returncode == 2 and "graph.py: it holds no profiles" in bad.stderr and not bad.stdout
    assert "'trouble' in its name" in symphony_here("profile", "trouble", folder=folder).stdout


@pytest.mark.parametrize("file", [".", "nowhere/x.json"])
@pytest.mark.parametrize("command", ["trace {} -o", "explain {} -o", "profile -o"])
def test_a_file_that_cannot_be_written_is_an_error_and_no_traceback(command: str, file: str, folder: Path) -> None:
    number = symphony_here("submit", "graph.py", folder=folder).stdout.strip()
    failed = symphony_here(*command.format(number).split(), file, folder=folder)
    error, hint = failed.stderr.splitlines()
    assert failed.returncode == 2 and error.startswith(f"error: {file}: ") and hint.startswith("hint: name a file")


def test_results_of_several_lines_are_printed_as_lines() -> None:
    assert _text({"files": "a\nb\n", "count": 2}) == "files:\n  a\n  b\ncount:\n  2"
    assert _text(("a\nb\n", "c\n")) == "1:\n  a\n  b\n2:\n  c"
    assert _text({"x": 1}) == "{'x': 1}" and _text("a\nb\n") == "a\nb" and _text((1, 2)) == "(1, 2)"


def test_a_submitted_job_says_how_to_follow_it(folder: Path) -> None:
    done = symphony_here("submit", "graph.py", folder=folder)
    number = done.stdout.strip()
    assert number.isdecimal() and f"follow it with: symphony logs {number} -f" in done.stderr
