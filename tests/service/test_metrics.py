"""Metrics: the Grafana dashboard asks only for what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from symphony.runtime.cluster import Cluster
from symphony.service.connections import Connections
from symphony.service.metrics import Metrics
from symphony.service.service import Patience
from tests.service.handmade import Handmade

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana.json"


def test_the_grafana_dashboard_asks_for_metrics_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "others", {"memory": (0.2, 0.1)})
    made, connections = Handmade(tmp_path), Connections(8, Patience())
    text = Metrics(connections).text(made.service)
    connections.close()
    made.service.close()
    histograms = set(re.findall(r"^# TYPE (\w+) histogram", text, re.MULTILINE))
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) - histograms
    known |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    panels = json.loads(GRAFANA.read_text())["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert set(re.findall(r"symphony_\w+", asked)) <= known
    assert len(set(re.findall(r"symphony_\w+", asked))) > 20


def test_any_name_of_a_row_is_one_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus drops all figures of an answer that it cannot parse."""
    monkeypatch.setattr(Cluster, "others", {'a "fast"\\slow\nrow': (0.2, 0.1)})
    made, connections = Handmade(tmp_path), Connections(8, Patience())
    text = Metrics(connections).text(made.service)
    connections.close()
    made.service.close()
    assert r'symphony_others_load{row="a \"fast\"\\slow\nrow"} 0.2' in text.splitlines()
