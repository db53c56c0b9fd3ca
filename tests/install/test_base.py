"""With the base only: everything works, or says which extra it needs and what to type. Other packages are hidden.

Hiding is not the same as not installing: `make release` does the same with a wheel, in a fresh environment.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.install.checks import OPTIONAL, Check, Ended, wrong
from tests.install.installed import ROOT, base, beyond_the_base, project

SOURCE = ROOT / "src"
HERE = Path(__file__).parent
WITHOUT = {"symphony.problem.discover", "symphony.envs.__init__"}  # they look whether it is there, and go on without


def check(*arguments: str, folder: Path) -> None:
    """Run `checks.py` in a process that finds the base only."""
    path = [HERE / "base_only", SOURCE]
    done = subprocess.run(
        [sys.executable, HERE / "checks.py", *arguments, "--clone", ROOT],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "NOT_INSTALLED": " ".join(beyond_the_base()),
        },
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr


def test_names_examples_and_commands(tmp_path: Path) -> None:
    check("names", "examples", "commands", "--quick", folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["commands", "examples", "readme"])
def test_what_compiles_for_long(section: str, tmp_path: Path) -> None:
    check(section, folder=tmp_path)


def test_what_is_hidden() -> None:
    """The tests above would pass for want of hiding anything."""
    hidden = set(beyond_the_base())
    assert {"pytest", "hypothesis", "fastapi", "sqlalchemy", "ortools"} <= hidden
    assert {"jax", "numpy", "typer", "symphony"}.isdisjoint(hidden)
    assert {"jax", "jaxlib", "typing-extensions"} <= base()


def test_what_a_check_takes_for_wrong() -> None:
    hint = "hint: type: python -m pip install '.[service]' in a clone"
    said = f"error: symphony serve needs fastapi, which is not installed\n{hint}"
    assert wrong(Check("", extra="service"), Ended(2, "", said)) == ""
    assert "how to install ray" in wrong(Check("", extra="ray"), Ended(2, "", said))
    assert "how to install service" in wrong(Check("", extra="service"), Ended(2, "", "fastapi is not installed"))
    assert "traceback" in wrong(Check("", extra="service"), Ended(1, "", f"Traceback …\n{said}"))
    assert "ended with 2" in wrong(Check(""), Ended(2, "", "error: no"))
    assert "ended with 0" in wrong(Check("", "no"), Ended(0, "no", ""))
    assert wrong(Check("", "no"), Ended(2, "", "error: no")) == wrong(Check(""), Ended(0, "", "")) == ""


def late_imports(tree: ast.AST, guarded: bool = False) -> Iterator[str]:
    """Packages that are imported outside a block of `needs_extra`, also in functions; not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        inside = guarded or (isinstance(node, ast.With) and "needs_extra(" in ast.unparse(node.items[0]))
        if isinstance(node, ast.Import) and not inside:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not inside:
            yield node.module or ""
        yield from late_imports(node, inside)


def test_no_optional_package_is_imported_without_saying_what_to_install() -> None:
    """Also where no test comes by: in a function that is called under rare circumstances."""
    hidden = {*beyond_the_base(), "pynvml", "distributed", "ray", "psycopg", "gymnasium"}
    for file in SOURCE.rglob("*.py"):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        if module in WITHOUT or any(module.startswith(part) for part in OPTIONAL):
            continue
        found = {name.partition(".")[0] for name in late_imports(ast.parse(file.read_text(encoding="utf-8")))}
        assert found.isdisjoint(hidden), module


def test_late_imports_are_seen() -> None:
    source = "def f():\n    import ray.util\n    with needs_extra('x', 'y'):\n        import ortools\n"
    source += "if TYPE_CHECKING:\n    import fastapi\n"
    assert list(late_imports(ast.parse(source))) == ["ray.util"]


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    """By the patterns of pyproject.toml; `make release` looks into a wheel."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = tools["setuptools"]["package-data"]["symphony"]
    for file in (SOURCE / "symphony").rglob("*"):
        name = str(file.relative_to(SOURCE / "symphony"))
        if file.is_dir() or "__pycache__" in name or file.suffix == ".so":  # compiled at installation
            continue
        if file.suffix == ".py":
            assert (file.parent / "__init__.py").exists(), f"{name} is in a folder that is no package"
        else:
            assert any(fnmatch(name, pattern) for pattern in patterns), f"{name} is not in package-data"


def test_the_extras_of_the_checks_exist() -> None:
    assert set(OPTIONAL.values()) <= set(project()["optional-dependencies"])
