from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_feasible
from symphony.problem.workload import Workload
from tests.data import data
from tests.lowering.readers.csv_files import check_cut, records, sniffed, write

read_pods = partial(readers.read, format="openb-pods")
read_machines = partial(readers.read, format="openb-machines")
# pods, and those never scheduled
TIMED = {
    "cpu037": (7336, 870),
    "cpu050": (7439, 878),
    "cpu072": (7608, 884),
    "cpu100": (7853, 883),
    "cpu235": (9240, 933),
    "cpu250": (9420, 934),
    "cpu300": (10094, 955),
    "default": (8152, 897),
    "gpushare100": (8152, 1209),
    "gpushare20": (8152, 840),
    "gpushare40": (8152, 981),
    "gpushare80": (8152, 1146),
    "gpuspec05": (8152, 897),
    "gpuspec10": (8152, 897),
    "gpuspec25": (8152, 897),
    "gpuspec33": (8152, 897),
}
VARIED = ("cpu300", "default", "gpushare100", "gpuspec33")  # the others are of the same form
UNTIMED = {"multigpu20": 8324, "multigpu30": 8508, "multigpu50": 9061}
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def pods(variant: str) -> Path:
    return data("openb", f"openb_pod_list_{variant}.csv.gz")


@pytest.mark.parametrize(("which", "machines"), [("all", 1523), ("gpu", 1213)])
def test_machines(which: str, machines: int) -> None:
    path = data("openb", f"openb_node_list_{which}_node.csv.gz")
    assert sniffed(path) == ["openb-machines"]
    topology = read_machines(path).topology
    assert topology is not None
    assert len(topology.machines) == machines
    types = Counter(topology.kind_of[device.kind].type for device in topology.devices)
    assert types == {"gpu": 6212, "cpu": machines}
    gpus: Counter[str] = Counter()
    for row in records(path):
        gpus[row["model"].lower()] += int(row["gpu"])
    assert {kind: topology.kind_counts.get(kind, 0) for kind in gpus if kind} == {k: n for k, n in gpus.items() if k}
    cores = sum(row.capacity for row in topology.resources if row.name.endswith("/cpu/compute"))
    assert cores == sum(int(row["cpu_milli"]) for row in records(path)) / 1000


@pytest.mark.parametrize(
    "variant", [pytest.param(one, marks=() if one in VARIED else pytest.mark.slow) for one in TIMED]
)
def test_pods(variant: str, tmp_path: Path) -> None:
    count, unscheduled = TIMED[variant]
    path = pods(variant)
    assert sniffed(path) == ["openb-pods"]
    here = tmp_path / path.name  # away from the list of machines: the cluster is tested below
    here.write_bytes(path.read_bytes())
    reading = read_pods(here)
    rows = records(path)
    assert len(reading.jobs) == len(rows) == count
    assert any(f"never scheduled ({unscheduled})" in note for note in reading.notes)
    seconds = [int(r["deletion_time"]) - int(r["scheduled_time"] or r["creation_time"]) for r in rows]
    workers = [max(1, int(row["num_gpu"])) for row in rows]
    expected = Counter(
        (float(row["creation_time"]), width, max(1, length))
        for row, width, length in zip(rows, workers, seconds, strict=True)
    )
    graphs = reading.graphs
    found = Counter(
        (job.arrival_s, len(graphs[job.graph].tasks), graphs[job.graph].tasks[0].units) for job in reading.jobs
    )
    assert found == expected
    assert reading.topology is None


def test_the_default_list_runs_on_the_cluster_beside_it() -> None:
    reading = read_pods(pods("default"))
    assert reading.topology is not None
    assert len(reading.topology.machines) == 1523
    check_feasible(reading.topology, Workload("openb", reading.kernels, reading.graphs, reading.jobs))
    shared = [row for row in reading.tables["pods"] if 0 < row["gpu_milli"] < 1000]
    assert len(shared) == 3078
    assert sum(row["num_gpu"] > 1 for row in reading.tables["pods"]) == 75
    kernels = {kernel.name: kernel.implementations for kernel in reading.kernels}
    for kind in ("t4", "v100m32", "g2", "a10"):  # a share of a GPU reserves that share of it
        memory = reading.topology.kind_of[kind].memory
        assert kernels["gpu1"][kind].memory == memory
        assert kernels["gpu0.46"][kind].memory + kernels["gpu0.55"][kind].memory > memory
        assert kernels["gpu0.46"][kind].memory * 2 < memory


@pytest.mark.parametrize("variant", UNTIMED)
def test_pods_without_times(variant: str, tmp_path: Path) -> None:
    path = pods(variant)
    assert sniffed(path) == ["openb-pods"]
    here = tmp_path / path.name
    here.write_bytes(path.read_bytes())
    reading = read_pods(here)
    assert (len(reading.tables["pods"]), reading.graphs, reading.jobs) == (UNTIMED[variant], (), ())
    assert any("no times" in note for note in reading.notes)
    reading = read_pods(here, duration_s="60")
    assert len(reading.graphs) == UNTIMED[variant]
    assert {task.units for graph in reading.graphs for task in graph.tasks} == {60.0}
    assert reading.jobs == ()


