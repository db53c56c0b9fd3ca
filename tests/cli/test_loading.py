"""What commands load: those that only talk to a service start without JAX and what else takes long to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from symphony.baselines import BASELINES
from symphony.cli import COMMANDS, _current_spelling, load, options, train
from symphony.learning.beliefs import slopes
from symphony.policies import SUFFIX, named
from symphony.policies.learned import PRESETS
from symphony.problem.errors import InputError
from tests.service.places import Place, place

HEAVY = {"jax", "jaxlib", "equinox", "optax", "scipy", "ortools", "matplotlib", "pandas"}
SERVED = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic"}
WORK = ["compare", "evaluate", "oracle", "plan", "serve", "topology show", "train", "workload show"]
TALK = ["submit", "jobs", "job", "logs", "cancel", "trace", "top", "profile", "explain", "forecast", "token", "why"]
DRIVER = """
import json, sys
from symphony.cli import main
for line in sys.argv[1:]:
    sys.argv = ["symphony", *line.split()]
    try:
        main()
    except SystemExit as ended:
        found = sorted({name.partition(".")[0] for name in sys.modules})
        print("\\nloaded:", json.dumps([line, ended.code or 0, found]))
"""
GRAPH = """
import symphony as sy

@sy.kernel(device="cpu")
def double(x):
    return 2 * x

@sy.training(steps=3)
def train(run, start):
    for step in run.steps():
        run.save(step)
    return start

def graph():
    made = sy.graph("double")
    made.task(double, 21)
    made.task(train, 7)
    return made
"""


def loaded(*lines: str, folder: Path, status: int = 0) -> Iterator[tuple[str, set[str]]]:
    """Commands, in a process of their own, and the packages that are loaded at the end of each."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *lines],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "XDG_DATA_HOME": str(folder)},
        check=False,
        timeout=300,
    )
    told = [json.loads(one.partition(":")[2]) for one in done.stdout.splitlines() if one.startswith("loaded:")]
    assert [(line, code) for line, code, _ in told] == [(line, status) for line in lines], done.stderr
    return ((line, set(found)) for line, _, found in told)


def spelled(command: str, words: str) -> list[str]:
    return _current_spelling(command, words.split())


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


def test_help_takes_nothing_heavy(tmp_path: Path) -> None:
    for line, found in loaded(
        "", "--help", "--version", *(f"{name} --help" for name in [*TALK, *WORK]), folder=tmp_path
    ):
        assert found.isdisjoint(HEAVY | SERVED), line


def test_what_talks_to_a_service_takes_nothing_heavy(
    here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_URL", here.server.url)
    monkeypatch.setenv("SYMPHONY_TOKEN", here.token("ann"))
    (tmp_path / "graph.py").write_text(GRAPH)
    lines = [
        "submit graph.py",
        "submit graph.py --wait",
        "jobs",
        "jobs --json",
        "job 1",
        "logs 1 --follow",
        "explain 1",
    ]
    lines += [
        "trace 1 -o trace.json",
        "cancel 1",
        "top --looks 1",
        "forecast --live",
        "when 1",
        "why 1",
        "record",
        "profile",
    ]
    for line, found in loaded(*lines, folder=tmp_path):
        assert found.isdisjoint(HEAVY | SERVED), line
        assert "numpy" not in found or line == "profile", line


def test_what_computes_no_arrays_does_not_load_jax(tmp_path: Path) -> None:
    lines = ["topology list", "topology show paper", "workload show cholesky:3", "stat -- true"]
    for line, found in loaded(*lines, folder=tmp_path):
        assert found.isdisjoint({"jax", "jaxlib", "equinox", "optax"}), line


def test_tokens_take_a_database_and_no_more(tmp_path: Path) -> None:
    for line, found in loaded("token create ann", "token list", folder=tmp_path):
        assert found.isdisjoint(HEAVY), line


def test_an_error_takes_nothing_heavy(tmp_path: Path) -> None:
    for line, found in loaded("nonsense", "submit nowhere.py", "submit", folder=tmp_path, status=2):
        assert found.isdisjoint(HEAVY), line


def test_arguments_are_checked_before_jax_is_loaded(tmp_path: Path) -> None:
    lines = ["compare -p hefft", "compare -t gpu42", "compare -w cholesy", "compare -w variant-calling@gpu24"]
    lines += ["compare --metric speed", "compare -o no/x.json", "compare --report /dev/null/x", "compare -w eeg -w lu"]
    lines += ["evaluate nobody", "evaluate -o /dev/null/x", "evaluate none.policy", "evaluate --json x.json"]
    lines += ["explain -p heft", "explain -w cholesy", "explain -o no/x.json", "plan --objective p99", "plan -p heft"]
    lines += [
        "plan -o no/x.json",
        "plan --check none.json",
        "plan --seconds 0",
        "oracle -t gpu42",
        "oracle -o no/x.json",
    ]
    lines += ["oracle --objective p99", "train -t gpu42", "train -w cholesy", "train --from none.policy"]
    lines += ["train --telemetry-gradient slope", "serve -p hefft", "serve -t gpu42", "serve --share ann"]
    lines += ["serve --host no.such.host.invalid", "serve --log-level loud", "serve --state /dev/null/x"]
    lines += ["topology discover -o no/x.toml", "workload show cholesy", "workload show eeg --svg no/x.svg"]
    for line, found in loaded(*lines, folder=tmp_path, status=2):
        assert found.isdisjoint(HEAVY | SERVED), line
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_policies_are_those_that_there_are() -> None:
    """They are listed in the command line, too, which must not load JAX to know them."""
    assert tuple(BASELINES) == options.BASELINE_NAMES
    for name in options.POLICY_NAMES:
        options.check_policy(name)
        named(name)
    assert options.POLICY_SUFFIX == SUFFIX and tuple(PRESETS) == train.NETWORK_SIZES
    for method in train.TELEMETRY_GRADIENTS:
        slopes(method)


def test_files_of_earlier_spellings_are_written(tmp_path: Path) -> None:
    """`--json FILE` of earlier versions is `--output FILE`."""
    assert spelled("compare", "--json runs.json.gz -n 2") == ["--output", "runs.json.gz", "-n", "2"]
    assert spelled("oracle", "--json=x.json") == ["--output", "x.json"]
    assert spelled("explain", "7 --json - -d 3") == ["7", "--json", "-d", "3"]
    assert spelled("explain", "--json 7") == ["--json", "7"]
    assert spelled("train", "--out x --json") == ["--output", "x", "--json"]
    with pytest.raises(InputError, match="--json takes no file"):
        spelled("evaluate", "--json x.json")


def test_what_needs_jax_loads_it(tmp_path: Path) -> None:
    """The tests above would see it: here it is."""
    (tmp_path / "graph.py").write_text("import jax\n" + GRAPH)
    ((_, found),) = loaded("submit graph.py --url http://127.0.0.1:1", folder=tmp_path, status=2)
    assert "jax" in found
    ((_, found),) = loaded("compare --background -1 --quiet", folder=tmp_path, status=2)
    assert "jax" in found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    assert COMMANDS[name] == load(name).help.partition("\n\n")[0]
