"""Training jobs as submissions: over the wire, through restarts of the service, as programs, and for people to see."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

import symphony as sy
from symphony.engines.engine import Stored
from symphony.runtime.graph import submission
from symphony.runtime.jobs import JobState
from symphony.service import graphs, tables
from symphony.service.graph_file import load
from symphony.service.journal import read_events
from symphony.service.running import AdmittedJob, JobRunner
from symphony.service.service import Limits
from symphony.service.state import ACCEPTED, ENDED, JournalEvent, State
from symphony.service.wire import KernelSpec, Submit, TrainingSpec
from symphony.training_jobs.live.progress import Progress
from symphony.training_jobs.live.speed_beliefs import JobKind
from symphony.training_jobs.options import Training
from tests.cli.command import symphony_here
from tests.service.kernels import count, one, wait_for
from tests.service.places import SECONDS, Place, place, wait_until

PROGRAM = """
import os, pathlib, sys, time

folder, begin, steps = pathlib.Path(os.environ["SYMPHONY_FOLDER"]), int(os.environ["SYMPHONY_STEP"]), 6
notes = pathlib.Path(sys.argv[1])
(notes / f"{begin}-{os.getpid()}").touch()
for step in range(begin + 1, int(os.environ["SYMPHONY_STEPS"]) + 1):
    (folder / "step").write_text(str(step))
    if step == 3:
        (folder / "saved").write_text("3")
        while not begin:
            time.sleep(0.01)
print(f"from {begin}, rank {os.environ['SYMPHONY_RANK']} of {os.environ['SYMPHONY_SIZE']}")
"""
TOML = """
name = "program"

[[task]]
name = "train"
command = [{python}, {program}, {notes}]
[task.training]
steps = 6
kind = "resnet"
"""
CALL = """
name = "function"

