"""Control groups, with those of this machine."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from symphony.engines import cgroups
from symphony.engines.cgroups import Cgroup, CgroupTree, open_cgroups
from tests.waiting import has_ended, wait_until


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    found, note = open_cgroups()
    if found is None:
        pytest.skip(note)
    yield found
    found.close()


def _inside(group: Cgroup, *command: str) -> subprocess.Popen[bytes]:
    """Start a program within a group."""
    return subprocess.Popen(["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group.path), *command])


def test_all_processes_of_a_group_end_at_once_also_those_that_fork(tree: CgroupTree, tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0: os.setsid()\n"
        "pathlib.Path(sys.argv[1], str(os.getpid())).touch()\n"
        "time.sleep(3600)"
    )
    leaf = tree.worker("ann", 1, "w0")
    child = _inside(leaf, sys.executable, "-c", script, str(tmp_path))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 16)
    pids = leaf.pids()
    assert len(pids) == 16 and set(pids) == set(tree.job("ann", 1).pids()) and leaf.cpu_s() > 0
    assert leaf.remove() and not leaf.path.exists()
    child.wait()
    assert all(map(has_ended, pids))


def test_groups_are_named_by_user_and_job_and_go_with_the_tree(tree: CgroupTree) -> None:
    leaf = tree.worker("a/../b c", 3, "w1")
    assert leaf.path.parent.parent.parent == tree.root.path and leaf.path.is_dir()
    assert tree.worker("a/../b c", 3, "w1").path == leaf.path
    tree.close()
    assert not tree.root.path.exists()
    assert leaf.pids() == [] and leaf.cpu_s() == 0.0 and math.isnan(leaf.number("memory.max"))
    leaf.kill()
    assert leaf.remove()


def test_groups_of_services_that_were_killed_are_removed_by_the_next(tree: CgroupTree) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    old = Cgroup(tree.root.path.parent / f"{cgroups.JOBS}-{dead.pid}")
    (old.path / "ann").mkdir(parents=True)
    child = _inside(Cgroup(old.path / "ann"), "sleep", "3600")
    wait_until(lambda: child.pid in Cgroup(old.path / "ann").pids())
    cgroups._remove_abandoned(tree.root.path.parent)
    assert not old.path.exists() and child.wait() != 0
    assert tree.root.path.exists()


def test_bounds_are_written_where_there_are_controllers(tree: CgroupTree) -> None:
    job = tree.job("ann", 1)
    job.bound(2e8, 7, 1.5)
    for controller, file, value in (("memory", "memory.max", "199999488"), ("pids", "pids.max", "7")):
        if controller in tree.controllers:
            assert (job.path / file).read_text().strip() == value
        else:
            assert math.isnan(job.number(file))
    if "cpu" in tree.controllers:
        assert (job.path / "cpu.max").read_text().split() == ["150000", "100000"]


def test_without_cgroups_it_is_said_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "own_cgroup", lambda: None)
    assert open_cgroups() == (None, "this system has no cgroups of version 2")
    monkeypatch.setattr(cgroups, "own_cgroup", lambda: tmp_path)
    found, note = open_cgroups()
    assert found is None and "Delegate=yes" in note
