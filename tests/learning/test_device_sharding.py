"""Whose the runs of a round are. That several devices learn what one learns is among the tests of trainings."""

from __future__ import annotations

import os
import subprocess
import sys

PLACES = """
import jax, numpy as np
from symphony.learning.device_sharding import DeviceSharding
from tests.learning.test_train import COURSE, stack

batch, (first, *_) = stack([COURSE.scenario(number) for number in range(6)]), jax.devices()
for runs, count in ((6, 3), (4, 4), (5, 1)):
    assert DeviceSharding(runs).count == count
shared = DeviceSharding(6).shard(batch)
for leaf, before in zip(jax.tree.leaves(shared.workload), jax.tree.leaves(batch.workload), strict=True):
    assert [len(x.data) for x in leaf.addressable_shards] == [2, 2, 2]
    np.testing.assert_array_equal(leaf, before)
for leaf in jax.tree.leaves((shared.topology, DeviceSharding(6).replicate(batch))):
    assert len(leaf.sharding.device_set) == 3 and leaf.sharding.is_fully_replicated
assert {x for leaf in jax.tree.leaves(DeviceSharding(6).gather(shared)) for x in leaf.devices()} == {first}
assert DeviceSharding(6, jax.devices()[:2]).count == 2
"""


def on_devices(count: int, code: str) -> str:
    """What a program prints that has so many devices, made of the cores."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_runs_are_shared_out_equally_and_all_else_is_everywhere() -> None:
    on_devices(4, PLACES)