[[task]]
name = "train"
call = "tests.service.test_training:called"
args = [2]
kwargs = { more = 3 }
[task.training]
steps = 4
"""


def called(job, start, more):
    """Of the file above."""
    return start + more + sum(job.steps())


def test_a_function_of_a_file_trains(tmp_path: Path) -> None:
    (tmp_path / "graph.toml").write_text(CALL)
    assert load(str(tmp_path / "graph.toml"), {}).run() == 15


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("served") / "state") as found:
        yield found


def test_a_program_trains_and_goes_on_after_it_was_killed(served: Place, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "notes").mkdir()
    words = {"python": sys.executable, "program": str(tmp_path / "train.py"), "notes": str(tmp_path / "notes")}
    (tmp_path / "graph.toml").write_text(TOML.format(**{name: json.dumps(word) for name, word in words.items()}))
    with served.connect("ann") as ann:
        job = ann.submit(load(str(tmp_path / "graph.toml"), {}))

        def saved() -> bool:
            told = job.view().training
            return told is not None and told.saved == 3

        wait_until(saved)
        [run] = served.service.running.admitted[job.id].state.runs
        assert run.kernel.options.training == Training(6, "resnet") and run.folder.endswith(
            f"training/{job.id}/train-0"
        )
        [program] = (tmp_path / "notes").glob("0-*")
        [process] = [slot.worker.pid for slot in _slots(served) if slot.work]
        os.kill(process, signal.SIGKILL)  # the one that runs the program, which ends with it
        assert job.result(SECONDS) == "from 3, rank 0 of 1\n"
        wait_until(lambda: not Path(f"/proc/{program.name[2:]}").exists())
        assert "train-0  6 of 6 steps; saved once, lost once; resumed from step 3" in job.explain()
        wait_until(lambda: not list(Path(run.folder).parents[1].iterdir()))


def _slots(served: Place) -> list[Any]:
    """Those of the local engine behind all that stands before it."""
    engine: Any = served.service.cluster._engine
    while not hasattr(engine, "_slots"):
        engine = engine._engine
    return engine._slots


def test_a_job_that_trains_shows_how_far_it_is_and_leaves_nothing_when_cancelled(
    served: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_URL", served.server.url)
    monkeypatch.setenv("SYMPHONY_TOKEN", served.token("bob"))

    def command(*words: str) -> str:
        return symphony_here(*words, folder=tmp_path).stdout

    with served.connect("bob") as bob:
        job = bob.submit(one(count, str(tmp_path)))
        wait_until(lambda: (told := job.view().training) is not None and told.step == 34)
        folder = Path(served.service.running.admitted[job.id].state.runs[0].folder)
        assert (folder / "checkpoint-30").exists()
        listed = command("jobs")
        assert "34/400" in listed, listed
        shown = command("job", str(job.id))
        assert "34/400, 30 saved" in " ".join(shown.split()), shown
        [found] = json.loads(command("jobs", "--json"))
        assert (found["training"]["steps"], found["training"]["saved"]) == (400, 30)
        assert "34 of 400 steps; saved once" in command("explain", str(job.id))
        job.cancel()
        job.wait(SECONDS)
        wait_until(lambda: not folder.parent.exists())
        told = job.view().training
        assert told is not None and (told.step, told.saved) == (34, 30)


def test_one_who_drains_asks_all_that_trains_to_save(served: Place) -> None:
    @sy.training(steps=10)
    def waits(job):
        import time

        job.reached(7)
        while True:
            time.sleep(0.005)
            if job.save_now:
                job.save("what there is")

    with served.connect("ann") as ann:
        job = ann.submit(one(waits))
        wait_until(lambda: (told := job.view().training) is not None and told.step == 7 and not told.saved)
        assert not served.service.drain(0.0)
        wait_until(lambda: (told := job.view().training) is not None and told.saved == 7)
        served.service.draining = served.service.running.paused = False  # others are yet to use it
        job.cancel()
        job.wait(SECONDS)


def test_what_is_stopped_for_others_saves_first_and_the_journal_says_so(served: Place) -> None:
    @sy.training(steps=10)
    def goes_on(job):
        import time

        if job.began:
            return job.began
        job.reached(7)
        while True:
            time.sleep(0.005)
            if job.save_now:
                job.save("what there is")

    with served.connect("dora") as dora:
        job = dora.submit(one(goes_on))
        wait_until(lambda: (told := job.view().training) is not None and told.step == 7)
        [run] = served.service.running.admitted[job.id].state.runs
        loop = served.service.cluster._loop
        served.service.cluster._loop.post(lambda: loop.saving.stop(run))  # as when a policy preempts it
        assert job.result(SECONDS) == 7
        assert "returned after 7 of 10 steps; saved once, stopped once; resumed from step 7" in job.explain()
        assert any("it resumes from step 7" in line.text for line in job.logs().lines)
        first, second = job.detail().tasks[0].runs
        assert (first.ended, first.step, first.saves, second.began_step) == ("stopped", 7, 1, 7)
        assert job.view().seconds == pytest.approx((first.seconds or 0.0) + (second.seconds or 0.0))


def test_options_go_over_the_wire_and_come_out_the_same(served: Place) -> None:
    training = Training(5, "bert", 1, 32, 1e8, 6e8, 2.0, 3.0, 60.0)
    kernel = sy.training(steps=5, workers=3, servers=1, device="cpu")(lambda job: None)
    kernel.options = replace(kernel.options, training=training)
    with served.connect("ann") as ann:
        sent = Submit.model_validate_json(ann._body(submission(one(kernel)), {}))
    found = graphs.submission(sent.graph, "ann", served.service.blobs).calls[0].kernel
    assert found.options == kernel.options and graphs.steps(sent.graph) == 5
    plain = sy.kernel(lambda: None)
    with served.connect("ann") as ann:
        old = json.loads(ann._body(submission(one(plain)), {}))
    assert "training" not in old["graph"]["kernels"][0]  # older services do not know of it
    assert KernelSpec.model_validate(old["graph"]["kernels"][0]).training is None


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({}, "steps"),
        ({"steps": 5, "operations": float("nan")}, "operations"),
        ({"steps": 5, "parameters": 1e19}, "parameters"),
        ({"steps": 5, "checkpoint_s": float("inf")}, "checkpoint_s"),
        ({"steps": 5, "step": 1}, "step"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as refused:
        TrainingSpec.model_validate(wrong)
    assert refused.value.errors()[0]["loc"] == (field,)
    lines = "\n".join(f"{name} = {value}" for name, value in wrong.items())
    (tmp_path / "g.toml").write_text(
        f'name = "g"\n[[task]]\nname = "t"\ncommand = ["true"]\n[task.training]\n{lines}\n'
    )
    with pytest.raises(sy.WorkloadError, match=rf"task 't', training: .*{field}"):
        load(str(tmp_path / "g.toml"), {})


def test_steps_are_those_of_all_that_trains_in_a_graph_whoever_runs_them() -> None:
    graph = sy.graph("g")
    for _ in range(3):
        graph.task(sy.training(steps=10, name="t")(lambda job: None))
    state = JobState(1, submission(graph), [Stored("", 1)] * 3, 0)
    done, runs, _ = state.runs
    done.value, done.progress = Stored("", 1), Progress("", 0, 8, 3)  # it returned after 8 steps
    runs.number, runs.progress = 5, Progress("", 2, 6, 4, marks=((0.0, 2), (8.0, 6)), read_s=8.0)
    accepted = {"user": "ann", "name": "g", "queue": "", "priority": 0, "tasks": 4, "outputs": [0], "names": []}
    kept = State()
    kept.apply(JournalEvent(1, 0.0, 1, ACCEPTED, -1, 0.0, {**accepted, "key": "", "digest": "", "steps": 45}))
    running = SimpleNamespace(admitted={1: AdmittedJob(state, (1, 2, 3), [])}, steps_before={1: {0: 14, 2: 3, 3: 5}})
    assert JobRunner.stepped(running, kept.jobs[1]) == (14 + 8 + 6 + 5, 14 + 8 + 4 + 5, 0.5)
    running.admitted.clear()
    assert JobRunner.stepped(running, kept.jobs[1]) == (14 + 3 + 5, 14 + 3 + 5, 0.0)


def test_a_job_that_returns_early_says_so_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a restart between its tasks, which the journal has to tell of."""

    @sy.training(steps=20)
    def early(job):
        for step in job.steps():
            if step == 14:
                return step

    @sy.training(steps=5)
    def waits(job, before, path):
        import pathlib
        import time

        for _ in job.steps():
            while not pathlib.Path(path).exists():
                time.sleep(0.01)
        return before

    graph, go = sy.graph("early"), tmp_path / "go"
    graph.task(waits, graph.task(early), str(go))
    with place(tmp_path / "state") as served, served.connect("ann") as ann:
        job = ann.submit(graph).id
        wait_until(lambda: ann.job(job).detail().tasks[1].status == "running")
        told = ann.job(job).view().training
        assert told is not None and (told.step, told.saved) == (14, 14)
        assert "early-0  returned after 14 of 20 steps; never saved" in ann.job(job).explain()
    with place(tmp_path / "state") as served, served.connect("ann") as ann:
        go.touch()
        assert ann.job(job).result(SECONDS) == 14
        found = ann.job(job).detail()
        for view, steps, step in zip((found.job, *found.tasks), (25, 20, 5), (19, 14, 5), strict=True):
            assert view.training is not None
            assert (view.training.steps, view.training.step, view.training.saved) == (steps, step, step)
        monkeypatch.setenv("SYMPHONY_URL", served.server.url)
        monkeypatch.setenv("SYMPHONY_TOKEN", served.token("ann"))
        shown = symphony_here("job", str(job), folder=tmp_path).stdout.splitlines()
        assert "  19/25  " in shown[1] and "  14/20  " in shown[3] and "  5/5  " in shown[4]
        assert "early-0  returned after 14 of 20 steps" in symphony_here("explain", str(job), folder=tmp_path).stdout


