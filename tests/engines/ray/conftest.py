"""A Ray cluster of three nodes on this machine, at 127.0.0.1, behind a token; its nodes can be killed and added."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read when Ray is imported, and by the processes that it starts.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all listen at 127.0.0.1
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ |= {  # a node that is killed is missed within a second; one that is only slow is not
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_prestart_worker_first_driver": "0",  # a worker takes a second to start, and most would never run anything
}


class Nodes:
    """The nodes of the cluster, by the names of their machines."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("starting.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self._answer()

    def add(self, name: str, **options: Any) -> None:
        self._ask(f"add {name} {json.dumps(options)}")

    def kill(self, name: str) -> None:
        """Without a word, as by a power cut."""
        self._ask(f"kill {name}")

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="package")
def nodes() -> Iterator[Nodes]:
    """Machine m1 with two CPUs and an accelerator, machine m2 with one CPU."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: make install-dev")
    started = Nodes()
    try:
        started.add("m1", num_cpus=2, resources={"accelerator": 1})
        started.add("m2", num_cpus=1)
        ray.init(started.address, log_to_driver=False, logging_level="ERROR")
        yield started
    finally:
        ray.shutdown()
        started.close()
