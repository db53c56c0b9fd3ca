"""`symphony serve`: what is looked at before anything is served."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from symphony.cli.serve import _warn_of_password, keep_private


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
