"""What the applications here do when they are run: the graph twice on this machine, once without Symphony, compared."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import symphony as sy


def main(
    about: str | None,
    build: Callable[..., sy.Graph],
    argv: list[str] | None = None,
    topology: sy.Topology | None = None,
    size: int = 8,
) -> Any:
    """Run what `build(size, seed)` makes; the second time, Symphony knows what each kernel takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=size, help="parts of the input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="eft-belief")
    parser.add_argument("--profiles", help="where what is learned is kept")
    parser.add_argument("--trace", help="write a trace for ui.perfetto.dev")
    options = parser.parse_args(argv)
    graph = build(options.size, options.seed)
    with sy.local(topology, policy=options.policy, profiles=options.profiles) as cluster:
        for _ in range(2):
            job = cluster.submit(graph)
            result = job.result()
            print(job.explain(), "\n")
        if options.trace:
            job.trace(options.trace)
        print(cluster.profiles, "\n")
    began = time.perf_counter()
    plain = graph.run()
    same(result, plain)
    print(f"{result}\nthe same as in one process without Symphony, which took {time.perf_counter() - began:.3g} s")
    return result


def same(result: Any, plain: Any) -> None:
    """Raise unless two results are equal, but for the rounding of a GPU."""
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-2, atol=1e-3), result, plain)
