"""The applications of the Symphony paper as task graphs: variant calling, EEG analysis, intrusion detection.

The paper publishes throughput ratios for one kernel of each, and how pairs of kernels slow one another down. It does
not publish the shapes of graphs, sizes and most times. `_KERNELS` gives the source of each row; the rows marked as
chosen are plausible, and make devices differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from symphony.lowering.templates import GPU_MEMORY_BANDWIDTH, Templates, check_size
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph


class _KernelCosts(NamedTuple):
    """Times of a kernel on one slot of a Power8 and on other devices, and its use of a socket's shared resources.

    `compute`, `memory` and `cache` are the shares of a socket's resources in use when half of its slots run the kernel.
    They are fitted to the published co-run speeds of pairs: if half of the slots run each of two kernels, both run at
    1 / max(1, a + b) of their speed, for the worst of the three resources. (Root mean square error 0.06 over 66 pairs.)
    """

    power8_s: float  # an input of size 1, alone
    xeon: float  # speed relative to the Power8's; likewise the next two, 0: it does not run there
    k80: float
    fpga: float
    compute: float
    memory: float
    cache: float
    output: float  # bytes made from an input of size 1
    source: str


_FROM_PAPER = "paper's supplement, fig. 1 (middle of the range; FPGA: 14.85)"
_CHOSEN = "chosen"
_FROM_ACMC2 = "AcMC², the accelerators of the same authors"
_CPU_ONLY = "times chosen; that it runs on CPUs only: the paper"
_EEG_FPGA = 4.3 / 0.0418  # 41.8 ms
_EEG_K80 = _EEG_FPGA / 18.2  # 18.2 times slower than the FPGA
_TAG_FPGA, _TAG_GPU = 48.4, 48.4 / 8.6  # CPU and GPU are 48.4 and 8.6 times slower than the FPGA

# fmt: off
_KERNELS: Mapping[str, _KernelCosts] = {
    # name                  power8  xeon       k80       fpga   compute, memory, cache   output  source
    "KMerSearch":       _KernelCosts(   3.0, 0.95,      4.0,       9.0, 0.45, 0.75, 0.00,  60e6, _CHOSEN),
    "LandauVishkin":    _KernelCosts(   4.0, 0.90,      6.0,      12.0, 0.50, 0.60, 0.65,  40e6, _CHOSEN),
    "LV-CIGAR":         _KernelCosts(   1.5, 0.90,      5.0,       8.0, 0.50, 0.60, 0.50,  30e6, _CHOSEN),
    "FilterPairs":      _KernelCosts(   0.6, 1.00,      1.5,       2.0, 0.55, 0.35, 0.30,  25e6, _CHOSEN),
    "IndelRealignment": _KernelCosts(   3.0, 0.95,      0.0,       0.0, 0.50, 0.30, 0.20,  25e6, _CPU_ONLY),
    "Entropy":          _KernelCosts(   0.5, 0.85,      8.0,       6.0, 0.10, 0.00, 0.20,   2e6, _CHOSEN),
    "Gaussian":         _KernelCosts(   0.4, 0.85,     10.0,       8.0, 0.55, 0.35, 0.55,   2e6, _CHOSEN),
    "Thresholding":     _KernelCosts(   0.2, 0.90,      5.0,       5.0, 0.40, 0.00, 0.00,   1e6, _CHOSEN),
    "KMerConst":        _KernelCosts(   1.5, 0.95,      2.0,       4.0, 0.50, 0.85, 0.00,  20e6, _CHOSEN),
    "DeBruijn":         _KernelCosts(   2.0, 1.00,      0.7,       1.5, 0.65, 0.55, 0.00,   5e6, _CHOSEN),
    "SmithWaterman":    _KernelCosts(   3.0, 0.85,     12.0,      20.0, 0.65, 0.20, 0.00,   5e6, _CHOSEN),
    "PairHMM":          _KernelCosts(  15.0, 0.85,     14.5,     14.85, 0.35, 0.25, 0.90,   2e6, _FROM_PAPER),
    "Genotype":         _KernelCosts(   0.5, 1.00,      1.0,       1.0, 0.15, 0.05, 0.02,   5e5, _CHOSEN),
    "GenomeDiff":       _KernelCosts(   0.3, 1.00,      1.2,       1.0, 0.15, 0.05, 0.02,   1e5, _CHOSEN),
    # EEG-Graph: one 3 s chunk of a recording. CPU 4.3 s.
    "EEGFilter":        _KernelCosts(  0.20, 0.90,     10.0,      12.0, 0.50, 0.40, 0.10,   2e6, _CHOSEN),
    "EEGFeatures":      _KernelCosts(  0.30, 0.90,      8.0,      10.0, 0.50, 0.30, 0.20,   5e5, _CHOSEN),
    "EEGInference":     _KernelCosts(   4.3, 1.00, _EEG_K80, _EEG_FPGA, 0.50, 0.10, 0.30,   1e5, _FROM_ACMC2),
    "EEGLabel":         _KernelCosts(  0.05, 1.00,      1.0,       1.0, 0.30, 0.10, 0.05,   1e4, _CHOSEN),
    # AttackTagger: 100 events. FPGA 0.4 ms an event, CPU 48.4 times that.
    "AlertParse":       _KernelCosts(  0.02, 1.00,      0.5,       1.5, 0.40, 0.20, 0.05,   1e5, _CHOSEN),
    "AlertCorrelate":   _KernelCosts(  0.05, 0.95,      2.0,       3.0, 0.45, 0.50, 0.10,   5e4, _CHOSEN),
    "AttackTagger":     _KernelCosts( 1.936, 1.00, _TAG_GPU, _TAG_FPGA, 0.50, 0.10, 0.20,   1e4, _FROM_ACMC2),
    "AlertDecide":      _KernelCosts(  0.01, 1.00,      0.5,       1.0, 0.30, 0.05, 0.02,   1e3, _CHOSEN),
}
# fmt: on

# Speeds of other GPUs relative to a K80: the K40 from PairHMM's published range, the rest chosen.
_GPU_SPEEDS: Mapping[str, float] = {"k40": 7.75 / 14.5, "k80": 1.0, "p100": 1.8, "v100": 2.7, "a100": 4.5}
# A socket of each kind: slots, memory bandwidth, last-level cache. They convert the shares of the table to amounts.
_SOCKETS: Mapping[str, tuple[int, float, float]] = {
    "power8": (10, 115e9, 80e6),
    "xeon": (16, 76.8e9, 40e6),
}
# The listed kind whose profile a device of any other kind gets, by its type.
_TYPICAL_KIND = {"cpu": "xeon", "gpu": "p100"}
# Upper bound on the part of the time at size 1 that does not depend on the size: the launch (chosen).
_MAX_LAUNCH_S = {"cpu": 1e-5, "gpu": 1e-3, "fpga": 3e-4}
_LINK_BYTES_PER_S = 4e9  # PCIe traffic of an accelerator with the memory demand of a whole socket (chosen)
_MEMORY_PER_OUTPUT_BYTE = 12.0  # device memory over output bytes: inputs, tables and scratch (chosen)


def _kernel(name: str) -> Kernel:
    row = _KERNELS[name]
    implementations: dict[str, Profile] = {}

    def add(device: str, kind: str, speed: float, demand: Mapping[str, float]) -> None:
        seconds = row.power8_s / speed
        launch = min(_MAX_LAUNCH_S[kind], seconds / 4)
        used = {resource: amount for resource, amount in demand.items() if amount > 0}
        implementations[device] = Profile(
            launch, seconds - launch, used, memory_per_work=_MEMORY_PER_OUTPUT_BYTE * row.output
        )

    for kind, (slots, memory, cache) in _SOCKETS.items():
        # The table is for half of a socket's slots; this is one worker.
        part = 2.0 / slots
        demand = {
            "compute": 2 * row.compute,
            "memory": part * row.memory * memory,
            "cache": part * row.cache * cache,
        }
        add(kind, "cpu", {"power8": 1.0, "xeon": row.xeon}[kind], demand)
    stream = _LINK_BYTES_PER_S * row.memory
    host = {"link": stream, "switch": stream, "memory": stream}
    if row.k80:
        for kind, ratio in _GPU_SPEEDS.items():
            own = {"compute": 0.5 + row.compute / 2, "device_memory": row.memory * GPU_MEMORY_BANDWIDTH[kind]}
            add(kind, "gpu", row.k80 * ratio, own | host)
    if row.fpga:
        add("fpga", "fpga", row.fpga, {"compute": 0.5} | host)
    for device_type, kind in _TYPICAL_KIND.items():
        if kind in implementations:
            implementations[device_type] = implementations[kind]
    return Kernel(name, implementations)


class _Builder:
    """Collects the tasks and edges of a graph."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.edges: list[Edge] = []
        self.output: dict[str, float] = {}

    def task(self, name: str, kernel: str, size: float, reads: Iterable[str] = (), external: float = 0.0) -> str:
        """Add a task that reads the outputs of `reads` and `external` bytes from the home machine; returns `name`."""
        self.tasks.append(Task(name, kernel, size))
        self.edges += [Edge(source, name, self.output[source]) for source in reads]
        if external:
            self.edges.append(Edge(None, name, external))
        self.output[name] = _KERNELS[kernel].output * size
        return name

    def graph(self, name: str) -> TaskGraph:
        return TaskGraph(name, tuple(self.tasks), tuple(self.edges))


