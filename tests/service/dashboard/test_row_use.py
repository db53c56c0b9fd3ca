"""Row use: our part and others' part are added, and bands widen with the deviation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from symphony.problem.topology import Topology
from symphony.service.dashboard import row_use
from symphony.service.dashboard.row_use import RowUse
from tests.runtime.machines import machine


class Cluster:
    """What `RowUse` reads of a cluster."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.others, self.read = topology, dict[str, tuple[float, float]](), dict[str, float]()
        self.shares: list[dict[str, float]] = []

    def row_shares(self) -> Any:
        device = self.topology.devices[0]
        return [(SimpleNamespace(name=f"run-{n}"), device, shares) for n, shares in enumerate(self.shares)]

    def readings(self, since_s: float) -> dict[str, float]:
        return self.read


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(machine())


def test_a_sample_adds_ours_and_others_and_keeps_the_reading(cluster: Cluster) -> None:
    use = RowUse(cluster)  # type: ignore[arg-type]
    name = cluster.topology.resources[0].name
    cluster.shares, cluster.others, cluster.read = [{name: 0.2}, {name: 0.3}], {name: (0.25, 0.1)}, {name: 0.8}
    use.sample()
    shown, history = use.shown[0], use.history(name)
    assert shown.percent == 75 and shown.opacity == 0.8 and "ours 50%, others 25%" in shown.text
    assert history["use"] == [0.75] and history["reading"] == [0.8] and history["ours"] == [0.5]
    assert history["high90"][0] == pytest.approx(0.75 + 0.1645) and history["low50"][0] == pytest.approx(0.75 - 0.0674)
    assert use.busy == {cluster.topology.devices[0].name: 2}
    assert [(run.name, share) for run, _, share in use.causes(name)] == [("run-1", 0.3), ("run-0", 0.2)]


def test_a_row_that_nothing_speaks_of_is_pale(cluster: Cluster) -> None:
    use = RowUse(cluster)  # type: ignore[arg-type]
    name = cluster.topology.resources[0].name
    use.sample()
    assert use.shown[0] == (0, 0.25, "nothing is measured here")
    cluster.shares = [{name: 1.0}]
    use.sample()
    assert use.shown[0].percent == 100 and use.shown[0].opacity == 0.5
    assert use.history(name)["reading"] == [None, None]


def test_the_oldest_samples_are_dropped(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_use, "MAX_SAMPLES", 3)
    use = RowUse(cluster)  # type: ignore[arg-type]
    name = cluster.topology.resources[0].name
    for share in (0.1, 0.2, 0.3, 0.4):
        cluster.shares = [{name: share}]
        use.sample()
    assert use.history(name)["ours"] == pytest.approx([0.2, 0.3, 0.4])
    assert use.history(name)["time"] == sorted(use.history(name)["time"])
