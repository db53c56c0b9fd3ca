"""StarPU's models: against kernel_times.csv and the raw matrices, and with lines spoilt by hand."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.starpu_cholesky import cholesky_on, factorisation_on
from symphony.lowering import readers
from symphony.lowering.readers import starpu
from symphony.lowering.readers.reading import FileContents
from symphony.problem.errors import DataError, WorkloadError
from symphony.problem.runnable import check_graphs, critical_path_s
from symphony.problem.topology import LOCAL, MACHINE, SOCKET, SWITCH, Device, Topology
from tests.data import data
from tests.lowering.readers.damaged import try_all

MACHINES = ("attila", "hannibal", "mirage", "sirocco")


def read(path: Path, *, strict: bool = True, **options: Any) -> FileContents:
    return readers.read(path, "starpu", strict=strict, **options)


def machine(name: str) -> FileContents:
    return read(data("starpu-perfmodels"), machine=name)


def built(reading: FileContents) -> Topology:
    assert reading.topology is not None
    return reading.topology


def part(tmp_path: Path, name: str = "mirage") -> Path:
    """A folder with one machine of the real one, and only the Cholesky models."""
    source, copy = data("starpu-perfmodels"), tmp_path / "sampling"
    for folder, pattern in (("bus", f"{name}.*"), ("codelets/45", f"chol_model_*.{name}")):
        (copy / folder).mkdir(parents=True)
        for file in (source / folder).glob(pattern):
            shutil.copy(file, copy / folder)
    return copy


@pytest.mark.parametrize("name", MACHINES)
def test_rows_are_those_of_the_table(name: str) -> None:
    reading = machine(name)
    rows = {(row.codelet, row.device, row.footprint): row for row in reading.tables["rows"]}
    assert len(rows) == len(reading.tables["rows"])
    with data("starpu-perfmodels", "kernel_times.csv").open() as file:
        table = [line for line in csv.DictReader(file) if line["machine"] == name]
    for line in table:
        arch = line["arch"].partition("_")[0]
        row = rows.pop((line["codelet"], "core" if arch == "cpu0" else arch, line["footprint"]))
        assert row.mean_s * 1e6 == pytest.approx(float(line["mean_us"]))
        assert row.std_s * 1e6 == pytest.approx(float(line["stddev_us"]))
        assert (row.data_bytes, row.samples) == (float(line["data_bytes"]), int(line["n_samples"]))
    # The table lacks one row of the models: it was separated by blanks instead of a tab.
    left = [("starpu_sgemm_gemm", "cuda1", "2eaa41c6")] if name == "mirage" else []
    assert list(rows) == left
    assert not reading.problems


@pytest.mark.parametrize(
    ("name", "cores", "gpus", "kernels"),
    [("attila", 9, 3, 57), ("hannibal", 5, 3, 8), ("mirage", 9, 3, 120), ("sirocco", 20, 4, 71)],
)
def test_machines(name: str, cores: int, gpus: int, kernels: int) -> None:
    reading = machine(name)
    counts = built(reading).kind_counts
    assert counts == {"core": cores, **{f"cuda{gpu}": 1 for gpu in range(gpus)}}
    assert len(reading.kernels) == kernels


def host_crossings(device: Device) -> Counter[int]:
    """How often traffic of each span crosses the shared link."""
    return Counter(span for hop in device.route if hop.resource.endswith("/host") for span in hop.spans)


def test_without_direct_paths_gpus_exchange_data_through_main_memory() -> None:
    """Hannibal's description calls the shared link Share, and has no routes between GPUs."""
    topology = built(machine("hannibal"))
    assert {row.name: row.capacity for row in topology.resources}["hannibal/host"] == pytest.approx(5988971975.023217)
    assert host_crossings(topology.devices[-1]) == {SWITCH: 2, SOCKET: 2, MACHINE: 1}


