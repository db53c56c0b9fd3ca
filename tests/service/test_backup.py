"""Backups of a service that runs, and what is restored from them."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import symphony as sy
from symphony.service import backup as backups
from symphony.service.audit import read_audit
from symphony.service.backup import backup, restore
from symphony.service.client import RemoteCluster
from symphony.service.database import open_database
from symphony.service.journal import replay
from tests.cli.command import symphony_here
from tests.service.kernels import add, note, one, wait_for, zeros
from tests.service.places import SECONDS, place, postgres, wait_until

LARGE = 40_000  # numbers, which are too many for the journal


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.mark.parametrize(("source", "target"), [("", ""), ("server", ""), ("", "other_server")])
def test_a_backup_of_a_running_service_continues_elsewhere(
    source: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before, after = (request.getfixturevalue(name) if name else "" for name in (source, target))
    ran, go, file = tmp_path / "ran", tmp_path / "go", tmp_path / "backup.tar"
    graph = sy.graph("two halves")
    first = graph.task(note, str(ran), "first", graph.task(add, np.arange(LARGE)))
    graph.task(note, str(ran), "second", graph.task(wait_for, str(go), first))
    with place(tmp_path / "state", before) as here, here.connect("ann") as ann:
        token = here.token("ann")
        done = ann.submit(one(zeros, LARGE))
        assert len(done.result(SECONDS)) == LARGE
        job = ann.submit(graph)
        wait_until(lambda: job.detail().tasks[2].status == "running")
        made = backup(before, tmp_path / "state", file)
        assert made.jobs == 2 and made.blobs >= 2 and made.blob_bytes >= 2 * 8 * LARGE
        assert [entry.action for entry in read_audit(here.service.database)][-1] == "backed-up"
        assert ann.submit(one(add, 1)).result(SECONDS) == 1  # which the backup does not have
    assert file.stat().st_mode & 0o777 == 0o600
    assert restore(after, tmp_path / "restored", file) == made
    with place(tmp_path / "restored", after) as there, RemoteCluster(there.server.url, token) as ann:
        assert len(ann.job(done.id).result(SECONDS)) == LARGE
        go.touch()
        assert ann.job(job.id).result(SECONDS) == "second"
        assert there.service.state.jobs[job.id].deaths == 0  # nothing has crashed
        with pytest.raises(sy.UnknownJobError):
            ann.job(job.id + 1)
        assert "restored" in [entry.action for entry in read_audit(there.service.database)]
        there.token("more")  # rows are numbered on
    assert ran.read_text() == "first\nsecond\n"


def test_backups_beside_submissions_are_consistent(tmp_path: Path) -> None:
    """Each holds the journal of one moment, and every blob that this names."""
    enough = Event()
    with place(tmp_path / "state") as here, here.connect("ann") as ann, ThreadPoolExecutor(1) as threads:

        def submit() -> int:
            count = 0
            while not enough.is_set():
                ann.submit(one(add, np.full(LARGE, count))).result(SECONDS)
                count += 1
            return count

        submitting = threads.submit(submit)
        sizes = []
        for number in range(4):
            wait_until(lambda: here.service.state.last_job > (sizes[-1] if sizes else 0))
            sizes.append(backup("", tmp_path / "state", tmp_path / f"{number}.tar").jobs)
        enough.set()
        assert submitting.result(SECONDS) > 0
        assert not list((tmp_path / "state").glob("backup-*"))
    assert sizes == sorted(sizes)
    for number in range(4):
        found = restore("", tmp_path / f"restored{number}", tmp_path / f"{number}.tar")
        database = open_database("", tmp_path / f"restored{number}")
        again = replay(database)
        assert not again.damaged and len(again.state.jobs) == found.jobs
        database.dispose()


def test_a_blob_that_is_removed_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path / "state") as here, here.connect("ann") as ann:
        ann.submit(one(add, np.arange(LARGE), 1)).result(SECONDS)
        copy, copies = backups._copy_journal, []

        def then_removed(engine, target) -> None:
            copy(engine, target)
            copies.append(target)
            if len(copies) == 1:  # the sweep comes between the journal and the blobs
                with sqlite3.connect(tmp_path / "state" / "journal.sqlite") as connection:
                    (gone,) = connection.execute("SELECT min(digest) FROM blobs").fetchone()
                    connection.execute("DELETE FROM blobs WHERE digest = ?", (gone,))
                here.service.blobs.remove(gone)

        monkeypatch.setattr(backups, "_copy_journal", then_removed)
        made = backup("", tmp_path / "state", tmp_path / "b.tar")
    assert len(copies) == 2 and made.blobs == 1


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with place(tmp_path / "state") as here, here.connect("ann") as ann:
        ann.submit(one(add, np.arange(LARGE))).result(SECONDS)
    return tmp_path / "state"


def test_a_damaged_backup_is_refused_and_no_journal_is_made(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    backup("", state, file)
    whole = file.read_bytes()
    with tarfile.open(file) as archive:
        places = {entry.name.split("/")[0]: entry.offset_data for entry in archive}
    for name in ("journal.sqlite", "blobs", "backup.json"):
        at = places[name] + 200
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(sy.DataError, match=r"not an intact backup|format"):
            restore("", tmp_path / name, file)
        assert not (tmp_path / name / "journal.sqlite").exists()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(sy.DataError, match="not an intact backup"):
        restore("", tmp_path / "half", file)


def test_names_from_outside_are_refused(state: Path, tmp_path: Path) -> None:
    for name in ("../outside", "/outside", "blobs/aa/../../outside", "link"):
        file = tmp_path / "evil.tar"
        with tarfile.open(file, "w") as archive:
            entry = tarfile.TarInfo(name)
            if name == "link":
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
        with pytest.raises(sy.DataError, match="does not belong"):
            restore("", tmp_path / "restored", file)
    assert not (tmp_path / "outside").exists()


def test_nothing_is_overwritten(state: Path, tmp_path: Path, server: str) -> None:
    file = tmp_path / "b.tar"
    backup("", state, file)
    with pytest.raises(sy.InputError, match="exists already"):
        backup("", state, file)
    with pytest.raises(sy.InputError, match="no such file"):  # before it is told that the folder is in use
        restore("", state, tmp_path / "no.tar")
    with pytest.raises(sy.InputError, match="a journal already") as refused:
        restore("", state, file)
    assert "--state" in refused.value.hint
    with pytest.raises(sy.InputError, match="no such file"):
        restore("", tmp_path / "new", tmp_path / "none.tar")
    restore(server, tmp_path / "pg", file) if not _tables_in_use(server, tmp_path) else None
    with pytest.raises(sy.InputError, match="is not empty"):
        restore(server, tmp_path / "pg2", file)


def _tables_in_use(url: str, folder: Path) -> bool:
    database = open_database(url, folder)
    used = bool(replay(database).state.events)
    database.dispose()
    return used


def test_the_commands(state: Path, tmp_path: Path) -> None:
    made = symphony_here("backup", "b.tar", "--state", str(state), folder=tmp_path)
    assert made.returncode == 0 and "1 jobs" in made.stdout
    done = symphony_here("restore", "b.tar", "--state", "r", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["jobs"] == 1 and (tmp_path / "r" / "journal.sqlite").exists()
    assert symphony_here("backup", "b.tar", "--state", "none", folder=tmp_path).returncode == 2
