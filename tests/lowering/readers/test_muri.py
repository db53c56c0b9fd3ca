from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_feasible
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import check_cut, records, sniffed, write

read_jobs = partial(readers.read, format="muri-jobs")
LISTS = {"testbed_trace.csv": 400, "trace1.csv.gz": 1494, "trace2.csv.gz": 5755, "trace3.csv.gz": 992}
HEADER = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)


@pytest.mark.parametrize(("file", "count"), LISTS.items())
def test_job_lists_in_seconds(file: str, count: int) -> None:
    path = data("muri", file)
    assert sniffed(path) == ["muri-jobs"]
    reading = read_jobs(path)
    rows = records(path)
    assert len(reading.jobs) == len(rows) == count
    kernels = {kernel.name: kernel.implementations["v100"] for kernel in reading.kernels}
    for job, row in zip(reading.jobs, rows, strict=True):  # the lists are sorted
        graph = reading.graphs[job.graph]
        task = graph.tasks[0]
        assert job.arrival_s == float(row["submit_time"]) / 1000
        assert len(graph.tasks) == int(row["num_gpu"])
        alone_s = task.units * kernels[task.kernel].fixed_s
        assert alone_s == pytest.approx(int(row["iterations"]) * float(row["iteration_time"]) / 1000)
    assert reading.topology is not None
    assert reading.topology.kind_counts == {"v100": 64}
    check_feasible(reading.topology, Workload("muri", reading.kernels, reading.graphs, reading.jobs))


def test_stages_are_loads_of_the_link_the_gpu_and_the_nic() -> None:
    reading = read_jobs(data("muri", "testbed_trace.csv"))
    assert reading.topology is not None
    demand = next(k for k in reading.kernels if k.name == "gpt2/4/x8").implementations["v100"].demand
    capacity = {resource.kind: resource.capacity for resource in reading.topology.resources}
    # 0.6, 419 and 49 of 437 ms; eight GPUs share a NIC.
    assert demand["link"] / capacity["link"] == pytest.approx(0.6 / 437)
    assert demand["compute"] / capacity["compute"] == pytest.approx(419 / 437)
    assert 8 * demand["nic"] / capacity["nic"] == pytest.approx(49 / 437)


def test_a_stage_longer_than_the_iteration_fills_its_part() -> None:
    reading = read_jobs(data("muri", "trace1.csv.gz"))
    profile = next(k for k in reading.kernels if k.name == "vgg16/16").implementations["v100"]
    assert profile.demand["link"] == 12e9  # 117 ms of 107
    assert any("vgg16/16" in note for note in reading.notes)


def test_two_sets_of_times_are_two_kernels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER,
        "0,32,0,10,resnet18,128,10590,0,1059,712,111,93,0",
        "1,32,500,10,resnet18,128,10590,0,1059,103,17,13,0",
        "2,32,900,10,resnet18,128,20000,0,1059,712,111,93,0",
    )
    reading = read_jobs(path, restore_s=5)
    assert [kernel.name for kernel in reading.kernels] == ["resnet18/128/x32", "resnet18/128/x32#2"]
    assert [job.graph for job in reading.jobs] == [0, 1, 0]
    assert any("duration of 1 jobs differs" in note for note in reading.notes)
    assert reading.graphs[0].all_gangs[0].restore_s == 5


def test_bad_records(tmp_path: Path) -> None:
    good = "0,8,0,10,gpt2,4,4370,0,437,0.6,419,49,0"
    path = write(
        tmp_path,
        HEADER,
        good,
        good,
        "1,8,0,0,gpt2,4,4370,0,437,0.6,419,49,0",
        "2,8,0,10,gpt2,4,4370,0,0,0.6,419,49,0",
        "3,8,0,10,gpt2,4,4370,0,437,-1,419,49,0",
        "4,8,0,999999999,gpt2,4,4370,0,43700,0.6,419,49,0",
    )
    reading = read_jobs(path, strict=False)
    assert (len(reading.jobs), len(reading.problems)) == (1, 5)
    assert "more than Symphony's bound" in reading.problems[-1].what
    with pytest.raises(DataError, match="line 4: iterations is '0'"):
        read_jobs(path)


@pytest.mark.parametrize("file", LISTS)
def test_cut_files(tmp_path: Path, file: str) -> None:
    check_cut("muri-jobs", data("muri", file), tmp_path, "jobs")
