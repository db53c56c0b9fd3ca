"""Tiled Cholesky with the times of a StarPU machine, as StarPU's own simulations run it."""

from __future__ import annotations

import math
from dataclasses import replace

from symphony.lowering.factorisations import cholesky_calls, tasks_and_edges
from symphony.lowering.readers.reading import FileContents
from symphony.lowering.readers.starpu import Measured
from symphony.lowering.templates import Templates, check_size
from symphony.problem.errors import WorkloadError
from symphony.problem.workload import TaskGraph

FLOAT_BYTES = 4  # StarPU's chol_model_* kernels work on floats
# kernel of the factorisation -> operands of its codelet, in tiles; StarPU identifies sizes by the bytes of all operands
_CHOLESKY = {"potrf": 1, "trsm": 2, "syrk": 2, "gemm": 3}


def cholesky_on(contents: FileContents, tiles: int, tile: int = 960) -> Templates:
    """Tiled Cholesky of `tiles` by `tiles` tiles of `tile` by `tile` floats, with the times of the machine's model.

    The times are those of chol_model_potrf, _trsm, _syrk and _gemm on operands with the bytes of 1, 2, 2 and 3 tiles,
    as in StarPU's example. On every machine, syrk is half of gemm; StarPU uses it so. The matrix starts on the home
    machine, in main memory.
    """
    check_size(1, tiles * (tiles + 1) * (tiles + 2) // 6, where=f"cholesky:{tiles}")
    tile_bytes = float(FLOAT_BYTES * tile * tile)
    rows: tuple[Measured, ...] = contents.tables["rows"]
    by_name = {kernel.name: kernel for kernel in contents.kernels}
    kernels = {}
    for name, operands in _CHOLESKY.items():
        codelet = f"chol_model_{name}"
        row = next((row for row in rows if (row.codelet, row.data_bytes) == (codelet, operands * tile_bytes)), None)
        if row is None or row.kernel not in by_name:
            measured = {row.data_bytes for row in rows if row.codelet == "chol_model_potrf"}
            sides = sorted({math.isqrt(int(size // FLOAT_BYTES)) for size in measured})
            raise WorkloadError(
                f"{contents.source} has no time of {codelet} for tiles of {tile} by {tile} floats",
                hint=f"use a tile of {' or '.join(map(str, sides)) or 'another machine'}",
            )
        kernels[name] = replace(by_name[row.kernel], name=name)
    tasks, edges = tasks_and_edges(cholesky_calls(tiles), 1.0, tile_bytes)
    used = dict.fromkeys(task.kernel for task in tasks)
    return tuple(kernels[name] for name in used), (TaskGraph(f"cholesky:{tiles}", tasks, edges),)
