"""Ray's nodes as machines: what is discovered, what is refused, and who may reach them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.problem.topology import DeviceKind
from tests.runtime.machines import machine

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")

from symphony.engines.ray import machines
from symphony.engines.ray.machines import Machine

ROOT = Path(__file__).parents[3]


def node(name: str, labels: dict[str, str] | None = None, **resources: float) -> Machine:
    return Machine(name, f"id of {name}", resources, labels or {})


def found(*some: Machine) -> dict[str, Machine]:
    return {one.name: one for one in some}


def test_a_topology_is_made_of_what_ray_tells() -> None:
    labels = {"ray.io/accelerator-type": "H100", "symphony.rack": "r1", "symphony.cpu": "epyc"}
    topology = machines.discovered(found(node("b", labels, CPU=16.0, GPU=2.0), node("a", CPU=4.0, node_x=1.0)))
    assert [(device.name, device.rack) for device in topology.devices] == [
        ("b/epyc-16-0", "r1"),
        ("b/h100-0", "r1"),
        ("b/h100-1", "r1"),
        ("a/cpu-4-0", "rack"),
    ]
    assert topology.kind_of["epyc-16"].slots == 16 and topology.kind_of["h100"].type == "gpu"
    with pytest.raises(sy.EngineError, match="no node"):
        machines.discovered({})


def test_what_ray_would_leave_pending_is_refused() -> None:
    topology = machine(slots=2, others=1)  # of machine "here": a CPU of two slots and an accelerator
    machines.check(topology, found(node("here", CPU=2.0, accelerator=1.0)))
    with pytest.raises(sy.TopologyError, match="no machine 'here'; it has there") as unknown:
        machines.check(topology, found(node("there", CPU=2.0)))
    assert "ray start --labels symphony.machine=here" in unknown.value.hint
    with pytest.raises(sy.InfeasibleError, match="need 2 of CPU, and its node has 1"):
        machines.check(topology, found(node("here", CPU=1.0, accelerator=1.0)))
    with pytest.raises(sy.InfeasibleError, match="no resource 'accelerator'") as missing:
        machines.check(topology, found(node("here", CPU=2.0)))
    assert """ray start --resources '{"accelerator": 1}'""" in missing.value.hint
    slow = (topology.kinds[0], replace(topology.kinds[1], reconfigure_s=1.0))
    with pytest.raises(sy.TopologyError, match="configured"):
        machines.check(replace(topology, kinds=slow), found(node("here", CPU=2.0, accelerator=1.0)))


def test_slots_of_an_accelerator_share_it() -> None:
    topology = replace(
        machine(others=1), kinds=(DeviceKind("small", "cpu", slots=2), DeviceKind("big", "gpu", slots=4))
    )
    here = node("here", CPU=2.0, GPU=1.0)
    machines.check(topology, found(here))
    assert machines.needs(topology, 0, here) == {"CPU": 1.0}
    assert machines.needs(topology, 1, here) == {"GPU": 0.25}


def test_machines_are_called_as_their_labels_say(nodes: Any) -> None:
    there = machines.machines()
    assert {name: one.slots("CPU") for name, one in there.items()} == {"m1": 2, "m2": 1}  # the head has no CPU


def test_two_nodes_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"Alive": True, "NodeManagerHostname": "h", "NodeID": "1", "Resources": {"CPU": 1.0}, "Labels": {}}
    monkeypatch.setattr(machines.ray, "nodes", lambda: [one, {**one, "NodeID": "2"}])
    with pytest.raises(sy.TopologyError, match="two nodes") as twice:
        machines.machines()
    assert "--labels symphony.machine=NAME" in twice.value.hint
    monkeypatch.setattr(machines.ray, "nodes", lambda: [one, {**one, "NodeID": "2", "Alive": False}])
    assert machines.machines()["h"].node == "1"


def test_nothing_of_ray_listens_beyond_this_machine(nodes: Any) -> None:
    listening = beyond_loopback(descendants(os.getpid()))
    assert listening.total > 5 and listening.open == []


def test_who_has_no_token_is_refused(nodes: Any) -> None:
    script = "import sys; from symphony.engines.ray import machines; machines.connect(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAY_AUTH_TOKEN": "0" * 64}
    environment["RAY_NUM_REDIS_GET_RETRIES"] = "1"  # Ray tries for 20 s otherwise
    refused = subprocess.run(
        [sys.executable, "-c", script, nodes.address], env=environment, capture_output=True, text=True, check=False
    )
    assert "EngineError" in refused.stderr and "RAY_AUTH_TOKEN" in refused.stderr, refused.stderr


def test_an_address_where_nobody_is_and_one_that_cannot_be_used_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines.ray, "is_initialized", lambda: False)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(sy.EngineError, match="cannot be reached: ConnectionRefusedError"):
            machines.connect(f"127.0.0.1:{nobody.getsockname()[1]}")
    with pytest.raises(sy.EngineError, match="run on a machine of the cluster"):
        machines.connect("ray://127.0.0.1:10001")


def test_a_ray_of_our_own_stays_on_this_machine_and_ends_with_the_engine(tmp_path: Path) -> None:
    script = """
        import os
        import time
        from symphony.engines.ray import RayEngine
        from tests.engines.ray.test_machines import beyond_loopback, descendants

        engine = RayEngine()
        mine = descendants(os.getpid())
        print(len(mine), beyond_loopback(mine).open, os.environ["RAY_AUTH_MODE"], engine.notes)
        engine.close()
        left = mine
        for _ in range(600):  # Ray does not wait for all that it has told to end
            left = [process for process in left if os.path.exists(f"/proc/{process}/exe")]
            if not left:
                break
            time.sleep(0.1)
        print(left)
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[-2:]
    assert first.split(maxsplit=1)[1] == "[] token []" and int(first.split()[0]) > 3
    assert second == "[]"


# --- who listens where, from /proc


class Listening:
    def __init__(self, total: int, beyond: list[str]) -> None:
        self.total, self.open = total, beyond


def descendants(process: int) -> list[int]:
    """The processes below one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    below, last = {process}, 0
    while len(below) > last:
        last = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    return sorted(below - {process})


def beyond_loopback(processes: list[int]) -> Listening:
    """Addresses, other than 127.0.0.1 and ::1, at which processes (or this one) listen."""
    sockets = set()
    for process in (*processes, os.getpid()):
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets.add(os.readlink(descriptor))
            except OSError:
                continue
    total, beyond = 0, []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                total += 1
                address = local.split(":")[0]
                loopback = ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")
                beyond += [] if address in loopback else [local]
    return Listening(total, beyond)
