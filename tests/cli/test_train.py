"""`symphony train`, with the long work replaced: what it prints and writes."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from symphony.cli import train as command
from symphony.learning.train import TrainingRound
from symphony.policies import load
from symphony.problem.errors import InputError
from tests.policies.small_networks import small_policy

HISTORY = [TrainingRound(0, 1.0, 100, 100.0, 2.0, 1.0, 1.1), TrainingRound(1, 2.0, 200, 100.0, 2.0, 0.9, 0.93)]
app = typer.Typer()
app.command()(command.train)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What the training was asked for."""
    seen: dict = {}

    def run(**options):
        seen.update(options)
        assert options["checkpoint"].is_dir()
        options["phase"]("compiling")
        for told in HISTORY:
            options["tell"](told)
        return options["start"] or small_policy(), HISTORY

    monkeypatch.setattr(import_module("symphony.learning.train"), "train", run)
    monkeypatch.setattr("symphony.learning.train.keep_programs", lambda: None)  # for the whole process
    return seen


def test_it_tells_how_good_it_is_and_writes_weights_card_curve_and_history(asked: dict, tmp_path: Path) -> None:
    out = tmp_path / "trained"
    words = ["-t", "machine", "-w", "layered", "-w", "eeg", "-o", str(out), "--rounds", "2", "-q"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "10.0% more" in result.output and "7.0% less" in result.output
    assert asked["workload"] == ["layered", "eeg"] and [x.name for x in asked["topology"]] == ["machine"]
    policy, card = load(out / "best.policy")
    assert policy.network.sizes == small_policy().network.sizes
    assert card["against"] == 0.93 and card["decisions"] == 200 and card["workloads"] == ["layered", "eeg"]
    assert "nothing was learned" not in result.output and card["unchanged"] is False
    assert (out / "curve.png").stat().st_size > 1000
    result = CliRunner().invoke(app, ["-o", str(tmp_path / "again"), "--json", "-q"])
    assert [x["against"] for x in json.loads(result.stdout)["history"]] == [1.1, 0.93]


def test_what_cannot_be_written_is_found_before_training(asked: dict, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words in (["-o", str(tmp_path / "file")], ["-w", "layerd"], ["--sizes", "huge"]):
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, InputError)
    assert not asked


def test_weights_to_go_on_from_are_read_first(asked: dict, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--from", str(tmp_path / "none.policy"), "-o", str(tmp_path / "x")])
    assert isinstance(result.exception, InputError)
    assert not asked


def test_a_policy_is_named_as_everywhere_and_weights_that_stay_are_reported(asked: dict, tmp_path: Path) -> None:
    out = tmp_path / "x"
    result = CliRunner().invoke(app, ["--from", "symphony", "-o", str(out), "-q"])
    assert result.exit_code == 0, result.output
    assert asked["start"].network.sizes == asked["sizes"]
    assert "nothing was learned" in result.output and "try them" not in result.output
    assert load(out / "best.policy")[1]["unchanged"] is True
    result = CliRunner().invoke(app, ["--from", "heft", "-o", str(tmp_path / "y")])
    assert isinstance(result.exception, InputError) and "not a learned policy" in str(result.exception)


def test_too_little_time_gives_a_sentence(asked: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["--minutes", "0", "-o", str(tmp_path / "x")])
    assert isinstance(result.exception, InputError) and "no time" in str(result.exception) and not asked
    monkeypatch.setattr(import_module("symphony.learning.train"), "train", lambda **_: (small_policy(), []))
    monkeypatch.setattr("os._exit", sys.exit)
    result = CliRunner().invoke(app, ["--minutes", "0.1", "-o", str(tmp_path / "x")])
    assert result.exit_code == 2
    assert "the 0.1 minutes were over before the first round" in result.output and "give --minutes 0.2" in result.output


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_loaded(asked: dict) -> None:
    result = CliRunner().invoke(app, ["-o", "/proc/x"])
    assert isinstance(result.exception, OSError) and not asked
