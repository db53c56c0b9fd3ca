"""Bounds, and the buckets that sizes are padded to."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.problem import limits
from symphony.problem.arrays import workload_arrays
from symphony.problem.errors import LimitError
from symphony.problem.topology import Device, DeviceKind, Topology
from symphony.problem.workload import Job, Kernel, Profile, Task, TaskGraph, Workload


def test_check_lets_the_bound_itself_pass_and_names_what_is_beyond() -> None:
    limits.check("number of devices", 20, 20, where="lab")
    with pytest.raises(LimitError, match=r"lab: number of devices is 21, more than Symphony's bound of 20") as caught:
        limits.check("number of devices", 21, 20, where="lab")
    assert "symphony.problem.limits" in caught.value.hint


def test_buckets_by_hand() -> None:
    assert [limits.bucket(n) for n in range(14)] == [1, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]
    assert (limits.bucket(97), limits.bucket(129)) == (128, 192)


@given(st.integers(1, 10**9))
def test_a_bucket_holds_its_number_and_at_most_a_third_of_padding(n: int) -> None:
    size = limits.bucket(n)
    assert n <= size
    assert size - n <= size / 3
    assert limits.bucket(size) == size
    assert limits.bucket(n + 1) >= size


def test_as_many_device_kinds_as_the_bound_allows_can_be_told_apart() -> None:
    """Which kinds run a gang is kept as the bits of one integer."""
    kinds = tuple(DeviceKind(f"kind{i}", "cpu") for i in range(limits.DEVICE_KINDS))
    devices = tuple(Device(f"d{i}", kind.name, "m", "r", "s", "w", ()) for i, kind in enumerate(kinds))
    kernels = tuple(Kernel(f"on{i}", {kind.name: Profile(1.0)}) for i, kind in enumerate(kinds))
    graph = TaskGraph("g", tuple(Task(kernel.name, kernel.name) for kernel in kernels))
    arrays = workload_arrays(Topology("t", kinds, (), devices), Workload("w", kernels, (graph,), (Job(0, 0.0),)))
    for i in range(len(kinds)):
        assert [k for k in range(len(kinds)) if arrays.runs_on[0, i] >> k & 1] == [i]
    with pytest.raises(LimitError, match="number of device kinds"):
        Topology("t", (*kinds, DeviceKind("more", "cpu")), (), devices)


@pytest.mark.parametrize(("value", "shown"), [(1e30, "1e+30"), (10**400, "too large")])
def test_absurd_numbers_are_told_shortly(value: float, shown: str) -> None:
    with pytest.raises(LimitError, match=f"x is {re.escape(shown)}, more"):
        limits.check("x", value, 5)
