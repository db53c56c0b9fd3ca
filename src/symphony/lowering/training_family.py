"""The family of distributed training jobs: gangs of workers that exchange gradients after each iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from symphony.lowering.applications import eeg, intrusion, variant_calling
from symphony.lowering.templates import GPU_MEMORY_BANDWIDTH, Templates, check_size
from symphony.problem.errors import InfeasibleError
from symphony.problem.runnable import profile_on
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Gang, Kernel, Profile, Task, TaskGraph


class _Model(NamedTuple):
    """A model with its usual batch. `compute` is a share of a V100, `device_memory` of a GPU's memory bandwidth."""

    gradient: float  # bytes
    memory: float  # bytes of device memory
    k80: float  # seconds per iteration
    p100: float
    v100: float
    a100: float
    compute: float
    device_memory: float
    input: float  # bytes read from the host per iteration


# Seconds on K80 (one of the two GPUs of a board), P100 and V100: rates measured for Gavel (MIT licence; one GPU, batch
# in brackets), rounded; those of VGG-16 and BERT, and all on A100, are chosen. `compute`: such that two jobs of one
# model on one V100 run at 1 / (a + b) of their speed, as close as possible to that measured for Gavel. The other
# shares, bytes and memory are chosen.
# fmt: off
_MODELS: Mapping[str, _Model] = {
    #                     gradient, memory   k80   p100   v100   a100  compute, device memory  input
    "ResNet-18":     _Model( 45e6,  4e9,    0.55, 0.086, 0.056, 0.032, 0.53, 0.40,  2e6),  # (128)
    "ResNet-50":     _Model(102e6,  9e9,    1.62,  0.38,  0.23, 0.115, 1.00, 0.60, 38e6),  # (64)
    "VGG-16":        _Model(553e6,  8e9,    1.30,  0.33,  0.20, 0.105, 0.95, 0.65, 19e6),
    "Transformer":   _Model(240e6,  5e9,    0.57, 0.196, 0.116, 0.065, 0.67, 0.45,  1e6),  # (64)
    "LanguageModel": _Model( 60e6,  3e9,   0.087, 0.028, 0.022, 0.013, 0.77, 0.55,  5e5),  # (40)
    "CycleGAN":      _Model(114e6,  9e9,    1.98,  0.42, 0.226,  0.12, 0.80, 0.50,  2e6),
    "A3C":           _Model(  6e6,  1e9,    0.29, 0.176, 0.139, 0.125, 0.98, 0.10,  1e6),
    "BERT":          _Model(440e6, 14e9,    3.20,  0.62,  0.33,  0.14, 0.98, 0.70,  2e5),
}
# fmt: on
_TRAINING_GPUS = ("k80", "p100", "v100", "a100")  # fields of `_Model`
# Any model uses almost all compute of a slower GPU, so sharing pays on fast GPUs only. Fitted to Gavel's pairs
# (`python -m benchmarks.contention`); the A100's factor, relative to the V100's share, is chosen.
_FILLED: Mapping[str, float] = {"k80": 1.0, "p100": 0.95}
_COMPUTE_SHARE_FACTORS: Mapping[str, float] = {"v100": 1.0, "a100": 0.8}
_TYPICAL_TRAINING_GPU = {"k40": "k80", "gpu": "p100"}  # other kind or type -> the kind whose profile it gets

# An all-reduce over n workers sends 2 (n - 1) / n of the gradient; this is for n = 4.
_ALL_REDUCE_PER_GRADIENT = 1.5
_CHECKPOINT_PER_GRADIENT = 3.0  # bytes of a checkpoint over bytes of the gradient: weights and two moments
_STORAGE_BYTES_PER_S = 0.5e9
_CHECKPOINT_EVERY_S = 600.0

# Philly's trace: most jobs use one GPU, the median is 18 minutes, the standard deviation of the logarithm 2; wider jobs
# last longer. The shares of widths are chosen: in Philly, 93% of the jobs use one GPU, too many to exercise gangs.
_WIDTHS: Mapping[int, float] = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
_SHORTEST_S, _LONGEST_S = 1.0, 7 * 86400.0


