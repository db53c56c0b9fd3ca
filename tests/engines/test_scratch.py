"""Temporary folders: those of dead processes go, and nothing that others put there is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from symphony.engines.scratch import scratch


def dead() -> str:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return str(ended.pid)


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    old, mine = scratch(tmp_path, "a"), scratch(tmp_path, "a")
    (old / "owner").write_text(dead())
    gone: list[Path] = []
    new = scratch(tmp_path, "a", gone.append)
    assert gone == [old] and set(tmp_path.iterdir()) == {mine, new}


@pytest.mark.parametrize("owner", ["", "nobody", "9" * 30, "-1", None])
def test_what_others_make_there_stops_nobody(owner: str | None, tmp_path: Path) -> None:
    strange = tmp_path / f"a-{os.getuid()}-x"
    strange.mkdir()
    if owner is None:
        os.mkfifo(strange / "owner")
    else:
        (strange / "owner").write_text(owner)
    (tmp_path / f"a-{os.getuid()}-y").symlink_to(strange)
    assert scratch(tmp_path, "a").is_dir() and strange.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_folders_of_other_users_are_left_alone(tmp_path: Path) -> None:
    old = scratch(tmp_path, "a")
    (old / "owner").write_text(dead())
    os.chown(old / "owner", 65_534, -1)
    scratch(tmp_path, "a", lambda folder: pytest.fail(str(folder)))
    assert old.is_dir()