def test_the_pcie_tree_of_mirage() -> None:
    topology = built(machine("mirage"))
    device = {device.name.partition("/")[2]: device for device in topology.devices}
    far = {pair: topology.distance(device[pair[0]], device[pair[1]]) for pair in (
        ("core-0", "core-8"), ("core-3", "cuda0"), ("cuda0", "cuda1"), ("cuda0", "cuda2"), ("cuda1", "cuda2"),
    )}  # fmt: skip
    assert list(far.values()) == [LOCAL, MACHINE, SOCKET, SOCKET, SWITCH]
    capacity = {row.name.partition("/")[2]: row.capacity for row in topology.resources}
    both_ways = 2 / (1 / 6030.996807e6 + 1 / 6517.591026e6)  # the matrix: 0 to 1, 1 to 0
    assert capacity["cuda0/link"] == pytest.approx(both_ways)
    assert capacity["cuda1/near"] == pytest.approx(2 / (1 / 5296.205823e6 + 1 / 5296.294945e6))
    assert capacity["host"] == pytest.approx(6517450307.894589)
    assert host_crossings(device["cuda1"]) == {MACHINE: 1, SOCKET: 2}  # not between the two behind one switch
    latencies = (9.836008, 10.565859, 9.800445, 12.277023, 9.824289, 10.580664)
    assert topology.latency_s[MACHINE] == pytest.approx(sum(latencies) / 6 * 1e-6)
    assert topology.kind_of["cuda0"].memory == 5636554752.0


def test_everything_shares_the_host_link_of_sirocco() -> None:
    topology = built(machine("sirocco"))
    for device in topology.devices[-4:]:
        assert host_crossings(device) == {SWITCH: 1, SOCKET: 1, MACHINE: 1}
    first, second, third = (device for device in topology.devices if device.kind in ("cuda0", "cuda1", "cuda2"))
    assert (topology.distance(first, second), topology.distance(second, third)) == (SWITCH, SOCKET)


# The 960-tile rows of the models, in microseconds: one core, and the first GPU.
@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("mirage", [(18849.69, 5366.74), (45646.76, 6393.638), (87780.2, 2805.491)]),
        ("sirocco", [(7379.027, 8456.328), (17757.72, 2005.118), (34940.26, 743.4516)]),
    ],
)
def test_cholesky(name: str, times: list[tuple[float, float]]) -> None:
    reading = machine(name)
    kernels, (graph,) = cholesky_on(reading, 10)
    assert [kernel.name for kernel in kernels] == ["potrf", "trsm", "gemm"]
    for kernel, pair in zip(kernels, times, strict=True):
        found = [kernel.implementations[kind].seconds(1.0) * 1e6 for kind in ("core", "cuda0")]
        assert found == pytest.approx(pair), kernel.name
    assert len(graph.tasks) == 220
    assert {edge.bytes for edge in graph.edges} == {4.0 * 960 * 960}
    assert sum(edge.source is None for edge in graph.edges) == 55  # every tile of the lower half is read once
    check_graphs(built(reading), kernels, [graph])
    # No schedule is faster than this, StarPU's included (it takes 306 and 139 ms).
    least = critical_path_s(built(reading), {kernel.name: kernel for kernel in kernels}, graph)
    assert least < {"mirage": 0.306, "sirocco": 0.139}[name]


def test_lu() -> None:
    kernels, (graph,) = factorisation_on(machine("mirage"), "lu", 4)
    found = {kernel.name: round(kernel.implementations["cuda0"].seconds(1.0) * 1e6) for kernel in kernels}
    assert found == {"getrf": 59487, "trsm_row": 6504, "trsm_column": 6462, "gemm": 2989}
    assert len(graph.tasks) == 4 * 5 * 9 // 6
    assert sum(edge.source is None for edge in graph.edges) == 16


def test_tiles_that_nobody_measured() -> None:
    with pytest.raises(WorkloadError, match=r"960 by 960|tiles of 100 by 100 floats[\s\S]*use a tile of 32 or 320"):
        cholesky_on(machine("mirage"), 4, tile=100)


def test_choosing_a_machine(tmp_path: Path) -> None:
    folder = data("starpu-perfmodels")
    with pytest.raises(DataError, match="several machines") as error:
        read(folder)
    assert "machine=attila" in error.value.hint
    with pytest.raises(DataError, match="no machine 'x'"):
        read(folder, machine="x")
    with pytest.raises(DataError, match="it has no machines"):
        read(tmp_path)
    assert built(read(part(tmp_path))).name == "mirage"
    assert built(read(tmp_path / "sampling", cores="12")).kind_counts["core"] == 12
    with pytest.raises(DataError, match="option cores: it is 13"):
        read(tmp_path / "sampling", cores=13)


