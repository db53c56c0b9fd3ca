"""Health: every part that is degraded is named, with what to do."""

from __future__ import annotations

import errno
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import symphony as sy
from symphony.service import connections, health
from symphony.service.client import RemoteCluster
from symphony.service.journal import Damage
from symphony.service.wire import About
from tests.cli.command import symphony_here
from tests.service.places import Place, place


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture(scope="module")
def ann(here: Place) -> Iterator[RemoteCluster]:
    with here.connect("ann", "read") as found:
        yield found


def part(ann: RemoteCluster, name: str) -> tuple[str, str]:
    found = {one.name: one for one in ann.health().parts}
    return found[name].state, found[name].text


def test_a_service_that_works_is_ok(here: Place, ann: RemoteCluster, tmp_path: Path) -> None:
    assert ann.health().state == "ok" and {one.state for one in ann.health().parts} == {"ok"}
    found = symphony_here("status", "--url", here.server.url, "--token", here.token("eve"), folder=tmp_path)
    assert found.returncode == 0 and "journal" in found.stdout


def test_health_needs_a_token_and_names_of_degraded_parts_do_not(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with RemoteCluster(here.server.url, "none") as nobody:
        with pytest.raises(sy.TokenError):
            nobody.health()
        monkeypatch.setattr(here.service.ledger, "stuck", "no space left on device")
        about = nobody._get("/healthz", About)
    assert about.degraded == ["journal"] and not about.ready and "space" not in about.model_dump_json()


@pytest.mark.parametrize(
    ("owner", "name", "value", "expected"),
    [
        ("ledger", "stuck", "no space left", ("journal", "failing", "no space left")),
        ("ledger", "commit_s", [2.0] * 40, ("journal", "degraded", "2 s")),
        ("ledger", "damaged", [Damage(7, 1, "its checksum is wrong")], ("journal", "degraded", "1 damaged")),
        ("service", "draining", True, ("service", "degraded", "draining")),
        ("statistics", "turns", 200, ("policy", "degraded", "60 of 200")),
    ],
)
def test_each_part_says_what_is_wrong(
    here: Place,
    ann: RemoteCluster,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    name: str,
    value: Any,
    expected: tuple[str, str, str],
) -> None:
    service = here.service
    owners = {"ledger": service.ledger, "service": service, "statistics": service.cluster.statistics}
    monkeypatch.setattr(service.cluster.statistics, "fallbacks", Counter(late=60))
    monkeypatch.setattr(owners[owner], name, value)
    state, text = part(ann, expected[0])
    assert state == expected[1] and expected[2] in text and ann.health().state == state


def test_a_disk_that_fills_is_said_before_it_is_full(ann: RemoteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, state in ((100 << 30, "ok"), (4 << 30, "degraded"), (100 << 20, "failing")):
        usage = SimpleNamespace(free=free, total=200 << 30)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert part(ann, "disk")[0] == state


def test_devices_connections_and_descriptors(here: Place, ann: RemoteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [device.name for device in here.service.cluster.topology.devices]
    monkeypatch.setattr(type(here.service.cluster), "down", {devices[0]})
    assert devices[0] in part(ann, "devices")[1]
    assert part(ann, "devices")[0] == ("failing" if len(devices) == 1 else "degraded")
    here.server.connections._count(connections.FULL)
    assert part(ann, "connections")[0] == "degraded" and "--connections" in part(ann, "connections")[1]
    monkeypatch.setattr(health.resource, "getrlimit", lambda _: (10, 10))
    assert part(ann, "descriptors")[0] == "degraded" and "ulimit" in part(ann, "descriptors")[1]


def test_a_certificate_is_renewed_in_time() -> None:
    for days, trouble, state in (
        (30, "", "ok"),
        (5, "", "degraded"),
        (30, "not used", "degraded"),
        (-1, "", "failing"),
    ):
        tls = SimpleNamespace(expires=time.time() + days * 86_400 + 60, trouble=trouble)
        assert [one.state for one in health._certificate(tls)] == [state]
    assert list(health._certificate(None)) == []


def test_the_command_fails_when_something_is_degraded(
    here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = here.token("flo")
    monkeypatch.setattr(here.service.ledger, "stuck", errno.errorcode[errno.ENOSPC])
    found = symphony_here("status", "--url", here.server.url, "--token", token, folder=tmp_path)
    assert found.returncode == 1 and "ENOSPC" in found.stdout
    assert (
        '"failing"'
        in symphony_here("status", "--url", here.server.url, "--token", token, "--json", folder=tmp_path).stdout
    )
