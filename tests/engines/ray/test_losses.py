"""Machines that go and come back, devices that others hold, actors that do not start."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symphony as sy
from symphony.engines.engine import LOST, DeviceDown, DeviceUp, Failed, Stopped, Stored, Work

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")

import ray

from symphony.engines.ray import RayEngine, machines
from tests.engines.ray.driving import Driver, Input
from tests.engines.ray.kernels import Broken, double, sleep_until


def test_a_machine_that_goes_takes_its_work_along_and_may_come_back(nodes: Any, tmp_path: Path) -> None:
    engine = RayEngine()
    lost = 1
    driver = Driver(engine)
    try:
        array = np.arange(100_000.0)
        made, kept = driver.run(driver.work(double, array, device=lost), driver.work(double, 3, device=lost))
        gate, mark = tmp_path / "gate", tmp_path / "mark"
        running = driver.work(sleep_until, str(gate), str(mark), device=lost)
        waiting = driver.work(double, 1, device=lost)
        engine.dispatch([running, waiting])
        driver.until(mark.exists)
        nodes.kill("m2")
        assert driver.ends(running, waiting) == [Stopped(running.number), Stopped(waiting.number)]
        driver.until(lambda: driver.devices)
        [down] = driver.devices
        assert isinstance(down, DeviceDown) and down.device == lost and "m2 is gone" in down.why
        late = driver.work(double, 1, device=lost)
        assert driver.run(late) == [Stopped(late.number)]

        def read(value: Stored) -> Work:
            return driver.work(double, Input(), device=0, inputs=(value,))

        gone, small = driver.run(read(made.value), read(kept.value))
        assert isinstance(gone, Failed) and gone.why == LOST and "with the machine" in gone.message
        assert driver.value(small) == 12  # small values are with us
        with pytest.raises(sy.EngineError, match="with the machine that stored it"):
            engine.get(made.value)

        nodes.add("m2", num_cpus=1)
        driver.until(lambda: len(driver.devices) == 2)
        assert driver.devices[1] == DeviceUp(lost)
        assert driver.value(driver.run(driver.work(double, 5, device=lost))[0]) == 10
        assert engine.inventory() == engine.inventory()
    finally:
        engine.close()


def _as_soon_as_one_comes_up(monkeypatch: pytest.MonkeyPatch) -> RayEngine:
    """An engine that waits for its actors no longer than it takes one to start here: seconds, on a busy machine."""
    for seconds in (2.0, 6.0, 18.0):
        monkeypatch.setattr("symphony.engines.ray.slots.ACTOR_START_TIMEOUT_S", seconds)
        with suppress(sy.EngineError):
            return RayEngine()
    monkeypatch.setattr("symphony.engines.ray.slots.ACTOR_START_TIMEOUT_S", 60.0)
    return RayEngine()


def test_a_device_whose_resources_others_hold_comes_up_when_they_let_go(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = machines.discovered({"m2": machines.machines()["m2"]})
    first = RayEngine(topology=only)
    monkeypatch.setattr("symphony.engines.ray.slots.ACTOR_START_TIMEOUT_S", 2.0)
    try:
        with pytest.raises(sy.EngineError, match=r"no device could be started.*other work may hold"):
            RayEngine(topology=only)
        second = _as_soon_as_one_comes_up(monkeypatch)
        try:
            assert any("is down: its actor did not start" in note for note in second.notes)
            driver = Driver(second)
            first.close()
            driver.until(lambda: DeviceUp(1) in driver.devices)
            assert [type(event) for event in driver.devices if event.device == 1] == [DeviceDown, DeviceUp]
            assert driver.value(driver.run(driver.work(double, 5, device=1))[0]) == 10
        finally:
            second.close()
    finally:
        first.close()


def test_a_device_whose_actor_cannot_start_is_an_error(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony.engines.ray.slots.ACTOR", ray.remote(Broken))
    only = machines.discovered({"m2": machines.machines()["m2"]})
    with pytest.raises(sy.EngineError, match="failed to start 3 times in a row"):
        RayEngine(topology=only)


def test_an_engine_that_is_closed_says_so_and_lets_go_of_its_machines(nodes: Any) -> None:
    only = machines.discovered({"m2": machines.machines()["m2"]})
    for _ in range(2):  # the second could not start if the first still held the CPU
        engine = RayEngine(topology=only)
        engine.close()
        engine.close()
    with pytest.raises(sy.EngineError, match="closed"):
        engine.poll(0)
    engine.wake()  # does no harm
    assert ray.is_initialized()  # it was not the engine's to shut down
