"""The documentation: links lead somewhere, snippets run, references are complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer

import symphony as sy
from symphony.cli import catalogue, compare, forecast, jobs, profile, serve, stat, token, top, topology, workload

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INDEX = ROOT / "docs" / "README.md"


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("[", "").replace("(", ""), text)


def links(page: Path) -> list[tuple[Path, str]]:
    """Where the relative links and pictures of a page lead: a file, and a heading in it or ""."""
    targets = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", prose(page))
    found = []
    for target in (a or b for a, b in targets):
        if not re.match(r"[a-z]+:", target):
            path, _, heading = target.partition("#")
            found.append(((page.parent / path).resolve() if path else page, heading))
    return found


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def run_snippets(page: Path) -> int:
    """Run the Python of a page from top to bottom; returns how many snippets there were."""
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {"__name__": page.stem}
    for snippet in snippets:
        exec(compile(snippet, page.name, "exec"), names)
    return len(snippets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in links(page):
        assert path.exists(), f"{page.name} links to {path}, which does not exist"
        if heading:
            assert heading in headings(path), f"{page.name} links to {path.name}#{heading}, which does not exist"


def test_every_page_of_docs_is_in_the_index() -> None:
    listed = {path for path, _ in links(INDEX)}
    assert {page for page in PAGES if page.is_relative_to(INDEX.parent)} - listed == {INDEX}


def test_readme_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_snippets(ROOT / "README.md") == 1
    out = capsys.readouterr().out
    assert "The mean completion time of eft-belief is" in out
    assert "99th percentile of slow-down" in out
    assert "5 jobs of 220 tasks" in out


def test_policy_guide_snippets_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # One of the conformance check's scenarios will do here: what it checks has its own tests.
    first = sy.testing._scenarios()[:1]
    monkeypatch.setattr(sy.testing, "_scenarios", lambda: first)
    assert run_snippets(ROOT / "docs" / "guides" / "policies.md") == 3
    assert "long memory" in capsys.readouterr().out


def test_reference_has_every_command_and_option() -> None:
    reference = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    alone = typer.Typer(add_completion=False)
    alone.command("compare")(compare.compare)
    alone.command("forecast")(forecast.forecast)
    alone.command("stat")(stat.stat)
    for one in (serve.serve, jobs.submit, jobs.jobs, jobs.job, jobs.logs, jobs.cancel, jobs.trace, top.top):
        alone.command(one.__name__)(one)
    alone.command("profile")(profile.profile)
    found = dict(typer.main.get_command(alone).commands)  # type: ignore[attr-defined]
    groups = {"topology": topology.app, "workload": workload.app, "catalogue": catalogue.app, "token": token.app}
    for group, app in groups.items():
        commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        found |= {f"{group} {name}": command for name, command in commands.items()}
    assert len(found) == 28
    for name, command in found.items():
        assert f"{name}" in reference
        for option in (option for parameter in command.params for option in parameter.opts if option[0] == "-"):
            assert f"`{option}`" in reference, f"cli.md does not name {option} of symphony {name}"


def test_reference_has_every_public_name() -> None:
    reference = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert [name for name in sy.__all__ if not re.search(rf"`sy\.{name}\b", reference)] == []


def test_policies_are_named_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "baselines.md").read_text(encoding="utf-8")
    assert [name for name in sy.baselines.BASELINES if f"`{name}`" not in reference] == []


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [re.split(r"[^\w\-]", item)[0] for items in listed for item in items if project["name"] not in item]
    reasons = (ROOT / "docs" / "decisions" / "0003-dependencies.md").read_text(encoding="utf-8")
    assert [name for name in wanted if name not in reasons] == []


def test_nothing_is_to_be_installed_from_an_index_that_does_not_have_it() -> None:
    """Symphony is not published: a clone or a wheel is what it is installed from."""
    sources = [path for part in ("src", "examples") for path in (ROOT / part).rglob("*.py")]
    wrong = re.compile(r"pip install [^\n]*symphony-scheduler")
    assert [page.name for page in [*PAGES, *sources] if wrong.search(page.read_text(encoding="utf-8"))] == []


def test_the_installing_guide_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    guide = (ROOT / "docs" / "guides" / "installing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", guide, flags=re.MULTILINE)) == set(extras)
