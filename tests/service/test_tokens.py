"""Tokens: administered from afar, rotated, and with an end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import symphony as sy
from symphony.service import tables, tokens
from symphony.service.client import RemoteCluster
from symphony.service.database import open_database
from symphony.service.service import Service
from tests.cli.command import symphony_here
from tests.service.places import Place, place


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture
def root(here: Place) -> Iterator[RemoteCluster]:
    with here.connect("root", "admin") as found:
        yield found


def works(here: Place, text: str) -> bool:
    try:
        with RemoteCluster(here.server.url, text) as client:
            client.jobs()
    except sy.TokenError:
        return False
    return True


def test_administrators_create_and_revoke_over_http(here: Place, root: RemoteCluster) -> None:
    made = root.create_token("bob", ["read"], days=2.0, priority=3)
    about = made.about
    assert about.user == "bob" and about.scopes == ["read"] and about.priority == 3
    assert about.expires_s is not None and round((about.expires_s - about.created_s) / 86_400) == 2
    assert about in root.tokens() and works(here, made.token)
    root.revoke_token(about.id)  # the service has just looked it up, and forgets it at once
    assert not works(here, made.token) and about not in root.tokens()
    with pytest.raises(sy.UnknownJobError, match="no token"):
        root.revoke_token(about.id)


def test_a_rotated_token_ends_at_once_or_after_its_grace(here: Place, root: RemoteCluster) -> None:
    first = root.create_token("bob", days=10.0)
    assert works(here, first.token)
    second = root.rotate_token(first.about.id)
    assert not works(here, first.token) and works(here, second.token)
    third = root.rotate_token(second.about.id, grace_s=3_600.0)
    assert works(here, second.token) and works(here, third.token)
    ends = {one.id: one.expires_s for one in root.tokens()}
    left = (ends[second.about.id] or 0.0) - time.time()
    assert 0.0 < left <= 3_600.0
    for one in (second, third):  # as long as the first had
        assert one.about.expires_s is not None
        assert (one.about.expires_s - one.about.created_s) / 86_400 == pytest.approx(10.0)
    assert third.about.scopes == first.about.scopes and third.about.user == "bob"
    assert root.rotate_token(third.about.id, days=1.0).about.expires_s is not None


def test_a_grace_does_not_make_a_token_live_longer(here: Place) -> None:
    text = here.token("bob", days=0.01)
    old = tokens.existing(here.service.database, tokens.token_id(text))
    tokens.rotation(tokens.operator(), old, grace_s=86_400.0).apply(here.service.database)
    assert tokens.existing(here.service.database, old.id).expires == old.expires


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda one: one.create_token("a b"), sy.InputError, "user"),
        (lambda one: one.create_token("bob", ["root"]), sy.InputError, "scopes"),
        (lambda one: one.create_token("bob", days=-1.0), sy.InputError, "days"),
        (lambda one: one.rotate_token("00000000"), sy.UnknownJobError, "no token"),
        (lambda one: one.rotate_token("../x"), sy.ServiceError, "not found"),
    ],
)
def test_what_is_wrong_is_refused(root: RemoteCluster, ask, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        ask(root)


def test_nobody_else_administers(here: Place) -> None:
    with here.connect("ann", "submit", "read") as ann:
        for ask in (
            ann.tokens,
            ann.audit,
            lambda: ann.create_token("ann", ["admin"]),
            lambda: ann.rotate_token("00000000"),
            lambda: ann.revoke_token("00000000"),
        ):
            with pytest.raises(sy.ScopeError):
                ask()


def test_the_command_administers_from_afar(here: Place, tmp_path: Path) -> None:
    there = ("--url", here.server.url, "--token", here.token("root", "admin"))
    made = symphony_here("token", "create", "eve", *there, "--json", folder=tmp_path)
    name = json.loads(made.stdout)["id"]
    turned = symphony_here("token", "rotate", name, "--grace-hours", "1", *there, folder=tmp_path).stdout.strip()
    assert works(here, turned) and works(here, json.loads(made.stdout)["token"])
    assert "eve" in symphony_here("token", "list", *there, folder=tmp_path).stdout
    assert symphony_here("token", "revoke", name, *there, folder=tmp_path).stdout == f"revoked {name}\n"
    assert not works(here, json.loads(made.stdout)["token"]) and not (tmp_path / "s").exists()


def test_the_command_rotates_in_the_database(tmp_path: Path) -> None:
    made = symphony_here("token", "create", "eve", "--state", "s", folder=tmp_path).stdout.strip()
    turned = symphony_here("token", "rotate", tokens.token_id(made), "--state", "s", folder=tmp_path).stdout.strip()
    database = open_database("", tmp_path / "s")
    assert tokens.Tokens(database).find(made) is None and tokens.Tokens(database).find(turned) is not None
    database.dispose()


def test_the_owners_token_has_an_end_and_is_renewed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, now = open_database("", tmp_path), time.time()
    monkeypatch.setattr(tokens.time, "time", lambda: now)
    for_ever = tokens.own_token(database, tmp_path, "ann").read_text()  # as older versions made it
    assert tokens.own_token(database, tmp_path, "ann", 30.0).read_text() == for_ever
    with database.connect() as connection:
        assert connection.scalar(sa.select(tables.tokens.c.expires)) == now + 30 * 86_400
    now += 14 * 86_400
    assert tokens.own_token(database, tmp_path, "ann", 30.0).read_text() == for_ever
    now += 2 * 86_400
    second = tokens.own_token(database, tmp_path, "ann", 30.0)
    assert second.read_text() != for_ever and second.stat().st_mode & 0o777 == 0o600
    assert tokens.Tokens(database).find(for_ever.strip()) is not None  # until it expires
    now += 31 * 86_400
    assert tokens.own_token(database, tmp_path, "ann", 30.0).read_text() not in ("", second)
    with pytest.raises(sy.TokenError, match="expired"):
        tokens.Tokens(database).find(for_ever.strip())
    database.dispose()


def test_a_change_that_cannot_be_written_is_refused(here: Place, root: RemoteCluster) -> None:
    service: Service = here.service
    service.ledger.stuck = "the disk is full"
    try:
        with pytest.raises(sy.UnavailableError, match="the disk is full"):
            root.create_token("bob")
    finally:
        service.ledger.stuck = ""
    assert all(one.user != "nobody" for one in root.tokens())
