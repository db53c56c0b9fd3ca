"""Names as perf has them, and which of them mean one event."""

from __future__ import annotations

import pytest

from symphony.telemetry import architectural
from symphony.telemetry.events import Catalogue, Event
from symphony.telemetry.naming import (
    PRECISION_MODIFIERS,
    PRIVILEGE_MODIFIERS,
    bare,
    common_scope,
    is_software,
    kind,
    node,
)

LISTED = Catalogue("x86/some", (Event("INST", codes=(1,)), Event("MEM.READ", unit="iMC"), Event("OWN:k", codes=(2,))))


def nodes(catalogue: Catalogue, events: list[str]) -> dict[str, str]:
    alike = common_scope(catalogue, events)
    return {event: node(catalogue, event, alike) for event in events}


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
    assert found["cycles:u"] == "cycles" and found["INST:u"] == "inst" and found["r1a2:u"] == "r1a2"


@pytest.mark.parametrize("others", [["cycles:k"], ["inst"], ["cycles"], ["cycles:uk"]])
def test_modifiers_that_differ_tell_events_apart(others: list[str]) -> None:
    found = nodes(LISTED, ["cycles:u", *others])
    assert found["cycles:u"] == "cycles:u" and found[others[0]] == others[0]


def test_how_an_event_is_counted_does_not_tell_it_apart() -> None:
    found = nodes(architectural.CATALOGUE, ["cycles:pp", "instructions", "branches:uP", "branches:uD", "cycles:u"])
    assert found["cycles:pp"] == "cycles" and found["cycles:u"] == "cycles:u"
    assert found["branches:uP"] == found["branches:uD"] == "branch-instructions:u"


def test_every_modifier_says_whose_or_how() -> None:
    """Those of `perf list`: some restrict what is counted, which makes it another quantity; others do not."""
    assert {letter: node(LISTED, f"inst:{letter}") for letter in PRECISION_MODIFIERS} == dict.fromkeys(
        PRECISION_MODIFIERS, "inst"
    )
    whose = [node(LISTED, f"inst:{letter}") for letter in PRIVILEGE_MODIFIERS]
    assert len({*whose, "inst"}) == 1 + len(PRIVILEGE_MODIFIERS) and set(whose) >= {
        "inst:u",
        "inst:k",
        "inst:h",
        "inst:+h",
    }
    assert all(node(LISTED, one) == one == one.lower() and kind(one) == "hardware" for one in whose)
    assert {kind(f"inst:{letter}") for letter in PRIVILEGE_MODIFIERS + PRECISION_MODIFIERS} == {"hardware"}


def test_the_order_of_modifiers_and_repeats_do_not_matter() -> None:
    assert {node(LISTED, f"inst:{some}") for some in ("uk", "ku", "kuu", "ukpp", "Dku")} == {"inst:uk"}
    assert node(LISTED, "cpu_core/cycles/kH") == node(LISTED, "cpu_core/cycles/:Hk") == "cpu_core/cycles/k+h"


@pytest.mark.parametrize("asked", ["cycles:k", "cycles:h", "cycles:uk", "cycles:G", "cpu_atom/cycles/"])
def test_what_is_asked_for_is_not_what_all_have(asked: str) -> None:
    for events in (["cycles", "INST"], ["cycles:u", "INST:u"], ["cpu_core/cycles/", "cpu_core/INST/"]):
        alike = common_scope(LISTED, events)
        assert node(LISTED, asked, alike) != node(LISTED, "cycles", alike) == node(LISTED, events[0], alike) == "cycles"


def test_software_has_modifiers_of_its_own() -> None:
    found = nodes(LISTED, ["cycles:u", "INST:u", "page-faults", "duration_time"])
    assert set(found.values()) == {"cycles", "inst", "page-faults", "duration_time"}
    found = nodes(LISTED, ["task-clock:u", "page-faults:u", "duration_time", "cycles"])
    assert set(found.values()) == {"task-clock", "page-faults", "duration_time", "cycles"}
    assert nodes(LISTED, ["page-faults:u", "page-faults:k"])["page-faults:u"] == "page-faults:u"


def test_two_names_of_one_event() -> None:
    assert nodes(LISTED, ["branches", "cpu/cpu-cycles/u", "cs"]) == {
        "branches": "branch-instructions",
        "cpu/cpu-cycles/u": "cycles:u",
        "cs": "context-switches",
    }
    assert node(Catalogue("x86/own", (Event("branches"),)), "branches") == "branches"


def test_kinds_of_core() -> None:
    assert nodes(LISTED, ["cpu_core/cycles/", "cpu_core/INST/"])["cpu_core/cycles/"] == "cycles"
    both = nodes(LISTED, ["cpu_core/cycles/", "cpu_atom/cycles/"])
    assert both == {"cpu_core/cycles/": "cpu_core/cycles/", "cpu_atom/cycles/": "cpu_atom/cycles/"}


def test_what_a_listing_has_with_modifiers_is_called_so() -> None:
    assert nodes(LISTED, ["own:k", "inst"])["own:k"] == "own:k"


def test_names_are_names_of_themselves() -> None:
    found = nodes(LISTED, ["cycles:u", "cycles:k", "cycles:GI", "cpu/INST/u"])
    assert list(found.values()) == ["cycles:u", "cycles:k", "cycles:+g+i", "inst:u"]
    assert list(nodes(LISTED, list(found.values())).values()) == list(found.values())
