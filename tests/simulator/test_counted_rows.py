"""Which rows have a counter, and for how much of a window."""

from __future__ import annotations

import numpy as np
import pytest

import symphony as sy
from symphony.simulator.counted_rows import DOMAIN_NAMES, SLICES_PER_WINDOW, domains, unseen

MACHINE = sy.topology("machine")
ROWS = [row.name for row in MACHINE.resources]


def test_each_row_has_a_domain() -> None:
    found = dict(zip(ROWS, domains(MACHINE), strict=True))
    assert found["host/s0/memory"] == found["host/s0/cache"] == ("uncore", "host/s0")
    assert found["host/s1/memory"] == ("uncore", "host/s1")
    assert found["host/xeon-0/compute"] == ("core", "host/xeon-0")
    assert found["host/v100-0/compute"] == found["host/v100-0/device_memory"] == ("device", "host/v100-0")
    assert found["host/v100-0/link"] == found["host/s0/sw0"] == ("pcie", "host")
    assert found["host/nic"] == ("nic", "host")
    assert {name for name, _ in found.values()} < set(DOMAIN_NAMES)


def test_rows_share_the_counters_of_their_domain() -> None:
    one = dict(zip(ROWS, unseen(MACHINE, 1, ()), strict=True))
    assert one["host/s0/memory"] == pytest.approx(
        3 / SLICES_PER_WINDOW - 1 / SLICES_PER_WINDOW
    )  # cache and interconnect
    assert one["host/nic"] == 0
    two = dict(zip(ROWS, unseen(MACHINE, 2, ()), strict=True))
    assert two["host/s0/memory"] == pytest.approx(0.5 / SLICES_PER_WINDOW)
    assert (unseen(MACHINE, None, ()) == 0).all() and (unseen(MACHINE, 100, ()) == 0).all()


def test_domains_without_counters() -> None:
    hidden = np.isinf(unseen(MACHINE, 1, ("pcie", "device")))
    kinds = {row.kind for row, none in zip(MACHINE.resources, hidden, strict=True) if none}
    assert kinds == {"compute", "device_memory", "link", "switch"}
    assert not hidden[ROWS.index("host/xeon-0/compute")]
