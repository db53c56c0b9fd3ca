"""Gangs as single pieces of work, on the local engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.engines import gangs
from symphony.engines.engine import DIED, RAISED, DeviceDown, Failed, Stopped, Work
from symphony.engines.gangs import GangEngine, gang_engine
from symphony.engines.local import LocalEngine
from tests.engines.gang_kernels import meet, misses_the_other, one_breaks, wait
from tests.engines.ray.driving import Driver
from tests.runtime.machines import machine


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver(gang_engine(LocalEngine(machine(others=2))))  # the two are devices 1 and 2
    yield driver
    driver.engine.close()


def gang(driver: Driver, function: Any, *args: Any) -> Work:
    return replace(driver.work(function, *args), device=1, others=(2,))


def all_there(driver: Driver, folder: Path) -> None:
    driver.until(lambda: len(list(folder.iterdir())) == 2)


def test_a_gang_ends_once_with_what_rank_0_returns(driver: Driver, tmp_path: Path) -> None:
    work = gang(driver, meet, str(tmp_path))
    [event] = driver.run(work)
    assert driver.value(event) == "0 of 2"
    driver.engine.free(event.value)
    assert not driver.engine._gangs and not driver.engine._of


def test_if_one_of_a_gang_fails_the_others_are_stopped(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gangs, "PEER_EXIT_GRACE_S", 0.01)
    [event] = driver.run(gang(driver, one_breaks, str(tmp_path)))  # rank 0 would wait for an hour
    assert isinstance(event, Failed) and (event.why, event.message) == (RAISED, "rank 1 does not like it")


def test_who_raises_because_another_was_killed_is_not_to_blame(driver: Driver, tmp_path: Path) -> None:
    [event] = driver.run(gang(driver, misses_the_other, str(tmp_path)))
    assert isinstance(event, Failed) and (event.why, event.signal) == (DIED, signal.SIGKILL)


@pytest.mark.parametrize("how", ["cancel", "preempt"])
def test_a_gang_stops_as_a_whole(driver: Driver, tmp_path: Path, how: str) -> None:
    work = gang(driver, wait, str(tmp_path))
    driver.engine.dispatch([work])
    all_there(driver, tmp_path)
    getattr(driver.engine, how)(work.number)
    assert driver.ends(work) == [Stopped(work.number)]


def test_a_device_is_down_when_its_gangs_have_left_all_of_theirs(tmp_path: Path) -> None:
    local = LocalEngine(machine(others=2))
    driver, said = Driver(GangEngine(local)), []
    try:
        work = gang(driver, wait, str(tmp_path))
        driver.engine.dispatch([work])
        all_there(driver, tmp_path)
        local._give_up(2, "somebody pulled it out")
        while len(said) < 2:
            said += driver.engine.poll(1.0)
        assert said == [Stopped(work.number), DeviceDown(2, "somebody pulled it out")]
    finally:
        driver.engine.close()


def test_an_engine_that_takes_gangs_whole_is_an_engine_like_any_other(driver: Driver) -> None:
    assert gang_engine(driver.engine) is driver.engine
    sy.testing.check_engine(driver.engine)
