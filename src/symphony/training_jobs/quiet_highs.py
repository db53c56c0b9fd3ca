"""HiGHS, quiet: its integer solver prints a line for its authors now and then, whatever it is told about output.

What is printed while a solver runs goes to a file; then all but those lines is written where it was meant to go, so
that nothing of what others print in the meantime is lost. One solver at a time: a process has one stdout.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

STDOUT = 1
STRAY_PREFIX = b"HighsMipSolverData::"
_one_at_a_time = Lock()


@contextmanager
def without_stray_lines() -> Iterator[None]:
    """Keep HiGHS' stray lines off stdout. Where there is no stdout, or no POSIX, nothing is done."""
    with _one_at_a_time:
        try:
            meant = os.dup(STDOUT) if os.name == "posix" else -1
        except OSError:
            meant = -1
        if meant < 0:
            yield
            return
        library = ctypes.CDLL(None)  # what C has printed may be in its buffer
        with tempfile.TemporaryFile() as file:
            library.fflush(None)
            os.dup2(file.fileno(), STDOUT)
            try:
                yield
            finally:
                library.fflush(None)
                os.dup2(meant, STDOUT)
                os.close(meant)
                file.seek(0)
                others = b"".join(line for line in file if not line.startswith(STRAY_PREFIX))
                while others:
                    others = others[os.write(STDOUT, others) :]
