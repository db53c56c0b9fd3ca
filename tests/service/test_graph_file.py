"""Graphs in files: Python and TOML, run as they are, and what is said of those that are wrong."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.runtime.kernels import code_of, digest
from symphony.service.graph_file import load
from tests.runtime.machines import machine
from tests.service.places import SECONDS

PYTHON = """
import symphony as sy

def twice(x):                      # no kernel, and used by one
    return 2 * x

@sy.kernel
def double(x):
    return twice(x)

def graph(x=21):
    made = sy.graph("double")
    made.task(double, x)
    return made

ready = graph(4)
number = 7

def wrong():
    raise ValueError("no")
"""
TOML = """
name = "words"

[[task]]
name = "say"
command = ["printf", "b a"]

[[task]]
name = "count"
command = ["wc", "-w"]
stdin = { from = "say" }

[[task]]
name = "join"
call = "operator:concat"
args = ["n=", { from = "count" }]
after = ["say"]

[[task]]
name = "fails"
command = ["sh", "-c", "echo oh >&2; exit 3"]

[outputs]
answer = "join"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    with sy.local(machine(), profiles=tmp_path_factory.mktemp("p") / "p.json") as found:
        yield found


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "doubling.py"
    path.write_text(PYTHON)
    return path


def test_a_module_has_a_graph_or_a_function_that_makes_one(cluster: sy.Cluster, python: Path) -> None:
    assert cluster.submit(load(str(python), {})).result(SECONDS) == 42
    assert cluster.submit(load(str(python), {"x": 5})).result(SECONDS) == 10
    assert cluster.submit(load(f"{python}:ready", {})).result(SECONDS) == 8


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        (":nothing", {}, "does not define 'nothing'"),
        (":number", {}, "takes no arguments"),
        (":ready", {"x": 1}, "takes no arguments"),
        (":wrong", {}, "ValueError: no"),
        (":double", {"x": 1}, "returned int"),
        ("", {"y": 1}, "TypeError"),
    ],
)
def test_modules_without_a_graph_are_told_of(python: Path, name: str, arguments: dict, text: str) -> None:
    with pytest.raises(sy.InputError, match=text):
        load(f"{python}{name}", arguments)


def test_toml_lists_commands_and_functions(cluster: sy.Cluster, tmp_path: Path) -> None:
    path = tmp_path / "words.toml"
    path.write_text(TOML.replace("exit 3", "exit 0"))
    answer = cluster.submit(load(str(path), {})).result(SECONDS)
    assert set(answer) == {"answer"} and answer["answer"].split() == ["n=2"]
    path.write_text(TOML)
    with pytest.raises(sy.KernelError, match="exit status 3"):
        cluster.submit(load(str(path), {})).result(SECONDS)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("name = ", "Invalid value"),
        ("name = 'g'", "'task' is missing"),
        ("name = 'g'\n[[task]]\nname = 'a'", "it needs a command or a call"),
        ("name = 'g'\n[[task]]\nname = 'a'\ncall = 'nowhere'", "call"),
        ("name = 'g'\n[[task]]\nname = 'a'\ncomand = ['x']", "task 'a': unknown field 'comand'"),
        ("name = 'g'\n[[task]]\nname = 'a'\ncommand = [{from = 'b'}]", "no task 'b' above"),
        ("name = 'g'\n[[task]]\nname = 'a'\ncommand = ['x']\n[outputs]\ny = 'b'", "no task 'b' above"),
        ("name = 'g'\n" + "[[task]]\nname = 'a'\ncommand = ['x']\n" * 2, "same name"),
    ],
)
def test_toml_that_is_wrong_is_told_of(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "g.toml"
    path.write_text(content)
    with pytest.raises(sy.WorkloadError, match=text):
        load(str(path), {})


@pytest.mark.parametrize(
    ("content", "text", "hint"),
    [
        ("[task.training]\nstep = 9", "task 'a', training: unknown field 'step'", "did you mean 'steps'?"),
        ("[task.training]\nkind = 'x'", "task 'a', training: 'steps' is missing", "write steps = 2000"),
        ("[task.training]\nsteps = 'x'", "task 'a', training: steps: 'x' should be a whole number", ""),
        ("[task.training]\nsteps = 9\ncpus = 2", "unknown field 'cpus'", "fields are steps, kind, servers"),
        ("[task.trainig]\nsteps = 9", "task 'a': unknown field 'trainig'", "did you mean 'training'?"),
        ("steps = 9", "task 'a': unknown field 'steps'", "write it below [task.training]"),
        ("[training]\nsteps = 9", "g.toml: unknown field 'training'", "write [task.training]"),
    ],
)
def test_what_is_wrong_with_a_training_job_is_named_and_what_to_write(
    tmp_path: Path, content: str, text: str, hint: str
) -> None:
    path = tmp_path / "g.toml"
    path.write_text(f"name = 'g'\n[[task]]\nname = 'a'\ncommand = ['x']\n{content}\n")
    with pytest.raises(sy.WorkloadError, match=text) as refused:
        load(str(path), {})
    assert hint in refused.value.hint


def test_other_files_are_no_graphs(tmp_path: Path) -> None:
    (tmp_path / "g.txt").touch()
    with pytest.raises(sy.InputError, match="not a graph file"):
        load(str(tmp_path / "g.txt"), {})
    with pytest.raises(sy.InputError, match="there is no file"):
        load("nowhere.py", {})


def test_a_file_gives_the_same_bytes_each_time_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte code that Python kept is pickled otherwise: a submission with a key would be taken for another one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "g.py").write_text(PYTHON)
    read = [load(str(tmp_path / "g.py"), {}) for _ in range(3)]
    assert len({digest(code_of(graph.tasks[0].kernel, "cpu")) for graph in read}) == 1


