"""`symphony repair`, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import symphony_here
from tests.service.handmade import Handmade, change


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the journal of a service that was killed, in `s`: a job that is done, and two that are not."""
    here = Handmade(tmp_path / "first")
    here.submit("done")
    here.finish(1)
    here.finish(2)
    here.submit("second")
    here.submit("third")
    here.die(tmp_path / "s")
    return tmp_path


def test_jobs_are_listed_and_stopped(folder: Path) -> None:
    def repair(*arguments: str) -> list:
        found = symphony_here("repair", *arguments, "--state", "s", "--json", folder=folder)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    assert [(one["id"], one["status"], one["deaths"]) for one in repair("list")] == [(2, "open", 0), (3, "open", 0)]
    assert [one["status"] for one in repair("list", "--all")] == ["done", "open", "open"]
    assert [one["status"] for one in repair("cancel", "2")] == ["cancelled"]
    assert [one["status"] for one in repair("quarantine", "3")] == ["failed"]
    told = symphony_here("repair", "list", "--state", "s", folder=folder).stdout
    assert "second" in told and "cancelled" in told and "third" in told and "failed" in told
    refused = symphony_here("repair", "cancel", "1", "--state", "s", folder=folder)
    assert refused.returncode == 2 and "job 1 is done already" in refused.stderr


def test_a_journal_is_checked_salvaged_and_compacted(folder: Path) -> None:
    found = symphony_here("repair", "check", "--state", "s", folder=folder)
    assert found.returncode == 0 and "3 jobs" in found.stdout and "nothing wrong" in found.stdout
    change(folder / "s", "UPDATE events SET at = 0 WHERE job = 3 AND kind = 'begun'")
    found = symphony_here("repair", "check", "--state", "s", "--json", folder=folder)
    assert found.returncode == 1 and "(job 3): its checksum is wrong" in json.loads(found.stdout)["wrong"][0]
    found = symphony_here("repair", "salvage", "--state", "s", folder=folder)
    assert found.returncode == 0 and "set aside: event" in found.stdout and "the old journal is" in found.stdout
    assert len(list((folder / "s").glob("journal.sqlite.damaged-*"))) == 1
    found = symphony_here("repair", "compact", "--days", "0", "--state", "s", folder=folder)
    assert found.returncode == 0 and found.stdout.startswith("1 jobs deleted; ")
    left = symphony_here("repair", "list", "--all", "--state", "s", "--json", folder=folder)
    assert [one["id"] for one in json.loads(left.stdout)] == [2, 3]


def test_without_a_journal_or_beside_a_service_nothing_is_done(tmp_path: Path) -> None:
    found = symphony_here("repair", "list", "--state", "s", folder=tmp_path)
    assert found.returncode == 2 and "no state folder 's'" in found.stderr and not (tmp_path / "s").exists()
    here = Handmade(tmp_path / "s")
    for command in (("list",), ("check",), ("salvage",), ("compact",), ("cancel", "1")):
        found = symphony_here("repair", *command, "--state", "s", folder=tmp_path)
        assert found.returncode == 2 and "another service is using it" in found.stderr
    here.service.close()
