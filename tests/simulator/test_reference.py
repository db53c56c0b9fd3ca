"""The plain simulator against numbers worked out by hand, and its named properties on random scenarios."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from symphony.problem.speeds import Speeds
from symphony.problem.topology import PEER, RACK, SOCKET, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.records import GangRecord
from symphony.simulator.scenarios import Disturbances, Failure, Phase, Scenario
from tests.simulator.reference import Action, Choose, Reference, State, fifo, random_policy
from tests.simulator.strategies import random_scenario, scenarios

GB = 1e9
NO_WINDOWS = Disturbances(window_s=math.inf)


def cluster(
    kind: DeviceKind,
    routes: list[list[Hop]],
    capacities: dict[str, float],
    *,
    separate: bool = False,
    home: str = "",
    peers: str = "",
    latency_s: float = 0.0,
) -> Topology:
    """Devices d0, d1, … of one kind, one for each route; rows named after their kind ("nic.0"). Separate: in
    machines of their own, in one rack; else in one machine, behind switches of their own."""
    rows = tuple(Resource(name, name.split(".")[0], capacity, "here") for name, capacity in capacities.items())
    devices = []
    for index, route in enumerate(routes):
        machine = f"m{index}" if separate else "m"
        switch = f"{machine}.switch{index}"
        devices.append(Device(f"d{index}", kind.name, machine, "rack", machine, switch, tuple(route), home, peers))
    return Topology("by hand", (kind,), rows, tuple(devices), (0.0, *[latency_s] * 6))


def single(name: str, kernel: str, units: float = 1.0, **options: Any) -> TaskGraph:
    """A graph of one gang of one task."""
    return TaskGraph(name, (Task(name, kernel, units=units),), gangs=(Gang(name, (name,), **options),))


def scene(topology: Topology, kernels: list[Kernel], jobs: list[tuple[TaskGraph, float]], **options: Any) -> Scenario:
    """A scenario of (graph, arrival) jobs, with neither noise nor windows unless `options` say so."""
    arrivals = tuple(Job(index, at) for index, (_, at) in enumerate(jobs))
    workload = Workload("by hand", tuple(kernels), tuple(graph for graph, _ in jobs), arrivals)
    calm: dict[str, Any] = {"phases": (), "failures": (), "work_noise": (1.0,), "disturbances": NO_WINDOWS}
    return Scenario(topology, workload, 0, **(calm | options))


def script(*actions: Action) -> Choose:
    """A policy that takes these actions one after another, and then waits."""
    left = iter(actions)
    return lambda world: next(left, ("wait",))


def finishes(world: Reference) -> dict[tuple[int, int], float]:
    """When each (job, gang) finished."""
    return {(job, gang): time for time, kind, job, gang, _ in world.events if kind == "finished"}


def times(world: Reference, kind: str) -> list[float]:
    """The times of the events of one kind."""
    return [event[0] for event in world.events if event[1] == kind]


CPU = DeviceKind("cpu", "cpu", slots=2)
ONE = DeviceKind("one", "cpu", slots=1)
PLAIN = Kernel("plain", {"cpu": Profile(fixed_s=1.0)})  # a second for each unit, and no demands


# -------------------------------------------------------------------- contention


def test_two_kernels_at_load_1_6_take_1_6_times_as_long() -> None:
    """Each wants 8 of 10 GB/s for 10 s. Together: load 1.6, so both take 16 s."""
    stream = Kernel("stream", {"cpu": Profile(fixed_s=10.0, demand={"memory": 8 * GB})})
    topology = cluster(CPU, [[Hop("memory")]], {"memory": 10 * GB})
    world = Reference(scene(topology, [stream], [(single("a", "stream"), 0.0), (single("b", "stream"), 0.0)]))
    world.run(fifo)
    assert [job.finish_s for job in world.jobs] == pytest.approx([16.0, 16.0], rel=1e-5)  # 0.8 is rounded
    assert [stay.slowdown for stay in world.stays] == pytest.approx([1.6, 1.6], rel=1e-5)
    assert [job.isolated_s for job in world.jobs] == [10.0, 10.0]
    assert world.utilisation == {"memory": 1.0}


def test_contention_lasts_only_while_both_run() -> None:
    """Load 1.5 from 3 s on: the 7 s left of the first take 10.5; the second then has 3 of its 10 left."""
    stream = Kernel("stream", {"cpu": Profile(fixed_s=10.0, demand={"memory": 7.5 * GB})})
    topology = cluster(CPU, [[Hop("memory")]], {"memory": 10 * GB})
    world = Reference(scene(topology, [stream], [(single("a", "stream"), 0.0), (single("b", "stream"), 3.0)]))
    world.run(fifo)
    assert [job.finish_s for job in world.jobs] == pytest.approx([13.5, 16.5])
    # Alone for 3 s, together for 10.5, alone for 3: 0.75 and 1 of the row.
    assert world.utilisation["memory"] == pytest.approx((6 * 0.75 + 10.5) / 16.5)


def test_work_decides_time_and_demand() -> None:
    """Size 3 with exponent 2 is work 9: 1 + 0.5·9 s, wanting 2 + 9 of 8 cores, so 11/8 times as long."""
    profile = Profile(1.0, 0.5, demand={"compute": 2.0}, demand_per_work={"compute": 1.0})
    graph = TaskGraph("a", (Task("a", "square", size=3.0),))
    world = Reference(
        scene(
            cluster(CPU, [[Hop("compute")]], {"compute": 8.0}),
            [Kernel("square", {"cpu": profile}, exponent=2.0)],
            [(graph, 0.0)],
        )
    )
    world.run(fifo)
    assert world.makespan_s == pytest.approx(5.5 * 11 / 8)
    assert world.jobs[0].isolated_s == pytest.approx(5.5)


def test_what_neighbours_cost_adds_up_and_crowding_comes_on_top() -> None:
    """Alone 1 s, though the profile says 4. Beside b at 0.5 and c at 0.8: 1 + 1 + 0.25, and 10% for the third."""
    kernels = [Kernel(name, {"cpu": Profile(fixed_s=4.0)}) for name in "abc"]
    truth = Speeds({("a", "three"): (1.0, 1.0)}, {("a", "b", "three"): 0.5, ("a", "c", "three"): 0.8}, crowding=0.1)
    topology = cluster(DeviceKind("three", "cpu", slots=3), [[Hop("compute")]], {"compute": 8.0})
    jobs = [(single(name, name, units=10.0), 0.0) for name in "abc"]
    world = Reference(scene(topology, kernels, jobs, truth=truth)).run(fifo)
    assert finishes(world)[0, 0] == pytest.approx(10 * 2.25 * 1.1)
    # b and c do not mind one another: 10% longer while a runs, then as the profile says.
    assert finishes(world)[1, 0] == pytest.approx(24.75 + 40 - 24.75 / 1.1)
    assert world.stays[0].isolated_s == pytest.approx(10.0)


def test_a_gang_over_two_machines_goes_at_its_spread_speed() -> None:
    """3 s a unit where its workers are apart; in one machine 2 s."""
    gang = TaskGraph("g", (Task("w0", "k"), Task("w1", "k")), gangs=(Gang("g", ("w0", "w1")),))
    truth = Speeds({("k", "one"): (2.0, 3.0)})
    for separate, seconds in ((True, 3.0), (False, 2.0)):
        topology = cluster(ONE, [[Hop("nic.0", (RACK,))], [Hop("nic.1", (RACK,))]], {"nic.0": GB, "nic.1": GB},
                           separate=separate)  # fmt: skip
        world = Reference(scene(topology, [Kernel("k", {"cpu": Profile(1.0)})], [(gang, 0.0)], truth=truth)).run(fifo)
        assert world.makespan_s == pytest.approx(seconds)


def two_workers_exchanging(separate: bool, peers: str, **options: Any) -> Reference:
    """A gang of two: 1 s of work and 1 GB to exchange in each of 2 units; NICs of 1 GB/s, peer links of 4."""
    kernel = Kernel("train", {"cpu": Profile(fixed_s=1.0)}, exchange_bytes=GB)
    tasks = (Task("w0", "train", units=2.0), Task("w1", "train", units=2.0))
    graph = TaskGraph("a", tasks, gangs=(Gang("g", ("w0", "w1")),))
    routes = [[Hop(f"nic.{i}", (RACK,)), Hop(f"peer.{i}", (PEER,))] for i in range(2)]
    capacities = {"nic.0": GB, "nic.1": 2 * GB, "peer.0": 4 * GB, "peer.1": 4 * GB}
    topology = cluster(ONE, routes, capacities, separate=separate, peers=peers)
    return Reference(scene(topology, [kernel], [(graph, 0.0)], **options))


def test_exchange_takes_part_of_each_unit() -> None:
    """τ = 1 GB over 1 GB/s: units of 2 s. Meanwhile 0.5 GB/s load the NICs by a half and a quarter."""
    world = two_workers_exchanging(separate=True, peers="", disturbances=Disturbances(window_s=1.0))
    world.run(fifo)
    assert world.makespan_s == pytest.approx(4.0)
    assert world.readings[0] == pytest.approx([0.5, 0.25, 0.0, 0.0])
    assert world.stays[0].isolated_s == pytest.approx(4.0)
    assert world.jobs[0].isolated_s == pytest.approx(2.0)  # without exchange


def test_exchange_suffers_from_tenants_and_work_does_not() -> None:
    """Tenants load the NICs by 1.5, with the gang 2 on the first: units of 1 + 2·1 s."""
    phases = (Phase(0.0, "here", {"nic": 1.5}), Phase(1e6, "here", {}))
    assert two_workers_exchanging(separate=True, peers="", phases=phases).run(fifo).makespan_s == pytest.approx(6.0)


def test_peers_exchange_over_their_links() -> None:
    """τ = 1 GB over 4 GB/s: units of 1.25 s."""
    assert two_workers_exchanging(separate=True, peers="ring").run(fifo).makespan_s == pytest.approx(2.5)


def test_exchange_that_crosses_no_row_is_free() -> None:
    """In one machine the span is that of the socket, which no row of theirs names."""
    assert two_workers_exchanging(separate=False, peers="").run(fifo).makespan_s == pytest.approx(2.0)


# -------------------------------------------------------------------- fetching


def fetchers(arrivals: list[float], latency_s: float = 0.0, **options: Any) -> Reference:
    """Two jobs that each fetch 20 GB from d0, over its 10 GB/s memory row, and then work for 1 s."""
    graphs = [TaskGraph(f"g{i}", (Task("t", "plain"),), (Edge(None, "t", 20 * GB),)) for i in range(2)]
    routes = [[Hop("memory", (SOCKET,))], [Hop("link.1", (SOCKET,))], [Hop("link.2", (SOCKET,))]]
    capacities = {"memory": 10 * GB, "link.1": 20 * GB, "link.2": 20 * GB}
    topology = cluster(ONE, routes, capacities, latency_s=latency_s)
    return Reference(scene(topology, [PLAIN], list(zip(graphs, arrivals, strict=True)), **options))


def test_two_transfers_share_a_row() -> None:
    """Alone 2 s each; side by side on the memory row, 4."""
    world = fetchers([0.0, 0.0]).run(script(("place", 0, 0, 1), ("place", 1, 0, 2)))
    assert times(world, "fetched") == pytest.approx([4.0, 4.0])
    assert world.makespan_s == pytest.approx(5.0)
    # The memory row is full until 4 s of 5, the links half full.
    assert world.utilisation == pytest.approx({"memory": 0.8, "link": 0.4})


def test_a_transfer_speeds_up_when_the_other_ends() -> None:
    """1 s alone, then half speed until the first ends at 3 s; the second has 1 s left, alone."""
    world = fetchers([0.0, 1.0]).run(script(("place", 0, 0, 1), ("place", 1, 0, 2)))
    assert times(world, "fetched") == pytest.approx([3.0, 4.0])


def test_latency_is_paid_in_bytes() -> None:
    """Half a second of latency is 5 GB more at 10 GB/s, and shares the row like any other."""
    world = fetchers([0.0, 0.0], latency_s=0.5).run(script(("place", 0, 0, 1), ("place", 1, 0, 2)))
    assert times(world, "fetched") == pytest.approx([5.0, 5.0])


def test_one_engine_fetches_one_at_a_time() -> None:
    """Both on d1: the second input follows the first, and is there before the slot is free at 3 s + 1."""
    world = fetchers([0.0, 0.0]).run(script(("place", 0, 0, 1), ("place", 1, 0, 1)))
    assert times(world, "fetched") == pytest.approx([2.0, 4.0])
    assert finishes(world) == pytest.approx({(0, 0): 3.0, (1, 0): 5.0})


def chain(bytes_: float, children: int = 1) -> TaskGraph:
    """A parent and children that each read the same output."""
    names = [f"c{index}" for index in range(children)]
    tasks = (Task("parent", "plain"), *(Task(name, "plain") for name in names))
    return TaskGraph("chain", tasks, tuple(Edge("parent", name, bytes_) for name in names))


def test_local_inputs_take_no_time() -> None:
    """Devices with one home share its memory."""
    topology = cluster(ONE, [[Hop("memory", (SOCKET,))]] * 2, {"memory": GB}, home="d0")
    world = Reference(scene(topology, [PLAIN], [(chain(5 * GB), 0.0)]))
    world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1)))
    assert world.makespan_s == 2.0
    assert times(world, "fetched") == []


def test_inputs_without_bytes_take_no_time() -> None:
    """Whatever the latency."""
    topology = cluster(ONE, [[Hop("memory", (SOCKET,))]] * 2, {"memory": GB}, latency_s=9.0)
    world = Reference(scene(topology, [PLAIN], [(chain(0.0), 0.0)]))
    assert world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1))).makespan_s == 2.0


def test_a_row_at_both_ends_is_crossed_once() -> None:
    """1 GB over one row of 1 GB/s: 1 s, not 2."""
    topology = cluster(ONE, [[Hop("interconnect", (SOCKET,))]] * 2, {"interconnect": GB})
    world = Reference(scene(topology, [PLAIN], [(chain(GB), 0.0)]))
    assert world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1))).makespan_s == pytest.approx(3.0)


def test_the_last_three_copies_are_known() -> None:
    """Copies go to d1 … d4, one after another. Then d1's is forgotten and d2's is not."""
    topology = cluster(ONE, [[Hop(f"link.{i}", (SOCKET,))] for i in range(5)], {f"link.{i}": GB for i in range(5)})
    children = [1, 2, 3, 4, 2, 1]  # device of each
    world = Reference(scene(topology, [PLAIN], [(chain(GB, len(children)), 0.0)]))

    def one_at_a_time(world: Reference) -> Action:
        ready = world.actionable()
        if not ready or any(world.backlog(d) for d in range(5)):
            return ("wait",)
        return ("place", *ready[0], 0 if ready[0][1] == 0 else children[ready[0][1] - 1])

    world.run(one_at_a_time)
    # The fifth child finds the copy on d2; the sixth has to fetch again.
    assert [(gang, device) for _, kind, _, gang, device in world.events if kind == "fetched"] == [
        (1, 1), (2, 2), (3, 3), (4, 4), (6, 1),
    ]  # fmt: skip
    assert world.complete


def test_the_nearest_copy_is_fetched() -> None:
    """From d0 in another machine it takes 10 s; once a copy is on d1, its neighbour d2 needs 1 s."""
    routes = [[Hop(f"link.{i}", (SOCKET, RACK))] for i in range(3)]
    capacities = {"link.0": 0.1 * GB, "link.1": GB, "link.2": GB}
    topology = cluster(ONE, routes, capacities, separate=True)
    d0, d1, d2 = topology.devices
    topology = replace(topology, devices=(d0, d1, replace(d2, machine=d1.machine, socket=d1.socket)))
    world = Reference(scene(topology, [PLAIN], [(chain(GB, 2), 0.0)]))
    world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1), ("wait",), ("place", 0, 2, 2)))
    assert times(world, "fetched") == pytest.approx([11.0, 12.0])


def test_a_near_copy_is_preferred_to_a_far_peer() -> None:
    """A peer in another machine is further away than a neighbour, by whatever link it is reached."""
    routes = [[Hop(f"link.{i}", (SOCKET,)), Hop(f"peer.{i}", (PEER,))] for i in range(3)]
    capacities = {f"{kind}.{i}": GB for kind in ("link", "peer") for i in range(3)} | {"peer.0": 0.1 * GB}
    topology = cluster(ONE, routes, capacities, separate=True)
    d0, d1, d2 = (replace(device, peers="ring") for device in topology.devices)
    topology = replace(topology, devices=(d0, replace(d1, machine="m2", socket="m2"), d2))
    world = Reference(scene(topology, [PLAIN], [(chain(GB, 2), 0.0)]))
    world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1), ("wait",), ("place", 0, 2, 2)))
    # Both transfers go over peer links: the first out of the slow d0, the second out of d1.
    assert times(world, "fetched") == pytest.approx([11.0, 12.0])


def test_a_transfer_that_crosses_no_row_pays_its_latency() -> None:
    """And next to nothing for its bytes."""
    world = Reference(scene(cluster(ONE, [[], []], {}, latency_s=0.5), [PLAIN], [(chain(GB), 0.0)]))
    assert world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1))).makespan_s == pytest.approx(2.5 + 1e-6)


def test_a_memory_holds_one_copy() -> None:
    """d1 and d2 work in one memory, and both fetch before either has the data."""
    topology = cluster(ONE, [[Hop(f"link.{i}", (SOCKET,))] for i in range(3)], {f"link.{i}": GB for i in range(3)})
    d0, d1, d2 = topology.devices
    topology = replace(topology, devices=(d0, d1, replace(d2, home="d1")))
    world = Reference(scene(topology, [PLAIN], [(chain(GB, 2), 0.0)]))
    world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1), ("place", 0, 2, 2)), max_events=4)
    assert times(world, "fetched") == pytest.approx([3.0, 3.0])
    assert world.active[0][0].copies == [0, 1]


def test_a_copy_nearby_saves_the_transfer() -> None:
    """The second child on d1 finds what the first fetched."""
    topology = cluster(ONE, [[Hop(f"link.{i}", (SOCKET,))] for i in range(2)], {"link.0": GB, "link.1": GB})
    world = Reference(scene(topology, [PLAIN], [(chain(GB, 2), 0.0)]))
    world.run(script(("place", 0, 0, 0), ("place", 0, 1, 1), ("place", 0, 2, 1)))
    assert times(world, "fetched") == pytest.approx([2.0])
    assert finishes(world) == pytest.approx({(0, 0): 1.0, (0, 1): 3.0, (0, 2): 4.0})


# -------------------------------------------------------------------- queues, slots, memory


def test_a_gang_waits_for_both_devices_and_is_not_overtaken() -> None:
    """d0 is busy until 5 s. The pair waits for it, and what came after the pair on the idle d1 waits too."""
    pair = TaskGraph("p", (Task("w0", "plain"), Task("w1", "plain")), gangs=(Gang("g", ("w0", "w1")),))
    topology = cluster(ONE, [[], []], {})
    jobs = [(single("long", "plain", units=5.0), 0.0), (pair, 1.0), (single("late", "plain"), 2.0)]
    world = Reference(scene(topology, [PLAIN], jobs))
    world.run(script(("place", 0, 0, 0), ("place", 1, 0, 0), ("place", 1, 0, 1), ("place", 2, 0, 1)))
    assert world.starts == [
        (0.0, 0, 0, (0,), (0,)),
        (5.0, 1, 0, (0, 1), (0, 0)),
        (6.0, 2, 0, (1,), (0,)),
    ]


def test_memory_may_allow_fewer_workers_than_slots() -> None:
    """Two slots, but 6 + 6 of 10 bytes do not fit; 6 + 4 do."""
    kinds = DeviceKind("cpu", "cpu", slots=2, memory=10.0)
    kernels = [Kernel(f"k{m}", {"cpu": Profile(fixed_s=1.0, memory=m)}) for m in (6.0, 4.0, 11.0)]
    jobs = [(single("a", "k6.0"), 0.0), (single("b", "k6.0"), 0.0), (single("c", "k4.0"), 0.0)]
    world = Reference(scene(cluster(kinds, [[]], {}), kernels, jobs)).run(fifo)
    assert [(start[0], start[1]) for start in world.starts] == [(0.0, 0), (1.0, 1), (1.0, 2)]
    stuck = Reference(scene(cluster(kinds, [[]], {}), kernels, [(single("d", "k11.0"), 0.0)])).run(fifo)
    assert stuck.stalled and stuck.actionable() == []


def test_job_slots_full() -> None:
    """The second job waits outside until 5 s, and its completion time counts from 1 s all the same."""
    jobs = [(single("a", "plain", units=5.0), 0.0), (single("b", "plain", units=5.0), 1.0)]
    world = Reference(scene(cluster(CPU, [[]], {}), [PLAIN], jobs, job_slots=1)).run(fifo)
    assert times(world, "arrival") == [0.0, 5.0]
    assert [job.completion_s for job in world.jobs] == [5.0, 9.0]


def test_true_work_has_its_own_noise() -> None:
    """Gang i of job j takes factor 31 j + i, modulo how many there are."""
    jobs = [(single("a", "plain"), 0.0), (single("b", "plain"), 10.0)]
    world = Reference(scene(cluster(ONE, [[]], {}), [PLAIN], jobs, work_noise=(2.0, 3.0, 5.0, 7.0)))
    world.run(fifo)
    assert finishes(world) == {(0, 0): 2.0, (1, 0): 17.0}  # 31 mod 4 is 3
    assert [job.isolated_s for job in world.jobs] == [1.0, 1.0]
    assert [stay.isolated_s for stay in world.stays] == [2.0, 7.0]


# -------------------------------------------------------------------- set-up: FPGAs, preemption, failures

FPGA = DeviceKind("fpga", "fpga", slots=2, reconfigure_s=2.0)
LATER = Failure(1e6, "d0", 1.0)  # lists repeat: this one keeps the first failure from coming again
ON_FPGA = [Kernel(name, {"fpga": Profile(fixed_s=3.0)}) for name in ("ka", "kb")]


def test_a_slot_is_configured_once_for_a_kernel() -> None:
    """2 s to configure, 3 to run; the next of the kernel needs no set-up, and prefers that slot to slot 0."""
    jobs = [(single("a", "ka"), 0.0), (single("b", "kb"), 1.0), (single("c", "kb"), 6.0)]
    world = Reference(scene(cluster(FPGA, [[]], {}), ON_FPGA, jobs)).run(fifo)
    assert [(start[0], start[1], start[4]) for start in world.starts] == [
        (0.0, 0, (0,)),
        (1.0, 1, (1,)),
        (6.0, 2, (1,)),
    ]
    assert [job.finish_s for job in world.jobs] == [5.0, 6.0, 9.0]
    assert times(world, "set-up") == [2.0, 3.0]
    assert [stay.setup_s for stay in world.stays] == [2.0, 2.0, 0.0]
    assert [stay.slowdown for stay in world.stays] == [1.0, 1.0, 1.0]


def test_reconfiguring_ahead_hides_the_set_up() -> None:
    """Slot 0 is configured for the kernel that comes at 4 s; the first gang takes slot 1."""
    jobs = [(single("a", "ka"), 0.0), (single("b", "kb"), 4.0)]
    scenario = scene(cluster(FPGA, [[]], {}), ON_FPGA, jobs)
    world = Reference(scenario)
    world.run(script(("reconfigure", 0, 1), ("place", 0, 0, 0), ("place", 1, 0, 0)))
    assert [(start[0], start[4]) for start in world.starts] == [(0.0, (1,)), (4.0, (0,))]
    assert [job.finish_s for job in world.jobs] == [5.0, 7.0]


def test_reconfiguring_needs_a_free_slot() -> None:
    """Two slots take two; the third is refused, and the policy is asked again when a slot is ready."""
    world = Reference(scene(cluster(FPGA, [[]], {}), ON_FPGA, [(single("a", "ka"), 0.0)]))
    world.run(script(*[("reconfigure", 0, 0)] * 3, ("place", 0, 0, 0)))
    assert [accepted for _, _, accepted in world.decisions] == [True, True, False, True]
    assert [time for time, _, _ in world.decisions] == [0.0, 0.0, 0.0, 2.0]
    assert times(world, "set-up") == [2.0, 2.0]
    assert world.makespan_s == 5.0


def test_preemption_with_checkpoint() -> None:
    """4 of 10 units, half a second to save, 2 s of the urgent job, 1 s to restore, and the other 6 units."""
    jobs = [
        (single("a", "plain", 10.0, preemptible=True, checkpoint_s=0.5, restore_s=1.0), 0.0),
        (single("b", "plain", 2.0), 4.0),
    ]
    world = Reference(scene(cluster(ONE, [[]], {}), [PLAIN], jobs))
    world.run(script(("place", 0, 0, 0), ("preempt", 0, 0), ("place", 1, 0, 0), ("place", 0, 0, 0)))
    assert [start[:2] for start in world.starts] == [(0.0, 0), (4.5, 1), (6.5, 0)]
    assert world.makespan_s == pytest.approx(13.5)
    first, _, last = world.stays
    assert first == GangRecord(0, 0, (0,), 0.0, 0.0, 0.0, 4.5, 10.0, 0.5, "preempted")
    assert last.ready_s == last.placed_s == 4.5
    assert (last.isolated_s, last.setup_s) == pytest.approx((10.0, 1.0))
    assert first.slowdown + last.slowdown == pytest.approx(1.0)


def test_preempting_is_refused_unless_running_and_preemptible() -> None:
    """Job 0 is not preemptible; job 1 is, but only once; job 2 is queued behind it."""
    saves = {"preemptible": True, "checkpoint_s": 5.0}
    jobs = [
        (single("a", "plain", 9.0), 0.0),
        (single("b", "plain", 9.0, **saves), 1.0),
        (single("c", "plain", 9.0, **saves), 2.0),
        (single("d", "plain", 9.0), 3.0),
    ]
    world = Reference(scene(cluster(ONE, [[], []], {}), [PLAIN], jobs))
    world.run(
        script(
            *[("place", 0, 0, 0), ("preempt", 0, 0)],
            *[("place", 1, 0, 1), ("preempt", 1, 0), ("preempt", 1, 0)],
            *[("place", 2, 0, 1), ("preempt", 2, 0)],
        )
    )
    first = [(time, accepted) for time, _, accepted in world.decisions[:7]]
    assert first == [
        *[(0.0, True), (1.0, False)],
        *[(2.0, True), (2.0, True), (2.0, False)],
        *[(3.0, True), (3.0, False)],
    ]


def test_preempting_is_refused_during_set_up() -> None:
    """The slot is being configured until 2 s, and a job that arrives at 1 s brings the question up."""
    jobs = [(single("a", "ka", preemptible=True), 0.0), (single("b", "kb"), 1.0), (single("c", "kb"), 3.0)]
    world = Reference(scene(cluster(FPGA, [[]], {}), ON_FPGA, jobs))
    world.run(script(("place", 0, 0, 0), ("preempt", 0, 0), ("wait",), ("preempt", 0, 0)))
    assert [(time, accepted) for time, _, accepted in world.decisions[:4]] == [
        (0.0, True),
        (1.0, False),
        (2.0, True),
        (3.0, True),
    ]


def test_a_gang_that_saves_still_loads_its_rows() -> None:
    """Load 1.5 from 0 to 3 s, though the first stops working at 0: the second does 2 of its 10 s by then."""
    kernel = Kernel("stream", {"cpu": Profile(fixed_s=10.0, demand={"memory": 7.5 * GB})})
    topology = cluster(CPU, [[Hop("memory")]], {"memory": 10 * GB})
    jobs = [(single("a", "stream", preemptible=True, checkpoint_s=3.0), 0.0), (single("b", "stream"), 0.0)]
    world = Reference(scene(topology, [kernel], jobs))
    world.run(script(("place", 0, 0, 0), ("preempt", 0, 0), ("place", 1, 0, 0)))
    assert finishes(world) == pytest.approx({(1, 0): 11.0})
    assert world.stalled


def test_failure_while_saving_falls_back_to_the_periodic_checkpoint() -> None:
    """Preempted at 4 units; the device fails before they are saved, so 3 remain, and 7 are done after 6 s."""
    graph = single("a", "plain", 10.0, preemptible=True, checkpoint_s=5.0, checkpoint_units=3.0)
    jobs = [(graph, 0.0), (single("b", "plain"), 4.0)]
    world = Reference(scene(cluster(ONE, [[]], {}), [PLAIN], jobs, failures=(Failure(5.0, "d0", 1.0), LATER)))
    world.run(script(*[("place", 0, 0, 0), ("preempt", 0, 0), ("wait",)], *[("place", job, 0, 0) for job in (0, 1)]))
    assert finishes(world) == {(0, 0): 13.0, (1, 0): 14.0}
    assert [stay.outcome for stay in world.stays] == ["failed", "finished", "finished"]


def test_failure_keeps_the_last_periodic_checkpoint() -> None:
    """7.5 units done, 6 kept. Down until 9.5 s, whatever fails meanwhile; 0.5 s to restore, and 4 units."""
    graph = single("a", "plain", 10.0, checkpoint_units=3.0, restore_s=0.5)
    failures = (Failure(7.5, "d0", 2.0), Failure(0.5, "d0", 50.0))
    world = Reference(scene(cluster(ONE, [[]], {}), [PLAIN], [(graph, 0.0)], failures=failures)).run(fifo)
    assert times(world, "failure") == [7.5, 8.0]
    assert times(world, "repair") == [9.5]
    assert world.makespan_s == pytest.approx(14.0)
    assert [(stay.outcome, stay.finish_s, stay.isolated_s) for stay in world.stays] == [
        ("failed", 7.5, 10.0),
        ("finished", pytest.approx(14.0), pytest.approx(10.0)),
    ]


def test_failure_without_checkpoints_loses_everything() -> None:
    """And a gang that had only queued there goes elsewhere at no charge."""
    jobs = [(single("a", "plain", 4.0), 0.0), (single("b", "plain", 4.0, restore_s=7.0), 0.0)]
    world = Reference(scene(cluster(ONE, [[], []], {}), [PLAIN], jobs, failures=(Failure(3.0, "d0", 99.0), LATER)))
    world.run(script(("place", 0, 0, 0), ("place", 1, 0, 0), ("place", 1, 0, 1), ("place", 0, 0, 1)))
    assert finishes(world) == {(1, 0): 7.0, (0, 0): 11.0}
    assert [stay.outcome for stay in world.stays] == ["failed", "finished", "finished"]


def test_failure_of_one_device_stops_the_whole_gang() -> None:
    """Its worker on the other device leaves too, and the next gang there starts."""
    pair = TaskGraph("p", (Task("w0", "plain"), Task("w1", "plain")), gangs=(Gang("g", ("w0", "w1")),))
    jobs = [(pair, 0.0), (single("b", "plain"), 0.0)]
    world = Reference(scene(cluster(ONE, [[], []], {}), [PLAIN], jobs, failures=(Failure(0.5, "d0", 9.5), LATER)))
    world.run(fifo)
    assert [start[:4] for start in world.starts] == [
        (0.0, 0, 0, (0, 1)),
        (0.5, 1, 0, (1,)),
        (10.0, 0, 0, (0, 1)),
    ]


def test_failure_drops_transfers_and_they_begin_again() -> None:
    """1 of 2 s fetched when the device fails; repaired at 3 s, the whole 2 s are fetched anew."""
    world = fetchers([0.0, 50.0], failures=(Failure(1.0, "d1", 2.0), LATER))
    world.run(script(*[("place", 0, 0, 1)] * 3, ("place", 1, 0, 1)))
    assert [accepted for _, _, accepted in world.decisions] == [True, False, True, True]  # once it was down
    assert times(world, "fetched") == pytest.approx([5.0, 52.0])


# -------------------------------------------------------------------- tenants and counters


def test_phases_repeat_and_slow_work_down() -> None:
    """Tenants double the load during [2, 3), [5, 6), …: 6 s of work end at 7. Windows read 1 + 1/3."""
    kernel = Kernel("k", {"cpu": Profile(fixed_s=6.0, demand={"compute": 2.0})})
    topology = cluster(ONE, [[Hop("compute")]], {"compute": 2.0, "memory": GB})
    phases = (Phase(2.0, "here", {"compute": 1.0}), Phase(1.0, "here", {}))
    windows = Disturbances(window_s=3.0)
    world = Reference(scene(topology, [kernel], [(single("a", "k"), 0.0)], phases=phases, disturbances=windows))
    world.run(fifo)
    assert world.makespan_s == pytest.approx(7.0)
    assert times(world, "background") == [2.0, 3.0, 5.0, 6.0]
    assert times(world, "window") == [3.0, 6.0]
    assert world.readings == [pytest.approx([4 / 3, 0.0]), pytest.approx([4 / 3, 0.0])]
    assert world.utilisation == pytest.approx({"compute": 1.0, "memory": 0.0})


# -------------------------------------------------------------------- decisions


def test_every_decision_is_charged() -> None:
    """A quarter of a second for each worker of the pair; the job that arrives meanwhile is not lost."""
    pair = TaskGraph("p", (Task("w0", "plain"), Task("w1", "plain")), gangs=(Gang("g", ("w0", "w1")),))
    jobs = [(pair, 0.0), (single("b", "plain"), 0.3)]
    thinking = Disturbances(window_s=math.inf, latency_s=0.25)
    world = Reference(scene(cluster(ONE, [[], []], {}), [PLAIN], jobs, disturbances=thinking)).run(fifo)
    assert times(world, "thought") == [0.25, 0.5, 0.75]
    assert [start[:2] for start in world.starts] == [(0.5, 0), (1.5, 1)]
    assert world.stays[0].placed_s == 0.5


def test_windows_offer_decisions() -> None:
    """With nothing ready the policy is asked once for each window, where the scenario says so."""
    for offer in (True, False):
        asked: list[float] = []

        def choose(world: Reference, asked: list[float] = asked) -> Action:
            asked.append(world.now)
            return fifo(world)

        windows = Disturbances(window_s=1.0, offer_at_windows=offer)
        jobs = [(single("a", "plain", 2.5), 0.0)]
        Reference(scene(cluster(ONE, [[]], {}), [PLAIN], jobs, disturbances=windows)).run(choose)
        assert asked == ([0.0, 1.0, 2.0] if offer else [0.0])


def test_an_offer_stands_until_the_policy_waits() -> None:
    """At 1 s the policy preempts and is asked again at once; it waits, and is asked when that is saved."""
    jobs = [(single("a", "plain", 2.5, preemptible=True, checkpoint_s=0.5), 0.0)]
    windows = Disturbances(window_s=1.0, offer_at_windows=True)
    world = Reference(scene(cluster(ONE, [[]], {}), [PLAIN], jobs, disturbances=windows))
    world.run(script(("place", 0, 0, 0), ("preempt", 0, 0), ("wait",), ("place", 0, 0, 0)))
    assert [time for time, _, _ in world.decisions] == [0.0, 1.0, 1.0, 1.5, 2.0]
    assert world.makespan_s == 3.0


def test_waiting_for_ever_stalls() -> None:
    """Each event brings one more question; after the last, the run says that it stalled."""
    jobs = [(single("a", "plain"), 0.0), (single("b", "plain"), 1.0)]
    world = Reference(scene(cluster(ONE, [[]], {}), [PLAIN], jobs)).run(script())
    assert world.stalled and not world.complete
    assert [time for time, _, _ in world.decisions] == [0.0, 1.0]
    assert world.refused == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ("wait",),
        ("place", 1, 0, 1),
        ("place", 0, 0, 0),
        ("place", 0, 0, 9),
        ("preempt", 0, 0),
        ("reconfigure", 0, 0),
    ],
)
def test_a_gang_partly_placed_is_given_up_on_any_other_action(wrong: Action) -> None:
    """It is READY again, behind whatever is placed next."""
    pair = TaskGraph("p", (Task("w0", "plain"), Task("w1", "plain")), gangs=(Gang("g", ("w0", "w1")),))
    jobs = [(pair, 0.0), (single("b", "plain"), 0.0)]
    world = Reference(scene(cluster(ONE, [[], []], {}), [PLAIN], jobs))
    # The first job is placed in part before the second arrives; the refusal lets time move to that arrival.
    policy = script(("place", 0, 0, 0), wrong, ("place", 1, 0, 0), ("place", 0, 0, 0), ("place", 0, 0, 1))
    world.run(policy)
    assert [accepted for _, _, accepted in world.decisions] == [True, False, True, True, True]
    assert [start[:2] for start in world.starts] == [(0.0, 1), (1.0, 0)]
    assert world.refused == 1


# -------------------------------------------------------------------- named properties


def running_world() -> Reference:
    """A world in which a gang of two runs, after its parent, and another is queued."""
    tasks = (Task("p", "plain"), Task("w0", "plain"), Task("w1", "plain"), Task("q", "plain"))
    graph = TaskGraph("g", tasks, (Edge("p", "w0", GB), Edge("p", "q")), (Gang("pair", ("w0", "w1")),))
    topology = cluster(ONE, [[Hop("link", (SOCKET,))]] * 2, {"link": GB})
    world = Reference(scene(topology, [PLAIN], [(graph, 0.0)]))
    world.run(fifo, max_events=2)
    world.settle()
    while world.must_decide():
        world.decide(fifo(world))
        world.settle()
    world.check()
    return world


def _break_slots(world: Reference) -> None:
    world.active[0][2].state = State.RUNNING


def _break_gang(world: Reference) -> None:
    world.active[0][1].devices.pop()


def _break_distinct(world: Reference) -> None:
    world.active[0][1].devices = [0, 0]


def _break_inputs(world: Reference) -> None:
    world.active[0][1].fetched.clear()


def _break_parents(world: Reference) -> None:
    world.active[0][0].state = State.READY


def _break_work(world: Reference) -> None:
    world.active[0][1].done = 2.0


@pytest.mark.parametrize(
    "break_it", [_break_slots, _break_gang, _break_distinct, _break_inputs, _break_parents, _break_work]
)
def test_check_notices(break_it: Callable[[Reference], None]) -> None:
    """The named properties are not vacuous."""
    world = running_world()
    break_it(world)
    with pytest.raises(AssertionError):
        world.check()


@settings(max_examples=60, deadline=None)
@given(scenarios())
def test_every_job_completes_under_fifo(scenario: Scenario) -> None:
    """Every feasible gang eventually starts; every named property holds after every event."""
    note(f"random_scenario({scenario.seed})")
    world = Reference(scenario).run(fifo, max_events=20_000)
    assert world.complete and not world.stalled
    assert sorted(job.job for job in world.jobs) == list(range(len(scenario.workload.jobs)))
    gangs = sum(len(scenario.workload.graphs[job.graph].all_gangs) for job in scenario.workload.jobs)
    finished = [stay for stay in world.stays if stay.outcome == "finished"]
    assert len(finished) == len({(stay.job, stay.gang) for stay in finished}) == gangs
    for done in finished:
        stays = [stay for stay in world.stays if (stay.job, stay.gang) == (done.job, done.gang)]
        assert sum(stay.slowdown for stay in stays) >= 1 - 1e-6
    assert all(0 <= share <= 1 for share in world.utilisation.values())
    assert [event[0] for event in world.events] == sorted(event[0] for event in world.events)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.integers(0, 2**31 - 1))
def test_properties_hold_under_any_policy(scenario: Scenario, seed: int) -> None:
    """Preempting, reconfiguring, waiting and breaking the rules included."""
    note(f"random_scenario({scenario.seed}), random_policy({seed})")
    Reference(scenario).run(random_policy(seed), max_events=3_000)


def test_replaying_the_decisions_replays_the_run() -> None:
    """What a policy did is all that a run depends on besides its scenario."""
    first = Reference(random_scenario(71)).run(random_policy(71))
    again = Reference(random_scenario(71)).run(script(*(action for _, action, _ in first.decisions)))
    assert first.complete
    assert (first.events, first.starts, first.stays) == (again.events, again.starts, again.stays)
    assert first.refused == again.refused > 0
