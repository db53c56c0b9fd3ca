"""Changes: what is added where, in which words, and what is refused."""

from __future__ import annotations

import pytest

from symphony.counterfactuals.change import Addition, Change, addition, devices_of, extended
from symphony.problem.errors import InputError
from symphony.problem.topologies import topology
from tests.runtime.machines import machine


def test_devices_are_added_with_their_own_rows_on_copies_of_machines() -> None:
    base = machine(others=2)
    more = extended(base, [Addition(3, "big"), Addition(1, "here")])
    added = more.devices[len(base.devices) :]
    assert [device.kind for device in added] == ["big"] * 3 + ["small", "big", "big"]
    assert len({device.machine for device in added}) == 3  # two devices, one, and a whole machine
    assert not {hop.resource for device in added for hop in device.route} & {row.name for row in base.resources}
    paper = extended(topology("paper"), [addition("2 × k80")])
    assert paper.kind_counts["k80"] == topology("paper").kind_counts["k80"] + 2


def test_a_change_is_named_in_words_and_mistakes_with_what_to_type() -> None:
    change = Change("heft", ("node-1",), (addition("2×v100"), addition("p100")), priority={7: 3})
    words = ["policy heft", "without node-1", "with 2 more v100", "with 1 more p100", "with priority 3 for job 7"]
    assert str(change) == " and ".join(words) and str(Change()) == "as it is"
    for wrong in ("0×v100", "99999×v100", "", "2×"):
        with pytest.raises(InputError, match="K×KIND") as error:
            addition(wrong)
        assert "2×v100" in error.value.hint
    with pytest.raises(InputError, match="'her'") as error:
        devices_of(machine(), ["her"], "--without")
    assert "here" in error.value.hint
    with pytest.raises(InputError, match="'bigg'") as error:
        extended(machine(others=1), [Addition(1, "bigg")])
    assert "big" in error.value.hint
