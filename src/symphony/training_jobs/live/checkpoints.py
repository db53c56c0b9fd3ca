"""Folders of training jobs: one for each task, for as long as its job is not over.

<root>/<job>/<task>/        what is in it: `training_jobs/training_run.py`
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

from symphony.engines.scratch import scratch
from symphony.problem.errors import InputError
from symphony.training_jobs.training_run import write_whole

log = logging.getLogger("symphony.runtime")
MAX_FOLDER_NAME_CHARS = 60  # characters of a task's name that may be a folder's


class CheckpointFolders:
    """The folders of a cluster.

    `keep`: they stay when a job is over, until `remove`: somebody has to write down its end first. Without, all of them
    are in a new folder, in `root` or where the system keeps such, and go with the cluster.
    """

    def __init__(self, root: Path | None = None, *, keep: bool = False, shared: bool | None = None) -> None:
        if root is not None and not keep:  # a service comes up on a full disk, too, and its runs say so
            _try(root)
        self._parent, self.keep = root, keep
        self._root = root if keep else None
        self._lock = threading.Lock()
        # Whether all machines reach them: they do, if somebody has said where they are.
        self.shared = root is not None if shared is None else shared

    def folder(self, job: int, task: str) -> Path:
        """That of a task."""
        return self._found() / str(job) / safe_folder_name(task)

    def prepare(self, folder: Path, attempt: str) -> None:
        """A new run of a task begins: the folder is its own from now on."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "save").unlink(missing_ok=True)
            write_whole(folder / "attempt", attempt)
        except OSError as error:  # the run will say so, too, where it can be read by the one who asked
            log.warning("%s: %s", folder, error)

    def ask(self, folder: Path, question: int) -> None:
        """Ask the run there for a checkpoint."""
        try:
            write_whole(folder / "save", str(question))
        except OSError as error:
            log.warning("%s: no checkpoint was asked for: %s", folder, error)

    def job_over(self, job: int) -> None:
        """A job is over, and nothing of it runs."""
        if not self.keep:
            self.remove(job)

    def remove(self, job: int) -> None:
        """All of a job, by and by: to remove a large file takes a while."""
        if self._root is not None:
            threading.Thread(target=_remove, args=(self._root / str(job),), daemon=True).start()

    def remove_strays(self, jobs: Collection[int]) -> None:
        """All but those of these jobs."""
        if self._root is None or not self._root.is_dir():
            return
        for path in self._root.iterdir():
            if path.name.isdecimal() and int(path.name) not in jobs:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """The cluster is gone."""
        with self._lock:
            if self._root is not None and not self.keep:
                atexit.unregister(self.close)
                _remove(self._root)
                self._root = None

    def _found(self) -> Path:
        with self._lock:
            if self._root is None:
                atexit.register(self.close)
                if self._parent is None:
                    self._root = scratch(Path(tempfile.gettempdir()), "symphony-training")
                else:  # others' may be of other machines: nobody here knows whether those live
                    self._root = Path(tempfile.mkdtemp(prefix="symphony-training-", dir=self._parent))
            return self._root


def _try(folder: Path) -> None:
    """Refuse a folder in which nothing can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"checkpoints cannot be kept in {folder}: {error.strerror}",
            hint="name a folder that can be written, on a disk with room",
        ) from None


def _remove(folder: Path) -> None:
    """A run that was just killed may still have made a file meanwhile; what is left after that is a stray."""
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def within(given: Path, state: Path) -> Path:
    """The folder of a service with this state within one that others may use, too: the same after every start."""
    known = state / "checkpoints"
    with contextlib.suppress(FileNotFoundError):
        return given / f"symphony-{known.read_text().strip()}"
    state.mkdir(parents=True, exist_ok=True)
    write_whole(known, os.urandom(8).hex())
    return given / f"symphony-{known.read_text().strip()}"


def safe_folder_name(name: str) -> str:
    """A name for a folder: the task's own if it may be one."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_FOLDER_NAME_CHARS]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
