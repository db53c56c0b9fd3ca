"""The table of harm: what is best in each cell, what is worst of all, and where it goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import harmless
from benchmarks.harmless import FIGURES, RIVAL, HarmCell, cells, summary, verdict
from tests.data import data


def part(cell: HarmCell, seeds: list[int], mine: list[float], rival: list[float], other: list[float]) -> dict:
    """A part of a cell in which all figures of a policy are alike; other heuristics are ten times as slow."""
    values = {name: [100.0] * len(seeds) for name in cell.heuristics}
    values |= {"symphony": mine, RIVAL: rival, "sjf": other}
    each = {name: dict.fromkeys((*FIGURES, "within20", "idle"), times) for name, times in values.items()}
    return {"work": cell.work, "cluster": cell.cluster, "policy": "symphony", "seeds": seeds, "devices": 2} | {
        "values": each
    }


CELL = HarmCell("layered", "machine")
ROWS = [part(CELL, [1, 2], [8, 2], [4, 4], [2, 1]), part(CELL, [3], [4], [4], [64])]


def test_the_best_heuristic_of_a_cell_is_that_of_all_seeds_and_the_worst_seed_is_named() -> None:
    """Ratios to the rival are 2, 1/2 and 1; to the other 4, 2 and 1/16."""
    other = HarmCell("eeg", "paper")
    lines = summary([*ROWS, part(other, [1], [1], [2], [4]), {**ROWS[0], "policy": "mine"}], "symphony")
    assert [line["cell"] for line in lines] == ["layered on machine", "eeg on paper"]
    one, two = lines
    assert (one["mean"], one["mean_best"]) == (pytest.approx(1.0), RIVAL)
    assert (one["worst"], one["worst_seed"], one["seeds"]) == (pytest.approx(2.0), 1, 3)
    assert (two["p99"], two["p99_best"]) == (pytest.approx(0.5), RIVAL)
    told = "\n".join(verdict(lines))
    assert "0.707, worst: layered on machine 1.000" in told and "seed 1 2.000" in told and "1 of 4 above 1.15" in told


def test_a_run_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, asked = tmp_path / "found.json", []

    def run(jobs, minutes):
        asked.append([(str(cell), *seeds) for cell, seeds, *_ in jobs])
        return [part(cell, [*seeds], [1.0] * 5, [2.0] * 5, [4.0] * 5) for cell, seeds, *_ in jobs[:1]]

    monkeypatch.setattr(harmless, "run", run)
    command = ["harmless", "--cells", "layered on", "--seeds", "7", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    harmless.main()
    harmless.main()
    first, second = asked
    assert len(first) == 2 * len(harmless.CLUSTERS) and second == first[1:]
    assert first[0][1:] == tuple(range(900_000, 900_005)) and first[-1][1:] == (900_005, 900_006)
    assert len(json.loads(file.read_text())["harmless"]["rows"]) == 2
    assert "0.500" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::symphony.SymphonyWarning")
@pytest.mark.parametrize("name", ["starpu:6 on mirage", "soc:3 on DASH", "heavy on machine", "philly on gpu24"])
def test_traces_and_machines_of_others_can_be_drawn(name: str) -> None:
    data("starpu-perfmodels")
    (cell,) = (cell for cell in cells() if str(cell) == name)
    cluster, work = cell.problem()
    drawn = harmless.scenario(cluster, work, 3).workload
    assert drawn.jobs and len(cluster.devices) > 1
