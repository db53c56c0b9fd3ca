from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_feasible, critical_path_s
from symphony.problem.topologies import topology
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import check_cut, records, sniffed, write

read_rates = partial(readers.read, format="gavel-rates")
read_pairs = partial(readers.read, format="gavel-pairs")
read_jobs = partial(readers.read, format="gavel-jobs")
TRACES = {
    "artifact_evaluation.csv": 15,
    "generated_gap2700_seed0.csv": 290,
    "generated_gap2700_seed1.csv": 2054,
    "max_min_fairness.csv": 96,
    "medium_test.csv": 20,
    "small_test.csv": 20,
}
PHILLY = "philly_vc_seed0.csv.gz"
RATES = "gpu,placement,model,batch_size,num_gpus,steps_per_s"
JOBS = "job,model,batch_size,total_steps,num_gpus,priority_weight,arrival_s"


def test_rates() -> None:
    path = data("gavel", "isolated_throughput.csv")
    assert sniffed(path) == ["gavel-rates"]
    reading = read_rates(path)
    assert len(reading.tables["rates"]) == 492
    assert len(reading.kernels) == 26 + 3 * 19  # one GPU, and 2, 4, 8
    kernels = {kernel.name: kernel for kernel in reading.kernels}
    for row in records(path):
        if row["placement"] == "consolidated":
            batch = f"/{row['batch_size']}" if row["batch_size"] else ""
            width = f"/x{row['num_gpus']}" if row["num_gpus"] != "1" else ""
            profile = kernels[row["model"] + batch + width].implementations.get(row["gpu"])
            rate = float(row["steps_per_s"])
            assert (profile is None) == (rate == 0)
            if profile:
                assert profile.seconds(1.0) == pytest.approx(1 / rate)
    assert set(kernels["ResNet-50/128"].implementations) == {"v100", "p100", "k80"}
    assert set(kernels["ResNet-50/128/x4"].implementations) == {"v100", "p100"}
    assert any("ResNet-50/128/x4 on k80" in note for note in reading.notes)


def test_the_second_measurement_stays_in_the_table() -> None:
    reading = read_rates(data("gavel", "isolated_throughput.csv"))
    rows = reading.tables["rates"]
    twice = [row for row in rows if row["steps_per_s_second_measurement"] != row["steps_per_s"]]
    assert len(twice) == 73
    ratios = [
        row["steps_per_s_second_measurement"] / row["steps_per_s"] for row in twice if row["model"] == "Recommendation"
    ]
    assert len(ratios) == 15
    assert 1.4 < min(ratios) < max(ratios) < 13
    assert any("Recommendation" in note for note in reading.notes)


def test_rates_of_spread_placements() -> None:
    path = data("gavel", "isolated_throughput.csv")
    packed, spread = (
        {kernel.name: kernel for kernel in read_rates(path, placement=placement).kernels}
        for placement in ("consolidated", "unconsolidated")
    )
    assert packed.keys() == spread.keys()
    rate = next(
        float(row["steps_per_s"])
        for row in records(path)
        if (row["gpu"], row["placement"], row["model"], row["batch_size"], row["num_gpus"])
        == ("v100", "unconsolidated", "LM", "5", "8")
    )
    assert spread["LM/5/x8"].implementations["v100"].fixed_s == pytest.approx(1 / rate)
    with pytest.raises(DataError, match="option placement"):
        read_rates(path, placement="packed")


def test_pairs() -> None:
    path = data("gavel", "colocated_pairs.csv")
    assert sniffed(path) == ["gavel-pairs"]
    reading = read_pairs(path)
    pairs = reading.tables["pairs"]
    assert Counter(row["gpu"] for row in pairs) == {"v100": 279, "p100": 279, "k80": 279}
    apart = [row for row in pairs if not row["fits_together"]]
    assert len(apart) == sum(row["fits_together"] == "0" for row in records(path)) == 62
    assert all(row["steps_per_s_a"] == row["steps_per_s_b"] == 0 for row in apart)
    assert (reading.kernels, reading.jobs) == ((), ())


