"""Service, core and a simulated engine, with everything going wrong that can: a few fixed seeds.

`make faults` runs fresh ones; `properties.py` and `world.py` say what is checked.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from symphony.engines import gangs
from symphony.service import journal
from symphony.service.journal import read_events
from symphony.service.running import MAX_DEATHS
from symphony.service.state import FINISHED, JournalEvent, ServiceJob
from tests.open_files import open_files
from tests.whole_system.faults import Faults
from tests.whole_system.properties import may_fail
from tests.whole_system.runs import run
from tests.whole_system.world import GROWS, World

SEEDS = [seed for seed in range(16) if seed % GROWS != GROWS - 1]  # compiling takes longer than all of them
POLICY = "eft-belief"  # one that is compiled anyway
EVERYTHING = Faults(
    lose=0.03,
    delay=0.2,
    double=0.1,
    killed=0.03,
    hang=0.1,
    inputs_lost=0.05,
    values_lost=0.05,
    device=0.05,
    death=0.03,
    disk_full=0.05,
    clock=0.1,
    slow_disk=0.1,
    answer_lost=0.05,
    kill=0.002,
    policy=0.1,
    taken=0.02,
    damage=0.1,
    since_s=1_000.0,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_properties_hold(tmp_path: Path, seed: int) -> None:
    run(seed, tmp_path, policy=POLICY)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_all_properties_hold_whatever_the_policy_does(tmp_path: Path, seed: int) -> None:
    run(seed, tmp_path, policy="chaos")


def test_a_run_leaves_no_file_open(tmp_path: Path) -> None:
    """Ten thousand of them in one process had as many open as a process may have."""
    for seed in SEEDS[:2]:
        run(seed, tmp_path / str(seed), policy=POLICY)
    gc.collect()
    assert not open_files(tmp_path)


def test_a_run_follows_from_its_seed(tmp_path: Path) -> None:
    """With every kind of fault: whatever looked at another clock, or at a random number of its own, would show."""

    def journal(folder: Path) -> list:
        world = run(8, folder, EVERYTHING, POLICY)
        assert world.service is not None and world.starts > 1
        return list(read_events(world.service.database))

    assert journal(tmp_path / "once") == journal(tmp_path / "again")


def test_news_that_got_lost_is_missed_without_the_one_who_looks_after_it(tmp_path: Path) -> None:
    with (
        mock.patch.object(gangs, "ExactlyOnceEngine", lambda engine: engine),
        pytest.raises(AssertionError, match=r"seed 0: every job ends: .* will not(.|\n)*again: .* --first 0"),
    ):
        run(0, tmp_path, Faults(lose=0.3, since_s=1_000.0), POLICY)


def test_a_kernel_that_runs_twice_is_noticed(tmp_path: Path) -> None:
    """Which it does if a service does not read, when it starts, what had finished."""

    def forgetful(*about: Any, **more: Any) -> Iterator[JournalEvent]:
        return (event for event in read_events(*about, **more) if event.kind != FINISHED)

    with (
        mock.patch.object(journal, "read_events", forgetful),
        pytest.raises(AssertionError, match=r"comes to rest|journalled once|replay of the journal"),
    ):
        for seed in range(5):
            run(seed, tmp_path / str(seed), Faults(kill=0.02, since_s=1_000.0), POLICY)


def test_a_job_may_fail_after_one_that_failed_however_often_the_service_was_started(tmp_path: Path) -> None:
    world = World(0, tmp_path, Faults(stop=0.05, since_s=1_000.0), POLICY)
    first, second = world.wanted[:2]
    second.after, world.starts = [first], MAX_DEATHS + 1
    with mock.patch.object(world, "_is_vain", lambda one: one is first):
        assert may_fail("JobError", second, world)
        assert not may_fail("JobError", first, world)  # nothing has ended the service but its operator


def test_a_job_that_was_not_committed_may_get_another_number_in_the_next_service(tmp_path: Path) -> None:
    def job(number: int, name: str, done: set[int]) -> ServiceJob:
        return ServiceJob(number, "ann", name, "", 0, 1, (0,), (), 0.0, done=done)

    world = World(0, tmp_path, Faults(), POLICY)
    with mock.patch.object(world, "service") as service:
        service.state.jobs = {1: job(1, "job0", set())}
        world._check_new("job0/0")
        service.state.jobs = {1: job(1, "job1", {0}), 2: job(2, "job0", set())}
        world._check_new("job0/0")
