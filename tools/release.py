"""Build what would be released, and try it where nothing else is: `python -m tools.release [--python …]`.

1. `python -m build` makes a source distribution and, from that, a wheel; both pass `twine check --strict`.
2. The wheel has every file of src/symphony that git tracks, and no other.
3. The wheel is installed in a fresh environment, outside the clone, with the base only: `checks.py` must find nothing
   wrong with names, commands, examples and README.
4. `symphony serve` says there what to type. Exactly that is typed; then a service must work.

Needs git, the packages `build` and `twine`, and an index (or, by pip's own settings, a folder of wheels) that has the
dependencies. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.install.installed import ROOT, plain, project

CHECKS = ROOT / "tests" / "install" / "checks.py"
BEYOND = {"fastapi", "sqlalchemy", "ortools", "ray", "psycopg", "pytest", "nvidia-ml-py", "gymnasium"}


def run(command: Sequence[str | Path], folder: Path, out: int | None = None) -> str:
    """Run a command outside the clone, with no trace of it in the environment; returns what it printed to a pipe."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SYMPHONY", "VIRTUAL"))}
    print("$", shlex.join(map(str, command)), flush=True)
    done = subprocess.run(command, cwd=folder, env=kept, text=True, stdout=out, check=False)
    if done.returncode:
        sys.exit(f"ended with {done.returncode}: {shlex.join(map(str, command))}")
    return done.stdout or ""


def tracked(folder: str) -> set[str]:
    """The files of a folder that git tracks."""
    names = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    return set(names.stdout.split("\0")) - {""}


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that was built from it."""
    tree = folder / "tree"  # what git tracks, as it is now: a build leaves files behind, and would pack old ones
    for name in tracked("."):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    run([sys.executable, "-m", "build", "--outdir", folder, tree], folder)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    run([sys.executable, "-m", "twine", "check", "--strict", source, wheel], folder)
    return source, wheel


def same_files(source: Path, wheel: Path) -> None:
    """End with an error unless all files that git tracks are in the distributions that should have them."""
    with zipfile.ZipFile(wheel) as packed:
        files = [name for name in packed.namelist() if name.startswith("symphony/")]
        there = {f"src/{name}" for name in files if not name.endswith(".so")}  # that is compiled
        if len(there) == len(files):
            sys.exit("the wheel lacks the compiled part: is there a C compiler?")
    if there != tracked("src/symphony"):
        sys.exit(f"the wheel and src/symphony differ in {sorted(there ^ tracked('src/symphony'))}")
    with tarfile.open(source) as unpacked:
        there = {name.partition("/")[2] for name in unpacked.getnames()}
    if missing := {name for name in tracked(".") if not name.startswith(".ci/")} - there:
        sys.exit(f"the source distribution lacks {sorted(missing)}")
    print(f"{wheel.name}: {len(tracked('src/symphony'))} files, all that git tracks in src/symphony\n")


def install(wheel: Path, folder: Path, python: str) -> Path:
    """A fresh environment with the wheel and what it depends on; its Python."""
    run([python, "-m", "venv", folder], wheel.parent)
    inside = folder / "bin" / "python"
    run([inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], wheel.parent)
    listed = run([inside, "-m", "pip", "list", "--format", "freeze"], wheel.parent, subprocess.PIPE)
    installed = {plain(line.partition("==")[0]) for line in listed.splitlines()}
    if plain(project()["name"]) not in installed or not installed.isdisjoint(BEYOND):
        sys.exit(f"this is not the base only: {sorted(installed & BEYOND)}")
    return inside


def hinted(symphony: Path, folder: Path) -> str:
    """The command that `symphony serve` says to type."""
    told = subprocess.run([symphony, "serve"], cwd=folder, text=True, capture_output=True, check=False)
    found = re.search(r"^hint: type: (.*)$", told.stderr, flags=re.MULTILINE)
    if told.returncode != 2 or found is None:
        sys.exit(f"symphony serve ended with {told.returncode}: {told.stderr}")
    return found[1]


def main() -> None:
    """All of it, in a folder that is removed at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python of the fresh environment")
    parser.add_argument("--keep", type=Path, help="put the distributions that passed here")
    parser.add_argument("--quick", action="store_true", help="compile nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="symphony-release-") as made:
        folder = Path(made)
        source, wheel = build(folder)
        same_files(source, wheel)
        python = install(wheel, folder / "env", given.python)
        clone, empty = folder / "clone", folder / "empty"
        empty.mkdir()
        shutil.copytree(ROOT / "examples", clone / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "README.md", clone)
        check = [python, CHECKS, "--clone", clone]
        run([*check, "names", "commands", "examples", "readme", *(["--quick"] if given.quick else [])], empty)
        run(shlex.split(hinted(python.with_name("symphony"), empty)), empty)
        run([*check, "service"], empty)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for made_file in (source, wheel):
                shutil.copy(made_file, given.keep)
    print("the wheel works")


if __name__ == "__main__":
    main()
