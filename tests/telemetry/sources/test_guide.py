"""The guide's snippets run, and say what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.telemetry import sources
from tests.test_docs import run_snippets

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "counter-sources.md"


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_snippets(GUIDE) == 3
    out = capsys.readouterr().out
    assert "2.04999996e+06" in out and "msec" in out
    assert "perf.csv, line 4: cycles was not counted" in out
    assert "reading 1: is None" in out


def test_every_source_is_in_it() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in sources.__all__ if f"`{name}" not in text and f"{name}(" not in text] == []
