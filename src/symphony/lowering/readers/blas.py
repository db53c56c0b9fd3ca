"""Repeated timings of BLAS and LAPACK tile kernels in CSV: one routine on one device in a file; or a folder of them.

Columns: `RoundSize,runIndex,time(us)` for a CPU, `RoundSize,runIndex,GPU time(us),CPU time(us)` for a GPU, where the
first time is the kernel alone and the second is what the host saw, transfers included. The routine and the device are
told by the file's name, or the device by its folder's.

A kernel's size is the side of its tile in doubles. Its profile is affine in size to the power 2 or 3, whichever fits
the means better over all devices; errors count relative to the mean, so that small tiles count as much as large ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from symphony.lowering.readers.parsing import BadRecord, any_under, of_format, parsed, record, whole
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.problem.errors import DataError
from symphony.problem.workload import Kernel, Profile

EXPONENTS = (2, 3)
_CPU_COLUMNS = ["Size", "runIndex", "time(us)"]
_GPU_COLUMNS = ["Size", "runIndex", "GPU time(us)", "CPU time(us)"]
_ROUTINE = re.compile(r"[sdcz][a-z]{3,6}(?=[-_.])")


@dataclass(frozen=True)
class TileTiming:
    """The runs of one kernel on one device on one size of tile, without the first."""

    kernel: str
    device: str
    size: int  # doubles along the side
    runs: int
    mean_s: float
    std_s: float
    host_mean_s: float | None = None  # a GPU's, as the host saw it: with transfers


def read(path: Path, collector: Collector) -> FileContents:
    """Read the timings of one routine on one device, or of every one in a folder."""
    files, others = of_format(path, sniff, ".csv")
    timings: list[TileTiming] = []
    cold = 0
    for file in files:
        with record(collector, str(file)):
            found, first_runs = _timings(file, collector)
            timings += found
            cold += first_runs
    fits: dict[str, Kernel] = {}
    residuals = []
    for name in dict.fromkeys(timing.kernel for timing in timings):
        fits[name], worst = _kernel(name, [timing for timing in timings if timing.kernel == name])
        shown = ", ".join(f"{100 * error:.0f}% on {device}" for device, error in worst.items())
        residuals.append(
            f"{name} goes with size to the power {fits[name].exponent:g}; the fit misses a mean by at most {shown}."
        )
    notes = [
        *others,
        f"{cold:,} runs with index 0 are cold starts, and were left out.",
        "Times are of one core of a CPU; of a GPU, of the kernel alone. What its host saw is in the table.",
        *residuals,
    ]
    if any(timing.device.endswith("-second") for timing in timings):
        notes.append("A second series of runs on a machine is kept apart, as a device of its own (…-second).")
    return FileContents(
        "blas",
        str(path),
        tuple(fits.values()),
        tables={"timings": tuple(timings)},
        notes=tuple(notes),
        problems=tuple(collector.problems),
    )


def _timings(file: Path, collector: Collector) -> tuple[list[TileTiming], int]:
    """A file's timings, and how many cold starts were left out of them."""
    kernel, device = _subject(file)
    lines = read_text(file).splitlines()
    header = [column.strip() for column in lines[0].split(",")] if lines else []
    if header not in (_CPU_COLUMNS, _GPU_COLUMNS):
        raise DataError(
            f"the columns are {','.join(header)[:80]!r}",
            where=f"{file}: line 1",
            hint=f"they should be {','.join(_CPU_COLUMNS)}, or {','.join(_GPU_COLUMNS)}",
        )
    runs: dict[int, list[list[float]]] = {}
    seen: set[tuple[int, int]] = set()
    cold = 0
    for number, line in enumerate(lines[1:], 2):
        with record(collector, f"{file}: line {number}"):
            cells = line.split(",")
            if len(cells) != len(header):
                raise BadRecord(f"it has {len(cells)} columns, not {len(header)}")
            size, run = whole(cells[0].strip(), "Size"), whole(cells[1].strip(), "runIndex")
            if size == 0 or (size, run) in seen:
                raise BadRecord(f"Size {size}, run {run} was there before" if size else "Size is 0")
            times = [parsed(cell, column, above_zero=True) for column, cell in zip(header[2:], cells[2:], strict=True)]
            seen.add((size, run))
            if run == 0:
                cold += 1
            else:
                runs.setdefault(size, []).append(times)
    if not runs:
        raise DataError("it has no run but cold starts", where=str(file), hint="get the whole file again")
    timings = []
    for size, measured in sorted(runs.items()):
        seconds = np.array(measured) * 1e-6
        mean, std = seconds.mean(axis=0), seconds.std(axis=0)
        host = float(mean[1]) if len(mean) > 1 else None
        timings.append(TileTiming(kernel, device, size, len(measured), float(mean[0]), float(std[0]), host))
    return timings, cold


