from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.lowering.readers.pollux import StepTimes
from symphony.lowering.readers.tables import CsvRow
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_feasible
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import check_cut, records, sniffed, write

read_jobs = partial(readers.read, format="pollux-jobs")
LISTS = {"0.5": 80, "1.0": 160, "1.5": 240, "2.0": 320, "realistic": 160}


@pytest.mark.parametrize("load", LISTS)
def test_job_lists(load: str) -> None:
    path = data("pollux", "workloads.csv.gz")
    assert sniffed(path) == ["pollux-jobs"]
    rows = [row for row in records(path) if (row["load"], row["workload"]) == (load, "3")]
    reading = read_jobs(path, load=load, workload="3")
    assert len(reading.jobs) == len(rows) == LISTS[load]
    for job, row in zip(reading.jobs, rows, strict=True):
        graph = reading.graphs[job.graph]
        assert job.arrival_s == float(row["submit_s"])
        assert len(graph.tasks) == int(row["num_gpus"])
        assert graph.tasks[0].kernel.startswith(f"{row['model']}/{row['batch_size']}")
    assert reading.topology is not None
    assert reading.topology.kind_counts == {"t4": 64}
    check_feasible(reading.topology, Workload("pollux", reading.kernels, reading.graphs, reading.jobs))


def test_every_list_of_the_file_can_be_read() -> None:
    path = data("pollux", "workloads.csv.gz")
    assert len({(row["load"], row["workload"]) for row in records(path)}) == 30
    reading = read_jobs(path)
    assert len(reading.jobs) == 160
    assert any("holds 30 job lists; this is load 1.0, workload 1" in note for note in reading.notes)
    with pytest.raises(DataError, match="write workload= one of 1, 2, 3, 5, 6, 7"):
        read_jobs(path, workload="4")


def test_lengths_by_hand() -> None:
    path = data("pollux", "workloads.csv.gz")
    reading = read_jobs(path, load="realistic", workload="1")
    kernels = {kernel.name: kernel.implementations["t4"].fixed_s for kernel in reading.kernels}
    units = {graph.tasks[0].kernel: graph.tasks[0].units for graph in reading.graphs}
    placements = records(data("pollux", "placements.csv"))

    def step(model: str, placement: str, local: int) -> tuple[float, float]:
        row = next(
            row
            for row in placements
            if (row["model"], row["placement"], row["local_batch"]) == (model, placement, str(local))
        )
        return float(row["step_time_s"]), float(row["sync_time_s"])

    assert kernels["bert/12"] == pytest.approx(step("bert", "1", 12)[0])
    assert units["bert/12"] == 14774  # two epochs of 7,387 iterations
    assert units["cifar10/128"] == 39062
    # 128 lies between the measured 91 and 129.
    a, b = step("cifar10", "1", 91)[0], step("cifar10", "1", 129)[0]
    assert kernels["cifar10/128"] == pytest.approx(a + (128 - 91) / (129 - 91) * (b - a))


def rows_of(*rows: tuple[int, int, int, float, float]) -> StepTimes:
    keys = ("gpus", "nodes", "local_batch", "step_time_s", "sync_time_s")
    return StepTimes(CsvRow(2, [("model", "m"), *zip(keys, row, strict=True)]) for row in rows)


def test_steps_come_from_the_fewest_machines_and_average_placements() -> None:
    steps = rows_of((4, 2, 8, 1.0, 0.2), (4, 2, 8, 3.0, 0.4), (4, 4, 8, 9.0, 0.2))
    assert steps.machines("m", 4) == 2
    assert steps.step("m", 4, 32) == pytest.approx(2.0)
    assert steps.step("m", 3, 32) is None
    assert steps.step("other", 4, 32) is None


def test_steps_between_beyond_and_below_what_was_measured() -> None:
    steps = rows_of((1, 1, 8, 1.0, 0.2), (1, 1, 16, 2.0, 0.4))
    assert steps.step("m", 1, 8) == pytest.approx(1.0)
    assert steps.step("m", 1, 10) == pytest.approx(1.25)
    assert steps.step("m", 1, 16) == pytest.approx(2.0)
    assert steps.step("m", 1, 4) == pytest.approx(1.0)
    # 40 does not fit: three passes of 13.33, and one exchange.
    one, sync = 1 + (40 / 3 - 8) / 8, 0.2 + 0.2 * (40 / 3 - 8) / 8
    assert steps.step("m", 1, 40) == pytest.approx(one + 2 * (one - sync))


def test_bad_records(tmp_path: Path) -> None:
    header = "model,placement,nodes,gpus,local_batch,step_time_s,sync_time_s"
    write(tmp_path, header, "m,1,1,1,8,1.0,0.1", "m,31,2,5,8,1.0,0.1", "m,1,1,1,8,2.0,0.1", name="placements.csv")
    write(tmp_path, "model,nodes,gpus,local_batch,step_time_s,sync_time_s", "m,6,6,8,0,0", name="scalability.csv")
    write(
        tmp_path,
        "model,batch_size,epoch,progress,iteration,metric,grad_sqr,grad_var",
        "m,8,1,20,20,0.5,1,1",
        "m,8,0,10,10,0.5,1,1",
        name="statistical_efficiency.csv",
    )
    jobs = write(
        tmp_path,
        "load,workload,job,submit_s,model,num_gpus,batch_size",
        "1.0,1,a,5,m,1,8",
        "1.0,1,b,6,m,2,8",
        "1.0,1,c,7,m,1,16",
        "1.0,1,d,-7,m,1,16",
    )
    reading = read_jobs(jobs, strict=False)
    assert [(job.arrival_s, reading.graphs[job.graph].tasks[0].units) for job in reading.jobs] == [(0.0, 20.0)]
    problems = "\n".join(map(str, reading.problems))
    assert len(reading.problems) == 6
    assert "placements.csv: line 3: placement 31 is not 5 GPUs on 2 machines" in problems
    assert "placements.csv: line 4: it repeats line 2" in problems
    assert "scalability.csv: line 2: step_time_s is '0'" in problems
    assert "made.csv: line 3: no step of m on 2 GPUs was measured" in problems
    assert "made.csv: line 4: no training of m with a batch of 16 was recorded" in problems
    assert "made.csv: line 5: submit_s is '-7'" in problems
    with pytest.raises(DataError, match=r"placements\.csv: line 3"):
        read_jobs(jobs)
    with pytest.raises(DataError, match=r"needs placements\.csv") as caught:
        read_jobs(jobs, measured=str(tmp_path / "nowhere"))
    assert "measured=PATH of the folder that holds placements.csv" in caught.value.hint


def test_cut_job_lists(tmp_path: Path) -> None:
    folder = tmp_path / "measured"
    folder.mkdir()
    packed = ("1", "22", "24", "44", "444", "4444")  # more placements are not needed, and take time to read
    lines = data("pollux", "placements.csv").read_text().splitlines()
    write(folder, lines[0], *(line for line in lines if line.split(",")[1] in packed), name="placements.csv")
    for file in ("scalability.csv", "statistical_efficiency.csv"):
        (folder / file).write_bytes(data("pollux", file).read_bytes())
    check_cut("pollux-jobs", data("pollux", "workloads.csv.gz"), tmp_path, "jobs", measured=str(folder))
