"""The time that a training may take, and the compiler options that make short trainings possible."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import jax

Result = TypeVar("Result")

# A CPU compiles a round twice as fast with these, and runs it as fast: programs of many small operations gain nothing
# from the passes that are left out.
SKIPPED_PASSES = (
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
    "while-loop-trip-count-annotator",
    "hlo-verifier",
    "tree_reduction_rewriter",
)
CPU_OPTIONS: dict[str, Any] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_disable_hlo_passes": ",".join(SKIPPED_PASSES),
}


def compiler_options() -> dict[str, Any] | None:
    """Options of XLA for the programs of a training; None: its defaults. Flags in XLA_FLAGS take precedence."""
    if jax.default_backend() != "cpu":
        return None
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in CPU_OPTIONS.items() if name not in flags and _accepted(name)} or None


@cache
def _accepted(name: str) -> bool:
    """Whether this version of XLA has the option."""
    program = jax.jit(lambda x: x + 1).lower(0.0)
    try:
        program.compile(compiler_options={name: CPU_OPTIONS[name]})
    except jax.errors.JaxRuntimeError:
        return False
    return True


class TimeBudget:
    """A time limit. Measures the parts of a training, each under a name, and predicts the next by the last."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + limit_s
        self.expected_s: dict[str, float] = {}  # of each part that was measured or set

    @property
    def left_s(self) -> float:
        return self._end - self._clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self._clock()
        yield
        self.expected_s[name] = self._clock() - began

    def fits(self, *parts: str) -> bool:
        """Whether there is time for these parts. A part that was never measured counts as 0 s."""
        return self.left_s > sum(self.expected_s.get(name, 0.0) for name in parts)

    def within(self, work: Callable[[], Result]) -> Result:
        """Do what cannot be interrupted, such as compiling. Raises `TimeoutError` when the time is over.

        The work then goes on in a thread, for which Python waits before it ends (`os._exit` does not).
        """
        thread, left_s = ThreadPoolExecutor(1), self.left_s
        try:
            return thread.submit(work).result(None if math.isinf(left_s) else left_s)
        finally:
            thread.shutdown(wait=False)
