"""Waiting for what another thread or process does: as long as it takes, and only in a test that fails for minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 240.0  # more than anything takes that works, also where eight other programs want the same two cores


def wait_until(holds: Callable[[], Found], what: str = "it never came to that") -> Found:
    """What `holds` returns as soon as that is true."""
    gives_up_s = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < gives_up_s, what
        time.sleep(0.005)
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is over; one that its parent has not waited for is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
