"""HTTPS with certificate files: who is trusted, what is refused, and files that change."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import symphony as sy
from symphony.service import client, connections
from symphony.service.client import RemoteCluster, connect
from symphony.service.service import Limits, Patience
from symphony.service.tls import CA_VARIABLE, CERTIFICATE_FILE, TlsFiles
from tests.cli.command import symphony_here
from tests.service.kernels import add, one
from tests.service.places import SECONDS, place, wait_until


def make(folder: Path, name: str, days: int = 30, subject: str = "IP:127.0.0.1") -> TlsFiles:
    """A certificate that signs itself."""
    folder.mkdir(exist_ok=True)
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    files = ["-keyout", key, "-out", certificate, "-days", str(days)]
    about = ["-subj", "/CN=symphony", "-addext", f"subjectAltName={subject}"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", *kind, *files, *about], check=True, capture_output=True)
    return TlsFiles(certificate, key)


def test_a_service_with_a_certificate_answers_those_who_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, other = make(tmp_path, "here"), make(tmp_path, "other")
    with place(tmp_path / "state", tls=tls) as here:
        token, url = here.token("ann"), here.server.url
        assert url.startswith("https://127.0.0.1:")
        with connect(url, token=token, ca=tmp_path / "here.pem") as ann:
            assert ann.submit(one(add, 1)).result(SECONDS) == 1
            assert {part.name: part.state for part in ann.health().parts}["certificate"] == "ok"
        for untrusted in ("", str(tmp_path / "other.pem")):
            with pytest.raises(sy.ServiceError, match="not trusted") as refused:
                RemoteCluster(url, token, ca=untrusted)
            assert CA_VARIABLE in refused.value.hint
        with pytest.raises(sy.InputError, match="no certificates"):
            RemoteCluster(url, token, ca=tmp_path / "here.key")
        monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "here.pem"))
        assert symphony_here("status", "--url", url, "--token", token, folder=tmp_path).returncode == 0
        monkeypatch.delenv(CA_VARIABLE)
        with pytest.raises(sy.ServiceError):  # plain HTTP is not answered
            RemoteCluster(url.replace("https", "http"), token, timeout_s=5.0)

        own = tmp_path / "own"  # the folder of the service, as its user finds it
        own.mkdir()
        monkeypatch.setattr(client, "default_folder", lambda: own)
        for name, text in (("address", url), ("token", token), (CERTIFICATE_FILE, tls.leaf)):
            (own / name).write_text(text + "\n")
        with connect() as ann:
            assert ann.url == url
        (own / CERTIFICATE_FILE).write_text(other.leaf)
        with pytest.raises(sy.ServiceError, match="not trusted"):
            connect()


def test_the_name_in_the_certificate_is_checked_unless_it_is_pinned(tmp_path: Path) -> None:
    tls = make(tmp_path, "elsewhere", subject="DNS:symphony.example.org")
    with place(tmp_path / "state", tls=tls) as here:
        with pytest.raises(sy.ServiceError, match="not trusted"):
            RemoteCluster(here.server.url, here.token("ann"), ca=tmp_path / "elsewhere.pem")
        RemoteCluster(here.server.url, here.token("ann"), pinned=tmp_path / "elsewhere.pem").close()


def test_a_new_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    tls = make(tmp_path, "here", days=3)
    assert tls.expires == pytest.approx(time.time() + 3 * 86_400, abs=3_600.0) and not tls.refresh()
    with place(tmp_path / "state", tls=tls) as here:
        before = ssl.get_server_certificate(("127.0.0.1", here.server.port))
        (tmp_path / "here.key").write_text("nonsense")
        assert not tls.refresh() and "not used" in tls.trouble
        assert ssl.get_server_certificate(("127.0.0.1", here.server.port)) == before
        make(tmp_path, "here", days=90)
        assert tls.refresh() and not tls.trouble and tls.expires > time.time() + 80 * 86_400
        assert ssl.get_server_certificate(("127.0.0.1", here.server.port)) != before


def test_files_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "one")
    make(tmp_path, "two")
    (tmp_path / "empty").touch()
    for certificate, key, text in (
        ("one.pem", "two.key", "not a valid pair"),
        ("one.key", "one.key", "not a valid pair"),
        ("empty", "one.key", "not a valid pair"),
        ("none.pem", "one.key", "cannot be read"),
    ):
        with pytest.raises(sy.InputError, match=text) as refused:
            TlsFiles(tmp_path / certificate, tmp_path / key)
        assert "--tls-key" in refused.value.hint
    found = symphony_here("serve", "--tls-cert", "one.pem", "--state", "s", folder=tmp_path)
    assert found.returncode == 2 and "go together" in found.stderr and not (tmp_path / "s").exists()


def test_clients_that_never_shake_hands_shut_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there is room for, while another client comes and goes."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.0)
    limits = Limits(connections=8)
    with place(tmp_path / "state", limits=limits, tls=make(tmp_path, "here")) as here, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", here.server.port)))
        token = here.token("ann")
        for _ in range(3):
            with RemoteCluster(here.server.url, token, ca=tmp_path / "here.pem") as ann:
                assert ann.jobs() == []
        assert len(here.server.connections) <= 8


def test_a_handshake_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    limits = replace(Limits(), patience=Patience(head_s=0.5))
    with place(tmp_path / "state", limits=limits, tls=make(tmp_path, "here")) as here:
        with socket.create_connection(("127.0.0.1", here.server.port), SECONDS) as silent:
            assert silent.recv(1) == b""  # it is closed by the service
        wait_until(lambda: len(here.server.connections) == 0)
