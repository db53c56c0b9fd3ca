"""Names as perf has them, and which of them mean one event."""

from __future__ import annotations

import pytest

from symphony.telemetry import architectural
from symphony.telemetry.events import Catalogue, Event
from symphony.telemetry.naming import bare, is_software, nodes, whole

LISTED = Catalogue("x86/some", (Event("INST", codes=(1,)), Event("MEM.READ", unit="iMC"), Event("OWN:k", codes=(2,))))


def test_without_what_perf_adds() -> None:
    assert [bare(name) for name in ("cycles:u", "cpu/cycles/", "cpu_core/cycles/uk", "cpu_atom/inst/:u")] == [
        "cycles",
        "cycles",
        "cycles",
        "inst",
    ]
    assert bare("cpu/event=0x3c,umask=0x1/u") == "cpu/event=0x3c,umask=0x1/u"
    assert bare("sched:sched_switch") == "sched:sched_switch"
    assert is_software("task-clock:u") and not is_software("cycles:u")


def test_modifiers_that_all_have_say_nothing() -> None:
    found = nodes(LISTED, ["cycles:u", "INST:u", "mem.read", "task-clock", "r1a2:u"])
    assert found["cycles:u"] == "cycles" and found["inst:u"] == "inst" and found["r1a2:u"] == "r1a2"


@pytest.mark.parametrize("others", [["cycles:k"], ["inst"], ["cycles"], ["cycles:uk"]])
def test_modifiers_that_differ_tell_events_apart(others: list[str]) -> None:
    found = nodes(LISTED, ["cycles:u", *others])
    assert found["cycles:u"] == "cycles:u" and found[others[0]] == others[0]


def test_how_an_event_is_counted_does_not_tell_it_apart() -> None:
    found = nodes(architectural.CATALOGUE, ["cycles:pp", "instructions", "branches:uP", "branches:uD", "cycles:u"])
    assert found["cycles:pp"] == "cycles" and found["cycles:u"] == "cycles:u"
    assert found["branches:up"] == found["branches:ud"] == "branches:u"


def test_kinds_of_core() -> None:
    assert nodes(LISTED, ["cpu_core/cycles/", "cpu_core/INST/"])["cpu_core/cycles/"] == "cycles"
    both = nodes(LISTED, ["cpu_core/cycles/", "cpu_atom/cycles/"])
    assert both == {"cpu_core/cycles/": "cpu_core/cycles/", "cpu_atom/cycles/": "cpu_atom/cycles/"}


def test_what_a_listing_has_with_modifiers_is_called_so() -> None:
    assert nodes(LISTED, ["own:k", "inst"])["own:k"] == "own:k"


def test_names_are_names_of_themselves() -> None:
    names = ["cycles:u", "cycles:k", "cpu/INST/u"]
    found = nodes(LISTED, names)
    assert found["inst:u"] == "inst:u" and {nodes(LISTED, found)[name] for name in found} == set(found.values())
    assert whole("cpu/INST/upp") == "inst:u" and whole("cpu_atom/cycles/") == "cpu_atom/cycles/"