def test_sniffing(tmp_path: Path) -> None:
    assert starpu.STARPU_FORMAT.sniff(data("starpu-perfmodels"), b"")
    assert not starpu.STARPU_FORMAT.sniff(tmp_path, b"")
    assert not starpu.STARPU_FORMAT.sniff(data("starpu-perfmodels", "kernel_times.csv"), b"machine,codelet")


def test_without_a_platform_description(tmp_path: Path) -> None:
    folder = part(tmp_path)
    (folder / "bus" / "mirage.platform.v4.xml").unlink()
    reading = read(folder)
    assert not any(row.name.endswith("/host") for row in built(reading).resources)
    assert any("No link is shared" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("codelets/45/chol_model_gemm.mirage", "\n45\n", "\n44\n", "not a performance model of version 45"),
        ("codelets/45/chol_model_gemm.mirage", "combinations\n4", "combinations\nfour", "line 8: the number of comb"),
        ("bus/mirage.bandwidth", "6517.591026", "\n", "line 3: the matrix is cut off"),
        ("bus/mirage.config", "3 # Number of CUDA", "many # Number of CUDA", "number of CUDA devices is 'many'"),
        ("bus/mirage.platform.v4.xml", "<platform", "<<platform", "platform.v4.xml"),
        ("bus/mirage.platform.v4.xml", "6517450307.894589Bps", "fast", "bandwidth of Host is 'fast'"),
    ],
)
def test_bad_files(file: str, old: str, new: str, what: str, tmp_path: Path) -> None:
    path = part(tmp_path) / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError) as error:
        read(tmp_path / "sampling")
    assert path.name in error.value.where
    assert what in str(error.value)


def test_models_of_another_version(tmp_path: Path) -> None:
    folder = part(tmp_path)
    (folder / "codelets" / "45").rename(folder / "codelets" / "44")
    with pytest.raises(DataError, match="its performance models have version 44, and only version 45 can be read"):
        readers.read(folder)


@pytest.mark.parametrize("entry", ["0", "", "fast", "1 2 3", "nan"])
def test_a_bad_entry_is_left_out_alone(entry: str, tmp_path: Path) -> None:
    folder = part(tmp_path)
    rows = read(folder).tables["rows"]
    path = folder / "codelets" / "45" / "chol_model_gemm.mirage"
    path.write_text(path.read_text().replace("8.778020e+04", entry, 1))
    reading = read(folder)
    assert reading.tables["rows"] == tuple(row for row in rows if row.mean_s != pytest.approx(8.778020e-2))
    assert len(reading.tables["rows"]) == len(rows) - 1
    assert [problem.where for problem in reading.problems] == [f"{path}: line 41"]


@pytest.mark.parametrize(("file", "line", "column"), [("bandwidth", 3, 0), ("latency", 2, 1)])
def test_a_bad_cell_of_a_matrix_gives_way_to_the_other_direction(
    file: str, line: int, column: int, tmp_path: Path
) -> None:
    """Once main memory to cuda0 is bad, cuda0 to main memory counts for both; if that is bad as well, nothing does."""
    path = part(tmp_path) / "bus" / f"mirage.{file}"
    lines = [text.split() for text in path.read_text().splitlines()]

    def spoil(line: int, column: int) -> FileContents:
        lines[line - 1][column] = "nan"
        path.write_text("\n".join("\t".join(words) for words in lines))
        return read(tmp_path / "sampling")

    reading = spoil(line, column)
    assert [problem.where for problem in reading.problems] == [f"{path}: line {line}"]
    assert f"column {column} is nan" in reading.problems[0].what
    capacity = {row.name: row.capacity for row in built(reading).resources}
    if file == "bandwidth":
        assert capacity["mirage/cuda0/link"] == pytest.approx(1e6 * float(lines[1][1]))
    with pytest.raises(DataError, match="neither is the other direction"):
        spoil(column + 2, line - 2)


def test_damage(tmp_path: Path) -> None:
    folder = part(tmp_path)
    for file in ("codelets/45/chol_model_trsm.mirage", "bus/mirage.bandwidth", "bus/mirage.config"):
        assert try_all("starpu", folder / file, ask=folder, lenient=True) > 5
    try_all("starpu", folder / "bus" / "mirage.platform.v4.xml", ask=folder)
