"""`symphony policies`, and what the shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from symphony.cli.options import POLICY_NAMES
from symphony.cli.policies import POLICY_LINES
from tests.cli.command import symphony_here


def test_every_policy_that_can_be_named_has_a_line(tmp_path: Path) -> None:
    assert tuple(POLICY_LINES) == POLICY_NAMES
    lines = symphony_here("policies", folder=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(POLICY_NAMES) + 1]] == list(POLICY_NAMES)
    assert json.loads(symphony_here("policies", "--json", folder=tmp_path).stdout) == POLICY_LINES


@pytest.mark.parametrize(("typed", "completed"), [("symphony us", "usage"), ("symphony run --ar", "--array")])
def test_the_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    environment = {**os.environ, "_SYMPHONY_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    environment["COMP_CWORD"] = str(len(typed.split()) - 1)
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'symphony'; from symphony.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert completed in done.stdout.split(), done.stderr
