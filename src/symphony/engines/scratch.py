"""Temporary folders that belong to a process. The next process to make one removes those of dead processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def scratch(place: Path, name: str, abandoned: Callable[[Path], object] = lambda folder: None) -> Path:
    """A new folder of this process below `place`, on a file system of this machine.

    `abandoned` is called with each folder of a dead process before it is removed.
    """
    prefix = f"{name}-{os.getuid()}-"
    for old in place.glob(f"{prefix}*"):
        try:
            os.kill(_owner(old), 0)
        except ProcessLookupError:
            abandoned(old)
            shutil.rmtree(old, ignore_errors=True)
        except (OSError, ValueError, OverflowError):  # being created, or of another user
            continue
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    (folder / "owner").write_text(str(os.getpid()))
    return folder


def _owner(folder: Path) -> int:
    """The process that a folder belongs to. Any user may make such a folder, with a named pipe in it: this must not
    wait for that.
    """
    descriptor = os.open(folder / "owner", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(f"{folder} is of another user")
        return int(os.read(descriptor, 32))
    finally:
        os.close(descriptor)
