from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from symphony.lowering.readers.philly import PHILLY_FORMATS, WEEK_S, read_active, read_clusters, read_jobs
from symphony.lowering.readers.reading import Collector
from symphony.problem.errors import DataError, WorkloadError
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import by_name, check_cut, records, sniffed, write

HEADER = "week,submit_s,duration_s,num_gpus,vc"


def test_the_whole_trace_becomes_a_workload() -> None:
    path = data("philly", "jobs.csv.gz")
    assert sniffed(PHILLY_FORMATS, path) == ["philly-jobs"]
    reading = read_jobs(path, Collector())
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
    reading = read_jobs(path, Collector(), week="5", vc="ee9e8c")
    rows = [row for row in records(path) if (row["week"], row["vc"]) == ("5", "ee9e8c")]
    assert [job.arrival_s for job in reading.jobs] == [int(row["submit_s"]) - 5 * WEEK_S for row in rows]
    assert 0 <= reading.jobs[0].arrival_s <= reading.jobs[-1].arrival_s < WEEK_S
    assert any("rows with week 5 were asked for" in note for note in reading.notes)
    with pytest.raises(WorkloadError, match="no row has week '4'"):  # held out
        read_jobs(path, Collector(), week=4)


def test_machines_of_virtual_clusters() -> None:
    path = data("philly", "vc_nodes.csv")
    assert sniffed(PHILLY_FORMATS, path) == ["philly-clusters"]
    machines = read_clusters(path, Collector()).tables["machines"]
    assert (len(machines), sum(row["nodes"] for row in machines)) == (11, 352)


def test_active_machines() -> None:
    path = data("philly", "active_nodes_10min.csv.gz")
    assert sniffed(PHILLY_FORMATS, path) == ["philly-active"]
    reading = read_active(path, Collector())
    active = reading.tables["active"]
    assert "total_nodes is not always the same: 174, 420, 552." in reading.notes
    assert len(active) == len(records(path)) == 10_565
    assert Counter(row["total_nodes"] for row in active) == Counter(int(row["total_nodes"]) for row in records(path))
    assert (active[0]["active_nodes"], active[0]["total_nodes"]) == (312, 420)


def test_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "0,10,5,1,a", "1,10,5,1,a", "0,10,0,1,a", "0,10,5,0,a", "0,10,5,512,a", "0,9,5,1,")
    reading = read_jobs(path, Collector(strict=False))
    assert (len(reading.jobs), len(reading.problems)) == (1, 5)
    assert any("line 3: week is 1, but it was submitted in week 0" in str(problem) for problem in reading.problems)
    with pytest.raises(DataError, match="line 4: duration_s is '0'"):
        read_jobs(path, Collector())
    clusters = write(tmp_path, "vc,nodes", "a,1", "a,2", "b,0")
    assert len(read_clusters(clusters, Collector(strict=False)).problems) == 2
    active = write(
        tmp_path,
        "time,active_nodes,total_nodes",
        "2017-10-03 00:00:00,5,4",
        "yesterday,1,4",
        "2017-10-03 00:10:00,3,4",
        "2017-10-03 00:10:00,2,4",
    )
    reading = read_active(active, Collector(strict=False))
    assert (len(reading.tables["active"]), len(reading.problems)) == (1, 3)


@pytest.mark.parametrize(
    ("name", "table", "file"),
    [
        ("philly-jobs", "jobs", "jobs.csv.gz"),
        ("philly-clusters", "machines", "vc_nodes.csv"),
        ("philly-active", "active", "active_nodes_10min.csv.gz"),
    ],
)
def test_cut_files(tmp_path: Path, name: str, table: str, file: str) -> None:
    check_cut(by_name(PHILLY_FORMATS, name), data("philly", file), tmp_path, table)
