"""The guide to the environments: its snippet runs, and it names the scenarios that there are."""

from __future__ import annotations

import pytest

from symphony.envs import SCENARIOS
from tests.test_docs import ROOT, run_snippets

GUIDE = ROOT / "docs" / "guides" / "environments.md"


def test_the_snippet_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_snippets(GUIDE) == 1
    assert "actions; (4,) rewards" in capsys.readouterr().out


def test_the_guide_has_every_named_scenario() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name, named in SCENARIOS.items():
        assert f"| `{name}` | `{named.topology}/{named.workload}`" in text
