"""Wasted device-time: a device was empty while a gang that it could have run was ready and not placed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symphony.problem.runnable import first_tasks, profile_on
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.records import GangRecord


def idle_ready_share(topology: Topology, workload: Workload, stays: Sequence[GangRecord]) -> float | None:
    """Share of the device-time of a run in which a device was empty although a gang that it could run was ready.

    A device is empty while no gang runs on it or is placed on it. A gang is ready until its last worker is placed.
    Whether enough devices were empty for all its workers is not checked. None without stays.
    """
    if not stays:
        return None
    kinds = [topology.kind_of[name] for name in topology.kind_counts]
    kernels = {kernel.name: kernel for kernel in workload.kernels}
    able = [
        np.array([[profile_on(kernels[task.kernel], kind, task.size) is not None for kind in kinds] for _, task in row])
        for row in map(first_tasks, workload.graphs)
    ]
    ready, placed, finish = (np.array([getattr(s, x) for s in stays]) for x in ("ready_s", "placed_s", "finish_s"))
    times = np.unique(np.concatenate([[0.0], ready, placed, finish]))
    runs_on = np.stack([able[workload.jobs[stay.job].graph][stay.gang] for stay in stays])  # [stays, kinds]

    def count(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Number of these intervals that cover each step of `times`."""
        change = np.zeros(len(times))
        np.add.at(change, np.searchsorted(times, begin), 1)
        np.add.at(change, np.searchsorted(times, end), -1)
        return np.cumsum(change)[:-1]

    wanted = {kind.name: count(ready[on], placed[on]) > 0 for kind, on in zip(kinds, runs_on.T, strict=True)}
    workers = [(device, row) for row, stay in enumerate(stays) for device in stay.devices]
    devices, owners = np.array(workers, int).reshape(-1, 2).T
    step = np.diff(times)
    wasted = 0.0
    for number, device in enumerate(topology.devices):
        mine = owners[devices == number]
        wasted += step[wanted[device.kind] & (count(placed[mine], finish[mine]) == 0)].sum()
    return float(wasted / (times[-1] * len(topology.devices))) if times[-1] > 0 else 0.0
