"""The JSON form: complete, strict, and refused with a sentence when it is not ours."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from symphony.evaluation.archive import REPORT_VERSION, Contents, DeviceMeta, ScenarioMeta, load, save
from symphony.evaluation.metrics import METRICS
from symphony.problem.errors import InputError
from tests.evaluation import synthetic


@pytest.fixture(scope="module")
def contents() -> Contents:
    r = synthetic.report(seeds=range(2), jobs=6)
    return Contents(r.runs, r.scenarios, r.cheats, r.command, r.baseline)


def no_constants(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("name", ["records.json", "records.json.gz"])
def test_what_is_written_is_read_back_equal(contents: Contents, tmp_path: Path, name: str) -> None:
    save(contents, tmp_path / name)
    assert load(tmp_path / name) == contents
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_equal_records_give_equal_files(contents: Contents, tmp_path: Path) -> None:
    save(contents, tmp_path / "a.json.gz")
    save(contents, tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_infinite_numbers_and_numpy_scalars_survive_in_strict_json(contents: Contents, tmp_path: Path) -> None:
    first = contents.runs[0]
    job = dataclasses.replace(first.jobs[0], finish_s=math.inf, arrival_s=np.float32(0.5), graph=np.int32(0))
    odd = dataclasses.replace(first, jobs=(job, *first.jobs[1:]), makespan_s=math.inf, stalled=True)
    save(contents._replace(runs=[odd]), tmp_path / "odd.json")
    json.loads((tmp_path / "odd.json").read_text(), parse_constant=no_constants)
    (run,) = load(tmp_path / "odd.json").runs
    assert run == odd
    assert run.jobs[0].finish_s == math.inf


def test_every_record_is_in_it_by_columns_with_its_metrics(contents: Contents, tmp_path: Path) -> None:
    save(contents, tmp_path / "records.json")
    document = json.loads((tmp_path / "records.json").read_text())
    assert set(document["metrics"]) == set(METRICS)
    for written, run in zip(document["runs"], contents.runs, strict=True):
        assert written["jobs"]["finish_s"] == [job.finish_s for job in run.jobs]
        assert written["gangs"]["devices"] == [list(gang.devices) for gang in run.gangs]
        assert written["metrics"]["makespan_s"] == run.makespan_s


def test_each_run_is_a_line(contents: Contents, tmp_path: Path) -> None:
    save(contents, tmp_path / "records.json")
    head, *lines, end = (tmp_path / "records.json").read_text().splitlines()
    assert json.loads(head + "]}")["version"] == REPORT_VERSION
    assert [json.loads(line.rstrip(","))["policy"] for line in lines] == [run.policy for run in contents.runs]
    assert end == "]}"


def test_equal_scenarios_are_written_once(contents: Contents, tmp_path: Path) -> None:
    other = dataclasses.replace(contents.scenarios[1], workload="another")
    save(contents._replace(scenarios={**contents.scenarios, 7: other}), tmp_path / "records.json")
    document = json.loads((tmp_path / "records.json").read_text())
    assert len(document["scenarios"]) == 2
    assert document["scenario_of_seed"] == {"0": 0, "1": 0, "7": 1}


def test_a_scenario_is_kept_by_its_names() -> None:
    meta = ScenarioMeta.from_scenario(synthetic.scenario(3, jobs=4))
    assert meta.devices[0] == DeviceMeta("host0/cpu", "xeon", "host0", 3)
    assert meta.graphs[0].gangs[-1] == "train" and meta.graphs[0].kernels[-1] == "train"
    assert len(meta.graphs[0].gangs) == len(meta.graphs[0].kernels) == 6  # two tasks of the graph are one gang
    assert meta.disturbances["burst"] == 0.9


def edited(path: Path, **changes: Any) -> Path:
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))
    return path


def test_a_file_that_is_not_ours_is_refused_with_a_hint(contents: Contents, tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    save(contents, good)
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "text.json").write_text("once upon a time")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "half.json.gz").write_bytes(gzip.compress(good.read_bytes())[:400])
    save(contents, tmp_path / "part.json")
    save(contents, tmp_path / "newer.json")
    cases = {
        tmp_path / "absent.json": "cannot be read",
        tmp_path / "list.json": "not a report",
        tmp_path / "text.json": "not a complete JSON",
        tmp_path / "binary.json": "not a complete JSON",
        tmp_path / "half.json.gz": "not a complete JSON",
        edited(tmp_path / "part.json", runs=[{"policy": "fifo"}]): "missing or malformed",
        edited(tmp_path / "newer.json", version=REPORT_VERSION + 1): f"version {REPORT_VERSION + 1}",
    }
    for path, message in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            load(path)
        assert caught.value.where == str(path) and caught.value.hint


def test_a_place_that_cannot_be_written_to_is_an_error_of_input(contents: Contents, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        save(contents, tmp_path / "no" / "such" / "directory.json")
