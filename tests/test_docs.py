"""The documentation: links work, snippets run, commands exist, and the reference is complete.

To run the tests of one page: `pytest tests/test_docs.py -k running.md`.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import symphony as sy
from symphony import cli
from symphony.cli import stat
from symphony.envs import SCENARIOS
from symphony.evaluation.metrics import METRICS
from symphony.learning.train import TrainingRound
from symphony.lowering import readers
from symphony.problem.workload import Job
from symphony.telemetry import catalogue, sources
from symphony.testing import engines
from tests.cli.command import symphony_here
from tests.data import data
from tests.runtime.machines import machine
from tests.service.serve_process import Serve
from tools import cli_reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = DOCS / "guides"
INDEX = DOCS / "README.md"
LAB_INDEX = DOCS / "lab" / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
USER_PAGES = [  # what users read: every Python snippet of these pages runs here
    DOCS / "tutorial.md",
    *(page for folder in ("guides", "reference", "concepts") for page in sorted((DOCS / folder).glob("*.md"))),
]
# Of all pages in these places together. `symphony run`, retries, limits of jobs, HTTPS, audit and backup took 600 words
# more than 19,400 and 30,000.
MAX_WORDS = {
    ("tutorial.md", "guides", "reference"): 20_800,
    ("tutorial.md", "guides", "reference", "concepts"): 31_900,
}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- reading pages


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("[", "").replace("(", ""), text)


def links(page: Path) -> list[tuple[Path, str]]:
    """The targets of a page's relative links and pictures: a file, and a heading in it or ""."""
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


def fences(page: Path) -> list[tuple[str, str]]:
    """The code of a page, in order: language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def command_lines(page: Path) -> list[list[str]]:
    """The words of every `$ symphony …` line of a page."""
    lines = [line for language, text in fences(page) if language == "console" for line in text.splitlines()]
    return [shlex.split(line[2:], comments=True) for line in lines if re.match(r"\$ symphony\b", line)]


def run_snippets(page: Path, run_command: Callable[[list[str]], None] | None = None) -> int:
    """Run the Python of a page from top to bottom; returns how many snippets there were.

    A snippet that starts with `# NAME.py` or `# NAME.toml` is first saved under that name. With `run_command`, the
    console lines in between are run, too.
    """
    names: dict[str, object] = {"__name__": page.stem}
    count = 0
    for language, text in fences(page):
        file = re.match(r"# (\S+\.(?:py|toml))\n", text)
        if file:
            Path(file[1]).write_text(text, encoding="utf-8")
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
            count += 1
        elif language == "console" and run_command is not None:
            for line in text.splitlines():
                run_command(shlex.split(line.removeprefix("$ "), comments=True))
    return count


# --- pages as a whole


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in links(page):
        assert path.exists(), f"{page.name} links to {path}, which does not exist"
        if heading:
            assert heading in headings(path), f"{page.name} links to {path.name}#{heading}, which does not exist"


def test_every_page_is_in_an_index() -> None:
    """Pages of the lab notebook are listed in its own index, all others in docs/README.md."""
    lab = {page for page in PAGES if page.is_relative_to(LAB_INDEX.parent)}
    others = {page for page in PAGES if page.is_relative_to(DOCS)} - lab
    assert others - {path for path, _ in links(INDEX)} == {INDEX}
    if lab:
        assert lab - {path for path, _ in links(LAB_INDEX)} <= {LAB_INDEX}


@pytest.mark.parametrize("places", MAX_WORDS, ids=" ".join)
def test_pages_for_users_are_short(places: tuple[str, ...]) -> None:
    pages = [page for page in USER_PAGES if page.relative_to(DOCS).parts[0] in places]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MAX_WORDS[places]


@pytest.mark.parametrize("page", USER_PAGES, ids=named)
def test_cells_of_tables_are_short(page: Path) -> None:
    rows = [line for line in prose(page).splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in row.split("|") if len(cell) > 120] == []


# --- commands


def parse(words: list[str]) -> None:
    """Parse a command line as `symphony` does, without running it."""
    group = typer.main.get_command(cli.app)
    if words[1:] and not words[1].startswith("-"):
        group.commands[words[1]] = cli.load(words[1])  # type: ignore[attr-defined]
    context = group.make_context("symphony", words[1:], resilient_parsing=False)
    command: Any = group
    rest = [*context._protected_args, *context.args]
    while hasattr(command, "commands") and rest:
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)], ids=named)
def test_commands_of_the_page_exist_with_these_options(page: Path) -> None:
    for words in command_lines(page):
        try:
            parse(words)
        except Exception as error:
            pytest.fail(f"{page.name}: {shlex.join(words)}: {error}")


def test_the_command_line_reference_is_what_the_commands_say() -> None:
    assert cli_reference.PAGE.read_text(encoding="utf-8") == cli_reference.page(), (
        "docs/reference/cli.md differs from the help of the commands: run python -m tools.cli_reference"
    )


# --- snippets. A preparation makes the world small: one machine, few seeds, a folder of its own.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.syspath_prepend(str(ROOT))  # snippets import examples
    with chdir(tmp_path):
        yield tmp_path


def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(others=1)
    monkeypatch.setattr(sy, "local", partial(sy.local, here))
    monkeypatch.setattr(sy, "discover", lambda: type("Found", (), {"topology": here}))
    monkeypatch.setattr(engines, "BURST_SIZE", 4)


def few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = sy.compare
    monkeypatch.setattr(sy, "compare", lambda *given, **options: compare(*given, **options | {"seeds": range(2)}))


def one_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the conformance check's scenarios will do here: what it checks has its own tests."""
    first = sy.testing._scenarios()[:1]
    monkeypatch.setattr(sy.testing, "_scenarios", lambda: first)


