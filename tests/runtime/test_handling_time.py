"""What the simulator is told of the loop's own time is what it does not charge already, and what a slot waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from symphony.engines.engine import Finished, Stored
from symphony.runtime.handling_time import HandlingTime
from symphony.runtime.jobs import Attempt


@pytest.mark.parametrize("decisions, charged", [(0, 0.0), (1, 0.4), (4, 0.25)])
def test_what_the_simulator_charges_for_decisions_is_no_handling(decisions: int, charged: float) -> None:
    """It makes them one after another: of four that were made together, a start waits for two and a half."""
    own_time = HandlingTime(1)
    own_time.events_received(10.0)
    own_time.turn_taken(decisions, 0.4)
    assert own_time.handling_s(11.0) == pytest.approx(1.0 - charged)
    own_time.events_received(12.0)
    assert own_time.handling_s(12.5) == pytest.approx(0.5)


def run(sent_s: float, ready_s: float, ahead: bool, handled_s: float) -> Any:
    attempt = Attempt(("d",), sent_s, 1.0, 0.0, ahead, handled_s=handled_s)
    return SimpleNamespace(attempts=[attempt], ready_s=ready_s)


def finished(began_s: float, ended_s: float) -> Finished:
    return Finished(0, Stored(None, 0), began_s, ended_s - began_s)


def test_a_slot_that_was_free_has_waited_for_us_and_for_messages() -> None:
    own_time = HandlingTime(1)
    own_time.events_received(3.5)  # the kernel ended at 3.2, when we were busy
    held_s = own_time.held_s(run(1.0, 0.9, False, handled_s=0.3), 0, finished(1.2, 3.2))
    assert held_s == pytest.approx(0.3 + 0.2 + 0.3)


def test_what_was_sent_ahead_follows_the_one_before_it() -> None:
    """Our handling of it was done while that ran."""
    own_time = HandlingTime(2)
    own_time.events_received(4.0)
    own_time.held_s(run(1.0, 0.0, False, handled_s=0.3), 0, finished(1.1, 3.0))
    own_time.held_s(run(1.0, 0.0, False, handled_s=0.3), 1, finished(1.1, 3.04))  # another device
    assert own_time.held_s(run(2.0, 0.0, True, 0.3), 0, finished(3.05, 3.5)) == pytest.approx(0.05)
    assert own_time.held_s(run(2.0, 3.8, True, 0.3), 0, finished(3.9, 4.0)) == pytest.approx(0.1)  # it was not ready