def test_what_a_pod_asks_for(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        PODS,
        "whole,4000,100,1,1000,,LS,Running,0,10,2",
        "part,4000,100,1,250,T4|V100M32|V100M32,BE,Running,1,10,",
        "wide,4000,100,8,1000,G2,BE,Running,2,10,5",
        "host,8500,1024,0,0,,BE,Running,3,10,3",
        "blink,8500,1024,0,0,,BE,Running,4,4,4",
    )
    reading = read_pods(path)
    kernels = {kernel.name: kernel.implementations for kernel in reading.kernels}
    assert set(kernels) == {"gpu1", "gpu0.25/t4/v100m32", "gpu1/g2", "cpu8.5/1024MiB"}
    assert "gpu" in kernels["gpu1"]
    part = kernels["gpu0.25/t4/v100m32"]
    assert set(part) == {"t4", "v100m32"}
    assert part["t4"].demand == {"compute": 0.25}
    assert (part["t4"].memory, part["v100m32"].memory) == (4e9, 8e9)
    host = kernels["cpu8.5/1024MiB"]["cpu"]
    assert (host.demand, host.memory) == ({"compute": 8.5}, 2**30)
    lengths = [reading.graphs[job.graph].tasks[0].units for job in reading.jobs]
    assert lengths == [8, 9, 5, 7, 1]
    assert [len(reading.graphs[job.graph].tasks) for job in reading.jobs] == [1, 1, 8, 1, 1]


def test_bad_pods(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        PODS,
        "good,1000,100,1,500,,LS,Running,0,10,2",
        "good,1000,100,1,500,,LS,Running,0,10,2",
        "none,1000,100,1,0,,LS,Running,0,10,2",
        "part,1000,100,0,500,,LS,Running,0,10,2",
        "void,0,100,0,0,,LS,Running,0,10,2",
        "more,1000,100,1,1500,,LS,Running,0,10,2",
        "back,1000,100,1,500,,LS,Running,5,10,20",
        "open,1000,100,1,500,,LS,Running,5,,6",
        "when,1000,100,1,500,,LS,Running,,9,6",
    )
    reading = read_pods(path, strict=False)
    assert (len(reading.jobs), len(reading.problems)) == (1, 8)
    problems = "\n".join(map(str, reading.problems))
    for line, what in (
        (3, "it repeats line 2"),
        (4, "it requests 1 GPUs and no part of them"),
        (5, "it requests 500 thousandths of no GPU"),
        (6, "it requests nothing"),
        (7, "gpu_milli is '1500'"),
        (8, "out of order"),
        (9, "it has no deletion_time"),
        (10, "it has no creation_time"),
    ):
        assert any(f"line {line}: " in problem and what in problem for problem in problems.split("\n"))
    reading = read_pods(path, strict=False, duration_s=77)
    assert [reading.graphs[job.graph].tasks[0].units for job in reading.jobs] == [8, 77]
    with pytest.raises(DataError, match="line 7"):
        read_pods(path)
    with pytest.raises(DataError, match="option duration_s"):
        read_pods(path, duration_s="long")


def test_gpus_that_nobody_has_seen_share_their_memory_too(tmp_path: Path) -> None:
    """A pod that may run anywhere reserves its share of such a GPU: two of 60% never run at once."""
    write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model", "m,64000,1000,1,H999", name="machines.csv")
    rows = [f"p{n},1000,1,1,600,,LS,Running,{n},{n + 10},{n}" for n in range(2)]
    reading = read_pods(write(tmp_path, PODS, *rows), machines=str(tmp_path / "machines.csv"))
    assert reading.topology is not None
    (kernel,) = reading.kernels
    assert kernel.implementations["h999"].memory == 0.6 * reading.topology.kind_of["h999"].memory > 0


def test_bad_machines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "sn,cpu_milli,memory_mib,gpu,model",
        "a,32000,1000,0,",
        "b,32000,1000,2,",
        "a,32000,1000,1,T4",
        "c,0,1000,1,T4",
        "d,96000,2000,2,NEW",
    )
    reading = read_machines(path, strict=False)
    assert (len(reading.tables["machines"]), len(reading.problems)) == (2, 3)
    assert reading.topology is not None
    assert reading.topology.kind_counts == {"cpu32-1000MiB": 1, "cpu96-2000MiB": 1, "new": 2}
    assert reading.topology.kind_of["cpu96-2000MiB"].slots == 12
    with pytest.raises(DataError, match="line 3: it has 2 GPUs and no model"):
        read_machines(write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model", "a,1,1,0,", "b,1,1,2,"))
    assert read_machines(write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model")).topology is None


@pytest.mark.parametrize("variant", ["default", "gpuspec33", "multigpu20"])
def test_cut_pods(tmp_path: Path, variant: str) -> None:
    check_cut("openb-pods", pods(variant), tmp_path, "pods")


def test_cut_machines(tmp_path: Path) -> None:
    path = data("openb", "openb_node_list_all_node.csv.gz")
    check_cut("openb-machines", path, tmp_path, "machines")
