"""Several accelerators: the runs of a round are divided among them, and the weights are replicated.

The compiler partitions the program of a round by the sharding of its arguments and adds the reductions, so no other
code depends on this. Results equal those of one accelerator up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from symphony.simulator.scenarios import ScenarioArrays

Tree = TypeVar("Tree")


class DeviceSharding:
    """The devices for the runs of a round: as many of this process's devices as can have equal numbers of runs."""

    def __init__(self, runs: int, devices: Sequence[jax.Device] | None = None) -> None:
        available = list(devices or jax.local_devices())
        self.count = max(number for number in range(1, len(available) + 1) if runs % number == 0)
        mesh = Mesh(np.asarray(available[: self.count]), ("runs",))
        self._by_run = NamedSharding(mesh, PartitionSpec("runs"))
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._first = SingleDeviceSharding(available[0])

    def shard(self, batch: ScenarioArrays) -> ScenarioArrays:
        """Divide the runs of a batch; the topology is replicated."""
        if self.count == 1:
            return batch
        runs = jax.device_put(replace(batch, topology=None), self._by_run)
        return replace(runs, topology=jax.device_put(batch.topology, self._replicated))

    def replicate(self, tree: Tree) -> Tree:
        """Copy a tree to all devices."""
        return tree if self.count == 1 else _put(tree, self._replicated)

    def gather(self, tree: Tree) -> Tree:
        """A replicated tree on the first device only."""
        return tree if self.count == 1 else _put(tree, self._first)


def _put(tree: Tree, where: Sharding) -> Tree:
    arrays, others = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, where), others)