def variant_calling(
    rng: np.random.Generator, topology: Topology, *, graphs: int, regions: int, chunks: int, spread: float
) -> Templates:
    """Align chunks of reads, realign indels on a CPU, call variants; for several regions of a genome."""
    check_size(graphs, regions * (3 * chunks + 10) + 1, where="variant-calling")
    made = []
    for number in range(graphs):
        b = _Builder()
        called = []
        for r, region in enumerate(_sizes(rng, regions, spread)):
            parts = region * _sizes(rng, chunks, spread) / chunks
            aligned = []
            for c, size in enumerate(map(float, parts)):
                at = f"r{r}.c{c}"
                found = b.task(f"{at}.search", "KMerSearch", size, external=100e6 * size)
                scored = b.task(f"{at}.align", "LandauVishkin", size, [found])
                aligned.append(b.task(f"{at}.cigar", "LV-CIGAR", size, [scored]))
            size, at = float(parts.sum()), f"r{r}"
            paired = b.task(f"{at}.pairs", "FilterPairs", size, aligned)
            reads = b.task(f"{at}.realign", "IndelRealignment", size, [paired])
            entropy = b.task(f"{at}.entropy", "Entropy", size, [reads])
            smooth = b.task(f"{at}.smooth", "Gaussian", size, [entropy])
            active = b.task(f"{at}.active", "Thresholding", size, [smooth])
            kmers = b.task(f"{at}.kmers", "KMerConst", size, [active, reads])
            haplotypes = b.task(f"{at}.assemble", "DeBruijn", size, [kmers])
            placed = b.task(f"{at}.place", "SmithWaterman", size, [haplotypes])
            likely = b.task(f"{at}.likelihood", "PairHMM", size, [haplotypes, reads])
            called.append(b.task(f"{at}.genotype", "Genotype", size, [likely, placed]))
        b.task("diff", "GenomeDiff", float(regions), called, external=20e6)
        made.append(b.graph(f"variant-calling-{number}"))
    return _with_kernels(made)


