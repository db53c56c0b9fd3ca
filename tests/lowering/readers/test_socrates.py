"""SoC and job files: HEFT's well-known example, and lines spoilt by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.lowering import readers
from symphony.lowering.readers import socrates
from symphony.lowering.readers.reading import FileContents, read_bytes, read_head
from symphony.problem.errors import DataError
from symphony.problem.runnable import check_graphs
from symphony.problem.topology import SWITCH
from tests.data import data
from tests.lowering.readers.damaged import try_all, write

SOC = """# comment
add_new_resource CPU P1 0 1 2 performance
opp 600 900
opp 2000 1362
fft 14 3
scan 10 2
add_new_resource ACC A1 1 2 1 none
fft 2 9
add_new_resource ACC A2 2 2 1 none
fft 2 8
add_new_resource MEM M1 3 1 1 none
None 0 0
comm_band 0 0 100
comm_band 0 3 4
comm_band 1 3 2
comm_band 2 1 6
"""
JOB = """job_name Small
add_new_tasks 3
scan 0
scan HEAD
scan earliest_start 1 deadline 20
fft 1 0
fft 2 0 1
fft TAIL
comm_vol 0 1 18
comm_vol 1 2 5
"""


def read(path: Path, *, strict: bool = True, **options: str) -> FileContents:
    return readers.read(path, "socrates", strict=strict, **options)


def both(tmp_path: Path, soc: str = SOC, job: str = JOB) -> Path:
    write(tmp_path / "SoC.txt", soc)
    write(tmp_path / "job.txt", job)
    return tmp_path


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    reading = read(both(tmp_path))
    topology = reading.topology
    assert topology is not None
    # A1 and A2 are alike, and are of one kind; the memory is no device.
    assert [(device.name, device.kind) for device in topology.devices] == [("P1", "P1"), ("A1", "A1"), ("A2", "A1")]
    assert [(kind.type, kind.slots) for kind in topology.kinds] == [("cpu", 1), ("acc", 2)]
    capacity = {row.name: row.capacity for row in topology.resources if row.kind == "link"}
    # P1 goes through the memory: half of 4; A1 and A2 have 6 between them.
    assert capacity == {"P1/link": 2e6, "A1/link": 6e6, "A2/link": 6e6}
    assert topology.distance(*topology.devices[:2]) == SWITCH
    assert topology.latency_s[SWITCH] == 0.0
    kernels = {kernel.name: kernel.implementations for kernel in reading.kernels}
    assert {name: {kind: p.seconds(1.0) for kind, p in of.items()} for name, of in kernels.items()} == {
        "fft": {"P1": pytest.approx(14e-6), "A1": pytest.approx(2e-6)},
        "scan": {"P1": pytest.approx(10e-6)},
    }
    (graph,) = reading.graphs
    assert [(task.name, task.kernel) for task in graph.tasks] == [
        ("scan:0", "scan"),
        ("fft:1", "fft"),
        ("fft:2", "fft"),
    ]
    assert {(edge.source, edge.target): edge.bytes for edge in graph.edges} == {
        ("scan:0", "fft:1"): 18.0,
        ("scan:0", "fft:2"): 0.0,
        ("fft:1", "fft:2"): 5.0,
    }
    check_graphs(topology, reading.kernels, reading.graphs)


def test_every_file() -> None:
    folder = data("socrates")
    reading = read(folder)
    assert not reading.problems
    jobs = sorted(folder.glob("job_*.txt"))
    assert [graph.name for graph in reading.graphs] == [file.stem for file in jobs]
    for graph, file in zip(reading.graphs, jobs, strict=True):
        lines = [line.split() for line in file.read_text().splitlines() if line and not line.startswith("#")]
        volumes = [float(words[3]) for words in lines if words[0] == "comm_vol"]
        assert len(graph.tasks) == int(next(words[1] for words in lines if words[0] == "add_new_tasks"))
        assert sum(edge.bytes for edge in graph.edges) == sum(volumes)
    assert reading.topology is not None
    check_graphs(reading.topology, reading.kernels, reading.graphs)
    assert socrates.SOCRATES_FORMAT.sniff(folder, b"")
    assert all(socrates.SOCRATES_FORMAT.sniff(file, read_head(file)) for file in (*jobs, folder / "DASH.SoC.Top.txt"))
    assert not socrates.SOCRATES_FORMAT.sniff(folder / "LICENSE", read_head(folder / "LICENSE"))


# The example of the HEFT paper: ten tasks on three processors, 15 edges; a transfer takes its volume in microseconds.
def test_known_numbers() -> None:
    reading = read(data("socrates", "job_Top.txt"))
    (graph,) = reading.graphs
    assert (len(graph.tasks), len(graph.edges)) == (10, 15)
    times = {
        kernel.name: [round(p.fixed_s * 1e6) for p in kernel.implementations.values()] for kernel in reading.kernels
    }
    assert (times["task_1"], times["task_8"], times["task_10"]) == ([14, 16, 9], [5, 11, 14], [21, 7, 16])
    assert {(e.source, e.target): e.bytes for e in graph.edges}["task_4:3", "task_8:7"] == 27.0
    assert reading.topology is not None
    assert {row.capacity for row in reading.topology.resources if row.kind == "link"} == {1e6}


def test_a_job_without_a_soc_is_an_error_that_says_what_to_write(tmp_path: Path) -> None:
    path = write(tmp_path / "job.txt", JOB)
    for strict in (True, False):
        with pytest.raises(DataError, match="no SoC file beside the job") as caught:
            read(path, strict=strict)
        assert caught.value.where == str(path) and "soc=PATH" in caught.value.hint


def test_the_soc_can_be_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "jobs" / "job.txt", JOB)
    soc = write(tmp_path / "chips" / "big.txt", SOC)
    assert [kernel.name for kernel in read(path, soc=str(soc)).kernels] == ["fft", "scan"]
    assert read(path.parent, soc="../chips/big.txt").topology.name == "big"  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)
    assert read(path, soc="chips/big.txt").topology.name == "big"  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"no SoC file 'jobs/job\.txt'") as caught:
        read(path, soc="jobs/job.txt")
    assert "soc=PATH" in caught.value.hint


def test_functions_of_ds3_have_no_power_and_elements_have_profiles(tmp_path: Path) -> None:
    ds3 = SOC.replace("fft 14 3", "trip_freq -1 -1 -1\npower_profile 1000 0.1\nPG_profile 1000 0.1\nfft 14")
    ds3 = ds3.replace("scan 10 2", "scan 10")
    reading = read(both(tmp_path, soc=ds3), strict=False)
    assert reading.problems == ()
    assert {kernel.name: kernel.implementations["P1"].fixed_s for kernel in reading.kernels} == {
        "fft": pytest.approx(14e-6),
        "scan": pytest.approx(10e-6),
    }


def test_a_function_that_no_element_supports(tmp_path: Path) -> None:
    folder = both(tmp_path, job=JOB.replace("scan", "sort"))
    with pytest.raises(DataError, match=r"job\.txt: no element of SoC\.txt supports sort"):
        read(folder)
    with pytest.raises(DataError, match=r"none of its jobs can run: no element of SoC\.txt supports sort") as caught:
        read(folder, strict=False)
    assert str(folder) in caught.value.where and "soc=PATH" in caught.value.hint
    write(folder / "other.txt", JOB)
    kept = read(folder, strict=False)
    assert [graph.name for graph in kept.graphs] == ["other"] and len(kept.problems) == 1


def test_one_of_several_socs(tmp_path: Path) -> None:
    write(both(tmp_path) / "SoC2.txt", SOC)
    with pytest.raises(DataError, match=r"several SoCs: SoC, SoC2.*\n.*soc=SoC"):
        read(tmp_path)
    assert read(tmp_path, soc="SoC2").topology.name == "SoC2"  # type: ignore[union-attr]
    with pytest.raises(DataError, match="no SoC file 'x'"):
        read(tmp_path, soc="x")


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("fft 14 3", "fft -1 3", 5, "execution time is -1"),
        ("fft 14 3", "fft 0 3", 5, "execution time is 0"),
        ("fft 14 3", "fft 14 3 1", 5, "a function has"),
        ("fft 14 3", "scan 14 3", 6, "given twice"),
        ("opp 600 900", "opp x 900", 3, "MHz is 'x'"),
        ("ACC A1 1 2 1", "ACC A1 1 0 1", 7, "capacity is 0"),
        ("ACC A1 1 2 1", "ACC A1", 7, "a resource has"),
        ("ACC A2 2 2 1", "ACC A2 1 2 1", 9, "given twice"),
        ("comm_band 1 3 2", "comm_band 1 9 2", 15, "resource 9 does not exist"),
        ("comm_band 1 3 2", "comm_band 1 3", 15, "comm_band has"),
        ("P1 0 1 2", "P1 0 1 3", 2, "2 good functions, not the declared 3"),
    ],
)
def test_bad_lines_of_a_soc(old: str, new: str, line: int, what: str, tmp_path: Path) -> None:
    folder = both(tmp_path, soc=SOC.replace(old, new))
    with pytest.raises(DataError) as error:
        read(folder)
    assert (error.value.where, what in error.value.message) == (f"{folder / 'SoC.txt'}: line {line}", True)
    assert read(folder, strict=False).problems


@pytest.mark.parametrize(
    ("old", "new", "line", "what", "left"),
    [
        ("fft 1 0", "fft x 0", 6, "id of a task is 'x'", (2, 1)),
        ("fft 1 0", "fft 0 0", 6, "given twice", (2, 1)),
        ("scan 0\n", "scan\n", 3, "has no id", (2, 1)),
        ("fft 1 0", "fft 1 9", 6, "predecessor 9", (3, 2)),
        ("comm_vol 1 2 5", "comm_vol 2 1 5", 10, "no predecessor 2", (3, 3)),
        ("comm_vol 1 2 5", "comm_vol 1 2 -5", 10, "volume is -5", (3, 3)),
        ("add_new_tasks 3", "add_new_tasks 4", 2, "3 good tasks follow, not the declared 4", (3, 3)),
        ("scan earliest_start 1", "scam earliest_start 1", 5, "'scam' does not exist", (3, 3)),
    ],
)
def test_bad_lines_of_a_job(old: str, new: str, line: int, what: str, left: tuple[int, int], tmp_path: Path) -> None:
    path = both(tmp_path, job=JOB.replace(old, new)) / "job.txt"
    with pytest.raises(DataError) as error:
        read(path)
    assert error.value.where == f"{path}: line {line}" or "predecessor 9" in what
    reading = read(path, strict=False)
    assert any(what in problem.what for problem in reading.problems)
    (graph,) = reading.graphs
    assert (len(graph.tasks), len(graph.edges)) == left


def test_a_job_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it adds no tasks"):
        read(both(tmp_path, job="job_name x\n") / "job.txt")


def test_damage(tmp_path: Path) -> None:
    for name in ("DASH.SoC.Top.txt", "job_Top5.txt"):
        (tmp_path / name).write_bytes(read_bytes(data("socrates", name)))
    assert try_all("socrates", tmp_path / "job_Top5.txt", times=20) > 10
    assert try_all("socrates", tmp_path / "DASH.SoC.Top.txt", ask=tmp_path, times=20) > 5
