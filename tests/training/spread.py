"""A round that is spread over two accelerators: run by `test_train.py` in a process of its own."""

import jax
import numpy as np

from symphony.training.train import accelerators, train
from tests.training.test_train import METHOD, SIZES, WHAT, Size

assert len(jax.devices()) == 2 and accelerators(4).size == 2 and accelerators(3).size == 1
size = Size(pool=2, scenarios=2, group=2, validation=1, every=1)
policy, history = train(**WHAT, rounds=1, sizes=SIZES, size=size, method=METHOD, rivals=("fifo",))
assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(policy))
print(history[0].decisions)