def eeg(rng: np.random.Generator, topology: Topology, *, graphs: int, chunks: int, spread: float) -> Templates:
    """Infer brain states from chunks of a recording; an inference also reads the features of the chunk before."""
    check_size(graphs, 3 * chunks + 1, where="eeg")
    made = []
    for number in range(graphs):
        b = _Builder()
        states: list[str] = []
        before: list[str] = []
        for c, size in enumerate(map(float, _sizes(rng, chunks, spread))):
            clean = b.task(f"c{c}.filter", "EEGFilter", size, external=3e6 * size)
            features = b.task(f"c{c}.features", "EEGFeatures", size, [clean])
            states.append(b.task(f"c{c}.infer", "EEGInference", size, [features, *before]))
            before = [features]
        b.task("label", "EEGLabel", float(chunks), states)
        made.append(b.graph(f"eeg-{number}"))
    return _with_kernels(made)


def intrusion(
    rng: np.random.Generator, topology: Topology, *, graphs: int, users: int, events: int, spread: float
) -> Templates:
    """Classify the users of a cluster as attackers or not by their events: small, mostly short jobs."""
    check_size(graphs, users + 3, where="intrusion")
    made = []
    for number in range(graphs):
        b = _Builder()
        active = int(rng.integers(1, users + 1))
        sizes = [float(size) for size in events / 100 * _sizes(rng, active, spread)]
        parsed = b.task("parse", "AlertParse", sum(sizes), external=1e5 * sum(sizes))
        linked = b.task("correlate", "AlertCorrelate", sum(sizes), [parsed])
        tags = [b.task(f"u{u}.tag", "AttackTagger", size, [linked]) for u, size in enumerate(sizes)]
        b.task("decide", "AlertDecide", sum(sizes), tags)
        made.append(b.graph(f"intrusion-{number}"))
    return _with_kernels(made)


def _sizes(rng: np.random.Generator, count: int, spread: float) -> np.ndarray:
    """Sizes with mean 1 and a log-normal spread."""
    return rng.lognormal(-(spread**2) / 2, spread, count)


def _with_kernels(graphs: list[TaskGraph]) -> Templates:
    used = dict.fromkeys(task.kernel for graph in graphs for task in graph.tasks)
    return tuple(_kernel(name) for name in used), tuple(graphs)
