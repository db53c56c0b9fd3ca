"""What runs say of themselves is read with care: whatever is in the file, nobody falls over it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from symphony.training_jobs.live.progress import Progress, Unread, read, saved_before
from symphony.training_jobs.training_run import write_whole

SAID = {"attempt": "a", "began": 2, "step": 5, "saved": 4, "saves": 1, "answered": -1, "at": 1.7e9}


def heard(folder: Path, before: Progress | None = None, now_s: float = 0.0, **said: Any) -> Progress | Unread:
    (folder / "progress").write_text(json.dumps({**SAID, **said}))
    return read(folder, "a", 10, before, now_s)


def test_progress_of_the_present_run_is_read(tmp_path: Path) -> None:
    found = heard(tmp_path)
    assert found == Progress("a", 2, 5, 4, 1, -1, ((0.0, 5),), 0.0)
    assert saved_before(tmp_path, 10) == 4


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, Unread.ABSENT),
        ("", Unread.TORN),
        ('{"attempt": "a", "st', Unread.TORN),
        ("[" * 60_000, Unread.TORN),
        ("\udcff\udcfe", Unread.TORN),
        ("[1, 2]", Unread.NONSENSE),
        (json.dumps({**SAID, "attempt": "older"}), Unread.OTHER_RUN),
        (json.dumps({**SAID, "attempt": None}), Unread.OTHER_RUN),
        (json.dumps({**SAID, "step": -1}), Unread.NONSENSE),
        (json.dumps({**SAID, "step": 11}), Unread.NONSENSE),
        (json.dumps({**SAID, "step": 5.5}), Unread.NONSENSE),
        (json.dumps({**SAID, "step": float("nan")}), Unread.NONSENSE),
        (json.dumps({**SAID, "step": True}), Unread.NONSENSE),
        (json.dumps({**SAID, "saved": "4"}), Unread.NONSENSE),
        (json.dumps({**SAID, "saves": -3}), Unread.NONSENSE),
        (json.dumps({**SAID, "answered": 10**400}), Unread.NONSENSE),
        ('{"attempt": "a"}', Unread.NONSENSE),
    ],
)
def test_anything_else_is_a_reason(tmp_path: Path, content: str | None, why: Unread) -> None:
    if content is not None:
        (tmp_path / "progress").write_bytes(content.encode(errors="surrogateescape"))
    assert read(tmp_path, "a", 10, None, 0.0) is why
    assert saved_before(tmp_path, 10) in (0, 4)


def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    """The loop of a service reads and writes here, and a run may put there what it likes."""
    for name in ("progress", f".save-{os.getpid()}.new"):
        os.mkfifo(tmp_path / name)
    assert read(tmp_path, "a", 10, None, 0.0) is Unread.ABSENT and saved_before(tmp_path, 10) == 0
    write_whole(tmp_path / "save", "3")
    assert (tmp_path / "save").read_text() == "3"


def test_a_run_does_not_lose_steps_unless_it_begins_anew(tmp_path: Path) -> None:
    before = heard(tmp_path)
    assert isinstance(before, Progress)
    assert heard(tmp_path, before, step=4) is Unread.SHRANK and heard(tmp_path, before, saves=0) is Unread.SHRANK
    anew = heard(tmp_path, before, began=0, step=1, saved=0, saves=1)
    assert isinstance(anew, Progress) and anew.step == 1


def test_speed_is_that_of_lately_by_our_own_clock(tmp_path: Path) -> None:
    def after(seconds: int, before_s: float) -> float:
        """After so many looks, of a run with a step every so many seconds."""
        found: Any = None
        for second in range(seconds):
            found = heard(tmp_path, found, float(second), step=2 + int(second / before_s), at=4e9 - second)
        assert len(found.marks) < 20
        return found.per_s

    assert after(100, 13.0) == pytest.approx(1 / 13) and after(50, 60.0) != after(50, 60.0)  # NaN: one mark
    slow = heard(tmp_path, Progress("a", 2, 4, 4, 1, -1, ((0.0, 2), (2.0, 4)), 2.0), 100.0, step=4)
    assert isinstance(slow, Progress) and slow.per_s == pytest.approx(0.02)  # it stands still
