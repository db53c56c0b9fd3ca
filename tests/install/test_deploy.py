"""Files beside the package, for systemd, containers, CI and citations: they agree with it and with one another."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.checks import parse
from tests.install.installed import ROOT, project

UNIT = ROOT / "deploy" / "symphony.service"
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
WORKFLOWS = ROOT / ".github" / "workflows"


def unit() -> configparser.SectionProxy:
    """The section on the service."""
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(UNIT, encoding="utf-8")
    return found["Service"]


def understood(*arguments: str) -> dict[str, object]:
    """What `symphony` takes arguments for; an option that is none raises."""
    name, *rest = arguments
    return dict(parse(name, rest).params)


def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    here = tmp_path / UNIT.name  # a command that is not there is an error, too
    here.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/symphony/bin/symphony", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", here], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_serves_from_the_folder_that_it_may_write_to() -> None:
    command, *arguments = shlex.split(unit()["ExecStart"])
    asked = understood(*arguments)
    assert command == "/opt/symphony/bin/symphony" and asked["state"] == Path("/var/lib") / unit()["StateDirectory"]
    assert float(unit()["TimeoutStopSec"]) > float(str(asked["drain_s"]))  # or draining is cut short


def test_the_container_serves_from_its_volume() -> None:
    entry, arguments = (
        json.loads(re.findall(rf"^{key} (.*)$", CONTAINER, re.MULTILINE)[0]) for key in ("ENTRYPOINT", "CMD")
    )
    volume = Path(re.findall(r"^VOLUME (.*)$", CONTAINER, re.MULTILINE)[0])
    asked = understood(*arguments)
    assert entry == ["symphony"] and volume in Path(str(asked["state"])).parents
    assert f"EXPOSE {asked['port']}" in CONTAINER


def test_the_container_is_built_from_files_that_are_there() -> None:
    sources = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", CONTAINER, re.MULTILINE)]
    assert all((ROOT / name).exists() for names in sources for name in names)
    copied = {name for names in sources for name in names}
    assert {project()["readme"], *project()["license-files"], "pyproject.toml", "src"} <= copied  # what a build reads


def test_the_tests_run_on_every_python_that_the_package_is_for() -> None:
    matrix = (WORKFLOWS / "ci.yml").read_text(encoding="utf-8").split("matrix:")[1].partition("]")[0]
    tried = re.findall(r'"(3\.\d+)"', matrix)
    marks = "\n".join(project()["classifiers"])
    assert tried == re.findall(r":: (3\.\d+)$", marks, re.MULTILINE)
    assert project()["requires-python"] == f">={tried[0]}"
    base = re.findall(r"^FROM python:(3\.\d+)(?:-slim)?\b", CONTAINER, re.MULTILINE)
    assert set(base) <= set(tried) and len(base) == 2


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project()['version']}\n" in text
    assert f"\nlicense: {project()['license']}\n" in text
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    titles = re.findall(r"^  - type: .*\n    title: \"(.*)\"", text, re.MULTILINE)
    assert len(titles) == 2 and all(title in readme for title in titles)


def test_no_hook_is_fetched_from_elsewhere() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"repo: (.*)", text)) == {"local"}
    assert set(re.findall(r"entry: (\S+)", text)) == {".venv/bin/ruff", ".venv/bin/mypy"}


def test_an_option_that_is_none_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        understood("serve", "--no-such-option")