def local_instead_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """On real Ray, the guide runs in tests/engines/ray."""
    monkeypatch.setattr(sy, "ray", partial(sy.local, machine()))


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training takes minutes, and has its own tests: here, its result is the policy that comes with Symphony."""
    shipped, parameters = sy.policies.named("symphony"), signature(sy.train)

    def train(**options: Any) -> Any:
        parameters.bind(**options)
        if options.get("checkpoint"):
            Path(options["checkpoint"]).mkdir(parents=True, exist_ok=True)
        return shipped, [TrainingRound(0, 1.0, 100, 100.0, 2.0, 1.0, 0.9)]

    monkeypatch.setattr(sy, "train", train)
    monkeypatch.setattr(import_module("symphony.learning.train"), "train", train)
    monkeypatch.setattr("symphony.learning.train.keep_programs", lambda: None)
    few_seeds(monkeypatch)


def tiny_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, "tiny", replace(SCENARIOS["tiny"], workload="layered:4?jobs=2"))


def zen4(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.add(data("pmu-events", "x86", "amdzen4"))


def log_of_cache_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.add(data("pmu-events", "x86", "sapphirerapids"))
    counts = {"l2_rqsts.all_rfo": 900, "l2_rqsts.rfo_hit": 600, "l2_rqsts.rfo_miss": 300}
    lines = [
        {"interval": 0.1 * window, "counter-value": f"{count * window}", "event": event, "unit": ""}
        | {"event-runtime": 10**8, "pcnt-running": 100.0}
        for window in range(1, 11)
        for event, count in counts.items()
    ]
    Path("perf.json").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


PREPARATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "docs/concepts/identities.md": log_of_cache_misses,
    "docs/guides/comparing.md": few_seeds,
    "docs/guides/engines.md": small_machine,
    "docs/guides/policies.md": one_scenario,
    "docs/guides/ray.md": local_instead_of_ray,
    "docs/guides/running.md": small_machine,
    "docs/guides/telemetry.md": zen4,
    "docs/guides/training-jobs.md": small_machine,
    "docs/guides/training.md": no_training,
    "docs/guides/environments.md": tiny_environment,
}
PRINTED = {
    "README.md": ["The mean completion time of eft-belief is", "99th percentile of slow-down"],
    "docs/concepts/identities.md": ["l2_rqsts.all_rfo = rfo_miss + rfo_hit\nTrue l2_rqsts.all_rfo"],
    "docs/guides/comparing.md": ["of the baseline's time, 95% interval"],
    "docs/guides/counter-sources.md": [
        "2.04999996e+06",
        "msec",
        "perf.csv, line 4: cycles was not counted",
        "reading 1: is None",
    ],
    "docs/guides/engines.md": ["84"],
    "docs/guides/environments.md": ["actions; (4,) rewards"],
    "docs/guides/policies.md": ["long memory"],
    "docs/guides/running.md": ["job 1 ('sample'): done after", "mean-0  on here/", "2.0"],
    "docs/guides/service.md": ["84", "doubling 42"],
    "docs/guides/telemetry.md": ["predicted wrongly", "\n0.5\n"],
    "docs/guides/training-jobs.md": ["[3."],
    "docs/guides/traces.md": ["60 jobs, format symphony"],
    "docs/guides/workloads.md": ["jobs of 32 graphs"],
}
RUN_BELOW = {DOCS / "tutorial.md", GUIDES / "service.md"}


def test_every_python_snippet_for_users_is_one_that_runs() -> None:
    assert [named(page) for page in USER_PAGES if any(language == "py" for language, _ in fences(page))] == []


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in [ROOT / "README.md", *USER_PAGES]
        if page not in RUN_BELOW and any(language == "python" for language, _ in fences(page))
    ],
    ids=named,
)
def test_snippets_run(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PREPARATIONS.get(named(page), lambda _: None)(monkeypatch)
    assert run_snippets(page) >= 1
    out = capsys.readouterr().out
    assert [text for text in PRINTED.get(named(page), []) if text not in out] == []


@pytest.fixture
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    service = Serve(folder / "state")
    monkeypatch.setenv("SYMPHONY_URL", service.told["url"])
    monkeypatch.setenv("SYMPHONY_TOKEN", Path(service.told["token_file"]).read_text().strip())
    yield service
    service.stop()


def test_service_guide_snippets_run(served: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_snippets(GUIDES / "service.md") == 1
    out = capsys.readouterr().out
    assert [text for text in PRINTED["docs/guides/service.md"] if text not in out] == []


@pytest.mark.parametrize("comparisons", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_tutorial_runs_from_top_to_bottom(
    comparisons: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it; but each comparison compiles the simulator, so that most are left to the slow tests."""
    no_training(monkeypatch)
    left = {"compare": comparisons}
    run: list[str] = []
    service: list[Serve] = []

    def run_command(words: list[str]) -> None:
        if words == ["symphony", "serve"]:
            service.append(Serve(folder / "state"))
            monkeypatch.setenv("SYMPHONY_URL", service[0].told["url"])
            monkeypatch.setenv("SYMPHONY_TOKEN", Path(service[0].told["token_file"]).read_text().strip())
        elif words[0] == "symphony" and left.get(words[1], 1):
            left[words[1]] = left.get(words[1], 2) - 1
            words = [word.replace("jobs=40", "jobs=4") for word in words]
            if "-n" in words:
                words[words.index("-n") + 1] = "2"
            if "token" in words:
                words += ["--state", "state"]
            ended = symphony_here(*words[1:], folder=folder)
            assert ended.returncode == 0, f"{shlex.join(words)}: {ended.stderr}"
            run.append(ended.stdout)
        elif words[0] == "python" and words[1:] == ["words.py"]:
            exec(compile(Path("words.py").read_text(), "words.py", "exec"), {"__name__": "__main__", "sy": sy})

    try:
        assert run_snippets(DOCS / "tutorial.md", run_command) == 2
    finally:
        for one in service:
            one.stop()
    out = capsys.readouterr().out
    assert "The mean completion time of" in out and "count-0  on " in out
    assert any(text.strip() == "6" for text in run)  # of `submit --wait`
    assert any("counting 7 characters" in text for text in run)  # of `logs`


