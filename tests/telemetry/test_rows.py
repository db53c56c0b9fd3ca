"""Rows of a topology, from counters of its machines."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem import build
from symphony.problem.errors import InputError
from symphony.problem.topology import RESOURCE_KINDS, Topology
from symphony.telemetry.estimates import Posterior
from symphony.telemetry.events import Catalogue, Event, Metric
from symphony.telemetry.inference import infer
from symphony.telemetry.reading import Model
from symphony.telemetry.rows import _table, metrics_by_row, utilisations
from symphony.telemetry.samples import Column, Sample, record

CPU = Catalogue(
    "x86/made-up",
    events=(Event("cas", unit="iMC"),),
    metrics=(Metric("memory_bandwidth_total", "cas * 64 / 1e6 / duration_time", scale_unit="MB/s"),),
)


def cluster() -> Topology:
    socket = build.SocketSpec(memory="10 GB/s", cache="32 MB", devices=("cpu",))
    switch = build.SwitchSpec(bandwidth="16 GB/s", devices=("gpu", "gpu"))
    first = build.SocketSpec(memory="10 GB/s", cache="32 MB", devices=("cpu",), switch=(switch,))
    return build.build(
        build.ClusterSpec(
            name="two",
            device={
                "cpu": build.DeviceSpec(type="cpu", memory="64 GB"),
                "gpu": build.DeviceSpec(type="gpu", memory="16 GB", device_memory="500 GB/s", link="10 GB/s"),
            },
            machine=(build.MachineSpec(name="a", nic="1 GB/s", socket=(first, socket)),),
        )
    )


def belief(**counts: float) -> Posterior:
    """What is believed after three windows of a second with these counts, never interrupted."""
    names = [name.replace("__", ".") for name in counts]
    columns = tuple(Column(name) for name in names)
    whole = np.ones(len(columns))
    samples = [Sample("", k, 1.0, columns, np.array(list(counts.values())), whole, whole) for k in range(3)]
    return infer(Model(CPU, identities=()), record(samples))


def of_kind(topology: Topology, kind: str) -> list[str]:
    return [row.name for row in topology.resources if row.kind == kind]


def test_what_all_share_is_shared() -> None:
    topology = cluster()
    machine = topology.resources[0].group
    found = utilisations(
        topology, machine, {"": belief(cas=10e9 / 64, net__receive_bytes=2e8, net__transmit_bytes=3e8)}
    )
    for row in of_kind(topology, "memory"):  # 10 of 20 GB/s
        np.testing.assert_allclose(found[row].mean, 0.5, rtol=1e-3)
    (nic,) = of_kind(topology, "nic")
    np.testing.assert_allclose(found[nic].mean, 0.5, rtol=1e-3)
    assert set(found) == {nic, *of_kind(topology, "memory")}  # of the others nothing is known


@pytest.mark.parametrize("places", [("S0", "S1"), ("S1-D0", "S0-D0")])
def test_sockets_that_perf_tells_apart(places: tuple[str, str]) -> None:
    topology = cluster()
    used = {"S0": 2e9, "S1": 9e9}
    beliefs = {
        place: belief(cas=used[place[:2]] / 64, net__receive_bytes=2e8, net__transmit_bytes=0) for place in places
    }
    found = utilisations(topology, topology.resources[0].group, beliefs)
    assert [found[row].mean[-1] for row in of_kind(topology, "memory")] == pytest.approx([0.2, 0.9], rel=1e-3)
    assert found[of_kind(topology, "nic")[0]].mean[-1] == pytest.approx(0.4, rel=1e-3)  # of both together
    only = utilisations(topology, topology.resources[0].group, {"S1": belief(cas=9e9 / 64)})
    assert set(only) == {of_kind(topology, "memory")[1]}


def test_what_cpus_say_is_added_up() -> None:
    topology = cluster()
    beliefs = {"CPU0": belief(cas=2e9 / 64), "CPU16": belief(cas=9e9 / 64)}
    found = utilisations(topology, topology.resources[0].group, beliefs)
    for row in of_kind(topology, "memory"):  # 11 of 20 GB/s
        assert found[row].mean[-1] == pytest.approx(0.55, rel=1e-3)


def test_what_is_a_devices_own() -> None:
    topology = cluster()
    machine = topology.resources[0].group
    busy = belief(
        gpm__sm_busy_us=3.4e5,
        nvml__busy_us=9.9e5,
        gpm__dram_busy_us=1e5,
        gpm__pcie_transmit_bytes=1e9,
        gpm__pcie_receive_bytes=1e9,
    )
    idle = belief(nvml__busy_us=2e5)
    found = utilisations(topology, machine, {"GPU-0": busy, "GPU-1": idle})
    types = {kind.name: kind.type for kind in topology.kinds}
    gpus = [device for device in topology.devices if types[device.kind] == "gpu"]
    own = [{hop.resource for hop in gpu.route} for gpu in gpus]
    compute = [next(row for row in of_kind(topology, "compute") if row in rows) for rows in own]
    assert found[compute[0]].mean[-1] == pytest.approx(0.34, rel=0.01)  # not the 99% of the classic figure
    assert found[compute[1]].mean[-1] == pytest.approx(0.2, rel=0.01)
    link = next(row for row in of_kind(topology, "link") if row in own[0])
    assert found[link].mean[-1] == pytest.approx(0.2, rel=0.01)
    memory = next(row for row in of_kind(topology, "device_memory") if row in own[0])
    assert found[memory].mean[-1] == pytest.approx(0.1, rel=0.01)


def test_uncertainty_is_carried_over() -> None:
    topology = cluster()
    machine = topology.resources[0].group
    columns = (Column("net.receive_bytes", 0), Column("net.transmit_bytes", 1))
    half = np.array([0.5, 0.5])
    samples = [Sample("", k, 1.0, columns, np.array([1e8, 1e8]), half, np.ones(2)) for k in range(5)]
    (nic,) = of_kind(topology, "nic")
    found = utilisations(topology, machine, {"": infer(Model(CPU, identities=()), record(samples))})[nic]
    assert (found.std > 0).all() and (found.lower < found.mean).all() and (found.upper > found.mean).all()


def test_what_tells_of_rows_is_what_beliefs_are_asked_for() -> None:
    topology = cluster()
    told = metrics_by_row(topology, "a", CPU)
    assert {told[row] for row in of_kind(topology, "memory")} == {("memory_bandwidth_total",)}
    assert told[of_kind(topology, "nic")[0]] == ("net.receive_bytes", "net.transmit_bytes")
    assert not set(of_kind(topology, "cache")) & set(told)
    types = {kind.name: kind.type for kind in topology.kinds}
    for device in topology.devices:
        (compute,) = {hop.resource for hop in device.route} & set(of_kind(topology, "compute"))
        busy = {"cpu": ("stat.user_us", "stat.nice_us", "stat.system_us"), "gpu": ("gpm.sm_busy_us",)}
        assert told[compute] == busy[types[device.kind]]
    counted = belief(
        cas=1e6, **{name.replace(".", "__"): 1.0 for some in told.values() for name in some if "." in name}
    )
    assert set(utilisations(topology, "a", {"": counted, "GPU-0": counted, "GPU-1": counted})) == set(told)


def test_a_cpu_that_does_not_count_bytes_does_not_tell_of_memory() -> None:
    topology = cluster()
    assert not set(of_kind(topology, "memory")) & set(metrics_by_row(topology, "a", Catalogue("x86/bare", ())))


def test_a_machine_that_is_not_there() -> None:
    for ask in (lambda: utilisations(cluster(), "b", {}), lambda: metrics_by_row(cluster(), "b", CPU)):
        with pytest.raises(InputError, match="no machine 'b'"):
            ask()


def test_the_table_speaks_of_kinds_that_there_are() -> None:
    assert {says.kind for says in _table()} <= set(RESOURCE_KINDS)
