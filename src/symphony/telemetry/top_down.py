"""The tree of the top-down method, as the listings state it: levels by groups such as `TopdownL2` or `PipelineL2`, and
the parent of a metric by a group with the parent's name, `tma_backend_bound_group`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from symphony.problem.errors import InputError
from symphony.telemetry.events import Catalogue, Metric
from symphony.telemetry.expressions import key

NO_LEVELS_HINT = "add the listing of this CPU, if that has them: symphony catalogue add PATH"
_GROUP = "_group"
_LEVEL = re.compile(r"(?:topdown|pipeline)_?l([0-9]+)", re.IGNORECASE)


def level(metric: Metric) -> int:
    """The level of a metric in the tree, from 1; 0: it is not in the tree."""
    return max((int(found[1]) for group in metric.groups if (found := _LEVEL.fullmatch(group))), default=0)


def parents(metric: Metric) -> list[str]:
    """Keys of the metrics that may be its parent, by the names of its groups."""
    return [key(group).removesuffix(_GROUP) for group in metric.groups if key(group).endswith(_GROUP)]


def tree(catalogue: Catalogue, deepest: int) -> dict[str, int]:
    """Names of the metrics down to a level, with their levels; each is followed by its parts."""
    listed = {key(metric.name): metric for metric in catalogue.metrics if 1 <= level(metric) <= deepest}
    if not any(level(metric) == deepest for metric in listed.values()):
        levels = sorted({level(metric) for metric in catalogue.metrics} - {0})
        hint = f"it has {', '.join(map(str, levels))}: --level {levels[-1]}" if levels else NO_LEVELS_HINT
        raise InputError(f"catalogue {catalogue.name} has no level {deepest} of the top-down method", hint=hint)
    found: dict[str, int] = {}

    def add(parent: str, depth: int) -> None:
        for name, metric in listed.items():
            if level(metric) == depth and (depth == 1 or parent in parents(metric)) and metric.name not in found:
                found[metric.name] = depth
                add(name, depth + 1)

    add("", 1)
    return found


def largest(levels: Mapping[str, int], values: Mapping[str, float]) -> Sequence[str]:
    """The largest metric of level 1, then its largest part, and so on. `levels`: in the order of `tree`."""
    path: list[str] = []
    names = list(levels)
    while True:
        depth, start = len(path) + 1, names.index(path[-1]) + 1 if path else 0
        parts = []
        for name in names[start:]:
            if levels[name] < depth:
                break
            if levels[name] == depth and values.get(name, 0.0) > 0.0:
                parts.append(name)
        if not parts:
            return path
        path.append(max(parts, key=lambda name: values[name]))
