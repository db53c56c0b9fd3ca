"""Run the tests with the newest of every dependency, and with the oldest that pyproject.toml allows; say what broke.

    python -m tools.latest                       # both
    python -m tools.latest oldest -- tests/cli   # one of them, some tests

Nothing in the project changes: environments, resolved versions and logs go to out/latest/. `make lock` takes over the
newest versions once they pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.lock import EVERYTHING, OLDEST_PYTHON, REQUIREMENTS, ROOT, resolve

FOLDER = ROOT / "out" / "latest"
# The oldest versions of what Symphony names itself; what those need in turn may be newer, as it would be for a user.
RESOLUTIONS = {"newest": ("--upgrade",), "oldest": ("--upgrade", "--resolution", "lowest-direct")}
PINNED = re.compile(r"^([a-z0-9._-]+)==(\S+)")


def versions(path: Path) -> dict[str, str]:
    """Package -> version, of a resolved file."""
    found = (PINNED.match(line) for line in path.read_text().splitlines())
    return {match[1]: match[2] for match in found if match}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """A line for each package whose version differs, appeared or went."""
    names = sorted(before.keys() | after.keys())
    both = ((name, before.get(name, "absent"), after.get(name, "absent")) for name in names)
    return [f"  {name}: {old} -> {new}" for name, old, new in both if old != new]


def failures(log: str) -> list[str]:
    """The lines of pytest's summary that name what failed."""
    return [line for line in log.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def install(name: str) -> Path:
    """A fresh environment with the resolved versions; its Python."""
    folder, resolved = FOLDER / name, FOLDER / f"{name}.txt"
    python = folder / "bin" / "python"
    uv = (sys.executable, "-m", "uv")
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", OLDEST_PYTHON, str(folder)], cwd=ROOT, check=True)
    into = [*uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*into, "-r", str(resolved)], cwd=ROOT, check=True)
    subprocess.run([*into, "--no-deps", "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
    return python


def attempt(name: str, tests: list[str]) -> bool:
    """Resolve, install, test, report; whether all tests passed."""
    resolved = FOLDER / f"{name}.txt"
    try:
        resolve(resolved, "--no-header", *EVERYTHING, *RESOLUTIONS[name])
        python = install(name)
    except subprocess.CalledProcessError as error:
        print(f"{name}: cannot be installed ({' '.join(error.cmd[:5])} … ended with {error.returncode})", flush=True)
        return False
    differences = changed(versions(REQUIREMENTS / "dev.txt"), versions(resolved))
    print(f"{name}: {len(differences)} packages differ from requirements/dev.txt", *differences, sep="\n", flush=True)
    log = FOLDER / f"{name}.log"
    command = [str(python), "-m", "pytest", "-n", "3", "--dist", "loadfile", "-rfE", *tests]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with log.open("w") as file:
        ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    broken = failures(text)
    last = text.strip().rsplit("\n", maxsplit=1)[-1]
    print(f"{name}: {last}", *broken, f"log: {log.relative_to(ROOT)}", sep="\n", flush=True)
    return ended.returncode == 0


def main() -> None:
    """Try both, or the one that is named; exit with 1 if anything broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=[*RESOLUTIONS, "both"], default="both")
    parser.add_argument("tests", nargs="*", help="what to pass to pytest; all tests by default")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = list(RESOLUTIONS) if given.which == "both" else [given.which]
    sys.exit(0 if all([attempt(name, given.tests) for name in names]) else 1)


if __name__ == "__main__":
    main()
