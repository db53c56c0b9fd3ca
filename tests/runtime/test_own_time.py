"""What the simulator is told of the loop's own time is what it does not charge already."""

from __future__ import annotations

import pytest

from symphony.runtime.own_time import OwnTime


@pytest.mark.parametrize("decisions, charged", [(0, 0.0), (1, 0.4), (4, 0.25)])
def test_what_the_simulator_charges_for_decisions_is_no_handling(decisions: int, charged: float) -> None:
    """It makes them one after another: of four that were made together, a start waits for two and a half."""
    own_time = OwnTime()
    own_time.heard(10.0)
    own_time.decided(decisions, 10.2, 10.6)
    assert own_time.handling_s(11.0) == pytest.approx(1.0 - charged)
    own_time.heard(12.0)
    assert own_time.handling_s(12.5) == pytest.approx(0.5)


def test_a_kernel_that_ends_while_others_are_decided_on_is_not_charged_for_that() -> None:
    own_time = OwnTime()
    own_time.heard(10.0)
    own_time.decided(3, 10.0, 10.4)
    own_time.decided(0, 10.4, 10.5)  # nothing was decided, and the simulator charges nothing
    own_time.decided(1, 10.6, 10.8)
    own_time.heard(11.0)
    assert own_time.unheard_s(10.3) == pytest.approx(0.7 - 0.1 - 0.2)
    assert own_time.unheard_s(10.9) == pytest.approx(0.1)
    own_time.decided(1, 11.0, 12.0)  # after the news came
    assert own_time.unheard_s(10.9) == pytest.approx(0.1)
