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

read_jobs = partial(readers.read, format="shockwave-jobs")
RATES = "testbed32_isolated_throughput.csv"


@pytest.mark.parametrize(("jobs", "static", "off"), [(120, 4, 0), (220, 7, 203), (460, 19, 424), (900, 33, 827)])
def test_job_lists(jobs: int, static: int, off: int) -> None:
    path = data("shockwave", "traces", f"dynamic_{jobs}jobs_100.csv")
    assert sniffed(path) == ["shockwave-jobs"]
    reading = read_jobs(path)
    rows = records(path)
    assert len(reading.jobs) == len(rows) == jobs
    rates = {
        (row["model"], row["batch_size"], row["num_gpus"]): float(row["steps_per_s"])
        for row in records(data("shockwave", RATES))
    }
    kernels = {kernel.name: kernel for kernel in reading.kernels}
    differ = 0
    for job, row in zip(reading.jobs, rows, strict=True):
        graph = reading.graphs[job.graph]
        alone = graph.tasks[0].units * kernels[graph.tasks[0].kernel].implementations["gpu"].fixed_s
        assert (job.arrival_s, len(graph.tasks)) == (float(row["arrival_s"]), int(row["num_gpus"]))
        expected = int(row["total_steps"]) / rates[row["model"], row["batch_size"], row["num_gpus"]]
        assert alone == pytest.approx(expected)
        differ += abs(expected / float(row["duration_s"]) - 1) > 0.1
    assert differ == off
    assert any(f"duration_s of {off} jobs" in note for note in reading.notes)
    assert any(f"{jobs - static} of {jobs} jobs changed theirs" in note for note in reading.notes)
    assert reading.topology is not None
    assert reading.topology.kind_counts == {"gpu": 32}
    check_feasible(reading.topology, Workload("shockwave", reading.kernels, reading.graphs, reading.jobs))


def test_bad_jobs(tmp_path: Path) -> None:
    rates = write(
        tmp_path, "model,batch_size,num_gpus,steps_per_s", "LM,5,1,2", "LM,5,2,0", "LM,5,1,3", name="rates.csv"
    )
    jobs = write(
        tmp_path,
        "job,model,batch_size,total_steps,num_gpus,adaptation,priority_weight,duration_s,arrival_s",
        "0,LM,5,100,1,gns,1.0,50,0",
        "1,LM,5,100,2,gns,1.0,50,0",
        "2,LM,5,100,4,gns,1.0,50,0",
        "3,LM,5,100,1,other,1.0,50,0",
    )
    reading = read_jobs(jobs, strict=False, rates=str(rates))
    assert [row["job"] for row in reading.tables["jobs"]] == ["0"]
    assert [problem.where.rsplit("/")[-1] for problem in reading.problems] == [
        "rates.csv: line 4",
        "made.csv: line 5",
        "made.csv: line 3",
        "made.csv: line 4",
    ]
    with pytest.raises(DataError, match=r"rates\.csv: line 4: it repeats line 2"):
        read_jobs(jobs, rates=str(rates))


def test_cut_files(tmp_path: Path) -> None:
    path, rates = data("shockwave", "traces", "dynamic_120jobs_100.csv"), data("shockwave", RATES)
    check_cut("shockwave-jobs", path, tmp_path, "jobs", rates=str(rates))
