"""Several accelerators: the runs of a round are shared out among them, and the weights are on all.

The compiler divides the program of a round by where its arguments are, and adds what has to be summed up; so nothing
else knows of it. Numbers are those of one accelerator but for the order of sums.
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
    """Who computes the runs of a round: as many devices (of all that this process has) as can have equally many."""

    def __init__(self, runs: int, devices: Sequence[jax.Device] | None = None) -> None:
        found = list(devices or jax.local_devices())
        self.count = max(number for number in range(1, len(found) + 1) if runs % number == 0)
        mesh = Mesh(np.asarray(found[: self.count]), ("runs",))
        self._some, self._all = NamedSharding(mesh, PartitionSpec("runs")), NamedSharding(mesh, PartitionSpec())
        self._first = SingleDeviceSharding(found[0])

    def shard(self, batch: ScenarioArrays) -> ScenarioArrays:
        """To each its runs, and the topology to all."""
        if self.count == 1:
            return batch
        runs = jax.device_put(replace(batch, topology=None), self._some)
        return replace(runs, topology=jax.device_put(batch.topology, self._all))

    def replicate(self, tree: Tree) -> Tree:
        """To all, whole."""
        return tree if self.count == 1 else _put(tree, self._all)

    def gather(self, tree: Tree) -> Tree:
        """What is everywhere, on the first alone: for what one computes."""
        return tree if self.count == 1 else _put(tree, self._first)


def _put(tree: Tree, where: Sharding) -> Tree:
    arrays, others = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, where), others)
