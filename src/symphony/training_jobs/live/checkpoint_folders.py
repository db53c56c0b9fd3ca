"""Folders of training jobs: one for each task, until its job has ended.

<root>/<job>/<task>/        contents: see `training_jobs/training_run.py`
"""

from __future__ import annotations

import atexit
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
MAX_FOLDER_NAME_CHARS = 60


class CheckpointFolders:
    """The folders of a cluster.

    `keep`: a folder stays after the end of its job until `remove`, so that the end can be recorded first. Otherwise all
    folders are in a new temporary folder, in `root` if given, which is removed with the cluster. `shared`: whether all
    machines can access the folders; by default, if `root` is given.
    """

    def __init__(self, root: Path | None = None, *, keep: bool = False, shared: bool | None = None) -> None:
        if root is not None and not keep:  # a service must start on a full disk too; its runs report the problem
            _check_writable(root)
        self._parent, self.keep = root, keep
        self._root = root if keep else None
        self._lock = threading.Lock()
        self.shared = root is not None if shared is None else shared

    def folder(self, job: int, task: str) -> Path:
        """The folder of a task."""
        return self._root_folder() / str(job) / safe_folder_name(task)

    def prepare(self, folder: Path, attempt: str) -> None:
        """Make the folder belong to a new run of its task."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "save").unlink(missing_ok=True)
            write_whole(folder / "attempt", attempt)
        except OSError as error:  # the run fails with the same problem, which its user sees
            log.warning("%s: %s", folder, error)

    def ask(self, folder: Path, request: int) -> None:
        """Request a checkpoint from the run in a folder."""
        try:
            write_whole(folder / "save", str(request))
        except OSError as error:
            log.warning("%s: the checkpoint request could not be written: %s", folder, error)

    def job_over(self, job: int) -> None:
        """A job has ended, and none of its tasks runs."""
        if not self.keep:
            self.remove(job)

    def remove(self, job: int) -> None:
        """Remove the folders of a job in the background, because removing large files takes time."""
        if self._root is not None:
            threading.Thread(target=_remove, args=(self._root / str(job),), daemon=True).start()

    def remove_strays(self, jobs: Collection[int]) -> None:
        """Remove the folders of all other jobs."""
        if self._root is None or not self._root.is_dir():
            return
        for path in self._root.iterdir():
            if path.name.isdecimal() and int(path.name) not in jobs:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove the temporary folder."""
        with self._lock:
            if self._root is not None and not self.keep:
                atexit.unregister(self.close)
                _remove(self._root)
                self._root = None

    def _root_folder(self) -> Path:
        with self._lock:
            if self._root is None:
                atexit.register(self.close)
                if self._parent is None:
                    self._root = scratch(Path(tempfile.gettempdir()), "symphony-training")
                else:  # not `scratch`: it removes folders of dead processes, and those here may be of other machines
                    self._root = Path(tempfile.mkdtemp(prefix="symphony-training-", dir=self._parent))
            return self._root


def _check_writable(folder: Path) -> None:
    """Raise InputError if no file can be written in a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"checkpoints cannot be written to {folder}: {error.strerror}",
            hint="name a writable folder, on a disk with free space",
        ) from None


def _remove(folder: Path) -> None:
    """Remove a folder; tried again, because a run that was just killed may have written a file meanwhile."""
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def within(shared: Path, state: Path) -> Path:
    """The folder of one service inside a shared one. Its name is kept in the state folder."""
    name = state / "checkpoints"
    if not name.exists():
        state.mkdir(parents=True, exist_ok=True)
        write_whole(name, os.urandom(8).hex())
    return shared / f"symphony-{name.read_text().strip()}"


def safe_folder_name(name: str) -> str:
    """The name of a task's folder: the task's name if it is valid, else a similar one with a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_FOLDER_NAME_CHARS]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