def training(
    rng: np.random.Generator, topology: Topology, *, graphs: int, workers: int, minutes: float, spread: float
) -> Templates:
    """One gang per job, with at most `workers` workers, and at most as many as there are GPUs with enough memory.

    `minutes`: median time of a job of one worker on a V100; `spread`: standard deviation of its log.
    """
    check_size(graphs, workers, where="training")
    kernels = {name: _kernel(name, model) for name, model in _MODELS.items()}
    usable = {name: _usable_devices(topology, kernel) for name, kernel in kernels.items()}
    names = [name for name, devices in usable.items() if devices]
    if not names:
        present = ", ".join(kind for kind, devices in topology.kind_counts.items() if devices)
        raise InfeasibleError(
            f"no device of {topology.name!r} can train a model; its devices are {present}",
            where="training",
            hint="use a topology with GPUs, such as gpu24",
        )
    made = []
    for number in range(graphs):
        name = names[int(rng.integers(len(names)))]
        widths = [width for width in _WIDTHS if width <= min(workers, usable[name])]
        shares = np.array([_WIDTHS[width] for width in widths])
        width = int(rng.choice(widths, p=shares / shares.sum()))
        seconds = np.clip(60 * minutes * width * rng.lognormal(0.0, spread), _SHORTEST_S, _LONGEST_S)
        made.append(_graph(f"training-{number}", name, width, float(seconds)))
    used = {graph.tasks[0].kernel for graph in made}
    return tuple(kernel for name, kernel in kernels.items() if name in used), tuple(made)


def mixed(
    rng: np.random.Generator, topology: Topology, *, graphs: int, training_share: float, minutes: float
) -> Templates:
    """A share of training jobs; the rest are jobs of the three applications, in equal parts."""
    counts = [int(n) for n in rng.multinomial(graphs, [training_share] + 3 * [(1 - training_share) / 3])]
    parts = [
        training(rng, topology, graphs=counts[0], workers=8, minutes=minutes, spread=1.0),
        variant_calling(rng, topology, graphs=counts[1], regions=1, chunks=2, spread=0.5),
        eeg(rng, topology, graphs=counts[2], chunks=4, spread=0.3),
        intrusion(rng, topology, graphs=counts[3], users=8, events=40, spread=1.0),
    ]
    return tuple(k for kernels, _ in parts for k in kernels), tuple(g for _, made in parts for g in made)


def _kernel(name: str, model: _Model) -> Kernel:
    implementations = {}
    for kind in _TRAINING_GPUS:
        seconds = float(getattr(model, kind))
        stream = model.input / seconds
        demand = {
            "compute": _FILLED[kind] if kind in _FILLED else model.compute * _COMPUTE_SHARE_FACTORS[kind],
            "device_memory": model.device_memory * GPU_MEMORY_BANDWIDTH[kind],
            "link": stream,
            "switch": stream,
            "memory": stream,
        }
        implementations[kind] = Profile(seconds, 0.0, demand, memory=model.memory)
    implementations |= {other: implementations[kind] for other, kind in _TYPICAL_TRAINING_GPU.items()}
    return Kernel(name, implementations, exchange_bytes=_ALL_REDUCE_PER_GRADIENT * model.gradient)


def _usable_devices(topology: Topology, kernel: Kernel) -> int:
    return sum(n for kind, n in topology.kind_counts.items() if profile_on(kernel, topology.kind_of[kind], 1.0))


def _graph(name: str, model: str, width: int, seconds: float) -> TaskGraph:
    row = _MODELS[model]
    workers = tuple(Task(f"w{worker}", model, units=max(1.0, round(seconds / row.v100))) for worker in range(width))
    save_s = _CHECKPOINT_PER_GRADIENT * row.gradient / _STORAGE_BYTES_PER_S
    gang = Gang(
        "train",
        tuple(worker.name for worker in workers),
        preemptible=True,
        checkpoint_s=2.0 + save_s,
        restore_s=10.0 + save_s,
        checkpoint_units=float(np.ceil(_CHECKPOINT_EVERY_S / row.v100)),
    )
    return TaskGraph(name, workers, (Edge(None, "w0", row.gradient),), (gang,))
