"""The audit log: who did what, in rows that nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

import symphony as sy
from symphony.service import audit, repair, tables
from symphony.service.audit import Actor, FailedLogins, audit_row, read_audit
from symphony.service.client import RemoteCluster
from symphony.service.database import open_database
from symphony.service.wire import About, AuditView
from tests.cli.command import symphony_here
from tests.service.handmade import Handmade
from tests.service.kernels import one, sleep
from tests.service.places import Place, place, postgres, wait_until
from tests.service.test_app import Answer, bearer

WRONG = f"sy_0badc0de_{'x' * 43}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("server") if request.param == "postgresql" else ""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path / "state") as found:
        yield found


def test_rows_are_added_and_never_changed(url: str, tmp_path: Path) -> None:
    database = open_database(url, tmp_path)
    with database.begin() as connection:
        connection.execute(sa.insert(tables.audit).values(audit_row(Actor("ann"), audit.DRAINED)))
    for statement in (
        sa.update(tables.audit).values(user="bob"),
        sa.delete(tables.audit),
    ):
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), database.begin() as connection:
            connection.execute(statement)
    assert [entry.user for entry in read_audit(database)] == ["ann"]
    database.dispose()


@pytest.mark.parametrize("query", ["action=%00", "after=2147483648"])
def test_what_a_database_cannot_be_asked_is_refused(url: str, tmp_path: Path, query: str) -> None:
    """PostgreSQL has no text with NUL, and these IDs have 32 bits: that the database failed was the answer."""
    with place(tmp_path / "state", url) as found:
        answer = Answer(found, "GET", f"/v1/audit?{query}", **bearer(found.token("root", "admin")))
    assert answer.status == 422


def test_what_administrators_do_is_written_down(here: Place) -> None:
    with here.connect("root", "admin") as root, here.connect("ann") as ann:
        since = root.audit()[-1].id  # the two tokens, made at the command line
        job = ann.submit(one(sleep))
        root.job(job.id).cancel()
        root.job(job.id).cancel()  # does nothing, and is not written down
        made = root.create_token("bob", ["read"], days=2.0)
        turned = root.rotate_token(made.about.id, grace_s=60.0)
        root.revoke_token(turned.about.id)
        root._send("POST", "/v1/drain", About)
        found = wait_until(lambda: len(log := root.audit(after=since)) >= 5 and log)
        own = next(one.id for one in root.tokens() if one.user == "root")
        with pytest.raises(sy.ScopeError, match="administer"):
            ann.audit()
    assert [(entry.action, entry.target) for entry in found] == [
        ("cancelled", f"job {job.id}"),
        ("token-created", made.about.id),
        ("token-rotated", made.about.id),
        ("token-revoked", turned.about.id),
        ("drained", ""),
    ]
    assert {(entry.user, entry.token, entry.address) for entry in found} == {("root", own, "127.0.0.1")}
    assert found[0].detail == {"user": "ann"} and found[1].detail["scopes"] == ["read"]
    secrets = [one.token.split("_", 2)[2] for one in (made, turned)]
    assert not any(secret in entry.model_dump_json() for secret in secrets for entry in found)


def test_failed_logins_are_counted_and_cannot_fill_the_disk(here: Place) -> None:
    for _ in range(12):
        with suppress(sy.ServiceError), RemoteCluster(here.server.url, WRONG) as nobody:
            nobody.jobs()
    for text in ("nonsense", here.token("old", days=1e-9)):
        with suppress(sy.ServiceError), RemoteCluster(here.server.url, text) as nobody:
            nobody.jobs()
    Answer(here, "GET", "/v1/jobs", **bearer(WRONG), x_forwarded_for="192.0.2.1")  # whoever guesses says so
    here.server._logins.flush(now=True)

    def failed() -> list[AuditView]:
        found = read_audit(here.service.database, action=audit.LOGIN_FAILED)
        return found if sum(entry.detail["count"] for entry in found) >= 14 else []

    found = wait_until(failed)
    assert len(found) <= 5 and {entry.address for entry in found} == {"127.0.0.1"}
    assert {"0badc0de", ""} < {entry.token for entry in found} and {entry.user for entry in found} == {""}


def test_many_addresses_share_a_row() -> None:
    written: list[list[dict]] = []
    logins = FailedLogins(written.append)
    for number in range(1_000):
        logins.note(f"10.0.0.{number}", "")
    logins.flush(now=True)
    assert [len(rows) for rows in written] == [1, audit.MAX_ADDRESSES + 1]  # the first at once
    assert written[1][-1]["address"] == "others" and json.loads(written[1][-1]["detail"])["count"] == 979


def test_the_command_reads_the_database_or_asks_the_service(here: Place, tmp_path: Path) -> None:
    token = here.token("root", "admin")
    own = json.loads(symphony_here("audit", "--state", "state", "--json", folder=tmp_path).stdout)
    remote = symphony_here(
        "audit", "--url", here.server.url, "--token", token, "--since", "1h", "--json", folder=tmp_path
    )
    assert json.loads(remote.stdout) == own and [entry["action"] for entry in own] == ["token-created"]
    table = symphony_here("audit", "--state", "state", folder=tmp_path).stdout
    assert "token-created" in table and "this machine" in table
    for since, count in (("2999-01-01", 0), ("1d", 1), ("2020-01-01", 1)):
        found = symphony_here("audit", "--state", "state", "--json", "--since", since, folder=tmp_path)
        assert len(json.loads(found.stdout)) == count, since
    wrong = symphony_here("audit", "--state", "state", "--since", "tomorrow", folder=tmp_path)
    assert wrong.returncode == 2 and "2026-11-01" in wrong.stderr


def test_repairs_are_written_down(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "first")
    made.submit("one")
    made.submit("two")
    state = made.die(tmp_path / "state")
    with repair.opened("", state) as ledger:
        repair.cancel(ledger, [1], "ann")
        repair.quarantine_jobs(ledger, [2], "ann")
        found = read_audit(ledger.engine)
    assert [(entry.user, entry.action, entry.target) for entry in found] == [
        ("ann", "cancelled", "job 1"),
        ("ann", "quarantined", "job 2"),
    ]
