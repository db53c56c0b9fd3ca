"""`symphony serve`: what is looked at before anything is served, and what jobs do not get."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import symphony as sy
from symphony.cli.serve import SECRETS, _warn_of_password, keep_private, without_secrets
from tests.service.kernels import one
from tests.service.places import SECONDS
from tests.service.serve_process import Serve


def test_a_folder_that_others_may_look_into_is_closed(tmp_path: Path) -> None:
    for name, inside in (("empty", ()), ("used", ("lock", "journal.sqlite"))):
        folder = tmp_path / name
        folder.mkdir()
        for file in inside:
            (folder / file).touch()
        folder.chmod(0o755)
        keep_private(folder)
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_with_other_things_is_left_alone_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    keep_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755 and "chmod 700" in capsys.readouterr().err
    keep_private(tmp_path / "new")  # it is made later, for its owner alone
    assert not capsys.readouterr().err


def test_a_password_that_everybody_sees_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = "postgresql://ann:hunter2@db/symphony"
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr("sys.argv", ["symphony", "serve"])
        _warn_of_password(url)  # from the environment
        _warn_of_password("")
        assert not caplog.records
        monkeypatch.setattr("sys.argv", ["symphony", "serve", f"--database={url}"])
        _warn_of_password(url)
    assert "SYMPHONY_DATABASE" in caplog.text and "hunter2" not in caplog.text


def test_secrets_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for database, expected in (
        ("postgresql://ann@host/name", "postgresql://ann:s%40fe@host/name"),
        ("postgresql://ann:own@host/name", "postgresql://ann:own@host/name"),
        ("sqlite:///file", "sqlite:///file"),
        ("", ""),
    ):
        for name in SECRETS:
            monkeypatch.setenv(name, "s@fe")
        assert without_secrets(database) == expected
        assert not os.environ.keys() & set(SECRETS)


def test_jobs_do_not_inherit_secrets_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @sy.kernel
    def inherited(names):
        import os

        return [name for name in names if name in os.environ]

    for name in SECRETS:
        monkeypatch.setenv(name, f"sqlite:///{tmp_path / 'journal'}")
    monkeypatch.setenv("SEEN", "yes")
    serve = Serve(tmp_path / "state")
    monkeypatch.undo()
    with serve.connect() as cluster:
        assert cluster.submit(one(inherited, [*SECRETS, "SEEN"])).result(SECONDS) == ["SEEN"]
    assert serve.stop() == 0 and (tmp_path / "journal").exists()
