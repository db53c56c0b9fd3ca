"""Speeds of kernels that differ from their profiles, alone and beside other kernels.

A profile is what its author stated. Where speeds were measured, a scenario may hold the true speeds (`Scenario.truth`,
which no policy sees) and the speeds that policies see (`Scenario.told`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import equinox as eqx
import numpy as np

from symphony.problem import limits, units
from symphony.problem.arrays import Numeric
from symphony.problem.errors import WorkloadError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload

PACKED, SPREAD = 0, 1  # a gang within one machine, and one over several
MIN_KEPT_SPEED = 1e-3  # least share of its speed that a kernel keeps beside another


@dataclass(frozen=True)
class Speeds:
    """Times of kernels on device kinds. Absent kernels have their profiles' times; absent pairs do not interfere."""

    # (kernel, device kind) -> seconds of a unit of work 1: packed, spread
    unit_s: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    # (kernel, other, device kind) -> share of its speed that the kernel keeps beside one worker of the other on its
    # device. In the speeds that policies see, 0 means that the two must not share.
    beside: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    crowding: float = 0.0  # what every neighbour after the first adds to the time of all, beyond the effect of pairs


class SpeedArrays(eqx.Module):
    """N kernels, Y device kinds."""

    unit_s: Numeric  # f[N, Y, 2]: packed, spread; 0 = that of the profile
    beside: Numeric  # f[N, N, Y]: in (0, 1]; in beliefs 0 = must not share
    crowding: Numeric  # f[]


class BeliefArrays(eqx.Module):
    """Speeds that policies see: means, and standard deviations of the logarithms."""

    mean: SpeedArrays
    unit_std: Numeric  # f[N, Y, 2]
    beside_std: Numeric  # f[N, N, Y]


def check_speeds(
    speeds: Speeds, topology: Topology, workload: Workload, where: str, *, least: float = MIN_KEPT_SPEED
) -> None:
    """Raise `WorkloadError` for unknown names, times that are not positive, and shares below `least` or above 1."""
    kernels, kinds = set(workload.kernel_index), {kind.name for kind in topology.kinds}

    def check_names(names: tuple[str, ...], kind: str) -> None:
        for name in names:
            if name not in kernels:
                raise WorkloadError(f"there is no kernel {name!r}", where=where, hint="name kernels of the workload")
        if kind not in kinds:
            raise WorkloadError(
                f"there is no device kind {kind!r}", where=where, hint=f"use one of {', '.join(sorted(kinds))}"
            )

    for (kernel, kind), seconds in speeds.unit_s.items():
        check_names((kernel,), kind)
        if len(seconds) != 2 or not all(units.is_number(s, 0, limits.SECONDS) and s > 0 for s in seconds):
            raise WorkloadError(
                f"{kernel!r} takes {seconds!r} on {kind}", where=where, hint="write seconds above 0: packed, spread"
            )
    for (kernel, other, kind), kept in speeds.beside.items():
        check_names((kernel, other), kind)
        if not units.is_number(kept, least, 1):
            raise WorkloadError(
                f"{kernel!r} keeps {kept!r} of its speed beside {other!r} on {kind}",
                where=where,
                hint=f"write a number from {least:g} to 1",
            )
    if not units.is_number(speeds.crowding, 0, limits.NOISE):
        raise WorkloadError(f"crowding is {speeds.crowding!r}", where=where, hint="write a number, 0 or more")


def speed_arrays(speeds: Speeds, topology: Topology, workload: Workload) -> SpeedArrays:
    """The array form, padded like `WorkloadArrays`."""
    n, y = limits.bucket(len(workload.kernels)), limits.bucket(len(topology.kinds))
    kind_of = {kind.name: index for index, kind in enumerate(topology.kinds)}
    unit_s, beside = np.zeros((n, y, 2)), np.ones((n, n, y))
    for (kernel, kind), seconds in speeds.unit_s.items():
        unit_s[workload.kernel_index[kernel], kind_of[kind]] = seconds
    for (kernel, other, kind), kept in speeds.beside.items():
        beside[workload.kernel_index[kernel], workload.kernel_index[other], kind_of[kind]] = kept
    return SpeedArrays(unit_s, beside, np.float64(speeds.crowding))


def belief_arrays(speeds: Speeds, topology: Topology, workload: Workload) -> BeliefArrays:
    """Speeds that policies see exactly: standard deviations are 0."""
    mean = speed_arrays(speeds, topology, workload)
    return BeliefArrays(mean, np.zeros_like(mean.unit_s), np.zeros_like(mean.beside))
