"""Lists and draws of measured training jobs."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.lowering import readers
from symphony.problem.errors import WorkloadError
from symphony.problem.topologies import topology
from symphony.simulator.scenarios import CALM, draw
from symphony.training_jobs.ground_truth import MeasuredSpeeds, measured
from symphony.training_jobs.job_features import GPUS, estimate_kept_speed, estimate_step_s, gpu_features, job_features
from symphony.training_jobs.measured_jobs import drawn, listed, sharable
from tests.data import data

CLUSTER = sharable(topology("gpu24"))


@pytest.fixture(scope="module")
def table() -> MeasuredSpeeds:
    return measured(data("gavel", "isolated_throughput.csv").parent)


def test_of_a_list_everything_measured_is_told_and_other_pairs_must_not_share(table: MeasuredSpeeds) -> None:
    reading = readers.read(data("gavel", "traces", "small_test.csv"), "gavel-jobs")
    jobs = listed(reading, table, CLUSTER)
    assert jobs.believed.unit_s == jobs.truth.unit_s
    never = {pair for pair, kept in jobs.believed.beside.items() if kept == 0}
    composed = {(str(a), str(b), gpu) for a, b, gpu in table.composed | table.unfit}
    assert never == composed & set(jobs.truth.beside)
    assert all(jobs.believed.beside[pair] == kept for pair, kept in jobs.truth.beside.items() if pair not in never)


def test_draws_depend_on_the_seed_alone_and_fit_their_cluster(table: MeasuredSpeeds) -> None:
    one, again, other = (drawn(table, CLUSTER, seed, jobs=30) for seed in (5, 5, 6))
    assert one == again and one.workload.jobs != other.workload.jobs
    scenario = draw(CLUSTER, one.workload, 5, CALM)
    assert scenario.workload.kernels and [str(s) for s in one.shapes] == [k.name for k in one.workload.kernels]
    assert not any(shape.model == "Recommendation" for shape in one.shapes)


def test_what_is_told_of_drawn_jobs_is_a_guess(table: MeasuredSpeeds) -> None:
    jobs = drawn(table, CLUSTER, 0, jobs=60)
    off = [np.log(jobs.believed.unit_s[place][0] / seconds[0]) for place, seconds in jobs.truth.unit_s.items()]
    assert 0.2 < np.std(off) < 1.0
    profile = jobs.workload.kernels[0].implementations["v100"]
    assert profile.fixed_s == jobs.believed.unit_s[jobs.workload.kernels[0].name, "v100"][0]


def test_what_comes_may_change_on_the_way(table: MeasuredSpeeds) -> None:
    jobs = drawn(table, CLUSTER, 0, jobs=40, models=[["LM"], ["CycleGAN", "A3C"]])
    names = [jobs.workload.graphs[job.graph].tasks[0].kernel for job in jobs.workload.jobs]
    assert all(name.startswith("LM") for name in names[:20])
    assert {name for name in names[20:]} == {"CycleGAN", "A3C"}


def test_twice_the_load_arrives_in_half_the_time(table: MeasuredSpeeds) -> None:
    calm, busy = (drawn(table, CLUSTER, 1, jobs=40, load=load).workload.jobs[-1].arrival_s for load in (0.5, 1.0))
    assert calm == pytest.approx(2 * busy)


def test_models_that_nobody_measured_are_refused(table: MeasuredSpeeds) -> None:
    with pytest.raises(WorkloadError, match="GPT-9"):
        drawn(table, CLUSTER, 0, models=[["GPT-9"]])


def test_guesses_go_the_right_way(table: MeasuredSpeeds) -> None:
    """Faster GPUs, smaller batches, nearer workers take less time; beside one who keeps a GPU busy, less is kept."""
    for shape in table.shapes:
        seconds = [estimate_step_s(shape, gpu) for gpu in ("v100", "p100", "k80")]
        assert seconds == sorted(seconds) and min(seconds) > 0
        assert estimate_step_s(shape, "v100", spread=True) >= estimate_step_s(shape, "v100")
    by_batch = sorted((s for s in table.shapes if s.model == "ResNet-18" and s.gpus == 1), key=lambda s: s.batch or 0)
    seconds = [estimate_step_s(shape, "p100") for shape in by_batch]
    assert seconds == sorted(seconds)
    large, small = by_batch[-1], by_batch[0]
    assert estimate_kept_speed(small, large, "v100") < estimate_kept_speed(small, small, "v100") <= 1


def test_features_are_finite_and_tell_all_jobs_and_gpus_apart(table: MeasuredSpeeds) -> None:
    jobs = np.stack([job_features(shape) for shape in table.shapes])
    assert np.isfinite(jobs).all() and np.abs(jobs).max() < 4
    assert len(np.unique(jobs.round(6), axis=0)) == len(jobs)
    assert len(np.unique([gpu_features(gpu) for gpu in GPUS], axis=0)) == len(GPUS)
