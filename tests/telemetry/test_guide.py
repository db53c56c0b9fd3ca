"""The guide's snippets run, and say what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import run_snippets

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "telemetry.md"


def test_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_snippets(GUIDE) == 2
    out = capsys.readouterr().out
    assert "predicted wrongly" in out
    assert out.count("('instructions', 'cycles', 'branch-misses', 'branch-instructions')") == 2
    assert "\n0.5\n" in out and "nan" in out