def test_one_that_waits_after_a_restart_has_done_what_it_has_saved(tmp_path: Path) -> None:
    """Though no run of it is in the journal, nor in the hands of the new service."""

    @sy.training(steps=9)
    def saves(job):
        import time

        for step in job.steps():
            job.save(step)
            while step == 4:
                time.sleep(0.01)

    with place(tmp_path / "state") as served, served.connect("ann") as ann:
        job = ann.submit(one(saves)).id
        wait_until(lambda: (told := ann.job(job).view().training) is not None and told.saved == 4)
        with sy.connect(served.server.url, token=served.token("bob", priority=5)) as bob:
            before = bob.submit(one(wait_for, str(tmp_path / "go")), priority=5).id
    with place(tmp_path / "state", limits=Limits(at_once=1)) as served, served.connect("ann") as ann:
        assert list(served.service.running.admitted) == [before]
        found = ann.job(job).detail()
        for told in (found.job.training, found.tasks[0].training):
            assert told is not None and (told.step, told.saved, told.runs) == (4, 4, False)
        ann.job(job).cancel()
        ended = ann.job(job).view()
        assert ended.status == "cancelled" and ended.training is not None and ended.training.step == 4
        (tmp_path / "go").touch()


def test_programs_of_two_scripts_are_of_two_kinds(tmp_path: Path) -> None:
    commands = [["python", "-u", "a.py", "--rate", "1"], ["python", "a.py"], ["python", "b.py"], ["./train"]]
    commands.append(["sh", "-c", "one\ntwo"])
    tasks = [
        f'[[task]]\nname = "t{n}"\ncommand = {json.dumps(words)}\n[task.training]\nsteps = 5\n'
        for n, words in enumerate(commands)
    ]
    (tmp_path / "g.toml").write_text('name = "g"\n' + "".join(tasks))
    kinds = [JobKind.of(call.kernel).name for call in submission(load(str(tmp_path / "g.toml"), {})).calls]
    assert kinds[:4] == ["toml.python a.py", "toml.python a.py", "toml.python b.py", "toml../train"]
    assert re.fullmatch("toml.sh [0-9a-f]{12}", kinds[4])  # a name, whatever the program is