def test_a_pair_counts_once_and_its_mark_must_agree(tmp_path: Path) -> None:
    header = "gpu,model_a,batch_a,model_b,batch_b,steps_per_s_a,steps_per_s_b,isolated_a,isolated_b,fits_together"
    path = write(
        tmp_path,
        header,
        "v100,LM,5,A3C,,1,2,3,4,1",
        "v100,A3C,,LM,5,2,1,4,3,1",  # the mirror image
        "k80,LM,5,A3C,,0,0,3,4,1",  # said to fit, but nothing runs
        "p100,LM,5,A3C,,0,0,3,4,0",
        "p100,LM,5,LM,5,1,1,3,3,0",  # said not to fit
    )
    reading = read_pairs(path, strict=False)
    assert [row.line for row in reading.tables["pairs"]] == [2, 5]
    assert [problem.where[-1] for problem in reading.problems] == ["4", "6", "3"]
    with pytest.raises(DataError, match="line 4: fits_together is 1, but the rates are 0 and 0"):
        read_pairs(path)


@pytest.mark.parametrize(("name", "count"), TRACES.items())
def test_job_lists(name: str, count: int) -> None:
    path = data("gavel", "traces", name)
    assert sniffed(path) == ["gavel-jobs"]
    reading = read_jobs(path)
    assert len(reading.jobs) == len(reading.tables["jobs"]) == count
    rates = {
        (row["gpu"], row["model"], row["batch_size"], row["num_gpus"]): float(row["steps_per_s"])
        for row in records(data("gavel", "isolated_throughput.csv"))
        if row["placement"] == "consolidated"
    }
    kernels = {kernel.name: kernel for kernel in reading.kernels}
    for job, row in zip(reading.jobs, records(path), strict=True):  # the lists are sorted
        graph = reading.graphs[job.graph]
        assert job.arrival_s == float(row["arrival_s"])
        assert len(graph.all_gangs) == 1
        assert len(graph.tasks) == int(row["num_gpus"])
        assert graph.all_gangs[0].preemptible
        alone = graph.tasks[0].units * kernels[graph.tasks[0].kernel].implementations["v100"].fixed_s
        rate = rates["v100", row["model"], row["batch_size"], row["num_gpus"]]
        assert alone == pytest.approx(int(row["total_steps"]) / rate)
    workload = Workload(name, reading.kernels, reading.graphs, reading.jobs)
    check_feasible(topology("gpu24"), workload)


def test_a_job_of_the_published_case_takes_its_steps_over_its_rate() -> None:
    reading = read_jobs(data("gavel", "traces", "generated_gap2700_seed0.csv"))
    graph = reading.graphs[reading.jobs[0].graph]
    kernels = {kernel.name: kernel for kernel in reading.kernels}
    rates = read_rates(data("gavel", "isolated_throughput.csv")).tables["rates"]
    rate = max(
        row["steps_per_s"]
        for row in rates
        if (row["model"], row["batch_size"]) == ("Transformer", 64) and row["num_gpus"] == 1
    )
    assert critical_path_s(topology("gpu24"), kernels, graph) == pytest.approx(2678937 / rate)


def test_gangs_that_nobody_measured_are_reported_or_scaled() -> None:
    path = data("gavel", "traces", PHILLY)
    assert sniffed(path) == ["gavel-jobs"]
    with pytest.raises(DataError, match="line 43: Recommendation/512/x4 has no measured rate"):
        read_jobs(path)
    kept = read_jobs(path, strict=False)
    assert (len(kept.jobs), len(kept.problems)) == (11907, 1266)
    assert len(kept.jobs) + len(kept.problems) == len(records(path)) == 13173
    assert [job.arrival_s for job in kept.jobs] == sorted(job.arrival_s for job in kept.jobs)
    scaled = read_jobs(path, unmeasured="linear", vc="7f04ca")
    assert len(scaled.jobs) == 972
    kernels = {kernel.name: kernel for kernel in scaled.kernels}
    one = {kernel.name: kernel for kernel in read_rates(data("gavel", "isolated_throughput.csv")).kernels}
    alone = one["A3C"].implementations["k80"].fixed_s
    assert kernels["A3C/x8"].implementations["k80"].fixed_s == pytest.approx(alone / 8)
    assert any("A3C/x8" in note for note in scaled.notes)
    assert Workload("philly", scaled.kernels, scaled.graphs, scaled.jobs)


