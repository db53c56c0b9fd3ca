"""What is asked for, and how it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.problem.errors import InputError
from symphony.telemetry import architectural, event_selection, gate
from symphony.telemetry.event_selection import (
    core_device,
    default_selection,
    expand,
    lay_out,
    select_events,
    split_names,
)
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.naming import kind
from symphony.telemetry.reading import Model
from tests.telemetry.demo import DEMO, PARTS, SHARES, recording

MODEL = Model(DEMO)


def test_lists_as_perf_takes_them() -> None:
    assert split_names(["a,b", "{c,d}:W,e:u"]) == ("a", "b", "c", "d", "e:u")
    assert split_names(["cpu/event=0x3c,umask=0x1/u,b", "b"]) == ("cpu/event=0x3c,umask=0x1/u", "b")
    assert split_names(["{cpu/a,b/,c}", " d , e "]) == ("cpu/a,b/", "c", "d", "e")
    assert split_names([]) == split_names([""]) == ()
    for wrong in ("{a", "a}", "{{a}}", "cpu/a"):
        with pytest.raises(InputError, match="not a list of events"):
            split_names([wrong])


def test_each_kind_of_core_has_its_own_counters() -> None:
    """The listing of a hybrid CPU states no counters of a core as such."""
    events = tuple(
        Event(f"{unit[4]}{n}", unit, codes=(n,))
        for unit, size in (("cpu_core", 8), ("cpu_atom", 6))
        for n in range(size)
    )
    listed = Catalogue("x86/hybrid", events, pmus=(Pmu("cpu_core", 8, 4), Pmu("cpu_atom", 6, 3)))
    names = [event.name for event in events]
    assert sorted(map(len, lay_out(Model(listed), names).groups)) == [6, 8]
    assert max(map(len, lay_out(Model(listed), names, reserved=1).groups)) == 7
    assert max(map(len, lay_out(Model(listed), names, reserved=1, counters=3).groups)) == 3


def test_modifiers_make_no_tracepoint() -> None:
    assert {kind(f"cycles:{modifier}") for modifier in ("G", "D", "S", "I", "uk", "ppp")} == {"hardware"}


def test_who_counts() -> None:
    assert [
        kind(name) for name in ("cycles:u", "task-clock", "sched:sched_switch", "psi.cpu.some_us", "gpm.sm_busy_us")
    ] == [
        "hardware",
        "software",
        "software",
        "kernel",
        "gpu",
    ]


def test_what_metrics_need_is_counted() -> None:
    found = select_events(MODEL, ["TOP.BACK", "task-clock", "psi.cpu.some_us"], ["front", "speed"])
    assert found.nodes == ("top.back", "top.front", "top.slots", "inst_retired.any")
    assert found.plain == ("task-clock",) and found.metrics == ("front", "speed")
    assert found.of("kernel") == ("psi.cpu.some_us",)


@pytest.mark.parametrize(
    "name",
    ["cycles", "top.back:u", "r1a2", "slots", "cpu/event=0x1/", "branch-misses", "topdown-retiring", "nvml.busy_us"],
)
def test_events_that_there_are(name: str) -> None:
    assert select_events(MODEL, [name], []).events == (name,)


def test_modifiers_are_asked_of_perf() -> None:
    found = select_events(MODEL, ["cycles:u", "cycles:k", "TOP.BACK:u", "top.back:k", "top.front:G"], [])
    assert found.nodes == ("cycles:u", "cycles:k", "top.back:u", "top.back:k", "top.front:+g")
    layout = lay_out(MODEL, found.nodes, pmu_device="cpu", spelled=found.spelled)
    words = {word for group in layout.in_words for word in group}
    assert {"cycles:u", "cycles:k", "top.front:G"} <= words
    assert any(word.endswith("name=top.back_u/u") for word in words)
    assert any(word.endswith("name=top.back_k/k") for word in words)
    fixed = select_events(MODEL, ["inst_retired.any:u", "top.back:u"], []).nodes
    assert "cpu/event=0xc0,name=inst_retired.any_u/u" in {
        word for group in lay_out(MODEL, fixed, pmu_device="cpu").in_words for word in group
    }


def test_names_that_there_are_not() -> None:
    with pytest.raises(InputError, match=r"x86/demo has no event cycle\b") as caught:
        select_events(MODEL, ["cycle"], [])
    assert "did you mean cycles" in caught.value.hint
    with pytest.raises(InputError, match="has no metric Topdown"):
        expand(DEMO, ["TopdownL9"])
    assert expand(DEMO, ["topdownl1", "FRONT"]) == SHARES


def test_defaults() -> None:
    model, found = default_selection(MODEL)
    assert model is MODEL and found.metrics == SHARES and found.events == event_selection.DEFAULT_SOFTWARE_EVENTS
    general, found = default_selection(Model(Catalogue("x86/plain", (Event("a"),))))
    assert general.catalogue is architectural.CATALOGUE and "ipc" in found.metrics and "cycles" in found.nodes


def test_everything_is_counted_until_it_is_known_what_holds() -> None:
    nodes = (*PARTS, "top.slots")
    first = lay_out(MODEL, nodes, pmu_device="cpu")
    assert first.audit and not first.derived
    assert {event for group in first.groups for event in group} == {*nodes, "inst_retired.any"}
    verdicts = gate.check_identities(MODEL.claims(nodes), recording(100))
    second = lay_out(MODEL, nodes, verdicts, pmu_device="cpu")
    assert not second.audit and second.derived == ("top.slots",)
    assert not any("top.slots" in group for group in second.groups)
    assert lay_out(MODEL, nodes, verdicts, audit=True).derived == ()


def test_groups_fit_and_are_in_perfs_words() -> None:
    found = lay_out(MODEL, PARTS, pmu_device="cpu", counters=3)
    for group in found.groups:
        assert Pmu("", 3, 1).holds([DEMO.event(event) for event in group])
    assert "cpu/event=0xa4,umask=0x1,name=top.front/" in {word for group in found.in_words for word in group}
    plain = lay_out(MODEL, PARTS)
    assert {word for group in plain.in_words for word in group} == {*PARTS, "inst_retired.any"}


def test_slots_lead_the_group_of_their_parts() -> None:
    names = ("topdown-retiring", "topdown-be-bound", "slots")
    (group,) = lay_out(Model(DEMO), names).groups
    assert group[0] == "slots" and set(names) <= set(group)


def test_units_have_groups_of_their_own() -> None:
    listed = Catalogue(
        "x86/two",
        (Event("a", codes=(1,)), Event("b", codes=(2,)), Event("mem.read", unit="iMC", codes=(4,))),
        (Metric("m", "a + b + mem.read"),),
        (Pmu("", 4), Pmu("iMC", 4)),
    )
    assert set(lay_out(Model(listed), ("a", "mem.read", "b"), pmu_device="cpu").groups) == {("a", "b"), ("mem.read",)}


def test_whether_there_is_a_pmu(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/event_source/devices"
    (devices / "software").mkdir(parents=True)
    (devices / "software" / "type").write_text("1\n")
    assert core_device(tmp_path) is None
    (devices / "armv8_pmuv3_0").mkdir()
    assert core_device(tmp_path) == ""
    (devices / "cpu").mkdir()
    assert core_device(tmp_path) == "cpu"
