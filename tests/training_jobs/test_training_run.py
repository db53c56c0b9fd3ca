"""The handle of a training function: what it saves is there for the next run, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symphony.training_jobs import training_run
from symphony.training_jobs.training_run import TrainingRun


def run(folder: Path, attempt: str = "a", **options: Any) -> TrainingRun:
    (folder / "attempt").write_text(attempt)
    return TrainingRun(folder, attempt, **{"steps": 10, **options})


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "progress").read_text())


def trained(job: TrainingRun, until: int, every: int = 2) -> list[int]:
    """Goes on until a step, at which it is killed; saves the steps that it has gone."""
    gone = job.restore() or []
    for step in job.steps():
        gone = [*gone, step]
        if step % every == 0:
            job.save(gone)
        if step == until:
            break
    return gone


def test_a_run_goes_on_after_the_step_that_was_saved_last(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first.restore() is None and first.began == 0
    assert trained(first, 5) == [1, 2, 3, 4, 5]
    second = run(tmp_path, "b")
    assert second.began == 4 and trained(second, 10) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert second.restore() == [1, 2, 3, 4]  # what it began with is still there
    last = told(tmp_path)
    assert (last["attempt"], last["began"], last["step"], last["saved"], last["saves"]) == ("b", 4, 10, 10, 3)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-10",
        "checkpoint-4",
        "checkpoint-8",
    ]
    assert list(run(tmp_path, "c").steps()) == []


def test_the_step_in_which_it_returns_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run.time, "monotonic", lambda: 100.0)  # too early to tell of any step
    job = run(tmp_path)
    trained(job, 5, every=20)
    assert told(tmp_path)["step"] == 0
    job.returned()
    assert (told(tmp_path)["step"], told(tmp_path)["saved"]) == (5, 0)
    whole = run(tmp_path, "b")
    trained(whole, 20)
    whole.returned()
    assert told(tmp_path)["step"] == 10
    silent = run(tmp_path, "c")
    silent.returned()
    assert told(tmp_path)["step"] == 10  # those that were done before it


@pytest.mark.parametrize("spoilt", ["cut", "changed", "empty", "not a pickle"])
def test_a_checkpoint_that_cannot_be_read_falls_back_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoilt: str
) -> None:
    trained(run(tmp_path), 5)
    newest = tmp_path / "checkpoint-4"
    whole = newest.read_bytes()
    newest.write_bytes(
        {"cut": whole[:-30], "changed": b"x" + whole[1:], "empty": b"", "not a pickle": b"weights"}[spoilt]
    )
    job = run(tmp_path, "b")
    assert job.began == 2 and job.restore() == [1, 2]
    assert "the checkpoint of step 4 cannot be read" in capsys.readouterr().err
    (tmp_path / "checkpoint-2").write_bytes(b"")
    assert run(tmp_path, "c").began == 0


def test_what_this_machine_cannot_unpickle_is_kept_for_another(tmp_path: Path) -> None:
    job = run(tmp_path)
    job.reached(3)
    job.save(0)
    checkpoint = tmp_path / "checkpoint-3"
    body = b"cno_such_module\nthing\n."
    tail = (
        len(body).to_bytes(8, "little")
        + training_run.zlib.crc32(body).to_bytes(4, "little")
        + training_run.CHECKPOINT_MAGIC
    )
    checkpoint.write_bytes(body + tail)
    assert run(tmp_path, "b").began == 0 and checkpoint.exists()
    again = run(tmp_path, "c")
    again.reached(2)
    assert again.save("from the beginning") and not checkpoint.exists()  # of a history that was given up
    assert run(tmp_path, "d").restore() == "from the beginning"


def test_it_saves_when_it_is_asked_and_when_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(training_run.time, "monotonic", lambda: now[0])
    job = run(tmp_path, every_s=60.0)
    assert not job.save_now and told(tmp_path)["answered"] == -1
    now[0] += 61.0
    assert job.save_now and job.save(1) and not job.save_now
    (tmp_path / "save").write_text("7")
    now[0] += 1.0
    assert job.save_now and job.save(2)
    assert told(tmp_path)["answered"] == 7 and not job.save_now  # though the question is still there
    now[0] += 1.0
    assert not job.save_now
    other = run(tmp_path, "a", rank=1, size=2)
    (tmp_path / "save").write_text("8")
    assert not other.save_now and not other.save("not rank 0's")


def test_a_full_disk_costs_a_checkpoint_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = run(tmp_path)
    job.reached(3)
    assert job.save("three")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(training_run.os, "fsync", lambda _: (_ for _ in ()).throw(full))
    job.reached(5)
    assert not job.save("five") and "no checkpoint was written at step 5" in capsys.readouterr().err
    monkeypatch.undo()
    assert told(tmp_path)["saved"] == 3 and run(tmp_path, "b").restore() == "three"
    assert not list(tmp_path.glob(".*.new"))


def test_what_cannot_be_pickled_is_the_fault_of_the_function(tmp_path: Path) -> None:
    class Own:
        """Of no module: cloudpickle takes it."""

        value = 3

    job = run(tmp_path)
    assert job.save(Own()) and run(tmp_path, "a").restore() is None  # at step 0 there is nothing to go on from
    with pytest.raises(TypeError, match=r"job\.save: a value of type generator cannot be pickled: .*; save arrays"):
        job.save(step for step in ())


def test_a_run_that_was_given_up_does_not_write_over_its_successor(tmp_path: Path) -> None:
    old = run(tmp_path)
    old.reached(4)
    run(tmp_path, "b")
    with pytest.raises(RuntimeError, match="abandoned"):
        old.save("stale")
    with pytest.raises(RuntimeError, match="abandoned"):
        old.saved(4)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_all_workers_begin_where_rank_0_does(tmp_path: Path) -> None:
    trained(run(tmp_path), 5)
    job = run(tmp_path, "b", size=3, servers=1)
    job.reached(6)
    job.save([1, 2, 3, 4, 5, 6])  # before the others have come
    others = [run(tmp_path, "b", rank=rank, size=3, servers=1) for rank in (1, 2)]
    assert [other.began for other in others] == [4, 4] and others[0].restore() == [1, 2, 3, 4]
    assert [one.is_server for one in (job, *others)] == [False, False, True]


def test_own_checkpoints_only_have_to_be_told_of(tmp_path: Path) -> None:
    job = run(tmp_path)
    job.reached(6)
    (job.folder / "mine").write_text("weights")
    job.saved(5)
    assert (told(tmp_path)["step"], told(tmp_path)["saved"]) == (6, 5)
    again = run(tmp_path, "b")
    assert again.began == 5 and again.restore() is None
    assert next(again.steps(1)) == 1 and told(tmp_path)["began"] == 0  # what it saved was no good
    (tmp_path / "saved").write_text("")  # torn: by its own words, then
    job = run(tmp_path, "c")
    job.saved(5)
    (tmp_path / "saved").write_text("nonsense")
    assert run(tmp_path, "d").began == 5


def test_a_folder_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="--checkpoints"):
        TrainingRun(tmp_path / "elsewhere")
