"""CPU time from the start of a process to its first result: with an empty folder of compiled programs, and again.

`python -m benchmarks.startup [--quick] [--json FILE]`. Every command runs in a process of its own; its CPU time and
that of its children is taken from the operating system. Python's bytecode is compiled before the first measurement, as
it is where a package was installed by pip. `--quick` measures each command once with a warm folder; otherwise `again`
is the median of five.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import arguments, keep

LOCAL = """
import symphony as sy

@sy.kernel(device="cpu")
def double(x):
    return 2 * x

if __name__ == "__main__":
    with sy.local() as cluster:
        graph = sy.graph("first")
        graph.task(double, 21)
        assert cluster.submit(graph).result() == 42
"""
SYMPHONY = ("-m", "symphony")
SMALL = ("--workload", "cholesky:4?jobs=4", "--quiet")
COMMANDS: dict[str, tuple[str, ...]] = {
    "local": ("local.py",),
    "compare": (*SYMPHONY, "compare", "--policies", "fifo,eft-belief", "--seeds", "2", *SMALL),
    "explain": (*SYMPHONY, "explain"),
    "validate": (*SYMPHONY, "topology", "validate", "node.toml"),
    "show": (*SYMPHONY, "workload", "show", "cholesky:4"),
    "stat": (*SYMPHONY, "stat", "--", "true"),
}
BYTECODE = """
import jax.experimental.serialize_executable
import symphony.cli.compare, symphony.cli.explain_decision, symphony.evaluation.compare, symphony.evaluation.survey
import symphony.runtime.cluster, symphony.__main__
"""  # imports what the commands do
WITHOUT_JAX = ("validate", "show", "stat")
# CPU seconds, first time and again.
TARGETS = {"local": (6.0, 1.5), "compare": (12.0, 2.0), "explain": (10.0, 3.0)} | dict.fromkeys(WITHOUT_JAX, (0.6, 0.6))
REPEATS = 5
# Run in a process of its own: the sum over all children of this process would include earlier commands.
MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, done.stderr[-2000:]]))
"""


@dataclass(frozen=True)
class Startup:
    """CPU seconds of one command, with the target of each."""

    command: str
    first_s: float
    again_s: float
    first_target_s: float
    again_target_s: float
    times_s: list[float]  # of all measurements with a warm folder


def measure(name: str, folder: Path, cache: Path) -> float:
    """CPU seconds of a command, with a folder of compiled programs. Raises if the command fails."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "XLA_FLAGS")
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    environment |= {
        "SYMPHONY_PROGRAM_CACHE": str(cache),
        "XDG_DATA_HOME": str(folder / "data"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }
    command = [sys.executable, "-c", MEASURE, *COMMANDS.get(name, ("-c", BYTECODE))]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    status, cpu_s, errors = json.loads(done.stdout)
    assert status == 0, f"{name} ended with status {status}: {errors}"
    return float(cpu_s)


def startup(name: str, folder: Path, repeats: int) -> Startup:
    cache = folder / f"{name}-programs"
    first_s = measure(name, folder, cache)
    times_s = [measure(name, folder, cache) for _ in range(repeats)]
    return Startup(name, first_s, statistics.median(times_s), *TARGETS[name], times_s)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0], tuple(COMMANDS))
    table = Table("command", *("first, s", "target", "again, s", "target"), title="CPU seconds", box=None)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "local.py").write_text(LOCAL)
        (folder / "node.toml").write_text(Path(__file__).with_name("node.toml").read_text())
        measure("bytecode", folder, folder / "unused")
        for command in options.only:
            if command in WITHOUT_JAX:
                measure(command, folder, folder / "unused")
        for command in options.only:
            row = startup(command, folder, 1 if options.quick else REPEATS)
            rows.append(asdict(row))
            keep(options.json, startup={"rows": rows})
            seconds = (row.first_s, row.first_target_s, row.again_s, row.again_target_s)
            table.add_row(command, *(f"{value:.2f}" for value in seconds))
    Console().print(table)


if __name__ == "__main__":
    main()
