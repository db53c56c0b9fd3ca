"""Job lists as other people write them: every way of writing a list is the same list, and nothing is lost or added."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symphony.lowering import readers, trace
from symphony.lowering.readers.reading import FileContents
from symphony.lowering.summary import summarise
from symphony.problem.errors import DataError
from tests.lowering.small import cluster

Row = dict[str, Any]
TIMES = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6).map(lambda value: round(value, 3)))
MODELS = st.sampled_from(["ResNet-50", "LM, large", "Modèle", 'a "b"'])
GPUS = st.sampled_from([1, 2, 3, 8, 256])
COUNTS = st.integers(1, 10**5)
RATES = {(model, gpus): 0.5 + gpus + len(model) for model in MODELS.elements for gpus in GPUS.elements}  # type: ignore[attr-defined]


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class Listed:
    """A format of job lists: how rows are drawn, and what they mean, computed without the reader."""

    name: str
    row: Any  # a strategy of the values of a row
    jobs: Callable[[Row], tuple[float, int, float]]  # arrival (s), workers, seconds of each worker
    companion: tuple[str, list[Row]] | None = None  # another file that the reader needs, and the option that names it


def _rates(**more: Any) -> list[Row]:
    return [
        {**more, "model": model, "batch_size": "", "num_gpus": gpus, "steps_per_s": rate}
        for (model, gpus), rate in RATES.items()
    ]


def _steps(row: Row) -> tuple[float, int, float]:
    return row["arrival_s"], row["num_gpus"], row["total_steps"] / RATES[row["model"], row["num_gpus"]]


_TRAINING = {"model": MODELS, "batch_size": st.just(""), "total_steps": COUNTS, "num_gpus": GPUS, "arrival_s": TIMES}
_STAGES = {f"resource_time_{stage}": st.integers(0, 5000) for stage in range(3)}
FORMATS = [
    Listed(
        "gavel-jobs",
        st.fixed_dictionaries({"job": st.just("j"), **_TRAINING, "priority_weight": st.just(1)}),
        _steps,
        ("rates", _rates(gpu="v100", placement="consolidated")),
    ),
    Listed(
        "shockwave-jobs",
        st.fixed_dictionaries(
            {"job": st.just("j"), **_TRAINING, "adaptation": st.sampled_from(["static", "gns"]), "duration_s": TIMES}
            | {"priority_weight": st.just(1)}
        ),
        _steps,
        ("rates", _rates()),
    ),
    Listed(
        "philly-jobs",
        st.fixed_dictionaries(
            {"submit_s": TIMES, "duration_s": st.integers(1, 10**6), "num_gpus": GPUS, "vc": st.sampled_from("ab")}
        ).map(lambda row: {"week": int(row["submit_s"] // 604_800), **row}),
        lambda row: (row["submit_s"], row["num_gpus"], row["duration_s"]),
    ),
    Listed(
        "muri-jobs",
        st.fixed_dictionaries(
            {"submit_time": TIMES, "num_gpu": GPUS, "model_name": MODELS, "iterations": COUNTS}
            | {"batch_size": COUNTS, "duration": TIMES, "interval": TIMES, "iteration_time": st.integers(1, 5000)}
            | {**_STAGES, "priority": st.just(0)}
        ),
        lambda row: (row["submit_time"] / 1e3, row["num_gpu"], row["iterations"] * row["iteration_time"] / 1e3),
    ),
    Listed(
        "openb-pods",
        st.fixed_dictionaries(
            {"cpu_milli": st.just(8000), "memory_mib": st.just(100), "num_gpu": st.sampled_from([0, 1, 8])}
            | {"gpu_spec": st.sampled_from(["", "T4", "H100|A10"]), "creation_time": st.integers(0, 10**6)}
            | {"wait": st.sampled_from([None, 0, 7]), "seconds": st.integers(0, 10**6)}
        ).map(
            lambda row: {
                **{key: value for key, value in row.items() if key not in ("wait", "seconds")},
                "gpu_milli": 1000 * bool(row["num_gpu"]),
                "scheduled_time": "" if row["wait"] is None else row["creation_time"] + row["wait"],
                "deletion_time": row["creation_time"] + (row["wait"] or 0) + row["seconds"],
            }
        ),
        lambda row: (
            row["creation_time"],
            max(1, row["num_gpu"]),
            # A pod of less than a second of the clock takes one.
            row["deletion_time"] - (row["creation_time"] if row["scheduled_time"] == "" else row["scheduled_time"])
            or 1.0,
        ),
    ),
]
of_formats = pytest.mark.parametrize("listed", FORMATS, ids=lambda listed: listed.name)


def named(listed: Listed, rows: list[Row]) -> list[Row]:
    """Rows with the columns that name them."""
    key = {"muri-jobs": "job_id", "openb-pods": "name"}.get(listed.name)
    return [{key: f"job {number}", **row} for number, row in enumerate(rows)] if key else rows


def read(listed: Listed, text: str | bytes, folder: Path, **options: Any) -> FileContents:
    path = folder / "some.list"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    if listed.companion:
        option, rows = listed.companion
        (folder / "companion.csv").write_text(as_csv(rows), encoding="utf-8")
        options[option] = str(folder / "companion.csv")
    assert readers.sniff(path).name == listed.name
    return readers.read(path, **options)


def meaning(contents: FileContents) -> list[tuple[float, int, float]]:
    """Arrival, workers and seconds of each job, from the kernels and graphs."""
    kernels = {kernel.name: kernel for kernel in contents.kernels}
    found = []
    for job in contents.jobs:
        tasks = contents.graphs[job.graph].tasks
        (profile, *_) = kernels[tasks[0].kernel].implementations.values()
        found.append((job.arrival_s, len(tasks), tasks[0].units * profile.seconds(1.0)))
    return found


def drawn(listed: Listed, seed: int = 3, count: int = 30) -> list[Row]:
    """The same rows in every test."""
    rows: list[Row] = []

    @settings(max_examples=1, database=None, derandomize=True, deadline=None)
    @given(st.lists(listed.row, min_size=count, max_size=count))
    def take(some: list[Row]) -> None:
        rows[:] = some

    take()
    return named(listed, rows)


@of_formats
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_jobs_work_widths_and_order_are_those_of_the_rows(listed: Listed, data: st.DataObject, tmp_path: Path) -> None:
    rows = named(listed, data.draw(st.lists(listed.row, min_size=1, max_size=12)))
    contents = read(listed, as_csv(rows), tmp_path)
    expected = sorted((listed.jobs(row) for row in rows), key=lambda job: job[0])
    first = expected[0][0] if any("count from the first job" in note for note in contents.notes) else 0.0
    found = meaning(contents)
    assert [job[0] for job in found] == pytest.approx([job[0] - first for job in expected], abs=1e-6)
    assert [job[1:] for job in found] == [(workers, pytest.approx(seconds)) for _, workers, seconds in expected]
    assert len(contents.tables["pods" if listed.name == "openb-pods" else "jobs"]) == len(rows)


@of_formats
def test_every_way_of_writing_a_list_is_the_same_list(listed: Listed, tmp_path: Path) -> None:
    rows = drawn(listed)
    text = as_csv(rows)
    expected = read(listed, text, tmp_path)
    assert len(expected.jobs) == len(rows)
    other = [{"new, column": "x,y", **dict(reversed(row.items()))} for row in rows]
    decimals = [{k: f"{v}.0" if isinstance(v, int) and k != "week" else v for k, v in row.items()} for row in rows]
    quoted = io.StringIO()
    csv.writer(quoted, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(csv.reader(io.StringIO(text)))
    for variation in (
        text.replace("\n", "\r\n"),
        "\ufeff" + text,
        text + "\n\n",
        gzip.compress(text.encode()),
        as_csv(other),
        as_csv(decimals),
        quoted.getvalue(),
        text.replace(",", " , ", len(rows[0]) - 1),
    ):
        found = read(listed, variation, tmp_path)
        assert meaning(found) == meaning(expected)
        assert (found.kernels, found.graphs, found.jobs) == (expected.kernels, expected.graphs, expected.jobs)
    shuffled = read(listed, as_csv(rows[::-1]), tmp_path)
    assert Counter(meaning(shuffled)) == Counter(meaning(expected))
    assert [job.arrival_s for job in shuffled.jobs] == [job.arrival_s for job in expected.jobs]


@of_formats
def test_columns_of_times_since_1970(listed: Listed, tmp_path: Path) -> None:
    """A list cut out of a longer one is as loaded as if its clock began with its first job."""
    clocks = {"arrival_s", "submit_s", "submit_time", "creation_time", "deletion_time", "scheduled_time"}
    unit = 1e3 if listed.name == "muri-jobs" else 1
    plain = drawn(listed)
    begin = min(float(row[column]) for row in plain for column in clocks & row.keys() if row[column] != "")

    def at(offset: float) -> list[Row]:
        def moved(row: Row) -> Row:
            found = {k: v - begin + offset * unit if k in clocks and v != "" else v for k, v in row.items()}
            return found | ({"week": int(found["submit_s"] // 604_800)} if "week" in row else {})

        return [moved(row) for row in plain]

    early, late = (read(listed, as_csv(at(offset)), tmp_path) for offset in (0, 1_700_000_000))
    assert [job.arrival_s for job in late.jobs] == pytest.approx([job.arrival_s for job in early.jobs], abs=1e-3)
    assert any("count from the first job, which arrives at 1700000000 s" in note for note in late.notes)
    assert not any("count from the first" in note for note in early.notes)
    milliseconds = as_csv(
        [{**row, **{c: row[c] * 1e3 for c in clocks & row.keys() if row[c] != ""}} for row in at(2e9)]
    )
    with pytest.raises(DataError, match="and should be"):
        read(listed, milliseconds, tmp_path)


def test_a_part_of_a_longer_list_has_the_load_that_is_asked_for(tmp_path: Path) -> None:
    rows = [f"{n // 6 + 500},{302_400_000 + n * 100},50,1,a" for n in range(6)]
    path = tmp_path / "part.csv"
    path.write_text("\n".join(["week,submit_s,duration_s,num_gpus,vc", *rows, ""]))
    contents = readers.read(path)
    gpus = cluster({"gpu": 1})
    assert [job.arrival_s for job in contents.jobs] == [0, 100, 200, 300, 400, 500]
    for load in (0.3, 0.9):
        assert summarise(gpus, trace.draw(contents, gpus, 0, load=load).workload).load == pytest.approx(load)
