"""Folders of training jobs: there while a job is not over, and gone after it."""

from __future__ import annotations

import logging
import subprocess
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import symphony as sy
from symphony.engines.engine import Engine, Function, Stored, Work
from symphony.problem.errors import InputError
from symphony.runtime.cluster import Cluster
from symphony.runtime.graph import submission
from symphony.runtime.jobs import JobState
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders, within
from symphony.training_jobs.live.progress import Progress
from symphony.training_jobs.live.supervisor import TrainingSupervisor
from tests.waiting import wait_until


def test_a_cluster_of_this_process_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first, second = CheckpointFolders(tmp_path), CheckpointFolders(tmp_path)
    folders = [one.folder(1, "train-0") for one in (first, second)]
    assert folders[0] != folders[1] and all(folder.is_relative_to(tmp_path) for folder in folders)  # both have a job 1
    first.prepare(folders[0], "a")
    assert (folders[0] / "attempt").read_text() == "a"
    first.job_over(1)
    wait_until(lambda: not folders[0].parent.exists())
    first.prepare(folders[0], "b")
    first.close()
    second.close()
    assert not list(tmp_path.iterdir())


def test_a_run_is_taken_to_be_where_the_one_before_has_saved_until_it_says_more(tmp_path: Path) -> None:
    graph = sy.graph("g")
    graph.task(sy.training(steps=10, name="t")(lambda job: None))
    [run] = JobState(1, submission(graph), [Stored("", 1)], 0).runs
    found = CheckpointFolders(tmp_path, keep=True)
    saving = TrainingSupervisor(Engine, found, lambda run: None)  # type: ignore[arg-type]
    work = Work(3, 0, Function("", "", Stored("", 1)), run.arguments, ())
    begun = saving.begin(run, work)
    assert run.progress is None and begun.resumes is not None and begun.resumes.attempt == run.token
    Path(run.folder, "progress").write_text('{"saved": 4}')
    saving.begin(run, replace(work, number=4))
    assert run.progress == Progress(run.token, 4, 4, 4) and run.token != begun.resumes.attempt


def test_where_machines_reach_no_folder_in_common_nothing_trains() -> None:
    graph = sy.graph("g")
    graph.task(sy.training(steps=10, device="gpu", name="t")(lambda job: None))
    for shared, machines in ((False, "gpu24"), (True, "gpu24"), (False, "machine")):
        place = SimpleNamespace(topology=sy.topology(machines), _checkpoints=CheckpointFolders(shared=shared))
        refused = not shared and len(place.topology.machines) > 1
        with pytest.raises(sy.InfeasibleError, match="all machines reach") if refused else nullcontext():
            Cluster._check_folder(place, [call.kernel for call in submission(graph).calls], "g")  # type: ignore[arg-type]


def test_what_a_process_has_left_behind_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = CheckpointFolders().folder(1, "t").parents[1]
    (left / "owner").write_text(str(gone.pid))
    mine = CheckpointFolders()
    other = CheckpointFolders()
    folders = [one.folder(1, "t").parents[1] for one in (mine, other)]
    assert not left.exists() and all(folder.is_dir() for folder in folders)
    mine.close()
    other.close()


def test_that_of_a_service_stays_until_it_is_told(tmp_path: Path) -> None:
    kept = CheckpointFolders(tmp_path / "training", keep=True, shared=False)
    kept.remove_strays([])  # there is nothing yet
    for job in (3, 4, 5):
        kept.prepare(kept.folder(job, "train-0"), "a")
    (tmp_path / "training" / "notes").mkdir()  # somebody else's
    kept.job_over(3)
    kept.close()
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == ["3", "4", "5", "notes"]
    kept.remove(3)
    kept.remove_strays([5])
    wait_until(lambda: not (tmp_path / "training" / "3").exists())
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == ["5", "notes"]


def test_names_of_tasks_do_not_lead_elsewhere(tmp_path: Path) -> None:
    kept = CheckpointFolders(tmp_path, keep=True)
    names = ["train-0", "../../etc", "..", "a/b", "a_b", "é" * 200, "x" * 200, "x" * 201]
    folders = [kept.folder(1, name) for name in names]
    assert len(set(folders)) == len(names) and folders[0].name == "train-0"
    assert all(folder.parent == tmp_path / "1" and len(folder.name) < 100 for folder in folders)


def test_services_that_share_a_folder_do_not_share_jobs(tmp_path: Path) -> None:
    mine, others = (within(tmp_path / "shared", tmp_path / name) for name in ("ann", "bob"))
    assert mine != others and within(tmp_path / "shared", tmp_path / "ann") == mine


def test_a_new_run_is_asked_anew(tmp_path: Path) -> None:
    kept = CheckpointFolders(tmp_path, keep=True)
    folder = kept.folder(1, "t")
    kept.prepare(folder, "a")
    kept.ask(folder, 7)
    assert (folder / "save").read_text() == "7"
    kept.prepare(folder, "b")
    assert not (folder / "save").exists()
    kept.ask(tmp_path / "nowhere", 8)  # it is logged


def test_where_nothing_can_be_written_the_run_will_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    kept = CheckpointFolders(tmp_path / "file", keep=True)
    with caplog.at_level(logging.WARNING, "symphony.runtime"):
        kept.prepare(kept.folder(1, "t"), "a")
    assert str(kept.folder(1, "t")) in caplog.text
    kept.remove_strays([])


def test_a_folder_in_which_nothing_can_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    with pytest.raises(InputError, match=f"checkpoints cannot be written to {file}: File exists") as refused:
        CheckpointFolders(file)
    assert "name a writable folder" in refused.value.hint
