"""The bound on training jobs: exact where it can be worked out by hand, and below what policies reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.training_bound import TrueJobs, bound_s, gpu_uses, interval_edges, solve, true_jobs
from symphony.problem.errors import InputError
from symphony.problem.speeds import SPREAD
from symphony.problem.topologies import topology
from symphony.simulator.scenarios import CALM, draw
from symphony.training_jobs.ground_truth import measured
from symphony.training_jobs.measured_jobs import drawn, sharable
from tests.data import data


def jobs(arrival: list[float], alone: list[list[float]], gpus: list[int], kept: float = 0.0) -> TrueJobs:
    n, y = len(arrival), len(gpus)
    return TrueJobs(np.asarray(arrival), np.ones(n, int), np.asarray(alone), np.full((n, n, y), kept), np.asarray(gpus))


def bound(j: TrueJobs) -> float:
    return solve(j, gpu_uses(j), np.arange(0.0, 1500.0, 4.0))


def test_jobs_that_need_not_wait_take_their_best_time() -> None:
    assert bound(jobs([0.0, 50.0], [[100.0], [200.0]], [2])) == pytest.approx(150.0, rel=1e-6)


def test_on_one_gpu_it_is_close_to_shortest_remaining_time_first_and_not_above() -> None:
    """Lengths 100, 200, 400: done at 100, 300, 700."""
    found = bound(jobs([0.0] * 3, [[100.0], [200.0], [400.0]], [1]))
    assert 0.95 * 1100 / 3 < found <= 1100 / 3


def test_a_job_that_only_a_slow_gpu_is_left_for_is_as_slow_as_that() -> None:
    """Two of 100 s, 160 s on the slow GPU. Best: the second begins there, and has the fast one from 100 to 137.5."""
    found = bound(jobs([0.0] * 2, [[100.0, 160.0]] * 2, [1, 1]))
    assert 0.9 * 118.75 < found <= 118.75


def test_two_may_share_a_gpu_where_that_is_more_than_taking_turns() -> None:
    alone, shared, useless = (bound(jobs([0.0] * 2, [[100.0]] * 2, [1], kept)) for kept in (0.0, 0.9, 0.5))
    assert shared <= 100 / 0.9 < alone
    assert useless == pytest.approx(alone)


def test_coarse_stretches_only_lower_it() -> None:
    rng = np.random.default_rng(0)
    j = jobs(rng.uniform(0, 300, 6).tolist(), rng.uniform(50, 300, (6, 2)).tolist(), [1, 1])
    assert 0.8 * bound(j) < solve(j, gpu_uses(j), interval_edges(j)) <= bound(j) * (1 + 1e-6)


def test_a_gang_takes_several_gpus() -> None:
    one = jobs([0.0] * 2, [[100.0]] * 2, [4])
    assert bound(one._replace(workers=np.asarray([4, 4]))) > bound(one._replace(workers=np.asarray([2, 2]))) + 10


def test_gangs_are_packed_only_where_a_machine_is_large_enough() -> None:
    """gpu24 has one GPU in a machine. Of the truth, `true_jobs` takes what all work on GPUs of a kind will take."""
    cluster = sharable(topology("gpu24"))
    made = drawn(measured(data("gavel", "isolated_throughput.csv").parent), cluster, 0, jobs=24)
    scenario = replace(draw(cluster, made.workload, 0, CALM), truth=made.truth, believed=made.believed)
    found = true_jobs(scenario)
    wide = int(np.flatnonzero(found.workers == 4)[0])
    task = made.workload.graphs[made.workload.jobs[wide].graph].tasks[0]
    assert found.alone_s[wide, 0] == pytest.approx(made.truth.unit_s[task.kernel, "v100"][SPREAD] * task.units)
    assert bound_s(scenario) >= found.alone_s.min(axis=1).mean() * (1 - 1e-9)
    with pytest.raises(InputError, match="truth"):
        bound_s(replace(scenario, truth=None))