def _subject(file: Path) -> tuple[str, str]:
    """Routine and device of a file: DGEMM-sandybridge-SECOND.csv.gz, or skylake/dgemm_timing.csv."""
    name = file.name.lower()
    routine = _ROUTINE.match(name)
    if not routine:
        raise DataError(
            "its name does not begin with a routine", where=str(file), hint="call it like DGEMM_skylake.csv"
        )
    rest = re.split(r"[-_.]", name[routine.end() + 1 :].partition(".")[0])
    words = [word for word in rest if word not in ("timing", "csv", "gz", "")]
    return routine[0], "-".join(words) or file.absolute().parent.name.lower()


def _kernel(name: str, timings: list[TileTiming]) -> tuple[Kernel, dict[str, float]]:
    """The affine fit of a kernel, and for each device its largest relative error."""
    by_device: dict[str, list[TileTiming]] = {}
    for timing in timings:
        by_device.setdefault(timing.device, []).append(timing)
    best: tuple[float, Kernel, dict[str, float]] | None = None
    for exponent in EXPONENTS:
        profiles, worst, total = {}, {}, 0.0
        for device, measured in by_device.items():
            fixed, slope = _affine([(t.size**exponent, t.mean_s) for t in measured])
            errors = [(fixed + slope * t.size**exponent) / t.mean_s - 1 for t in measured]
            profiles[device] = Profile(fixed, slope, {"compute": 1.0})
            worst[device] = max(map(abs, errors))
            total += math.fsum(error**2 for error in errors)
        if best is None or total < best[0]:
            best = total, Kernel(name, profiles, exponent=float(exponent)), worst
    assert best is not None  # EXPONENTS is not empty
    return best[1], best[2]


def _affine(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Non-negative a, b with the least squares of (a + b·x)/y − 1."""
    x, y = np.array(list(points), dtype=float).T
    columns = np.stack([1 / y, x / y], axis=1)
    # Scaled, because x spans ten orders of magnitude.
    scale = np.linalg.norm(columns, axis=0)
    choices = []
    for kept in ([0, 1], [0], [1]):
        solved = np.zeros(2)
        solved[kept] = np.linalg.lstsq(columns[:, kept] / scale[kept], np.ones(len(y)), rcond=None)[0] / scale[kept]
        if (solved >= 0).all():
            choices.append((float(((columns @ solved - 1) ** 2).sum()), float(solved[0]), float(solved[1])))
    _, fixed, slope = min(choices)
    return fixed, slope


def sniff(path: Path, head: bytes) -> bool:
    """CSV with the columns of these timings; or a folder with such a file."""
    if path.is_dir():
        return any_under(path, sniff, ".csv")
    first = head.partition(b"\n")[0].decode("utf-8", "replace").strip().removeprefix("\ufeff")
    return first.replace(" ", "") in (",".join(columns).replace(" ", "") for columns in (_CPU_COLUMNS, _GPU_COLUMNS))


BLAS_FORMAT = Format("blas", "repeated timings of BLAS and LAPACK tile kernels", sniff, read)
