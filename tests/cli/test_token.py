"""`symphony token`, and what `symphony serve` refuses before it serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symphony.problem import limits
from symphony.service import tokens
from symphony.service.database import open_database
from tests.cli.command import WIDE, symphony_here


def test_tokens_are_made_listed_and_revoked_and_their_secrets_are_nowhere(tmp_path: Path) -> None:
    made = symphony_here("token", "create", "ann", "--days", "30", "--state", "s", folder=tmp_path).stdout.strip()
    other = symphony_here("token", "create", "bob", "--scope", "admin", "--state", "s", "--json", folder=tmp_path)
    assert json.loads(other.stdout)["scopes"] == ["admin"]
    listed = json.loads(symphony_here("token", "list", "--state", "s", "--json", folder=tmp_path).stdout)
    assert [(one["user"], one["scopes"]) for one in listed] == [("ann", ["submit", "read"]), ("bob", ["admin"])]
    assert "ann" in symphony_here("token", "list", "--state", "s", folder=tmp_path).stdout
    secret = made.split("_", 2)[2]
    assert all(secret.encode() not in file.read_bytes() for file in (tmp_path / "s").rglob("*") if file.is_file())

    database = open_database("", tmp_path / "s")
    found = tokens.Tokens(database).find(made)
    assert found is not None and found.user == "ann" and found.expires is not None
    assert tokens.Tokens(database).find(made[:-1] + "x") is None
    symphony_here("token", "revoke", found.id, "--state", "s", folder=tmp_path)
    assert tokens.Tokens(database).find(made) is None
    database.dispose()


def test_names_are_whole_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDE, "COLUMNS", "80")
    symphony_here("token", "create", "ann", "--priority", str(limits.PRIORITY), "--state", "s", folder=tmp_path)
    assert " token-created " in symphony_here("audit", "--state", "s", folder=tmp_path).stdout
    assert " any " in symphony_here("token", "list", "--state", "s", folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("token", "create", "a b"), "not a valid user name"),
        (("token", "create", "ann", "--scope", "root"), "no scope root"),
        (("token", "create", "ann", "--days", "-1"), "cannot expire"),
        (("serve", "--host", "0.0.0.0", "--port", "0"), "no user there has a token"),
        (("serve", "--log-format", "xml"), "unknown --log-format 'xml'"),
        (("serve", "--share", "ann"), "--share 'ann'"),
        (("serve", "--policy", "hefft"), "did you mean 'heft'"),
        (("serve", "--host", "no.such.host.invalid"), "no.such.host.invalid:7733 cannot be used"),
        (("serve", "--port", "0", "--database", "oracle://x"), "databases are not supported"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    found = symphony_here(*arguments, "--state", "s", folder=tmp_path)
    assert found.returncode == 2 and text in found.stderr


def test_the_token_of_whoever_serves_is_his_alone(tmp_path: Path) -> None:
    database = open_database("", tmp_path)
    path = tokens.own_token(database, tmp_path, "ann")
    assert path.stat().st_mode & 0o777 == 0o600
    assert tokens.own_token(database, tmp_path, "ann").read_text() == path.read_text()
    path.write_text("something else")
    assert tokens.Tokens(database).find(tokens.own_token(database, tmp_path, "ann").read_text().strip()) is not None
    database.dispose()


def test_tokens_are_listed_and_revoked_where_there_is_a_service(tmp_path: Path) -> None:
    for command in (("list",), ("revoke", "x")):
        found = symphony_here("token", *command, "--state", "s", folder=tmp_path)
        assert found.returncode == 2 and "no state folder 's'" in found.stderr and not (tmp_path / "s").exists()
    symphony_here("token", "create", "ann", "--state", "s", folder=tmp_path)
    found = symphony_here("token", "revoke", "x", "--state", "s", folder=tmp_path)
    assert found.returncode == 2 and "no token 'x'" in found.stderr
