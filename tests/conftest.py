"""Before any test module is imported; and what keeps a long run of tests small."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compiling import compile_quickly, share_bytecode, share_programs

gc.disable()  # until all tests are collected: imports make millions of objects, and hardly any garbage
share_programs()
share_bytecode()
compile_quickly()

# Folders whose files share large programs, or the Ray cluster: their tests run in one process.
TOGETHER = ("tests/baselines/", "tests/engines/ray/", "tests/envs/", "tests/oracle/")
CHUNK = 64  # steps: tests run a hundred or so, and without optimisation the rest of a long chunk takes seconds
# Of one process, from which on compiled programs are dropped between modules. To drop them takes seconds, and modules
# share some of them: on a machine with much memory, they stay.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
MAX_BYTES = max(2 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3 // WORKERS)


def pytest_collection_finish() -> None:
    """Short chunks of steps. And tracing makes millions of small objects: what was imported is not looked at again."""
    from symphony.simulator import run

    run.STEPS_PER_CHUNK = CHUNK
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, tests of a file run in one process, which compiles what they share once.

    So do those of a folder of `TOGETHER`. Files keep their order: if those with few tests came last, a long one would.
    """
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((folder for folder in TOGETHER if file.startswith(folder)), file)

    return Scheduling(config, log)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Compiled programs stay in memory for good: hundreds of simulators would take more than a small machine has."""
    yield
    if _resident_bytes() < MAX_BYTES:
        return
    _return_free_memory()
    if _resident_bytes() < MAX_BYTES:
        return
    import jax

    from symphony.simulator import run

    run._programs.clear()
    jax.clear_caches()
    gc.collect()
    _return_free_memory()


def _resident_bytes() -> int:
    """Memory that this process has; 0 where the system does not say it."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


def _return_free_memory() -> None:
    """What is free stays with the process unless it is given back."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
