"""One name, one meaning: class names and constants of the source."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "symphony"


def test_no_class_name_occurs_in_two_packages() -> None:
    packages: dict[str, set[str]] = defaultdict(set)
    for path, node in statements():
        if isinstance(node, ast.ClassDef):
            packages[node.name].add(path.parts[0])
    assert {name: sorted(found) for name, found in packages.items() if len(found) > 1} == {}


def test_no_constant_has_several_values_under_one_name() -> None:
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, node in statements():
        for name, value in constants(node):
            values[name][value].append(str(path))
    assert {name: dict(found) for name, found in values.items() if len(found) > 1} == {}


def statements() -> list[tuple[Path, ast.stmt]]:
    """Statements at the top of all modules."""
    files = sorted(SOURCE.rglob("*.py"))
    return [(file.relative_to(SOURCE), node) for file in files for node in ast.parse(file.read_text()).body]


def constants(node: ast.stmt) -> list[tuple[str, str]]:
    """Names in capitals that a statement assigns, and the text of what it assigns."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [(x.id, ast.unparse(node.value)) for x in targets if isinstance(x, ast.Name) and x.id.isupper()]
