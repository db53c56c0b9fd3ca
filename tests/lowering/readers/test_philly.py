from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.lowering.readers.philly import WEEK_S
from symphony.problem.errors import DataError
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import check_cut, records, sniffed, write

read_jobs = partial(readers.read, format="philly-jobs")
HEADER = "week,submit_s,duration_s,num_gpus,vc"


def test_the_whole_trace_becomes_a_workload() -> None:
    path = data("philly", "jobs.csv.gz")
    assert sniffed(path) == ["philly-jobs"]
    reading = read_jobs(path)
    rows = records(path)
    assert len(reading.jobs) == len(reading.tables["jobs"]) == len(rows) == 63_699
    assert len(reading.graphs) == len({(row["num_gpus"], row["duration_s"]) for row in rows}) == 14_703
    asked = Counter(len(reading.graphs[job.graph].tasks) for job in reading.jobs)
    assert asked == Counter(int(row["num_gpus"]) for row in rows)
    assert (asked[1], asked[128]) == (59_543, 1)
    total = sum(reading.graphs[job.graph].tasks[0].units * len(reading.graphs[job.graph].tasks) for job in reading.jobs)
    assert total == sum(float(row["duration_s"]) * int(row["num_gpus"]) for row in rows)
    first, last = reading.jobs[0], reading.jobs[-1]
    assert (first.arrival_s, last.arrival_s) == (37_841.0, 9_446_531.0)
    assert len(Workload("philly", reading.kernels, reading.graphs, reading.jobs).jobs) == 63_699


def test_a_week_of_a_virtual_cluster() -> None:
    path = data("philly", "jobs.csv.gz")
    reading = read_jobs(path, week="5", vc="ee9e8c")
    rows = [row for row in records(path) if (row["week"], row["vc"]) == ("5", "ee9e8c")]
    assert [job.arrival_s for job in reading.jobs] == [int(row["submit_s"]) - 5 * WEEK_S for row in rows]
    assert 0 <= reading.jobs[0].arrival_s <= reading.jobs[-1].arrival_s < WEEK_S
    assert any("rows with week 5 are used" in note for note in reading.notes)
    with pytest.raises(DataError, match="no row has week '4'"):  # held out
        read_jobs(path, week=4)


def test_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "0,10,5,1,a", "1,10,5,1,a", "0,10,0,1,a", "0,10,5,0,a", "0,10,5,512,a", "0,9,5,1,")
    reading = read_jobs(path, strict=False)
    assert (len(reading.jobs), len(reading.problems)) == (1, 5)
    assert any("line 3: week is 1, but the job was submitted in week 0" in str(problem) for problem in reading.problems)
    with pytest.raises(DataError, match="line 4: duration_s is '0'"):
        read_jobs(path)


def test_cut_files(tmp_path: Path) -> None:
    check_cut("philly-jobs", data("philly", "jobs.csv.gz"), tmp_path, "jobs")
