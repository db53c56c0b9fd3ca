"""Optional parts that are missing: the error, and a command that installs them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from symphony.problem import extras
from symphony.problem.errors import EngineError, InputError
from symphony.problem.extras import install_command, needs_extra

ROOT = Path(__file__).parents[2]
PIP = f"{shlex.quote(sys.executable)} -m pip install"


def installed_from(monkeypatch: pytest.MonkeyPatch, folder: Path, note: object) -> None:
    """As if pip had noted this of where Symphony comes from; None: nothing."""
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {extras.PACKAGE}\nVersion: 1\n")
    if note is not None:
        (folder / "direct_url.json").write_text(json.dumps(note))
    there = importlib.metadata.PathDistribution(folder)
    monkeypatch.setattr(extras, "distribution", lambda name: there)


def test_what_is_missing_is_said_with_what_needs_it() -> None:
    with (
        pytest.raises(EngineError, match="the Ray engine needs no_such_package, which is not installed") as error,
        needs_extra("ray", "the Ray engine", EngineError),
    ):
        import no_such_package.part  # noqa: F401
    assert error.value.hint == f"type: {install_command('ray')}"


def test_a_part_that_is_installed_and_cannot_be_loaded() -> None:
    with (
        pytest.raises(InputError, match="needs the extra 'postgres', which cannot be loaded: no pq wrapper"),
        needs_extra("postgres", "a journal in PostgreSQL"),
    ):
        raise ImportError("no pq wrapper available")


def test_a_mistake_of_our_own_is_not_blamed_on_the_installation() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("ray", "the Ray engine"):
        import symphony.no_such_module  # noqa: F401


def test_the_command_installs_from_where_symphony_came(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    wheel = tmp_path / "symphony_scheduler-0.1.0-py3-none-any.whl"
    wheel.touch()
    for note, expected in (
        ({"url": f"file://{wheel}", "archive_info": {}}, f"{PIP} '{wheel}[ray]'"),
        ({"url": f"file://{clone}", "dir_info": {}}, f"{PIP} '{clone}[ray]'"),
        ({"url": f"file://{clone}", "dir_info": {"editable": True}}, f"{PIP} -e '{clone}[ray]'"),
    ):
        installed_from(monkeypatch, tmp_path, note)
        assert install_command("ray") == expected


def test_the_command_where_it_is_not_known_what_symphony_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    either = f"{PIP} '.[ray]' in a clone, or {PIP} 'FILE.whl[ray]' with the wheel"
    gone = {"url": f"file://{tmp_path}/gone.whl", "archive_info": {}}
    elsewhere = {"url": "https://wheels.example/x.whl", "archive_info": {}}
    for note in (None, gone, elsewhere):
        installed_from(monkeypatch, tmp_path, note)
        assert install_command("ray") == either

    def none(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", none)
    assert install_command("ray") == either


def test_every_extra_that_is_asked_for_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [path for part in ("src", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")]
    named = [
        (path.name, extra)
        for path in sources
        for extra in re.findall(r"(?:needs_extra|install_command)\(['\"](\w+)['\"]", path.read_text(encoding="utf-8"))
    ]
    assert len(named) >= 7
    assert [one for one in named if one[1] not in project["optional-dependencies"]] == []