def test_one_virtual_cluster() -> None:
    path = data("gavel", "traces", PHILLY)
    reading = read_jobs(path, strict=False, vc="103959")
    assert len(reading.jobs) + len(reading.problems) == 986
    with pytest.raises(DataError, match="no row has vc 'nobody'"):
        read_jobs(path, strict=False, vc="nobody")


def test_bad_jobs_and_rates(tmp_path: Path) -> None:
    rates = write(
        tmp_path,
        RATES,
        "v100,consolidated,LM,5,1,2.0",
        "k80,consolidated,LM,5,1,0",
        "v100,consolidated,LM,5,1,3.0",  # again
        "v100,nowhere,LM,5,1,3.0",
        "k80,consolidated,A3C,,1,0",
        name="rates.csv",
    )
    jobs = write(
        tmp_path,
        JOBS,
        "0,LM,5,100,1,1.0,10",
        "1,LM,5,100,2,1.0,0",
        "2,A3C,,100,1,1.0,0",
        "3,LM,5,0,1,1.0,0",
        "4,LM,5,100,9999,1.0,0",
        "5,LM,5,100,1,1.0,5",
    )
    reading = read_jobs(jobs, strict=False, rates=str(rates), checkpoint_s=1, restore_s="2")
    assert [(job.arrival_s, row["job"]) for job, row in zip(reading.jobs, reading.tables["jobs"], strict=True)] == [
        (5.0, "5"),
        (10.0, "0"),
    ]
    assert set(reading.kernels[0].implementations) == {"v100"}
    assert len(reading.problems) == 6
    problems = "\n".join(map(str, reading.problems))
    assert "rates.csv: line 4: it repeats line 2" in problems
    assert "rates.csv: line 5: placement is 'nowhere'" in problems
    assert "made.csv: line 3: LM/5/x2 has no measured rate" in problems
    assert "made.csv: line 4: A3C fits no GPU" in problems
    assert "made.csv: line 5: total_steps is '0'" in problems
    assert "made.csv: line 6: num_gpus is '9999'" in problems
    gang = reading.graphs[0].all_gangs[0]
    assert (gang.checkpoint_s, gang.restore_s) == (1.0, 2.0)


def test_rates_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    jobs = write(tmp_path / "traces", JOBS, "0,LM,5,100,1,1.0,10")
    with pytest.raises(DataError, match="write rates=PATH"):
        read_jobs(jobs)
    with pytest.raises(DataError, match="cannot read it"):
        read_jobs(jobs, rates="nowhere.csv")
    write(tmp_path, RATES, "v100,consolidated,LM,5,1,2.0", name="isolated_throughput.csv")
    assert len(read_jobs(jobs).jobs) == 1


@pytest.mark.parametrize(
    ("name", "table", "parts"),
    [
        ("gavel-rates", "rates", ("isolated_throughput.csv",)),
        ("gavel-pairs", "pairs", ("colocated_pairs.csv",)),
        ("gavel-jobs", "jobs", ("traces", "max_min_fairness.csv")),
        ("gavel-jobs", "jobs", ("traces", PHILLY)),
    ],
)
def test_cut_files(tmp_path: Path, name: str, table: str, parts: tuple[str, ...]) -> None:
    options = {"rates": str(data("gavel", "isolated_throughput.csv"))} if name == "gavel-jobs" else {}
    check_cut(name, data("gavel", *parts), tmp_path, table, **options)
