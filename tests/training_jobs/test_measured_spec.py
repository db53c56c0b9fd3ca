"""Measured jobs by name: what a spec draws, what a list holds, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.problem.errors import DataError, InfeasibleError, WorkloadError
from symphony.problem.topologies import topology
from symphony.training_jobs.measured_jobs import sharable
from symphony.training_jobs.measured_spec import DATA_VARIABLE, tables, workload
from tests.data import data

CLUSTER = sharable(topology("gpu24"))


def test_a_spec_draws_and_the_truth_is_not_what_is_told() -> None:
    made = workload("measured:7?load=3&hours=0.5", CLUSTER, 4, data("gavel"))
    assert len(made.workload.jobs) == 7 and made.truth != made.believed
    assert workload("measured?jobs=7&load=3&hours=0.5", CLUSTER, 4, data("gavel")) == made
    quicker = workload("measured:7?load=6&hours=0.5", CLUSTER, 4, data("gavel"))
    assert quicker.workload.jobs[-1].arrival_s == pytest.approx(made.workload.jobs[-1].arrival_s / 2)


def test_of_a_list_the_first_jobs_come_from_the_start_on_and_all_is_told() -> None:
    path = data("gavel", "traces", "small_test.csv")
    made = workload(f"{path}?jobs=3", CLUSTER, 0, data("gavel"))
    assert len(made.workload.jobs) == 3 and min(job.arrival_s for job in made.workload.jobs) == 0
    assert made.believed.unit_s == made.truth.unit_s


@pytest.mark.parametrize("spec", ["cholesky:4", "measured:0", "measured?loads=2", "measured:5?load=none", "none.csv"])
def test_what_is_no_such_workload_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as refused:
        workload(spec, CLUSTER, 0, tmp_path)
    assert refused.value.hint


def test_without_tables_or_gpus_that_were_measured_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    for folder in (None, tmp_path):
        with pytest.raises(DataError) as missing:
            tables(folder)
        assert DATA_VARIABLE in missing.value.hint
    monkeypatch.setenv(DATA_VARIABLE, str(data("gavel").parent))
    assert tables().shapes
    with pytest.raises(InfeasibleError, match="power8"):
        workload("measured:5", topology("paper"), 0)
