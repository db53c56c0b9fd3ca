"""The locked versions: complete, hashed, the same in both files, and without the address of any index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.latest import changed, failures, versions
from tools.lock import OLDEST_PYTHON, REQUIREMENTS, ROOT

BASE, DEV = (ROOT / REQUIREMENTS / name for name in ("base.txt", "dev.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = re.compile(r"^[A-Za-z0-9._-]+")


def named(requirements: list[str]) -> set[str]:
    """Names of packages, as index and lock files write them."""
    found = (NAME.match(line) for line in requirements if isinstance(line, str))
    return {match[0].lower().replace("_", "-").replace(".", "-") for match in found if match}


def test_base_file_locks_every_dependency() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert named([*PROJECT["project"]["dependencies"], *extras["service"]]) <= versions(BASE).keys()
    assert "setuptools" in versions(BASE)  # what the project itself is built with


def test_dev_file_locks_every_extra_and_group() -> None:
    wanted = [*PROJECT["project"]["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
    assert set().union(*(named(lines) for lines in wanted)) - {"symphony-scheduler"} <= versions(DEV).keys()


def test_both_files_agree() -> None:
    dev = versions(DEV)
    assert {name: version for name, version in versions(BASE).items() if dev.get(name) != version} == {}


def test_base_install_is_light() -> None:
    heavy = {"ray", "ortools", "numpyro", "torch", "mypy", "schemathesis", "gymnasium", "distributed"}
    assert not heavy & versions(BASE).keys()
    assert "torch" not in versions(DEV)


@pytest.mark.parametrize("path", [BASE, DEV], ids=["base", "dev"])
def test_versions_have_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert not [line for line in text.splitlines() if re.match(r"^\S+==", line) and not line.endswith("\\")]
    assert text.count("--hash=sha256:") > len(versions(path))


def test_linters_are_pinned_exactly() -> None:
    locked = versions(DEV)
    assert set(PROJECT["dependency-groups"]["style"]) == {f"{name}=={locked[name]}" for name in ("ruff", "mypy")}


def test_locks_are_resolved_for_the_oldest_python() -> None:
    assert PROJECT["project"]["requires-python"] == f">={OLDEST_PYTHON}"


def test_report_of_newer_versions_names_what_changed_and_what_failed() -> None:
    assert changed({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == [
        "  b: 1 -> 2",
        "  c: 1 -> absent",
        "  d: absent -> 1",
    ]
    log = "....\nFAILED tests/test_a.py::test_b - assert 1 == 2\nERROR tests/test_c.py\n1 failed, 1 error"
    assert failures(log) == ["FAILED tests/test_a.py::test_b - assert 1 == 2", "ERROR tests/test_c.py"]
