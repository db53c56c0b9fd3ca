"""Numeric features of a training job and of a GPU, and a first estimate of the time of a step.

A learner sees these numbers and never a name, so that it can predict models that it has not seen. The estimate is a
roofline with a floor: operations over the GPU's attained throughput, at least the time to launch the kernels or to feed
the GPU. It is often off by a factor of two, and is there to be corrected by samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from symphony.lowering.readers.job_lists import JobShape


class ModelDescription(NamedTuple):
    """Size and cost of a model."""

    parameters: float
    operations: float  # floating-point operations per sample, forward and backward
    launches: float  # kernels launched per step, for any batch
    host_s: float  # seconds of a host core per sample: decoding, environments
    usual_batch: int  # if a list gives none


# From the models' papers and Gavel's scripts; operations and launches are rounded, host times chosen.
MODELS: Mapping[str, ModelDescription] = {
    "ResNet-18": ModelDescription(11.2e6, 3.3e9, 250, 2e-5, 128),  # CIFAR-10
    "ResNet-50": ModelDescription(25.6e6, 24.6e9, 700, 2e-3, 64),  # ImageNet, decoded on the host
    "Transformer": ModelDescription(63e6, 5e9, 1200, 1e-5, 64),  # Multi30k
    "LM": ModelDescription(13.6e6, 1.5e9, 500, 1e-6, 40),  # Wikitext-2, 35 words a sample
    "Recommendation": ModelDescription(2.4e6, 15e6, 60, 5e-5, 2048),  # ML-20M, an autoencoder
    "CycleGAN": ModelDescription(28e6, 6e11, 1500, 5e-3, 1),
    "A3C": ModelDescription(0.6e6, 2e8, 400, 2.5e-2, 4),  # Pong; the environment runs on the host
}


class JobNumbers(NamedTuple):
    """A job without its name."""

    model: ModelDescription
    batch: int
    gpus: int


class Gpu(NamedTuple):
    """Data sheet of a GPU."""

    operations: float  # floating-point operations per second, single precision
    bandwidth: float  # bytes per second of its memory
    launch_s: float  # to launch a kernel, on a host of its time
    filled: float  # least utilisation by one process; before Volta, processes are time-sliced


GPUS: Mapping[str, Gpu] = {
    "v100": Gpu(14e12, 900e9, 1.2e-5, 0.5),
    "p100": Gpu(9.3e12, 732e9, 1.5e-5, 0.9),
    "k80": Gpu(2.8e12, 240e9, 3e-5, 1.0),
    "t4": Gpu(8.1e12, 300e9, 1.5e-5, 0.5),
    "a100": Gpu(19.5e12, 1555e9, 1.0e-5, 0.5),
    "a10": Gpu(31.2e12, 600e9, 1.0e-5, 0.5),
    "l4": Gpu(30.3e12, 300e9, 0.9e-5, 0.5),
    "h100": Gpu(67e12, 3350e9, 0.8e-5, 0.5),
    "h200": Gpu(67e12, 4800e9, 0.8e-5, 0.5),
    "gpu": Gpu(10e12, 500e9, 1.4e-5, 0.5),  # an unknown GPU …
    "cpu": Gpu(5e10, 1e10, 1e-6, 1.0),  # … and a CPU core, or any other device
}
REACHED_SHARE_OF_PEAK = 0.3  # attained share of the data sheet's operations per second
ALL_REDUCE_BYTES_PER_S = (10e9, 1.25e9)  # attained by an all-reduce within a machine, and between machines
EXPECTED_CROWDING = 0.15  # cost of every neighbour after the first; not measured
JOB_FEATURES, GPU_FEATURES = 6, 3


def numbers(job: JobShape | JobNumbers) -> JobNumbers:
    """The numbers of a job, by the name of its model."""
    if isinstance(job, JobNumbers):
        return job
    model = MODELS[job.model]
    return JobNumbers(model, model.usual_batch if job.batch is None else job.batch, job.gpus)


def job_features(job: JobShape | JobNumbers) -> np.ndarray:
    """Logarithms of a job's numbers, roughly standardised [JOB_FEATURES]."""
    model, batch, gpus = numbers(job)
    step = model.operations * batch
    raw = [
        np.log10(model.parameters) - 7.0,
        np.log10(step) - 11.5,
        np.log10(batch) - 1.8,
        np.log10(model.launches) - 2.7,
        np.log10(model.host_s * batch) + 2.5,
        np.log2(gpus) / 2,
    ]
    return np.asarray(raw)


def gpu_features(gpu: str) -> np.ndarray:
    """Logarithms of a GPU's numbers [GPU_FEATURES]."""
    g = GPUS[gpu]
    return np.asarray([np.log10(g.operations) - 12.9, np.log10(g.bandwidth) - 11.7, np.log10(g.launch_s) + 4.8]) * 3


def estimate_step_s(job: JobShape | JobNumbers, gpu: str, *, spread: bool = False) -> float:
    """Estimated seconds per step. As in Gavel, steps of all workers are counted together."""
    n = numbers(job)
    compute, launch = _parts(n, gpu)
    step = compute + max(launch, n.model.host_s * n.batch * GPUS[gpu].launch_s / GPUS["v100"].launch_s)
    exchange = 8 * n.model.parameters * (n.gpus - 1) / n.gpus  # bytes: both ways, single precision
    return (step + exchange / ALL_REDUCE_BYTES_PER_S[spread]) / n.gpus


def estimate_kept_speed(job: JobShape | JobNumbers, other: JobShape | JobNumbers, gpu: str) -> float:
    """Estimated share of its speed that a job keeps beside another on one GPU, which they share by utilisation."""
    return 1 / max(1.0, busy(job, gpu) + busy(other, gpu))


def busy(job: JobShape | JobNumbers, gpu: str) -> float:
    """Estimated utilisation of a GPU by a job."""
    n = numbers(job)
    compute, _ = _parts(n, gpu)
    return max(GPUS[gpu].filled, compute / estimate_step_s(n, gpu))


def _parts(n: JobNumbers, gpu: str) -> tuple[float, float]:
    """Seconds of a step that are spent computing, and launching kernels."""
    g = GPUS[gpu]
    return n.model.operations * n.batch / (REACHED_SHARE_OF_PEAK * g.operations), n.model.launches * g.launch_s
