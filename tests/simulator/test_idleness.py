"""Device-time that is wasted, counted by hand."""

from __future__ import annotations

import pytest

from symphony.problem.topology import Device, DeviceKind, Topology
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.simulator.idleness import idle_ready_share
from symphony.simulator.records import GangRecord

KINDS = (DeviceKind("cpu", "cpu", slots=2), DeviceKind("gpu", "gpu"))
DEVICES = tuple(
    Device(name, kind, "m", "r", "m", "m", ()) for name, kind in (("c0", "cpu"), ("c1", "cpu"), ("g", "gpu"))
)
TOPOLOGY = Topology("three", KINDS, (), DEVICES, (0.0,) * 7)
KERNELS = (Kernel("any", {"cpu": Profile(1.0), "gpu": Profile(1.0)}), Kernel("cpu", {"cpu": Profile(1.0)}))
WORKLOAD = Workload(
    "two", KERNELS, tuple(TaskGraph(k.name, (Task("a", k.name),)) for k in KERNELS), (Job(0, 0.0), Job(1, 0.0))
)


def stay(job: int, device: int, ready_s: float, placed_s: float, start_s: float, finish_s: float) -> GangRecord:
    return GangRecord(job, 0, (device,), ready_s, placed_s, start_s, finish_s, 1.0, 0.0)


def test_empty_devices_count_while_somebody_is_ready_for_them() -> None:
    """Until 1 s all three are empty and both gangs are ready. From then on the first has c0; the second, for which only
    CPUs will do, is placed on c1 at 3 s and begins at 4 s: two more seconds of c1, none of the GPU."""
    stays = [stay(0, 0, 0.0, 1.0, 1.0, 10.0), stay(1, 1, 0.0, 3.0, 4.0, 8.0)]
    assert idle_ready_share(TOPOLOGY, WORKLOAD, stays) == pytest.approx((3 + 2) / 30)


def test_a_device_with_a_worker_is_not_empty_and_without_stays_nothing_is_known() -> None:
    stays = [stay(0, 0, 0.0, 0.0, 0.0, 10.0), stay(1, 0, 2.0, 6.0, 6.0, 10.0)]
    assert idle_ready_share(TOPOLOGY, WORKLOAD, stays) == pytest.approx(4 / 30)  # c1 only
    assert idle_ready_share(TOPOLOGY, WORKLOAD, []) is None
