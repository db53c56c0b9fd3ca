"""Dependencies point one way: a package imports only from those above it. Read from the sources, not by importing."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "symphony"
ORDER = (
    "problem",
    "lowering",
    "telemetry",
    "estimation",
    "scheduling",
    "simulator",
    "training_jobs",
    "baselines",
    "policies",
    "counterfactuals",
    "oracle",
    "evaluation",
    "learning",
    "envs",
    "engines",
    "training_jobs.live",
    "runtime",
    "service",
    "testing",
    "cli",
)
# Modules that talk to the outside world: the service, the Ray engine, and a page on loopback.
ALLOWED = {
    "symphony.service": None,  # anything
    "symphony.engines.fork_server": {"socket"},  # a pair of sockets between a process and its parent
    "symphony.engines.ray": {"ray", "socket"},
    "symphony.cli.prometheus": {"http"},
}
OUTSIDE = {
    "ray",
    "socket",
    "http",
    "urllib",
    "urllib3",
    "requests",
    "httpx",
    "aiohttp",
    "fastapi",
    "flask",
    "starlette",
}
FILES = sorted(SOURCE.rglob("*.py"))


def name_of(file: Path) -> str:
    """The dotted name of a module."""
    parts = ["symphony", *file.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in FILES}


def imports(source: str, importer: str = "symphony", *, late: bool = True) -> set[str]:
    """Every module that a source imports, also (`late`) inside functions; of `from a import b`, `a.b` if it is one."""
    found: set[str] = set()
    tree = ast.parse(source)
    for node in ast.walk(tree) if late else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer} has a relative import"
            module = node.module or ""
            found |= {
                f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module for alias in node.names
            }
    return found


def package(module: str) -> str:
    """The package of a module within Symphony; "" for Symphony itself, and for what runs it as a module."""
    inner = module.removesuffix(".__main__").removeprefix("symphony").removeprefix(".")
    nested = [name for name in ORDER if "." in name and f"{inner}.".startswith(f"{name}.")]
    return nested[0] if nested else inner.split(".")[0]


@pytest.fixture(scope="module")
def uses() -> dict[str, set[str]]:
    """What each module imports."""
    return {module: imports(file.read_text(encoding="utf-8"), module) for module, file in MODULES.items()}


def test_every_package_has_its_place() -> None:
    assert {package(module) for module in MODULES} - {""} == set(ORDER)


def test_the_architecture_page_has_the_same_order() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("## Packages, in pipeline order")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| `([\w.]+)` \|", table, flags=re.MULTILINE)) == ORDER


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_packages_above_its_own(uses: dict[str, set[str]], module: str) -> None:
    own = package(module)
    if not own:
        return  # `symphony` itself gathers the public names
    allowed = set(ORDER[: ORDER.index(own) + 1])
    used = {package(name) for name in uses[module] if name.split(".")[0] == "symphony"}
    assert used <= allowed, f"{module} imports from {sorted(used - allowed)}"


def test_nobody_imports_the_public_names_from_within(uses: dict[str, set[str]]) -> None:
    """That would close a circle: `symphony` imports everything."""
    assert [module for module in MODULES if package(module) and "symphony" in uses[module]] == []


def test_modules_import_one_another_in_one_direction() -> None:
    """When they are loaded. What a function imports when it is called (the page of a report, say) may point back."""
    loaded = {
        name: imports(file.read_text(encoding="utf-8"), late=False) & set(MODULES) for name, file in MODULES.items()
    }
    TopologicalSorter(loaded).prepare()  # raises CycleError


def test_no_module_talks_to_the_outside_world_but_those_that_are_there_for_it(uses: dict[str, set[str]]) -> None:
    for module, used in uses.items():
        allowed = [OUTSIDE if names is None else names for part, names in ALLOWED.items() if within(module, part)]
        outside = {name.split(".")[0] for name in used} & OUTSIDE
        assert outside <= set().union(*allowed), module


def within(module: str, part: str) -> bool:
    return f"{module}.".startswith(f"{part}.")


def test_ray_is_not_loaded_with_symphony() -> None:
    """Nor is any other module of its engine: only a function that is called imports it."""
    for name, file in MODULES.items():
        loaded = imports(file.read_text(encoding="utf-8"), late=False)
        assert name.startswith("symphony.engines.ray") or not any(x.startswith("symphony.engines.ray") for x in loaded)


def test_a_client_needs_none_of_what_a_service_does(uses: dict[str, set[str]]) -> None:
    """The base install has no web server and no database: commands and clients must load without."""
    needed = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "psycopg"}
    loaded, waiting = set(), ["symphony", *uses["symphony"], *(name for name in MODULES if package(name) == "cli")]
    while waiting:
        name = waiting.pop()
        if name not in loaded and name in MODULES:
            loaded.add(name)
            waiting += at_once(MODULES[name])
    for name in loaded:
        assert {used.split(".")[0] for used in at_once(MODULES[name])}.isdisjoint(needed), name


def at_once(file: Path) -> set[str]:
    """What a module imports when it is loaded, not for type checkers or when a function is called."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imports(ast.unparse(ast.Module(kept, [])), late=False)


def test_a_service_never_unpickles_what_a_client_sends(uses: dict[str, set[str]]) -> None:
    for module, file in MODULES.items():
        if package(module) == "service" and module != "symphony.service.client":
            assert "unpickled" not in file.read_text(encoding="utf-8"), module
            assert uses[module].isdisjoint({"pickle", "marshal", "dill"}), module


def test_what_the_checks_above_read(uses: dict[str, set[str]]) -> None:
    """They must see imports of all forms, or they would pass for want of looking."""
    source = "import ray.util\nfrom symphony import testing\ndef f():\n    from symphony.cli import compare\n"
    assert imports(source) == {"ray.util", "symphony.testing", "symphony.cli.compare"}
    assert imports("from symphony.problem.errors import InputError") == {"symphony.problem.errors"}
    assert package("symphony.cli.compare") == "cli" and package("symphony") == ""
    assert sum(len(used) for used in uses.values()) > 200


def test_commands_use_counters_through_one_entrance(uses: dict[str, set[str]]) -> None:
    """`symphony.telemetry` itself; none of them imports a module inside it."""
    used = {name for module in MODULES if package(module) == "cli" for name in uses[module]}
    assert {name for name in used if package(name) == "telemetry"} == {"symphony.telemetry"}


def defined(file: Path) -> set[str]:
    """The names that a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def test_benchmarks_and_examples_import_names_that_exist() -> None:
    """Only few of them run in tests."""
    missing = []
    for script in [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py")]:
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("symphony."):
                place = SOURCE.joinpath(*node.module.split(".")[1:])
                file = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
                known = defined(file) | {path.stem for path in place.glob("*")}
                missing += [f"{script.name}: {node.module}.{x.name}" for x in node.names if x.name not in known]
    assert missing == []
