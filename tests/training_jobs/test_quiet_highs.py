"""What C prints beside a solver: stray lines are dropped, everything else arrives."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from symphony.training_jobs.quiet_highs import STRAY_PREFIX, without_stray_lines

posix = pytest.mark.skipif(os.name != "posix", reason="nothing is done elsewhere")


@posix
def test_stray_lines_of_c_are_dropped_and_all_else_arrives_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    library = ctypes.CDLL(None)
    library.puts(b"before")
    with without_stray_lines():
        library.puts(STRAY_PREFIX + b"transformNewIntegerFeasibleSolution tmpSolver.run();")
        library.puts(b"within")
        os.write(1, b"another thread\n")
    library.puts(b"after")
    library.fflush(None)
    out = capfd.readouterr().out
    assert sorted(out.split("\n")) == sorted(["before", "another thread", "within", "after", ""])
    assert out.startswith("before") and out.endswith("after\n")


@posix
def test_what_goes_wrong_inside_leaves_stdout_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), without_stray_lines():
        os.write(1, b"said\n")
        _ = 1 // 0
    os.write(1, b"heard\n")
    assert capfd.readouterr().out == "said\nheard\n"


@posix
def test_without_a_stdout_nothing_is_done() -> None:
    code = "import os; os.close(1)\nfrom symphony.training_jobs.quiet_highs import without_stray_lines\n"
    code += "with without_stray_lines(): pass"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
