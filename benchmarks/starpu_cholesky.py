"""Tiled factorisations with the times of a StarPU machine, as StarPU's own examples run them in its simulations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from symphony.lowering.factorisations import ALGORITHMS, TileOperation, tasks_and_edges
from symphony.lowering.readers.reading import FileContents
from symphony.lowering.readers.starpu import Measured
from symphony.lowering.templates import Templates, check_size
from symphony.problem.errors import WorkloadError
from symphony.problem.workload import TaskGraph

FLOAT_BYTES = 4  # the codelets below work on floats
# kernel -> (codelet, its operands in tiles); StarPU identifies sizes by the bytes of all operands
_CODELETS: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "cholesky": {"potrf": ("chol_model_potrf", 1), "trsm": ("chol_model_trsm", 2), "gemm": ("chol_model_gemm", 3)},
    "lu": {
        "getrf": ("starpu_slu_lu_model_getrf", 1),
        "trsm_row": ("starpu_slu_lu_model_trsm_ll", 2),
        "trsm_column": ("starpu_slu_lu_model_trsm_ru", 2),
        "gemm": ("starpu_slu_lu_model_gemm", 3),
    },
}


def _cholesky_calls(n: int) -> Iterator[TileOperation]:
    """In the order of StarPU 1.3's example, which uses gemm for diagonal tiles, too (no syrk)."""
    for k in range(n):
        diagonal = ("A", k, k)
        yield TileOperation("potrf", (k,), (diagonal,), (diagonal,))
        for i in range(k + 1, n):
            yield TileOperation("trsm", (i, k), (diagonal, ("A", i, k)), (("A", i, k),))
        for j in range(k + 1, n):
            for i in range(j, n):
                panel = (("A", i, k),) if i == j else (("A", i, k), ("A", j, k))
                yield TileOperation("gemm", (i, j, k), (*panel, ("A", i, j)), (("A", i, j),))


def _lu_calls(n: int) -> Iterator[TileOperation]:
    """Without pivoting, in the order of StarPU's example."""
    for k in range(n):
        diagonal = ("A", k, k)
        yield TileOperation("getrf", (k,), (diagonal,), (diagonal,))
        for i in range(k + 1, n):
            yield TileOperation("trsm_row", (k, i), (diagonal, ("A", k, i)), (("A", k, i),))
            yield TileOperation("trsm_column", (i, k), (diagonal, ("A", i, k)), (("A", i, k),))
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                yield TileOperation("gemm", (i, j, k), (("A", i, k), ("A", k, j), ("A", i, j)), (("A", i, j),))


def _cholesky_priority(call: TileOperation, n: int) -> float:
    """As the example sets it, plus 2 n, so that none is below 0."""
    *tile, step = call.index
    return 4.0 * n - 2.0 * step - sum(tile)


def _lu_priority(call: TileOperation, n: int) -> float:
    """As in the example: tasks with which the next step begins are urgent."""
    step = call.index[-1] if call.kernel in ("getrf", "gemm") else min(call.index)
    return float(max(call.index) <= step + 1)


_PRIORITIES: Mapping[str, Callable[[TileOperation, int], float]] = {
    "cholesky": _cholesky_priority,
    "lu": _lu_priority,
}
_CALLS: Mapping[str, Callable[[int], Iterator[TileOperation]]] = {"cholesky": _cholesky_calls, "lu": _lu_calls}


def factorisation_on(contents: FileContents, algorithm: str, tiles: int, tile: int = 960) -> Templates:
    """A factorisation of `tiles` by `tiles` tiles of `tile` by `tile` floats, with the times of the machine's model.

    The matrix starts on the home machine, in main memory.
    """
    check_size(1, ALGORITHMS[algorithm][1](tiles), where=f"{algorithm}:{tiles}")
    tile_bytes = float(FLOAT_BYTES * tile * tile)
    rows: tuple[Measured, ...] = contents.tables["rows"]
    by_name = {kernel.name: kernel for kernel in contents.kernels}
    kernels = {}
    for name, (codelet, operands) in _CODELETS[algorithm].items():
        row = next((row for row in rows if (row.codelet, row.data_bytes) == (codelet, operands * tile_bytes)), None)
        if row is None or row.kernel not in by_name:
            measured = {row.data_bytes / operands for row in rows if row.codelet == codelet}
            sides = sorted({math.isqrt(int(size // FLOAT_BYTES)) for size in measured})
            raise WorkloadError(
                f"{contents.source} has no time of {codelet} for tiles of {tile} by {tile} floats",
                hint=f"use a tile of {' or '.join(map(str, sides)) or 'another machine'}",
            )
        kernels[name] = replace(by_name[row.kernel], name=name)
    calls = list(_CALLS[algorithm](tiles))
    tasks, edges = tasks_and_edges(calls, 1.0, tile_bytes)
    urgent = _PRIORITIES[algorithm]
    tasks = tuple(replace(task, priority=urgent(call, tiles)) for task, call in zip(tasks, calls, strict=True))
    used = dict.fromkeys(task.kernel for task in tasks)
    return tuple(kernels[name] for name in used), (TaskGraph(f"{algorithm}:{tiles}", tasks, edges),)


def cholesky_on(contents: FileContents, tiles: int, tile: int = 960) -> Templates:
    """Tiled Cholesky; see `factorisation_on`."""
    return factorisation_on(contents, "cholesky", tiles, tile)
