"""Which packages come with the base of Symphony, and which of those that are installed here do not."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def plain(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def base() -> set[str]:
    """What `dependencies` asks for, and what that needs in turn."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(one), "") for one in project()["dependencies"]]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        for part in {(plain(wanted.name), one) for one in ("", *wanted.extras)} - found:
            found.add(part)
            waiting += [(Requirement(one), part[1]) for one in importlib.metadata.requires(wanted.name) or ()]
    return {name for name, _ in found}


def beyond_the_base() -> list[str]:
    """Modules that are installed here, and would not be with the base only."""
    kept = base() | {plain(project()["name"])}
    return sorted(
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if module.isidentifier() and module != "symphony" and kept.isdisjoint(map(plain, packages))
    )
