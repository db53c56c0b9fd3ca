"""What is known of measured training jobs without running them, as beliefs start from it."""

from __future__ import annotations

import numpy as np

from symphony.problem.topology import Topology
from symphony.training_jobs.beliefs import JobDescriptions
from symphony.training_jobs.job_features import gpu_features, job_features
from symphony.training_jobs.measured_jobs import MeasuredJobs

EXPECTED_CROWDING = 0.15  # expected of every neighbour after the first; nobody has measured it


def describe_jobs(jobs: MeasuredJobs, topology: Topology) -> JobDescriptions:
    """Features and guesses of a workload's kernels on the kinds of a cluster."""
    kinds = [kind.name for kind in topology.kinds]
    index = jobs.workload.kernel_index
    models = sorted({shape.model for shape in jobs.shapes})
    count = len(jobs.shapes)
    unit_s, kept = np.zeros((count, len(kinds), 2)), np.ones((count, count, len(kinds)))
    for (kernel, kind), seconds in jobs.believed.unit_s.items():
        unit_s[index[kernel], kinds.index(kind)] = seconds
    for (kernel, other, kind), share in jobs.believed.beside.items():
        kept[index[kernel], index[other], kinds.index(kind)] = share
    return JobDescriptions(
        features=np.stack([job_features(shape) for shape in jobs.shapes]),
        kinds=np.stack([gpu_features(kind) for kind in kinds]),
        family=np.asarray([models.index(shape.model) for shape in jobs.shapes]),
        unit_s=unit_s,
        kept=kept,
        crowding=EXPECTED_CROWDING,
    )
