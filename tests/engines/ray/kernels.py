"""Kernels for the tests. They import what they use, and nothing is imported with them."""

from __future__ import annotations


def double(x):
    return 2 * x


def quick(path="", number=0, what=""):
    """Does nothing, unless it is told to; leaves a mark."""
    import os
    import pathlib
    import signal
    import time

    if path:
        (pathlib.Path(path) / f"{number}-{time.monotonic_ns()}").touch()
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while what == "hang":
        time.sleep(1)
    return number


def where():
    import os
    import sys

    import ray

    loaded = sorted({"jax", "symphony"} & set(sys.modules))
    threads, folder = os.environ.get("OMP_NUM_THREADS"), os.getcwd()
    return ray.get_runtime_context().get_node_id(), os.getpid(), loaded, threads, folder


def sleep_until(path, mark=""):
    import os
    import pathlib
    import time

    if mark:
        pathlib.Path(mark).touch()
    while not os.path.exists(path):
        time.sleep(0.005)


def exists(path):
    import os

    return os.path.exists(path)


class Broken:
    """An actor that cannot be made."""

    def __init__(self, *_):
        raise RuntimeError("no")

    def hello(self, _):
        pass
