"""Kernels of several workers through the service: the same as without it, from Python and from TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

import symphony as sy
from symphony.engines.local import LocalEngine
from symphony.service.graph_file import load
from tests.runtime.machines import machine
from tests.service.places import SECONDS, place

TOML = """
name = "gang"

[[task]]
name = "program"
command = ["sh", "-c", "echo $SYMPHONY_RANK of $SYMPHONY_SIZE"]
device = "accelerator"
workers = 2

[[task]]
name = "function"
call = "builtins:dict"
kwargs = { after = { from = "program" } }
device = "accelerator"
workers = 2
"""


def test_gangs_go_over_the_wire(tmp_path: Path) -> None:
    @sy.kernel(device="accelerator", workers=2)
    def meet(folder, rank, size):
        import pathlib
        import time

        (pathlib.Path(folder) / str(rank)).touch()
        while len(list(pathlib.Path(folder).iterdir())) < size:
            time.sleep(0.002)
        return f"{rank} of {size}"

    (tmp_path / "folder").mkdir()
    (tmp_path / "graph.toml").write_text(TOML)
    graph = sy.graph("meets")
    graph.task(meet, str(tmp_path / "folder"))
    with (
        place(tmp_path / "state", engine=lambda: LocalEngine(machine(others=2))) as found,
        found.connect("ann") as ann,
    ):
        job = ann.submit(graph)
        assert job.result(SECONDS) == "0 of 2"
        [task] = job.detail().tasks
        assert sorted(task.runs[0].device.split(", ")) == ["here/big-0", "here/big-1"]
        assert job.view().seconds == pytest.approx(2 * task.runs[0].seconds)  # of devices
        assert "here/big-0, here/big-1" in job.explain() or "here/big-1, here/big-0" in job.explain()

        answer = ann.submit(load(str(tmp_path / "graph.toml"), {})).result(SECONDS)
        assert answer == {"after": "0 of 2\n", "rank": 0, "size": 2}