def made_by(cluster: sy.Cluster, tmp_path: Path, script: str, training: bool) -> Any:
    """What a shell script makes."""
    lines = ["name = 'g'", "[[task]]", "name = 'a'", f"command = ['sh', '-c', {json.dumps(script)}]"]
    lines += ["[task.training]", "steps = 1"] if training else []
    (tmp_path / "g.toml").write_text("\n".join(lines))
    return cluster.submit(load(str(tmp_path / "g.toml"), {})).result(SECONDS)


@pytest.mark.parametrize("training", [False, True])
def test_what_a_program_prints_is_its_value_and_its_errors_are_told(
    cluster: sy.Cluster, tmp_path: Path, training: bool
) -> None:
    assert made_by(cluster, tmp_path, "printf 'a\\r\\nb\\n'; printf 'c \\377' >&2", training) == "a\nb\n"
    assert (
        made_by(cluster, tmp_path, "exec >&- 2>&-; sleep 0.2", training) == ""
    )  # its streams are closed, and it goes on
    with pytest.raises(sy.KernelError, match="program 'a' ended with exit status 4") as raised:
        made_by(cluster, tmp_path, "printf 'oh \\377 no' >&2; exit 4", training)
    assert raised.value.traceback == "oh \ufffd no" and "graph_file" not in str(raised.value)
    with pytest.raises(sy.KernelError, match="program 'a' was killed by SIGSEGV") as raised:
        made_by(cluster, tmp_path, "kill -SEGV $$", training)
    assert raised.value.hint == "it printed nothing on standard error" and "graph_file" not in str(raised.value)
    whole = "x" * 99 + "\n"
    assert made_by(cluster, tmp_path, "yes " + whole[:-1] + " | head -n 20000", training) == whole * 20_000


def test_a_command_as_one_text_is_split_in_the_hint(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text("name = 'g'\n[[task]]\nname = 'a'\ncommand = 'ls -l \"my file\"'")
    with pytest.raises(sy.WorkloadError, match="should be a list") as raised:
        load(str(tmp_path / "g.toml"), {})
    assert 'write command = ["ls", "-l", "my file"]' in raised.value.hint and "Input" not in str(raised.value)


def test_a_program_that_does_not_exist(cluster: sy.Cluster, tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text("name = 'g'\n[[task]]\nname = 'a'\ncommand = ['/no/such/program']")
    with pytest.raises(sy.KernelError, match="cannot be started: No such file or directory: '/no/such/program'") as no:
        cluster.submit(load(str(tmp_path / "g.toml"), {})).result(SECONDS)
    assert "graph_file" not in str(no.value)


def test_a_program_that_trains_keeps_the_end_of_what_it_prints(cluster: sy.Cluster, tmp_path: Path) -> None:
    lines = 400_000
    value = made_by(cluster, tmp_path, f"seq -f %099.0f {lines}", training=True).splitlines()
    assert {len(line) for line in value} == {99} and int(value[-1]) == lines and int(value[0]) > 1
    assert 16 << 20 <= 100 * len(value) <= 33 << 20
    assert (
        len(made_by(cluster, tmp_path, f"seq -f %099.0f {lines}", training=False)) == 100 * lines
    )  # of others it is data


def test_a_program_that_trains_ends_though_those_it_started_go_on_writing(cluster: sy.Cluster, tmp_path: Path) -> None:
    script = f"while true; do echo on; done & echo $! > {tmp_path}/process; echo begun"
    try:
        assert "begun" in made_by(cluster, tmp_path, script, training=True)
    finally:
        os.kill(int((tmp_path / "process").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import math\nmath.sqrt(-1)\n", "graph.py, line 2: it raised ValueError: math domain error"),
        ("def graph():\n    x = {}\n    return x['y']\n", "graph.py, line 3: graph raised KeyError: 'y'"),
        ("import sys\n\nsys.exit('no data')\n", "graph.py, line 3: it raised SystemExit: no data"),
        ("def graph(:\n", "graph.py: it raised SyntaxError: "),
    ],
)
def test_a_file_that_raises_is_told_of_with_the_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(text)
    with pytest.raises(sy.InputError) as refused, chdir(tmp_path):
        load("graph.py", {})
    assert str(refused.value).startswith(message)


def test_toml_gives_cores_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text('name = "g"\n[[task]]\nname = "t"\ncommand = ["true"]\ncores = 4\nmemory = "8 GB"\n')
    [task] = load(str(path), {}).tasks
    assert (task.kernel.options.cores, task.kernel.options.memory) == (4, 8e9)
    path.write_text(path.read_text().replace("8 GB", "8 XB"))
    with pytest.raises(sy.WorkloadError, match="not a quantity in bytes"):
        load(str(path), {})
