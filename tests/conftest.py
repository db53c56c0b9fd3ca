"""Before any test module is imported; and what keeps a long run of tests small."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compiling import compile_quickly, share_programs

compile_quickly()
share_programs()

CHUNK = 64  # steps: tests run a hundred or so, and without optimisation the rest of a long chunk takes seconds
MOST_BYTES = 3 << 30  # of one process, from which on compiled programs are dropped between modules


def pytest_collection_finish() -> None:
    """Short chunks of steps. And tracing makes millions of small objects: what was imported is not looked at again."""
    from symphony.simulator import run

    run.STEPS_PER_CHUNK = CHUNK
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Compiled programs stay in memory for good: hundreds of simulators would take more than a small machine has."""
    yield
    import jax

    from symphony.simulator import run

    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    if pages * 4096 > MOST_BYTES:
        run._programs.clear()
        jax.clear_caches()
        gc.collect()
        # What is free stays with the process unless it is given back, and every later module would begin from nothing.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)
