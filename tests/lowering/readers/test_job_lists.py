from __future__ import annotations

import pytest

from symphony.lowering.readers.job_lists import (
    CheckpointCost,
    JobShape,
    ListedJob,
    checkpoint_cost,
    gang_graph,
    gpu_cluster,
    lower,
    rate_kernel,
)
from symphony.lowering.readers.reading import Collector
from symphony.lowering.readers.tables import CsvRow
from symphony.problem.build import DeviceSpec
from symphony.problem.errors import DataError, WorkloadError
from symphony.problem.workload import Kernel, Profile, Workload

SECOND = Kernel("second", {"gpu": Profile(fixed_s=1.0)})


def listed(line: int, arrival_s: float, workers: int, units: float) -> ListedJob:
    return ListedJob(CsvRow(line, [("line", line)]), f"jobs: line {line}", arrival_s, "second", workers, units)


def test_names_of_shapes() -> None:
    assert [str(JobShape("A3C", None, 1)), str(JobShape("LM", 5, 1)), str(JobShape("LM", 5, 4))] == [
        "A3C",
        "LM/5",
        "LM/5/x4",
    ]


def test_a_kernel_is_written_for_what_it_runs_on() -> None:
    kernel = rate_kernel(JobShape("LM", 5, 2), {"v100": 4.0, "k80": 0.0})
    assert kernel is not None
    assert {device: profile.seconds(1.0) for device, profile in kernel.implementations.items()} == {"v100": 0.25}
    assert kernel.exchange_bytes == 0
    assert rate_kernel(JobShape("LM", 5, 2), {"k80": 0.0}) is None
    assert rate_kernel(JobShape("LM", 5, 2), {}) is None


def test_like_jobs_share_a_graph_and_jobs_are_sorted() -> None:
    jobs = [listed(2, 5.0, 2, 10.0), listed(3, 0.0, 1, 10.0), listed(4, 5.0, 2, 10.0), listed(5, 1.0, 2, 7.0)]
    unused = Kernel("unused", {"gpu": Profile(fixed_s=1.0)})
    made = lower(jobs, [SECOND, unused], Collector(), CheckpointCost(3.0, 4.0), unit="s")
    assert made.kernels == (SECOND,)
    assert [graph.name for graph in made.graphs] == ["second, 2 x 10 s", "second, 1 x 10 s", "second, 2 x 7 s"]
    assert [(job.arrival_s, job.graph) for job in made.jobs] == [(0.0, 1), (1.0, 2), (5.0, 0), (5.0, 0)]
    assert [row.line for row in made.tables["jobs"]] == [3, 5, 2, 4]
    gang = made.graphs[0].all_gangs[0]
    assert (len(gang.tasks), gang.preemptible, gang.checkpoint_s, gang.restore_s) == (2, True, 3.0, 4.0)
    assert Workload("made", made.kernels, made.graphs, made.jobs)


@pytest.mark.parametrize("arrivals", [[37_841.0], [5.0, 5.0, 5.0]])
def test_jobs_that_all_arrive_at_one_time_arrive_at_0(arrivals: list[float]) -> None:
    jobs = [listed(line, arrival_s, 1, 10.0) for line, arrival_s in enumerate(arrivals, start=2)]
    made = lower(jobs, [SECOND], Collector(), None, unit="s")
    assert [job.arrival_s for job in made.jobs] == [0.0] * len(arrivals)
    assert "Arrivals count from the first job" in made.notes[0]


def test_without_saving_nothing_is_preemptible() -> None:
    assert not gang_graph("second", 1, 1.0, None, unit="s").all_gangs[0].preemptible


def test_an_absurdly_long_job_is_a_bad_record() -> None:
    slow = Kernel("second", {"gpu": Profile(fixed_s=10.0)})
    with pytest.raises(DataError, match="jobs: line 2: it takes 5e\\+09 s"):
        lower([listed(2, 0.0, 1, 5e8)], [slow], Collector(), None, unit="s")
    collector = Collector(strict=False)
    made = lower([listed(2, 0.0, 1, 5e8), listed(3, 0.0, 1, 1.0)], [slow], collector, None, unit="s")
    assert len(made.jobs) == len(collector.problems) == 1


def test_the_options_of_saving() -> None:
    assert checkpoint_cost("1.5", 2) == CheckpointCost(1.5, 2.0)
    assert "1.5 s" in CheckpointCost(1.5, 2.0).note("chosen")
    with pytest.raises(WorkloadError, match="option restore_s"):
        checkpoint_cost(0, "-1")


def test_a_plain_cluster() -> None:
    topology = gpu_cluster("lab", "t4", DeviceSpec(type="gpu"), machines=3, gpus=2, nic=1e9)
    assert topology.kind_counts == {"t4": 6}
    assert len(topology.machines) == 3