def test_more_servers_than_workers_are_refused(tmp_path: Path, served: Place) -> None:
    lines = 'name = "g"\n[[task]]\nname = "t"\ncommand = ["true"]\n[task.training]\nsteps = 5\nservers = 1\n'
    (tmp_path / "g.toml").write_text(lines)
    with pytest.raises(sy.WorkloadError, match="1 of 1 workers are parameter servers") as refused:
        load(str(tmp_path / "g.toml"), {})
    assert "task 't'" in refused.value.where and "more workers" in refused.value.hint


def test_a_journal_from_before_there_were_training_jobs_is_read(tmp_path: Path) -> None:
    state = State()
    data = {"user": "ann", "name": "g", "queue": "", "priority": 0, "tasks": 1, "outputs": [0], "names": []}
    state.apply(JournalEvent(1, 5.0, 1, ACCEPTED, -1, 0.0, {**data, "key": "", "digest": "d"}))
    state.apply(JournalEvent(2, 6.0, 1, ENDED, -1, 0.0, {"status": "done", "error": None}))
    assert state.jobs[1].view().training is None


def test_the_journal_says_what_became_of_the_steps(served: Place, tmp_path: Path) -> None:
    @sy.training(steps=5)
    def quick(job):
        return sum(job.steps())

    with served.connect("carl") as carl:
        job = carl.submit(one(quick))
        assert job.result(SECONDS) == 15
        events = list(read_events(served.service.database, job.id))
        assert events[0].data["steps"] == 5 and events[-1].data["step"] == 5
        [run] = job.detail().tasks[0].runs
        assert (run.began_step, run.step) == (0, 5)
        rows = tables.payloads
        with served.service.database.begin() as connection:  # as it was before there were training jobs
            connection.execute(sa.update(rows).where(rows.c.job == job.id).values(shape='[["quick-0", "quick", []]]'))
        assert job.detail().tasks[0].training is None and "quick-0" in job.explain()
