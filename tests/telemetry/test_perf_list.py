"""`perf list --json`, as perf prints it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from symphony.problem.errors import DataError
from symphony.telemetry import perf_list
from tests.telemetry.small import PERF_LIST


def test_events_and_metrics() -> None:
    found = perf_list.read(json.dumps(PERF_LIST).encode(), source="here")
    assert [event.name for event in found.events] == ["cpu-cycles", "cycles", "l2.miss", "cas"]
    miss = found.event("L2.MISS")
    assert (miss.unit, miss.codes, miss.umask, miss.edge, miss.topic) == ("", (0x24,), 0x3F, True, "cache")
    assert miss.perf_terms == "event=0x24,umask=0x3f,edge=0x1,ldlat=3"
    assert (found.event("cas").unit, found.event("cas").scale) == ("uncore_imc", 64.0)
    assert [metric.groups for metric in found.metrics] == [("A", "B")]
    assert found.evaluate("ratio", {"l2.miss": 1, "cycles": 4}) == 25.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "no events"),
        (b"[{", "not JSON"),
        (b"List of pre-defined events", "not JSON"),
        (b'[{"MetricName": "m", "MetricExpr": "+"}]', "cannot read"),
    ],
)
def test_what_perf_would_not_print(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        perf_list.read(content)
    assert caught.value.where.startswith("perf list --json")


def test_without_perf(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("perf")

    def old(*_: Any, **__: Any) -> None:
        said = b"  Error: unknown option `json'\n\n Usage: perf list"
        raise subprocess.CalledProcessError(129, "perf", stderr=said)

    monkeypatch.setattr(subprocess, "run", missing)
    with pytest.raises(DataError, match="not installed"):
        perf_list.run()
    monkeypatch.setattr(subprocess, "run", old)
    with pytest.raises(DataError, match="no `list --json`: Error: unknown option `json'") as caught:
        perf_list.run()
    assert "6.2 or later" in caught.value.hint
