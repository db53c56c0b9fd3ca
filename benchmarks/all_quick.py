"""All benchmarks with `--quick`, one by one: `python -m benchmarks.all_quick [NAME …] [--limit S] [--json FILE]`.

Each runs in a process of its own, without compiled programs of earlier runs, and is stopped at the limit. The command
fails if one of them fails or reaches the limit. A benchmark whose package or data is not installed here is skipped. CPU
seconds include those of processes that the benchmark waited for; on a busy machine they are the better measure.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import keep

HERE = Path(__file__).parent
LIMIT_S = 60.0  # the limit of `--quick`, on 2 idle cores
POSITIONAL = {"weights": ("weights",), "decima": ("decima",)}  # further arguments: a file in a temporary folder
OURS = ("symphony", "benchmarks")
AFTER_ERROR = ("hint: ", "-----", "For simplicity, JAX has removed")  # beginnings of lines after the error message


@dataclass(frozen=True)
class Outcome:
    """How one benchmark ended."""

    name: str
    seconds: float
    cpu_s: float
    ended: str  # "ok", "skipped: needs X", or what went wrong

    @property
    def failed(self) -> bool:
        return self.ended != "ok" and not self.ended.startswith("skipped")


def names() -> list[str]:
    """The modules and packages of this folder that are commands."""
    files = {path.stem: path for path in HERE.glob("*.py")} | {
        path.parent.name: path for path in HERE.glob("*/__main__.py")
    }
    return sorted(name for name, path in files.items() if name != "all_quick" and '"__main__"' in path.read_text())


def run(name: str, command: Sequence[str], limit_s: float) -> Outcome:
    """Run a command in a folder of its own, and stop it with its processes at the limit."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    environment["SYMPHONY_PROGRAM_CACHE"] = "off"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), environment.get("PYTHONPATH")]))
    environment.setdefault("SYMPHONY_DATA", str(HERE.parents[1] / "shared" / "data"))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # also after control-C, and for processes that the benchmark left running
            _end_session(process.pid)
            process.wait()
        seconds = time.monotonic() - began
        output.seek(0)
        ended = (
            f"stopped after {limit_s:g} s" if status is None else "ok" if status == 0 else reason(output.read(), status)
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(name, seconds, cpu_s, ended)


def reason(output: str, status: int) -> str:
    """Why a benchmark ended with an error: what is not installed, or the last line that it printed."""
    missing = re.findall(r"^ModuleNotFoundError: No module named '([^'.]+)", output, re.MULTILINE)
    if missing and missing[-1] not in OURS:
        return f"skipped: needs {missing[-1]}"
    if missing := re.findall(r"DataError: (.+) is missing$", output, re.MULTILINE):
        return f"skipped: needs {missing[-1]}"
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(AFTER_ERROR)]
    return lines[-1] if lines else f"status {status}"


def _end_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    """Run, print, keep; status 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only these")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for each; more on a busy machine"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args()
    known = names()
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no benchmark named {unknown[0]!r}; there are: {', '.join(known)}")
    outcomes = []
    for name in options.names or known:
        command = [sys.executable, "-m", f"benchmarks.{name}", *POSITIONAL.get(name, ()), "--quick"]
        outcomes.append(run(name, command, options.limit))
        print(f"{name}: {outcomes[-1].seconds:.0f} s, {outcomes[-1].ended}", flush=True)
        keep(options.json, limit_s=options.limit, benchmarks=[asdict(outcome) for outcome in outcomes])
    table = Table("benchmark", "seconds", "CPU seconds", "ended", title=f"--quick, at most {options.limit:g} s each")
    for outcome in outcomes:
        table.add_row(outcome.name, f"{outcome.seconds:.1f}", f"{outcome.cpu_s:.1f}", outcome.ended)
    Console().print(table)
    sys.exit(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    main()
