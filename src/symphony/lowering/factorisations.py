"""Tiled dense factorisations: Cholesky, LU without pivoting, and QR with a flat tree.

The sequential algorithm is a list of calls, each with the tiles that it reads and writes. A tile that a call reads
comes from the call that wrote it last or, if none did, from the job's home machine. No call overwrites a tile that it
does not read or that another call has still to read, so these edges are all dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from symphony.lowering.templates import Templates, check_size
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

Tile = tuple[str, int, int]  # (matrix, row, column)

DEFAULT_TILE = 960  # doubles along the side of a tile for which times are given


@dataclass(frozen=True)
class TileOperation:
    """One call of the sequential algorithm."""

    kernel: str
    index: tuple[int, ...]
    reads: tuple[Tile, ...]  # including those that it updates
    writes: tuple[Tile, ...]

    @property
    def name(self) -> str:
        """Such as gemm(3,1,0)."""
        return f"{self.kernel}({','.join(map(str, self.index))})"


def _a(i: int, j: int) -> Tile:
    return ("A", i, j)


def _v(i: int, j: int) -> Tile:
    return ("V", i, j)


def cholesky_calls(n: int) -> Iterator[TileOperation]:
    """A = L·Lᵀ, lower half, n by n tiles."""
    for k in range(n):
        yield TileOperation("potrf", (k,), (_a(k, k),), (_a(k, k),))
        for i in range(k + 1, n):
            yield TileOperation("trsm", (i, k), (_a(k, k), _a(i, k)), (_a(i, k),))
        for i in range(k + 1, n):
            yield TileOperation("syrk", (i, k), (_a(i, k), _a(i, i)), (_a(i, i),))
            for j in range(k + 1, i):
                yield TileOperation("gemm", (i, j, k), (_a(i, k), _a(j, k), _a(i, j)), (_a(i, j),))


def lu_calls(n: int) -> Iterator[TileOperation]:
    """A = L·U without pivoting."""
    for k in range(n):
        yield TileOperation("getrf", (k,), (_a(k, k),), (_a(k, k),))
        for i in range(k + 1, n):
            yield TileOperation("trsm", (k, i, k), (_a(k, k), _a(k, i)), (_a(k, i),))
            yield TileOperation("trsm", (i, k, k), (_a(k, k), _a(i, k)), (_a(i, k),))
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                yield TileOperation("gemm", (i, j, k), (_a(i, k), _a(k, j), _a(i, j)), (_a(i, j),))


def qr_calls(n: int) -> Iterator[TileOperation]:
    """A = Q·R, each panel reduced from top to bottom.

    A diagonal tile holds reflectors V and part of R, which are separate tiles here: calls that apply V need not
    wait until R is final. The small triangular factors are transferred with V.
    """
    for k in range(n):
        yield TileOperation("geqrt", (k,), (_a(k, k),), (_a(k, k), _v(k, k)))
        for j in range(k + 1, n):
            yield TileOperation("unmqr", (j, k), (_v(k, k), _a(k, j)), (_a(k, j),))
        for i in range(k + 1, n):
            yield TileOperation("tsqrt", (i, k), (_a(k, k), _a(i, k)), (_a(k, k), _v(i, k)))
            for j in range(k + 1, n):
                yield TileOperation("tsmqr", (i, j, k), (_v(i, k), _a(k, j), _a(i, j)), (_a(k, j), _a(i, j)))


ALGORITHMS: Mapping[str, tuple[Callable[[int], Iterator[TileOperation]], Callable[[int], int]]] = {
    # name: (calls, number of calls)
    "cholesky": (cholesky_calls, lambda n: n * (n + 1) * (n + 2) // 6),
    "lu": (lu_calls, lambda n: n * (n + 1) * (2 * n + 1) // 6),
    "qr": (qr_calls, lambda n: n * (n + 1) * (2 * n + 1) // 6),
}

# kernel: (ms on one core of a Xeon, ms on a V100, whether it is bound by a GPU's peak rate), for a tile of 960 doubles.
# Chosen near public timings on a Broadwell core and a V100: products run a hundred times faster on the GPU; the
# factorisation of a tile, a chain of short steps, at most nine times.
_KERNEL_MS: Mapping[str, tuple[float, float, bool]] = {
    "gemm": (37.0, 0.37, True),
    "syrk": (19.0, 0.35, True),
    "trsm": (19.0, 0.76, True),
    "potrf": (8.7, 0.98, False),
    "getrf": (17.0, 2.4, False),
    "geqrt": (34.0, 8.0, False),
    "tsqrt": (52.0, 11.0, False),
    "unmqr": (42.0, 0.95, True),
    "tsmqr": (80.0, 1.3, True),
}
# Time relative to the V100's: of kernels bound by the peak rate, and by latency (chosen from the vendors' peak rates).
_GPU_TIME_FACTORS: Mapping[str, tuple[float, float]] = {
    "k40": (4.6, 1.9),
    "k80": (4.2, 2.0),
    "p100": (1.4, 1.15),
    "v100": (1.0, 1.0),
    "a100": (0.5, 0.9),
}
_CPU_TIME_FACTORS: Mapping[str, float] = {"power8": 1.6, "xeon": 1.0}  # time relative to the Xeon's (chosen)
_TYPICAL_KIND = {"cpu": "xeon", "gpu": "p100"}  # the profile that any other kind of the type gets
_GPU_LAUNCH_S = 2e-5  # part of a GPU's time that does not depend on the size of the tile


def factorisation(rng: np.random.Generator, topology: Topology, *, algorithm: str, tiles: int, tile: int) -> Templates:
    """The graph of a factorisation of `tiles` by `tiles` tiles, each of `tile` by `tile` doubles."""
    calls, count = ALGORITHMS[algorithm]
    check_size(1, count(tiles), where=f"{algorithm}:{tiles}")
    tasks, edges = tasks_and_edges(calls(tiles), tile / DEFAULT_TILE, 8.0 * tile * tile)
    graph = TaskGraph(f"{algorithm}:{tiles}", tasks, edges)
    return tuple(_kernel(name, tile) for name in dict.fromkeys(task.kernel for task in tasks)), (graph,)


def tasks_and_edges(
    calls: Iterable[TileOperation], size: float, tile_bytes: float
) -> tuple[tuple[Task, ...], tuple[Edge, ...]]:
    """A task of `size` for each call, and an edge of `tile_bytes` for each tile that it reads."""
    writer: dict[Tile, str] = {}
    tasks, edges = [], []
    for call in calls:
        tasks.append(Task(call.name, call.kernel, size))
        edges += [Edge(writer.get(read), call.name, tile_bytes) for read in call.reads]
        writer |= dict.fromkeys(call.writes, call.name)
    return tuple(tasks), tuple(edges)


def _kernel(name: str, tile: int) -> Kernel:
    """A tile kernel, cubic in the side of the tile. Its demands are those for the default tile."""
    cpu_ms, gpu_ms, by_peak = _KERNEL_MS[name]
    touched = 3 * 8.0 * DEFAULT_TILE**2  # bytes of three operands
    footprint = 3 * 8.0 * tile**2
    implementations = {}
    for kind, slower in _CPU_TIME_FACTORS.items():
        seconds = cpu_ms * 1e-3 * slower
        demand = {"compute": 1.0, "memory": 2 * touched / seconds}
        implementations[kind] = Profile(0.0, seconds, demand, memory=footprint)
    for kind, (peak, latency) in _GPU_TIME_FACTORS.items():
        seconds = gpu_ms * 1e-3 * (peak if by_peak else latency)
        demand = {"compute": 0.95 if by_peak else 0.25, "device_memory": 2 * touched / seconds}
        implementations[kind] = Profile(_GPU_LAUNCH_S, seconds - _GPU_LAUNCH_S, demand, memory=footprint)
    for device_type, kind in _TYPICAL_KIND.items():
        implementations[device_type] = implementations[kind]
    return Kernel(name, implementations, exponent=3.0)
