"""The service on Ray: a real `symphony serve --ray`, which loses a machine, and is killed itself."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.service.outputs import NEW_RUN_MARK
from tests.cli.command import symphony
from tests.service.places import SECONDS, wait_until
from tests.service.serve_process import Serve


def test_a_service_on_ray_survives_the_loss_of_a_machine_and_its_own(nodes: Any, tmp_path: Path) -> None:
    # Within the test, so that they are sent whole: no process need import this module.
    @sy.kernel(device="cpu-1")
    def there(size):
        import numpy as np

        return np.ones(size)

    @sy.kernel(device="cpu-2")
    def wait_for(path):
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.005)

    @sy.kernel
    def total(array, _):
        return float(array.sum())

    def waits(name: str, gate: Path) -> sy.graph:
        graph = sy.graph(name)
        graph.task(total, graph.task(there, 20_000), graph.task(wait_for, str(gate)))
        return graph

    serving = Serve(tmp_path / "state", "--ray", nodes.address)
    try:
        with serving.connect() as ann:
            assert [device.name for device in ann.state().devices] == ["m1/cpu-2-0", "m2/cpu-1-0"]
            first, second = (ann.submit(waits(name, tmp_path / name)) for name in ("first", "second"))
            wait_until(lambda: all(job.view().finished == 1 for job in (first, second)))
            nodes.kill("m2")
            wait_until(lambda: not all(device.up for device in ann.state().devices))
            (tmp_path / "first").touch()
            assert first.result(SECONDS) == 20_000.0  # what went with the machine was journalled
        serving.kill()
        nodes.add("m2", num_cpus=1)
        serving = Serve(tmp_path / "state", "--ray", nodes.address)
        with serving.connect() as ann:
            (tmp_path / "second").touch()
            assert ann.job(second.id).result(SECONDS) == 20_000.0
        assert serving.stop() == 0
    finally:
        serving.process.kill()


def test_what_runs_on_other_machines_is_heard_through_a_folder_that_all_reach(nodes: Any, tmp_path: Path) -> None:
    @sy.training(steps=4, device="cpu-1")
    def talks(job):
        import os
        import time

        for step in job.steps():
            print("step", step, os.getpid())
            if step == 2 and not job.began:
                job.save(step)
                print("saved")
                while True:
                    time.sleep(0.005)

    graph = sy.graph("talks")
    graph.task(talks)
    serving = Serve(tmp_path / "state", "--ray", nodes.address, "--checkpoints", str(tmp_path / "shared"))
    try:
        with serving.connect() as ann:
            job = ann.submit(graph)

            def wrote() -> list[str]:
                return [line.text for line in job.logs().lines if line.kind != "event"]

            wait_until(lambda: len(wrote()) == 3)  # killed before the checkpoint, it would begin again
            assert job.view().status == "running"
            os.kill(int(wrote()[1].split()[2]), signal.SIGKILL)
            job.result(SECONDS)
            steps = [text.split()[1] if text.startswith("step") else text for text in wrote()]
            assert steps == ["1", "2", "saved", NEW_RUN_MARK, "3", "4"]
    finally:
        serving.process.kill()


def test_a_service_on_a_ray_that_is_not_there_says_so(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make install-dev")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = symphony("serve", "--port", "0", "--state", str(tmp_path / "state"), "--ray", address, folder=tmp_path)
    assert done.returncode == 2 and f"address {address}: Ray cannot be reached" in done.stderr
    assert "check that it is up (ray status)" in done.stderr
