"""The snippets of the guide and of the page on identities run, and print what the pages say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from symphony.cli import stat
from symphony.telemetry import catalogue
from tests.data import data
from tests.test_docs import run_snippets

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "telemetry.md"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for the log that it writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue.add(data("pmu-events", "x86", "amdzen4"))
    assert run_snippets(GUIDE) == 4
    out = capsys.readouterr().out
    assert "predicted wrongly" in out
    assert out.count("('instructions', 'cycles', 'branch-misses', 'branch-instructions')") == 2
    assert "\n0.5\n" in out and "nan" in out


def test_the_example_says_what_the_guide_says() -> None:
    """Line by line, with numbers that may move by a little: libraries round differently."""
    catalogue.add(data("pmu-events", "x86", "amdzen4"))
    run_snippets(GUIDE)
    text = GUIDE.read_text(encoding="utf-8")
    (command, expected) = re.search(
        r"^\$ symphony stat (--replay [^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    ).groups()  # type: ignore[union-attr]
    app = typer.Typer()
    app.command(context_settings=stat.SETTINGS)(stat.stat)
    said = CliRunner().invoke(app, command.split(), catch_exceptions=False).stdout
    numbers = re.compile(r"\d[\d,]*(?:\.\d+)?")
    ours, theirs = ([line.strip() for line in part.strip().splitlines()] for part in (said, expected))
    assert [numbers.sub("#", line).split() for line in ours] == [numbers.sub("#", line).split() for line in theirs]
    for ours_line, theirs_line in zip(ours, theirs, strict=True):
        a, b = ([float(n.replace(",", "")) for n in numbers.findall(line)] for line in (ours_line, theirs_line))
        assert a[:1] == pytest.approx(b[:1], rel=0.05, abs=1), ours_line


def test_the_snippet_about_identities_runs(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue.add(data("pmu-events", "x86", "sapphirerapids"))
    counts = {"l2_rqsts.all_rfo": 1000, "l2_rqsts.rfo_hit": 600, "l2_rqsts.rfo_miss": 400}
    lines = [
        {"interval": (window + 1) / 10, "counter-value": f"{count * (window + 1)}.000000", "unit": "", "event": event}
        | {"event-runtime": 100_000_000, "pcnt-running": 100.0}
        for window in range(20)
        for event, count in counts.items()
    ]
    Path("perf.json").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert run_snippets(GUIDE.parents[1] / "concepts" / "identities.md") == 1
    assert capsys.readouterr().out.startswith("l2_rqsts.all_rfo = rfo_miss + rfo_hit\nTrue l2_rqsts.all_rfo")
