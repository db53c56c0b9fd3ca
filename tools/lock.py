"""Write requirements/dev.txt, base.txt and site.txt: exact versions with hashes, for every supported Python.

`dev.txt` has everything; `base.txt` has what using Symphony and its service needs, at the same versions; `site.txt` has
what builds the documentation site. One resolution serves all Pythons and platforms, and no file names the place that
the packages come from.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = Path("requirements")
BUILD = REQUIREMENTS / "build.in"
OLDEST_PYTHON = "3.11"  # as `requires-python` in pyproject.toml
EVERYTHING = ("--all-extras", "--group", "dev")
BASE = ("--extra", "service")  # `make demo` ends with how to start one


def resolve(target: Path, *options: str, sources: tuple[str, ...] = ("pyproject.toml", str(BUILD))) -> None:
    """Resolve the dependencies of pyproject.toml, or of other sources, into a file."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *sources]
    command += ["--python-version", OLDEST_PYTHON, "--no-annotate", "--output-file", str(target), *options]
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    """Resolve all files again, with the newest versions that fit."""
    common = ("--universal", "--fork-strategy", "fewest", "--generate-hashes", "--custom-compile-command", "make lock")
    dev = REQUIREMENTS / "dev.txt"
    resolve(dev, "--upgrade", *EVERYTHING, *common)
    resolve(REQUIREMENTS / "base.txt", "--upgrade", "--constraint", str(dev), *BASE, *common)
    resolve(REQUIREMENTS / "site.txt", "--upgrade", *common, sources=(str(REQUIREMENTS / "site.in"),))


if __name__ == "__main__":
    main()
