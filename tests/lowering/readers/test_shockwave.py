from __future__ import annotations

from pathlib import Path

import pytest

from symphony.lowering.readers.reading import Collector
from symphony.lowering.readers.shockwave import SHOCKWAVE_FORMATS, read_jobs, read_rates
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_feasible
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import by_name, check_cut, records, sniffed, write

RATES = "testbed32_isolated_throughput.csv"
RESULTS = {
    "testbed32_jobs.csv": ("shockwave-runs", "runs", 960),
    "testbed32_summary.csv": ("shockwave-summary", "summary", 8),
    "testbed32_throughput_timeline.csv.gz": ("shockwave-timeline", "timeline", 6181),
}


def test_rates() -> None:
    path = data("shockwave", RATES)
    assert sniffed(SHOCKWAVE_FORMATS, path) == ["shockwave-rates"]
    reading = read_rates(path, Collector())
    assert len(reading.tables["rates"]) == 83
    assert len(reading.kernels) == 77  # six rates are 0
    kernels = {kernel.name: kernel for kernel in reading.kernels}
    assert kernels["ResNet-18/16"].implementations["gpu"].fixed_s == pytest.approx(1 / 57.68343332)
    assert kernels["LM/80/x8"].implementations["gpu"].fixed_s == pytest.approx(1 / 103.3863165)
    assert "Transformer/256" not in kernels
    assert any("Transformer/256/x8" in note for note in reading.notes)


@pytest.mark.parametrize(("jobs", "static", "off"), [(120, 4, 0), (220, 7, 203), (460, 19, 424), (900, 33, 827)])
def test_job_lists(jobs: int, static: int, off: int) -> None:
    path = data("shockwave", "traces", f"dynamic_{jobs}jobs_100.csv")
    assert sniffed(SHOCKWAVE_FORMATS, path) == ["shockwave-jobs"]
    reading = read_jobs(path, Collector())
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
    assert any(f"{jobs - static} of {jobs} changed theirs" in note for note in reading.notes)
    assert reading.topology is not None
    assert reading.topology.kind_counts == {"gpu": 32}
    check_feasible(reading.topology, Workload("shockwave", reading.kernels, reading.graphs, reading.jobs))


@pytest.mark.parametrize("file", RESULTS)
def test_results(file: str) -> None:
    name, table, count = RESULTS[file]
    path = data("shockwave", file)
    assert sniffed(SHOCKWAVE_FORMATS, path) == [name]
    reading = by_name(SHOCKWAVE_FORMATS, name).read(path, Collector())
    assert len(reading.tables[table]) == len(records(path)) == count
    assert (reading.jobs, reading.kernels) == ((), ())


def test_the_measured_mean_is_that_of_the_summary() -> None:
    runs = by_name(SHOCKWAVE_FORMATS, "shockwave-runs").read(data("shockwave", "testbed32_jobs.csv"), Collector())
    summary = by_name(SHOCKWAVE_FORMATS, "shockwave-summary").read(
        data("shockwave", "testbed32_summary.csv"), Collector()
    )
    for row in summary.tables["summary"]:
        times = [
            run["jct_s"] for run in runs.tables["runs"] if (run["policy"], run["mode"]) == (row["policy"], row["mode"])
        ]
        assert len(times) == 120
        assert sum(times) / len(times) == pytest.approx(row["avg_jct_s"], rel=1e-3)


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
    reading = read_jobs(jobs, Collector(strict=False), rates=str(rates))
    assert [row["job"] for row in reading.tables["jobs"]] == ["0"]
    assert [problem.where.rsplit("/")[-1] for problem in reading.problems] == [
        "rates.csv: line 4",
        "made.csv: line 5",
        "made.csv: line 3",
        "made.csv: line 4",
    ]
    with pytest.raises(DataError, match=r"rates\.csv: line 4: it repeats line 2"):
        read_jobs(jobs, Collector(), rates=str(rates))


@pytest.mark.parametrize(
    ("name", "table", "parts"),
    [
        ("shockwave-rates", "rates", (RATES,)),
        ("shockwave-jobs", "jobs", ("traces", "dynamic_120jobs_100.csv")),
        *((name, table, (file,)) for file, (name, table, _) in RESULTS.items()),
    ],
)
def test_cut_files(tmp_path: Path, name: str, table: str, parts: tuple[str, ...]) -> None:
    options = {"rates": str(data("shockwave", RATES))} if name == "shockwave-jobs" else {}
    check_cut(by_name(SHOCKWAVE_FORMATS, name), data("shockwave", *parts), tmp_path, table, **options)
