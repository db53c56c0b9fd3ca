"""What was dispatched ends exactly once, whatever an engine says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from symphony.engines import exactly_once
from symphony.engines.engine import DIED, DeviceDown, DeviceUp, Failed, Finished, Function, Pickled, Stopped, Work
from symphony.engines.exactly_once import ExactlyOnceEngine
from tests.engines.by_hand import ByHand
from tests.runtime.machines import machine


@pytest.fixture
def engine() -> ByHand:
    return ByHand(machine(others=1))


def begun(engine: ByHand, *devices: int) -> ExactlyOnceEngine:
    """Work 0, 1, … on these devices."""
    passed = ExactlyOnceEngine(engine)
    value = engine.put(Pickled(b""))
    passed.dispatch([Work(n, device, Function("f", "", value), value) for n, device in enumerate(devices)])
    return passed


def test_what_is_said_twice_is_heard_once(engine: ByHand) -> None:
    passed = begun(engine, 0)
    done = engine.finished(0)
    engine.news = [done, done]
    assert passed.poll(0.0) == [done]
    engine.news = [done]
    assert passed.poll(0.0) == [] and done.value.at in engine.values  # it is still in use


def test_what_an_engine_has_lost_has_stopped(engine: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = begun(engine, 0, 0)
    engine.lost = {1}
    assert passed.poll(0.0) == []  # nobody has looked yet
    monkeypatch.setattr(exactly_once, "CHECK_INTERVAL_S", 0.0)
    assert passed.poll(0.0) == [Stopped(1)]
    assert passed.poll(0.0) == []
    late = engine.finished(1)
    engine.news = [late]
    assert passed.poll(0.0) == [] and late.value.at not in engine.values  # it is made again, by another attempt


def test_all_that_was_on_a_device_has_ended_when_it_goes_down(engine: ByHand) -> None:
    passed = begun(engine, 0, 1)
    down = DeviceDown(1, "for a test")
    engine.news = [down, down, Stopped(1)]
    assert passed.poll(0.0) == [Stopped(1), down]
    engine.news = [DeviceUp(1), DeviceUp(1), Stopped(0)]
    assert passed.poll(0.0) == [DeviceUp(1), Stopped(0)]


def test_what_makes_no_sense_is_heard_as_far_as_it_can_be(engine: ByHand) -> None:
    passed = begun(engine, 0, 0, 0)
    wrong = [replace(engine.finished(0), seconds=math.nan), replace(engine.finished(1), began_s=-math.inf)]
    engine.news = [*wrong, Failed(2, "out of spite", ""), DeviceDown(17, "nobody knows it"), DeviceUp(-1)]
    first, second, third = passed.poll(0.0)
    for event in (first, second):
        assert isinstance(event, Finished) and math.isfinite(event.began_s) and event.seconds == 0.0
    assert isinstance(third, Failed) and third.why == DIED


@pytest.mark.parametrize("busy_s", [-1.0, math.inf])
def test_cpu_time_that_cannot_be_is_not_known(engine: ByHand, busy_s: float) -> None:
    passed = begun(engine, 0)
    engine.news = [replace(engine.finished(0), busy_s=busy_s)]
    [event] = passed.poll(0.0)
    assert isinstance(event, Finished) and math.isnan(event.busy_s)