# --- single pages


def test_the_error_tree_of_the_reference_is_that_of_the_classes() -> None:
    (tree,) = [text for _, text in fences(DOCS / "reference" / "python.md") if "sy.InputError" in text]
    above: list[type] = []
    shown = set()
    for line in tree.splitlines():
        indent, name = re.match(r"( *)sy\.(\w+)", line).groups()  # type: ignore[union-attr]
        found = getattr(sy, name)
        above = above[: len(indent) // 4]
        assert found.__bases__[0] is (above[-1] if above else found.__bases__[0]), name
        above.append(found)
        shown.add(name)
    errors = {
        name for name in sy.__all__ if isinstance(value := getattr(sy, name), type) and issubclass(value, Exception)
    }
    assert errors - shown == {"SymphonyError"}


def test_signatures_of_the_reference_name_real_parameters() -> None:
    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    calls = re.findall(r"^\| `sy\.(\w+)\(([^`]*)\)`", text, flags=re.MULTILINE)
    assert len(calls) > 10
    for name, shown in calls:
        real = signature(getattr(sy, name)).parameters
        wanted = {part.strip() for part in shown.split(",")} - {"*", "…", ""}
        assert wanted <= real.keys(), f"sy.{name} has no {wanted - real.keys()}"


def test_reference_has_every_public_name() -> None:
    reference = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert [name for name in sy.__all__ if not re.search(rf"\bsy\.{name}\b", reference)] == []


def test_policies_are_named_in_the_reference() -> None:
    reference = (DOCS / "reference" / "baselines.md").read_text(encoding="utf-8")
    assert [name for name in sy.baselines.BASELINES if f"`{name}`" not in reference] == []


def test_every_metric_is_explained() -> None:
    guide = (GUIDES / "comparing.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`{name}`" not in guide and not name.startswith("utilisation.")] == []


def test_every_counter_source_is_in_its_guide() -> None:
    guide = (GUIDES / "counter-sources.md").read_text(encoding="utf-8")
    assert [name for name in sources.__all__ if f"`{name}" not in guide and f"{name}(" not in guide] == []


def test_every_named_environment_is_in_its_guide() -> None:
    guide = (GUIDES / "environments.md").read_text(encoding="utf-8")
    for name, scenario in SCENARIOS.items():
        assert f"| `{name}` | `{scenario.topology}/{scenario.workload}`" in guide


def test_every_file_format_is_in_its_guide_and_the_example_is_a_file(tmp_path: Path) -> None:
    guide = (GUIDES / "traces.md").read_text(encoding="utf-8")
    for known in readers.FORMATS:
        assert f"`{known.name}`" in guide or f"`{known.name.partition('-')[0]}-…`" in guide, known.name
    example = tmp_path / "example.json"
    example.write_text(dict(fences(GUIDES / "traces.md"))["json"], encoding="utf-8")
    found = readers.read(example)
    assert found.jobs == (Job(0, 12.5, 1, 3),) and found.graphs[0].all_gangs[0].preemptible


def test_graphs_of_the_service_guide_can_be_read(folder: Path) -> None:
    from symphony.engines.containment import read_limits
    from symphony.service import graph_file

    for language, text in fences(GUIDES / "service.md"):
        if language == "toml" and text.startswith("# limits.toml"):
            Path("limits.toml").write_text(text, encoding="utf-8")
            assert read_limits(Path("limits.toml")).of_user("ann").memory == 64e9
        elif language == "toml":
            Path("graph.toml").write_text(text, encoding="utf-8")
            assert graph_file.load("graph.toml", {}).name in text


def test_the_counter_example_prints_what_the_guide_shows(folder: Path) -> None:
    """Line by line, with numbers that may move by a little: libraries round differently."""
    zen4(pytest.MonkeyPatch())
    run_snippets(GUIDES / "telemetry.md")
    text = (GUIDES / "telemetry.md").read_text(encoding="utf-8")
    (command, expected) = re.search(
        r"^\$ symphony stat (--replay perf.json --cpu[^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    ).groups()  # type: ignore[union-attr]
    app = typer.Typer()
    app.command(context_settings=stat.SETTINGS)(stat.stat)
    printed = CliRunner().invoke(app, command.split(), catch_exceptions=False).stdout
    numbers = re.compile(r"\d[\d,]*(?:\.\d+)?")
    ours, theirs = ([line.strip() for line in part.strip().splitlines()] for part in (printed, expected))
    assert [numbers.sub("#", line).split() for line in ours] == [numbers.sub("#", line).split() for line in theirs]
    for ours_line, theirs_line in zip(ours, theirs, strict=True):
        a, b = ([float(n.replace(",", "")) for n in numbers.findall(line)] for line in (ours_line, theirs_line))
        assert a[:1] == pytest.approx(b[:1], rel=0.05, abs=1), ours_line


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [re.split(r"[^\w\-]", item)[0] for items in listed for item in items if project["name"] not in item]
    reasons = (DOCS / "decisions" / "0003-dependencies.md").read_text(encoding="utf-8")
    assert [name for name in wanted if name not in reasons] == []


def test_no_page_installs_from_an_index() -> None:
    """Symphony is not published: it is installed from a clone or a wheel."""
    files = [path for part in ("src", "examples") for path in (ROOT / part).rglob("*.py")]
    wrong = re.compile(r"pip install [^\n]*symphony-scheduler")
    assert [page.name for page in [*PAGES, *files] if wrong.search(page.read_text(encoding="utf-8"))] == []


def test_the_installing_guide_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    guide = (GUIDES / "installing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", guide, flags=re.MULTILINE)) == set(extras)
