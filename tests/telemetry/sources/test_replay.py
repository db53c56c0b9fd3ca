"""Recordings as sources: all at once, or as time goes by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.samples import record
from symphony.telemetry.sources.perf_log import read_perf
from symphony.telemetry.sources.replay import Replay
from symphony.testing import check_counter_source
from tests.telemetry.sources.clocks import Clock
from tests.telemetry.sources.logs import as_json, recording

ONE = recording([("cycles", 0)], [[1], [2], [3]], 0.1, 0.1, where="CPU0")
OTHER = recording([("cycles", 0)], [[7], [8]], 0.25, 0.25, where="CPU1", step=0.25)


def test_places_come_in_order_of_time() -> None:
    source = Replay({"CPU0": ONE, "CPU1": OTHER})
    ends = [(sample.where, round(sample.start_s + sample.duration_s, 9)) for sample in source.samples()]
    assert ends == [("CPU0", 0.1), ("CPU0", 0.2), ("CPU1", 0.25), ("CPU0", 0.3), ("CPU1", 0.5)]
    check_counter_source(source)
    again = record(source.samples())
    np.testing.assert_array_equal(again["CPU1"].count, OTHER.count)


@pytest.mark.parametrize("pace", [1.0, 10.0])
def test_at_its_own_pace(pace: float) -> None:
    clock = Clock()
    for number, _ in enumerate(Replay(ONE, pace=pace, clock=clock, sleep=clock.sleep).samples(), start=1):
        assert clock.now == pytest.approx(100.0 + number * 0.1 / pace)


def test_without_a_pace_nobody_waits() -> None:
    clock = Clock()
    assert len(list(Replay(ONE, clock=clock, sleep=clock.sleep).samples())) == 3 and clock.slept == []


def test_a_log_is_replayed_with_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    path.write_text(as_json({"CPU0": ONE}) + "Killed\n")
    for source in (Replay(path), Replay(str(path)), Replay(read_perf(path))):
        assert record(source.samples())["CPU0"].count.tolist() == ONE.count.tolist()
        assert [str(problem) for problem in source.problems] == ["perf.json, line 4: not a line of perf stat: 'Killed'"]
    assert list(Replay(ONE).problems) == []


def test_wrong_arguments() -> None:
    for pace in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="pace"):
            Replay(ONE, pace=pace)
    with pytest.raises(DataError, match="cannot be read"):
        Replay("no such file")
