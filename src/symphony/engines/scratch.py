"""Temporary folders that belong to a process. The next process to make one removes those of dead processes."""

from __future__ import annotations

import json
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
            os.kill(json.loads((old / "owner").read_text()), 0)
        except ProcessLookupError:
            abandoned(old)
            shutil.rmtree(old, ignore_errors=True)
        except (OSError, ValueError):  # being created, or of another user
            continue
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    (folder / "owner").write_text(json.dumps(os.getpid()))
    return folder
