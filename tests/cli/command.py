"""The `symphony` command as a user runs it: its output and its exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from symphony.cli import main
from tests.compiling import environment_of_commands

WIDE = {"COLUMNS": "160"}  # so that nothing is folded


def symphony(*arguments: str, folder: Path, quickly: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder of its own; `quickly`: compiled as in tests, not as users have it."""
    command = [sys.executable, "-c", "from symphony.cli import main; main()", *arguments]
    environment = {**environment_of_commands(), **WIDE}
    if not quickly:
        environment.pop("XLA_FLAGS", None)
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False, timeout=300
    )


def symphony_here(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The same without a process of its own, which takes two seconds to start."""
    out, err = io.StringIO(), io.StringIO()
    with (
        chdir(folder),
        mock.patch.dict(os.environ, WIDE),
        mock.patch.object(sys, "argv", ["symphony", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())
