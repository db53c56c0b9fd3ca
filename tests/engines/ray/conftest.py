"""A Ray cluster of three nodes on this machine, at 127.0.0.1, behind a token; its nodes can be killed and added."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

# Read when Ray is imported, and by the processes that it starts.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all listen at 127.0.0.1
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ |= {  # a node that is killed is missed within a second
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "2",
}
STORE = 80 << 20  # bytes: the least that Ray takes is 75 MiB


class Nodes:
    """The nodes of the cluster, by the names of their machines."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        here = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={**here, "num_cpus": 0})
        self._here = here
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return self._cluster.address

    def add(self, name: str, **options: Any) -> None:
        labels = {"symphony.machine": name}
        self._nodes[name] = self._cluster.add_node(**self._here, labels=labels, **options)

    def kill(self, name: str) -> None:
        """Without a word, as by a power cut."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Machine m1 with two CPUs and an accelerator, machine m2 with one CPU."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'symphony-scheduler[ray]'")
    started = Nodes()
    try:
        started.add("m1", num_cpus=2, resources={"accelerator": 1})
        started.add("m2", num_cpus=1)
        ray.init(started.address, log_to_driver=False, logging_level="ERROR")
        yield started
    finally:
        ray.shutdown()
        started.close()
