"""Groups that fit, and nothing in them that others tell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry.bayes_net import BayesNet, build
from symphony.telemetry.events import Event, Pmu
from symphony.telemetry.planning import plan
from tests.telemetry.test_bayes_net import total

EVENTS = {name: Event(name) for name in ("all", "hit", "miss", "x", "y", "z")}
FIXED = {"instructions": Event("instructions", fixed=0), "cycles": Event("cycles", fixed=1)}


def net(*names: str) -> BayesNet:
    return build(names, [total("all", "hit", "miss")])


def test_sums_are_not_counted() -> None:
    made = plan(["all", "hit", "x"], net("all", "hit", "miss", "x"), EVENTS, Pmu("", 4))
    assert made.groups == (("hit", "miss", "x"),)


def test_a_sum_alone_is_counted_itself() -> None:
    assert plan(["all", "x"], net("all", "x"), EVENTS, Pmu("", 4)).groups == (("all", "x"),)


def test_groups_take_turns_twice() -> None:
    made = plan(["x", "hit", "y", "miss", "all"], net("x", "hit", "y", "miss", "all"), EVENTS, Pmu("", 2))
    assert made.groups == (("x", "hit"), ("y", "miss")) * 2


def test_anchors_with_a_counter_of_their_own_are_in_every_group() -> None:
    wanted = ["hit", "miss", "x", "y"]
    made = plan(wanted, net(*wanted, *FIXED), EVENTS | FIXED, Pmu("", 2, 2), anchors=["instructions", "cycles"])
    assert all(group[:2] == ("instructions", "cycles") and len(group) == 4 for group in made.groups)
    assert made.anchors == ("instructions", "cycles")


def test_without_fixed_counters_an_anchor_must_pay() -> None:
    plain = {"instructions": Event("instructions")}
    wanted = [f"e{number}" for number in range(12)]
    events = plain | {name: Event(name) for name in wanted}
    few = plan(wanted, net(*wanted, "instructions"), events, Pmu("", 4), anchors=["instructions"])
    many = plan(wanted, net(*wanted, "instructions"), events, Pmu("", 6), anchors=["instructions"])
    assert few.anchors == () and len(few.groups) == 6
    assert many.anchors == ("instructions",) and all(group[0] == "instructions" for group in many.groups)


def test_if_all_fit_there_is_one_group() -> None:
    made = plan(["x", "y"], net("x", "y", *FIXED), EVENTS | FIXED, Pmu("", 4, 2), anchors=["instructions"])
    assert made.groups == (("instructions", "x", "y"),)


def test_masks_are_kept() -> None:
    picky = {name: Event(name, counters=(0,)) for name in "abc"} | {"d": Event("d")}
    made = plan(list("abcd"), net(*"abcd"), picky, Pmu("", 4), repeats=1)
    assert sorted(map(len, made.groups)) == [1, 1, 2]


def test_what_no_counter_holds() -> None:
    with pytest.raises(InputError, match="can hold far"):
        plan(["far"], net("far"), {"far": Event("far", counters=(9,))}, Pmu("", 4))


masks = st.lists(st.sets(st.integers(0, 3), min_size=1).map(lambda some: tuple(sorted(some))), min_size=1, max_size=20)


@settings(deadline=None)
@given(masks, st.integers(1, 3))
def test_every_wanted_event_gets_its_turn(counters: list[tuple[int, ...]], repeats: int) -> None:
    events = {f"e{number}": Event(f"e{number}", counters=mask) for number, mask in enumerate(counters)}
    pmu = Pmu("", 4)
    made = plan(list(events), net(*events), events, pmu, repeats=repeats)
    assert all(pmu.holds([events[name] for name in group]) for group in made.groups)
    turns = [sum(name in group for group in made.groups) for name in events]
    assert set(turns) == {repeats if len(made.groups) > 1 else 1}


def test_what_only_an_anchors_counter_can_hold_goes_without_it() -> None:
    events = {"x": Event("x"), "ours": Event("instructions:u", fixed=0), **FIXED}
    made = plan(["x", "ours"], net("x", "ours", *FIXED), events, Pmu("", 1, 2), anchors=["instructions", "cycles"])
    assert made.groups == (("instructions", "cycles", "x"), ("ours",)) * 2


@pytest.mark.parametrize(("term", "at_once"), [("frontend", 1), ("ldlat", 1), ("offcore_rsp", 2)])
def test_events_that_need_the_same_register_take_turns(term: str, at_once: int) -> None:
    events = {f"e{number}": Event(f"e{number}", terms=((term, f"0x{number}"),)) for number in range(4)}
    made = plan(list(events), net(*events), events, Pmu("", 8), repeats=1)
    assert [len(group) for group in made.groups] == [at_once] * (4 // at_once)
    same = {name: Event(name, terms=((term, "0x1"),)) for name in events}
    assert len(plan(list(same), net(*same), same, Pmu("", 8), repeats=1).groups) == 1
