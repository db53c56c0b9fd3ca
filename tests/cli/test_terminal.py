"""What commands print: names as they are, usage errors in two lines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from symphony.cli import terminal
from symphony.cli.remote import plain_table
from tests.cli.command import symphony, symphony_here


def test_a_locale_without_the_characters_of_a_name_is_no_error(tmp_path: Path) -> None:
    text = '[device.x]\ntype = "cpu"\n[[machine]]\nname = "größe"\n[[machine.socket]]\ndevices = ["x"]\n'
    (tmp_path / "t.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", "from symphony.cli import main; main()", "topology", "show", "t.toml"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert (shown.returncode, shown.stderr) == (0, "") and "machine gr??e" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["nonsense"], "error: No such command 'nonsense'.", "hint: type symphony --help for help"),
        (["topology", "show", "fat-tree:abc"], "error: fat-tree:abc: 'abc' is not", "hint: write fat-tree:N"),
        (["topology", "show", "9" * 401], "error: unknown topology '999", "hint: the built-in topologies are"),
        (["workload", "show", "eeg", "--jobs", "9" * 401], "error: workload 'eeg': jobs is", "hint: write jobs=200"),
        (["workload", "show"], "error: Missing argument 'spec'.", "hint: type symphony workload show --help"),
    ],
    ids=lambda value: value[0] + value[-1][:9] if isinstance(value, list) else "",
)
def test_errors_are_two_lines(arguments: list[str], message: str, hint: str, tmp_path: Path) -> None:
    done = symphony_here(*arguments, folder=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith(message) and lines[1].startswith(hint)


def test_an_error_ends_the_process(tmp_path: Path) -> None:
    done = symphony("topology", "show", "fat-tree:abc", folder=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: fat-tree:abc") and "hint: " in done.stderr and "Traceback" not in done.stderr


def test_the_version(tmp_path: Path) -> None:
    done = symphony("--version", folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("symphony 0.")


def test_python_runs_it_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "symphony", "topology", "show", "fat-tree:abc"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: fat-tree:abc"), done.stderr


def test_without_a_command_there_is_help(tmp_path: Path) -> None:
    done = symphony_here(folder=tmp_path)
    assert done.returncode == 0 and "compare" in done.stdout and "topology" in done.stdout


def test_commands_are_there_without_what_only_plots_need() -> None:
    code = "import sys; from symphony import cli; [*map(cli.load, cli.COMMANDS)]; print('matplotlib' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


@pytest.mark.parametrize("share", [0.25, lambda: 0.25])
def test_progress_is_lines_where_the_output_is_not_a_terminal(share: terminal.Share, monkeypatch, capsys) -> None:
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.001)
    printed = threading.Event()

    class Lines(io.StringIO):
        def write(self, text: str) -> int:
            if "round 7" in text:
                printed.set()
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Lines())
    with terminal.progress_bar(Console(file=io.StringIO()), quiet=False, width=20) as update:
        update("round 7", share)
        assert printed.wait(60)
    assert sys.stderr.getvalue().splitlines()[-1].endswith(" s  25%  round 7")
    assert capsys.readouterr().out == ""


def test_quiet_progress_prints_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.0)
    with terminal.progress_bar(Console(file=io.StringIO()), quiet=True, width=20) as update:
        update("round 7", 0.25)
    assert capsys.readouterr() == ("", "")


def test_names_in_tables_are_whole_where_the_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = plain_table("task", "kernel")
    table.add_row("a-task-with-a-rather-long-name-0", "a-kernel-with-a-rather-long-name")
    terminal.print_table(table)
    assert "a-task-with-a-rather-long-name-0  a-kernel-with-a-rather-long-name" in capsys.readouterr().out
