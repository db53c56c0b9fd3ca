"""Pictures: every row and every task has its place, and no two have the same."""

from __future__ import annotations

import pytest

from symphony.problem import topologies
from symphony.service.dashboard.pictures import TopologyPictures, graph_picture


@pytest.mark.parametrize("name", ["paper", "machine"])
def test_every_row_of_a_topology_is_drawn(name: str) -> None:
    topology = topologies.topology(name)
    pictures = TopologyPictures(topology)
    drawn = {row for machine in topology.machines for row in pictures.rows_of(machine)}
    used = {hop.resource for device in topology.devices for hop in device.route}
    assert {topology.resources[row].name for row in drawn} == used
    for machine in topology.machines:
        picture = pictures.machine(machine)
        assert len({(bar.x, bar.y) for bar in picture.bars}) == len(picture.bars)
        assert all(bar.x + 61 <= picture.width and bar.y <= picture.height for bar in picture.bars)
        assert sorted(one.device for one in picture.titles if one.device >= 0) == pictures.devices[machine]


def test_a_task_is_right_of_what_it_reads() -> None:
    picture = graph_picture([[2], [0], [], [0, 1]])  # in any order
    x = {node.task: node.x for node in picture.nodes}
    assert x[2] < x[0] < x[1] < x[3] and len(picture.edges) == 4
    assert len({(node.x, node.y) for node in picture.nodes}) == 4
