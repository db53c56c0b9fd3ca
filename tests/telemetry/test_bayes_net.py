"""What is free, what is a sum, and which column reads what."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from symphony.telemetry.bayes_net import build, find_anchors
from symphony.telemetry.identities import Identity
from symphony.telemetry.samples import Column


def total(name: str, *parts: str, tolerance: float = 1e-3) -> Identity:
    terms = ((name, 1.0), *((part, -1.0) for part in parts))
    return Identity(f"{name} = {' + '.join(parts)}", terms, tolerance=tolerance)


def test_totals_are_made_of_parts() -> None:
    net = build(["all", "hit", "miss", "other"], [total("all", "hit", "miss")])
    assert net.free == ("hit", "miss", "other")
    np.testing.assert_array_equal(net.row("all"), [1, 1, 0])
    np.testing.assert_array_equal(net.row("miss"), [0, 1, 0])


def test_totals_of_totals() -> None:
    sums = [total("misses", "rd", "wr"), total("all", "hits", "misses"), total("everything", "all", "x")]
    net = build(["everything", "all", "misses", "hits", "rd", "wr", "x"], sums)
    assert net.free == ("hits", "rd", "wr", "x")
    np.testing.assert_array_equal(net.row("everything"), [1, 1, 1, 1])


def test_two_ways_to_split_leave_no_difference_that_need_not_be() -> None:
    net = build(["all", "a", "b", "c", "d"], [total("all", "a", "b"), total("all", "c", "d")])
    assert len(net.free) == 3
    assert (net.loading < 0).sum() <= 1


def test_what_follows_from_the_rest_is_left_out() -> None:
    sums = [total("ab", "a", "b"), total("abc", "ab", "c"), total("abc", "a", "b", "c")]
    net = build(["a", "b", "c", "ab", "abc"], sums)
    assert len(net.exact) == 2 and net.free == ("a", "b", "c")


def test_identities_about_other_events_are_left_out() -> None:
    assert build(["all", "a"], [total("all", "a", "b")]).free == ("all", "a")


def test_what_holds_only_about_is_a_soft_link() -> None:
    loose = total("bytes", "reads", "writes", tolerance=0.1)
    net = build(["bytes", "reads", "writes"], [loose])
    assert net.free == net.events and net.soft == (loose,)
    wires = net.wiring([Column("bytes"), Column("reads"), Column("writes")])
    np.testing.assert_array_equal(wires.soft, [[1, -1, -1]])
    np.testing.assert_array_equal(wires.tolerance, [0.1])


def test_bounds_are_kept_for_reference() -> None:
    bound = Identity("l1 >= l2", (("l1", 1.0), ("l2", -1.0)), relation=">=")
    net = build(["l1", "l2"], [bound])
    assert net.bounds == (bound,) and net.free == ("l1", "l2")


def test_the_slack_of_a_sum_is_its_identitys() -> None:
    net = build(["all", "a", "b"], [total("all", "a", "b", tolerance=0.01)])
    np.testing.assert_allclose(net.slack, [0.01, 0, 0])


@given(st.permutations(["abcd", "ab", "cd", "a", "b", "c", "d"]), st.permutations(range(3)))
def test_the_order_does_not_matter(events: list[str], order: list[int]) -> None:
    sums = [total("ab", "a", "b"), total("cd", "c", "d"), total("abcd", "ab", "cd")]
    net = build(events, [sums[place] for place in order])
    assert set(net.free) == {"a", "b", "c", "d"}
    values = {"a": 1.0, "b": 10.0, "c": 100.0, "d": 1000.0}
    free = np.array([values[event] for event in net.free])
    assert net.row("abcd") @ free == 1111 and net.row("cd") @ free == 1100


def test_wiring() -> None:
    net = build(["i", "all", "a", "b"], [total("all", "a", "b")])
    columns = [Column("i", 0), Column("a", 0), Column("i", 1), Column("all", 1)]
    wires = net.wiring(columns)
    np.testing.assert_array_equal(wires.loading, [[1, 0, 0], [0, 1, 0], [0, 1, 1]])  # i, a, all by i, a, b
    np.testing.assert_array_equal(wires.pool, [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(wires.anchor, [[1, 0, 0]])
    np.testing.assert_array_equal(wires.beside[0], [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]])


def test_anchors_are_in_every_group_instructions_first() -> None:
    columns = [Column(event, group) for group in (0, 1) for event in ("cycles", "instructions", f"x{group}")]
    assert find_anchors(columns) == ("instructions", "cycles")
    assert find_anchors(columns[:3]) == ()  # one group: nothing to compare
    assert find_anchors([*columns, Column("task-clock", 2)]) == ("instructions", "cycles")
    assert find_anchors([Column("a", 0), Column("b", 0), Column("c", 1), Column("d", 1)]) == ()
