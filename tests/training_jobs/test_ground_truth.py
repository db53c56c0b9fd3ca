"""The truth of measured tables: what is in it, what is composed, what is hidden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symphony.lowering.readers.job_lists import JobShape
from symphony.problem.errors import DataError
from symphony.problem.topologies import topology
from symphony.training_jobs.ground_truth import (
    THRASHING_SPEED,
    MeasuredSpeeds,
    as_measured,
    believed_speeds,
    kernel_of,
    measured,
    scenario_speeds,
)

A, B, C, WIDE = JobShape("A", 8, 1), JobShape("B", 8, 1), JobShape("C", None, 1), JobShape("A", 8, 2)
RATES = """gpu,placement,model,batch_size,num_gpus,steps_per_s
v100,consolidated,A,8,1,10
v100,unconsolidated,A,8,1,10
v100,consolidated,B,8,1,4
v100,consolidated,C,,1,2
k80,consolidated,B,8,1,1
k80,consolidated,A,8,1,0
v100,consolidated,A,8,2,18
v100,unconsolidated,A,8,2,9
"""
PAIRS = """gpu,model_a,batch_a,model_b,batch_b,steps_per_s_a,steps_per_s_b,isolated_a,isolated_b,fits_together
v100,A,8,B,8,5,3,10,4,1
v100,A,8,A,8,6,6,10,10,1
v100,B,8,B,8,0,0,4,4,0
k80,B,8,B,8,0.5,0.5,1,1,1
"""


@pytest.fixture
def table(tmp_path: Path) -> MeasuredSpeeds:
    (tmp_path / "isolated_throughput.csv").write_text(RATES)
    (tmp_path / "colocated_pairs.csv").write_text(PAIRS)
    return measured(tmp_path)


def test_rates_and_pairs_are_those_of_the_tables(table: MeasuredSpeeds) -> None:
    assert table.rates[WIDE, "v100"] == (18.0, 9.0)
    assert (A, "k80") not in table.rates  # a rate of 0: it does not fit
    assert table.kept[A, B, "v100"] == 0.5 and table.kept[B, A, "v100"] == 0.75
    assert (B, B, "v100") in table.unfit and (B, B, "v100") not in table.kept


def test_pairs_that_nobody_measured_are_composed_and_said_to_be(table: MeasuredSpeeds) -> None:
    assert (A, C, "v100") in table.composed and (C, C, "v100") in table.composed
    assert not table.composed & table.unfit and (A, B, "v100") not in table.composed
    # C is unknown, so what A keeps beside it is what A keeps beside others, drawn towards what all keep.
    assert 0.5 < table.kept[A, C, "v100"] < 0.75


def test_gangs_of_several_are_never_shared(table: MeasuredSpeeds) -> None:
    assert not any(shape.gpus > 1 for pair in table.kept for shape in pair[:2])
    gpu24 = topology("gpu24")
    wide, single = (kernel_of(shape, gpu24, {"v100": 1.0}).implementations["v100"].memory for shape in (WIDE, A))
    memory = gpu24.kind_of["v100"].memory
    assert wide == memory and 0 < single <= memory / 2


def test_those_who_do_not_fit_together_crawl_and_policies_are_told(table: MeasuredSpeeds) -> None:
    truth = as_measured(table, [A, B])
    assert truth.beside["B/8", "B/8", "v100"] == THRASHING_SPEED
    assert believed_speeds(truth, table.unfit).beside["B/8", "B/8", "v100"] == 0.0
    assert believed_speeds(truth, table.unfit).beside["A/8", "B/8", "v100"] == 0.5


def test_every_scenario_has_its_own_truth_near_the_tables(table: MeasuredSpeeds) -> None:
    as_it_is = as_measured(table, table.shapes)
    one, again, other = (scenario_speeds(as_it_is, seed) for seed in (1, 1, 2))
    assert one == again and one != other
    assert scenario_speeds(as_it_is, 1, strength=0.0) == as_it_is
    drawn = [scenario_speeds(as_it_is, seed).unit_s["A/8", "v100"][0] / 0.1 for seed in range(200)]
    assert np.std(np.log(drawn)) == pytest.approx(0.06, rel=0.2)
    kept = [scenario_speeds(as_it_is, seed).beside["A/8", "B/8", "v100"] for seed in range(200)]
    assert 0.2 < min(kept) < 0.4 and 0.6 < max(kept) < 0.8 and np.median(kept) == pytest.approx(0.5, abs=0.02)
    assert {scenario_speeds(as_it_is, seed).beside["B/8", "B/8", "v100"] for seed in range(20)} == {THRASHING_SPEED}


def test_a_folder_without_pairs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "isolated_throughput.csv").write_text(RATES)
    (tmp_path / "colocated_pairs.csv").write_text(PAIRS.splitlines()[0] + "\n")
    with pytest.raises(DataError):
        measured(tmp_path)
