"""The guides to running graphs and to engines do what they say."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import symphony as sy
from symphony.testing import engines
from tests.runtime.machines import machine
from tests.test_docs import run_snippets

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def test_the_guide_to_running_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sy, "local", partial(sy.local, machine(others=1), profiles=tmp_path / "p.json"))
    assert run_snippets(GUIDES / "running.md") == 2
    out = capsys.readouterr().out
    assert "job 1 ('sample'): done after" in out and "mean-0  on here/" in out


def test_the_skeleton_of_an_engine_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(engines, "BURST_SIZE", 4)  # each of them starts an interpreter
    monkeypatch.setattr(sy, "discover", lambda: type("Found", (), {"topology": machine(others=1)}))
    assert run_snippets(GUIDES / "engines.md") == 2
    assert capsys.readouterr().out.split() == ["84"]
    assert (tmp_path / "symphony" / "profiles.json").exists()
