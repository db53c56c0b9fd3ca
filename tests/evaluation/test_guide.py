"""The guide's snippets run, and it explains every metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from symphony.evaluation.metrics import METRICS
from tests.evaluation.synthetic import report

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "comparing.md").read_text(encoding="utf-8")


def test_snippets_run_on_a_written_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = report(seeds=range(3), jobs=12)
    made.to_json(tmp_path / "records.json.gz")
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, "comparing.md", "exec"), {})
    out = capsys.readouterr().out
    assert "eft-belief: 0." in out  # it takes less of the baseline's time
    assert "most time lost: train" in out  # the longest kernel of the made-up workload
    longest = max(job.completion_s for job in made.run_of["fifo", 2].jobs)
    assert f"fifo 2 {made.metrics_of['fifo', 2]['mean_completion_s']} {longest}" in out


def test_every_metric_is_explained() -> None:
    for name in METRICS:
        assert f"`{name}`" in GUIDE or name.startswith("utilisation.")
