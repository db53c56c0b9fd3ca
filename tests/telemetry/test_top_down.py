"""The tree of the top-down method, from the groups of a listing."""

from __future__ import annotations

import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.events import Catalogue, Metric
from symphony.telemetry.top_down import largest, tree

LISTED = {
    "tma_x": ("TopdownL3", "tma_late_group"),
    "tma_late": ("TopdownL2", "tma_front_group", "TmaL2"),
    "tma_back": ("Default", "TopdownL1"),
    "tma_front": ("TopdownL1",),
    "tma_slow": ("TopdownL2", "tma_front_group"),
    "other": ("Mem",),
}
CATALOGUE = Catalogue(
    "x86/some", (), metrics=tuple(Metric(name, "a", groups=groups) for name, groups in LISTED.items())
)


def test_parts_follow_what_they_are_parts_of() -> None:
    assert tree(CATALOGUE, 1) == {"tma_back": 1, "tma_front": 1}
    assert list(tree(CATALOGUE, 3).items()) == [
        ("tma_back", 1),
        ("tma_front", 1),
        ("tma_late", 2),
        ("tma_x", 3),
        ("tma_slow", 2),
    ]
    zen = Catalogue(
        "z", (), metrics=(Metric("a", "1", groups=("PipelineL1",)), Metric("b", "1", groups=("Topdown_L1",)))
    )
    assert list(tree(zen, 1)) == ["a", "b"]


def test_a_level_that_there_is_not() -> None:
    with pytest.raises(InputError, match="x86/some has no level 4") as caught:
        tree(CATALOGUE, 4)
    assert caught.value.hint == "it has 1, 2, 3: --level 3"
    with pytest.raises(InputError, match="has no level 1"):
        tree(Catalogue("none", ()), 1)


def test_the_largest_part_of_the_largest() -> None:
    levels = tree(CATALOGUE, 3)
    values = {"tma_back": 30.0, "tma_front": 45.0, "tma_late": 10.0, "tma_slow": 35.0, "tma_x": 10.0}
    assert largest(levels, values) == ["tma_front", "tma_slow"]
    assert largest(levels, values | {"tma_late": 40.0}) == ["tma_front", "tma_late", "tma_x"]
    assert largest(levels, values | {"tma_back": 50.0}) == ["tma_back"] and largest(levels, {}) == []
