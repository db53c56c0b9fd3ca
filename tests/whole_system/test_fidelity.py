"""A small, fast part of `python -m benchmarks.fidelity`: the simulator agrees with runs that others made."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.starpu_cholesky import cholesky_on
from symphony.baselines.simple import Fifo
from symphony.baselines.starpu import Dm, Dmdas
from symphony.lowering import readers
from symphony.problem.topologies import topology
from symphony.problem.workload import Job, Workload
from symphony.scheduling.one_of import OneOf
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, draw
from tests.data import data

STARPU_MS = {"eager": 1264, "dm": 329, "dmdas": 306}  # StarPU's simulator: mirage, 220 tasks
GAVEL_FIFO_S = 87_048  # Gavel's: 24 GPUs, seed 0


def test_cholesky_takes_as_long_as_in_starpu_and_the_schedulers_rank_alike() -> None:
    """Nine cores and three GPUs. The bound is wider than the benchmark's aim: this is one run, and runs are touchy."""
    reading = readers.read(data("starpu-perfmodels"), "starpu", machine="mirage")
    assert reading.topology is not None
    kernels, graphs = cholesky_on(reading, 10)
    scenario = draw(reading.topology, Workload("cholesky", kernels, graphs, (Job(0, 0.0),)), 0, CALM, job_slots=1)
    policies = (Fifo(), Dm(), Dmdas())
    ours = {
        name: 1e3 * simulate([scenario], OneOf(policies, np.int32(index)))[0].makespan_s
        for index, name in enumerate(STARPU_MS)
    }
    assert sorted(ours, key=ours.__getitem__) == sorted(STARPU_MS, key=STARPU_MS.__getitem__)
    for name, theirs in STARPU_MS.items():
        assert ours[name] == pytest.approx(theirs, rel=0.2), name


def test_first_come_first_served_takes_as_long_as_in_gavel() -> None:
    """Jobs 50 to 99 of Gavel's run are those from the doubled one on; jobs after them only wait behind them."""
    reading = readers.read(data("gavel", "traces", "generated_gap2700_seed0.csv"), "gavel-jobs")
    first = sum(job.arrival_s == 0 for job in reading.jobs) - 2
    assert reading.jobs[first] == reading.jobs[first + 1]
    jobs = (reading.jobs[:first] + reading.jobs[first + 1 :])[: first + 50]
    workload = Workload("gavel", reading.kernels, reading.graphs, jobs)
    run = simulate([draw(topology("gpu24"), workload, 0, CALM, job_slots=64)], Fifo())[0]
    completion = {job.job: job.completion_s for job in run.jobs}
    assert np.mean([completion[number] for number in range(first, first + 50)]) == pytest.approx(GAVEL_FIFO_S, rel=0.1)
