"""What the oracle reads from a scenario, and when it says that the exact model applies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symphony.oracle.instance import FULL_LOAD, ONE_AT_A_TIME, instance, subset
from symphony.problem.topology import Hop, Resource
from symphony.problem.workload import Gang, TaskGraph
from symphony.simulator.contention import Bottleneck, ContentionModel, Serial
from symphony.simulator.scenarios import CALM, Failure, Phase, Scenario, draw
from tests.baselines.cheap import cheap_scenario
from tests.oracle.small import OUT, scenario, unlike, work


def test_times_are_the_true_ones() -> None:
    """The profile's time, times the noise that the simulator will draw on."""
    calm = scenario(0)
    noisy = replace(calm, work_noise=(1.0, 2.0, 0.5))
    ratio = instance(noisy).seconds / instance(calm).seconds
    assert ratio[:, 0].tolist() == [1.0, 2.0, 0.5, 1.0, 2.0, 0.5]


def test_gangs_of_all_jobs_are_in_one_list() -> None:
    i = instance(draw(unlike(), work(0, arrivals=(0.0, 2.5)), 0, CALM))
    assert len(i) == 12 and i.who[7] == (1, 1)
    assert i.parents[10] == (7, 8) and i.children[6] == (7, 8, 9)
    assert i.arrival_s[6] == 2.5
    place = {gang: turn for turn, gang in enumerate(i.order)}
    assert all(place[parent] < place[gang] for gang in range(12) for parent in i.parents[gang])


def test_transfers_cross_the_bus_at_its_speed() -> None:
    i = instance(scenario(0, bus=True))
    assert i.transfer_s(2e9, 0, 1) == pytest.approx(2.0, rel=1e-5)
    assert i.transfer_s(2e9, 1, 1) == 0 and i.transfer_s(0.0, 0, 1) == 0
    assert i.crossed[0, 1].tolist() == [0, 0, 0, FULL_LOAD]


def test_a_calm_scenario_is_inside() -> None:
    assert subset(instance(scenario(0))).outside == () and subset(instance(scenario(0))).scope == ""
    bus = subset(instance(scenario(0, bus=True)))
    assert bus.outside == () and bus.moves and bus.scope == ONE_AT_A_TIME


def _preemptible(s: Scenario) -> Scenario:
    graph = s.workload.graphs[0]
    changed = TaskGraph(graph.name, graph.tasks, graph.edges, (Gang("t0", ("t0",), preemptible=True),))
    return replace(s, workload=replace(s.workload, graphs=(changed,)))


def _hungry(s: Scenario) -> Scenario:
    resources = tuple(replace(row, capacity=0.9) if row.kind == "compute" else row for row in s.topology.resources)
    return replace(s, topology=replace(s.topology, resources=resources))


def _second_link(s: Scenario) -> Scenario:
    link = Resource("link", "link", 5e8, "m")
    first, *others = s.topology.devices
    slow = replace(first, route=(*first.route, Hop("link", OUT)))
    return replace(s, topology=replace(s.topology, resources=(*s.topology.resources, link), devices=(slow, *others)))


@pytest.mark.parametrize(
    ("change", "why", "relaxed"),
    [
        (lambda s: replace(s, phases=(Phase(1.0, "m", {"compute": 0.5}),)), "tenants", True),
        (lambda s: replace(s, failures=(Failure(1.0, "d0", 1.0),)), "fail", True),
        (lambda s: replace(s, disturbances=replace(s.disturbances, latency_s=0.1)), "decisions", True),
        (_preemptible, "preempted", False),
        (_hungry, "more of a resource", True),
        (_second_link, "several links", True),
    ],
)
def test_what_lies_outside_is_named(change, why: str, relaxed: bool) -> None:
    found = subset(instance(change(scenario(0, bus=True))))
    assert not found.exact and len(found.outside) == 1 and why in found.outside[0]
    assert found.relaxed is relaxed


def test_everything_at_once() -> None:
    found = subset(instance(cheap_scenario()))
    assert len(found.outside) >= 6
    assert not found.relaxed


def test_a_contention_model_of_ones_own_is_outside() -> None:
    class Odd(ContentionModel):
        def share(self, load):
            return load * 0 + 0.5

        def compose(self, shares, used):
            return shares[..., 0]

    i = instance(scenario(0))
    assert not subset(i, Odd()).exact
    assert subset(i, Bottleneck()).exact and subset(i, Serial()).exact


def test_gangs_of_several_workers_take_their_slowest() -> None:
    i = instance(cheap_scenario())
    pair = int(np.argmax(i.workers))
    assert i.workers[pair] == 2
    assert i.best_s[pair] == np.sort(i.seconds[pair])[1]
