"""BLAS timings: against the raw columns, and with lines spoilt by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.lowering.readers import blas
from symphony.lowering.readers.reading import Collector, FileContents, read_bytes, read_head
from symphony.problem.errors import DataError
from tests.data import data
from tests.lowering.readers.damaged import try_all, write

# exactly 2 us + 1e-3 us * size³, cold starts aside
SMALL = "Size,runIndex,time(us)\n" + "".join(
    f"{size},{run},{9999 if run == 0 else 2 + 1e-3 * size**3 + spread}\n"
    for size in (10, 20, 40)
    for run, spread in ((0, 0), (1, -0.5), (2, 0.5))
)


def read(path: Path, *, strict: bool = True) -> FileContents:
    return blas.read(path, Collector(strict=strict))


def test_a_small_one_by_hand(tmp_path: Path) -> None:
    reading = read(write(tmp_path / "DGEMM_skylake.csv", SMALL))
    (kernel,) = reading.kernels
    assert (kernel.name, kernel.exponent, list(kernel.implementations)) == ("dgemm", 3.0, ["skylake"])
    profile = kernel.implementations["skylake"]
    assert (profile.fixed_s, profile.per_work_s) == (pytest.approx(2e-6), pytest.approx(1e-9))
    assert [(timing.size, timing.runs) for timing in reading.tables["timings"]] == [(10, 2), (20, 2), (40, 2)]
    assert [timing.std_s for timing in reading.tables["timings"]] == pytest.approx([0.5e-6] * 3)
    assert any("3 runs with index 0 are cold starts" in note for note in reading.notes)


def test_the_better_exponent_is_taken(tmp_path: Path) -> None:
    quadratic = "Size,runIndex,time(us)\n" + "".join(f"{size},1,{3 + size**2}\n" for size in (8, 16, 32, 64))
    reading = read(write(tmp_path / "trsm" / "dtrsm_timing.csv", quadratic))
    assert reading.kernels[0].exponent == 2.0
    assert list(reading.kernels[0].implementations) == ["trsm"]  # the folder's name, where the file's has none
    assert any("misses a mean by at most 0% on trsm" in note for note in reading.notes)


def test_no_fit_is_negative(tmp_path: Path) -> None:
    falling = "Size,runIndex,time(us)\n8,1,100\n16,1,50\n32,1,10\n"
    profile = read(write(tmp_path / "DGEMM_x.csv", falling)).kernels[0].implementations["x"]
    assert profile.fixed_s > 0 == profile.per_work_s


def test_every_file() -> None:
    folder = data("blas-kernel-times")
    reading = read(folder)
    assert not reading.problems
    timings = reading.tables["timings"]
    files = list(folder.rglob("*.csv.gz"))
    assert all(blas.sniff(file, read_head(file)) for file in files)
    assert blas.sniff(folder, b"")
    rows = sum(read_bytes(file).count(b"\n") - 1 for file in files)
    cold = 6 * len(files)  # one for each size
    assert sum(timing.runs for timing in timings) + cold == rows == 96_000
    assert f"{cold} runs with index 0" in reading.notes[0]
    devices = {"v100", "broadwell", "skylake", "sandybridge", "sandybridge-second"}
    assert {kernel.name: set(kernel.implementations) for kernel in reading.kernels} == dict.fromkeys(
        ("dgemm", "dpotrf", "dsyrk", "dtrsm"), devices
    )


# Means of the raw columns, in microseconds.
def test_known_numbers() -> None:
    (on_cpu,) = (
        t for t in read(data("blas-kernel-times", "skylake", "DGEMM_skylake.csv.gz")).tables["timings"] if t.size == 512
    )
    assert (on_cpu.runs, on_cpu.mean_s * 1e6, on_cpu.std_s * 1e6) == (
        799,
        pytest.approx(5717.947434292866),
        pytest.approx(173.16580995529173),
    )
    assert on_cpu.host_mean_s is None
    (on_gpu,) = (
        t for t in read(data("blas-kernel-times", "V100", "DTRSM_V100.csv.gz")).tables["timings"] if t.size == 1024
    )
    assert (on_gpu.mean_s * 1e6, on_gpu.host_mean_s * 1e6) == (pytest.approx(916.5645857), pytest.approx(3992.9274093))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("20,1", "it has 2 columns, not 3"),
        ("20,1,-3", "time(us) is -3.0"),
        ("20,1,nan", "time(us) is nan"),
        ("20,1,x", "time(us) is 'x'"),
        ("20,x,3", "runIndex is 'x'"),
        ("0,1,3", "Size is 0"),
        ("10,2,3", "Size 10, run 2 was there before"),
    ],
)
def test_bad_lines(line: str, what: str, tmp_path: Path) -> None:
    lines = SMALL.splitlines()
    lines[5] = line  # size 20, run 1
    path = write(tmp_path / "DGEMM_x.csv", "\n".join(lines))
    with pytest.raises(DataError) as error:
        read(path)
    assert (error.value.where, what in error.value.message) == (f"{path}: line 6", True)
    reading = read(path, strict=False)
    assert sum(timing.runs for timing in reading.tables["timings"]) + 3 + len(reading.problems) == len(lines) - 1


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("DGEMM_x.csv", "Size,time\n1,2\n", "the columns are"),
        ("DGEMM_x.csv", "", "the columns are"),
        ("DGEMM_x.csv", "Size,runIndex,time(us)\n32,0,5\n", "no run but cold starts"),
        ("notes.csv", SMALL, "does not begin with a routine"),
    ],
)
def test_files_that_are_refused(name: str, content: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=what):
        read(write(tmp_path / name, content))


def test_damage(tmp_path: Path) -> None:
    file = tmp_path / "DGEMM_V100.csv"
    lines = read_bytes(data("blas-kernel-times", "V100", "DGEMM_V100.csv.gz")).splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:1] + lines[1::40]))
    assert try_all(blas.read, file, times=15) > 10
