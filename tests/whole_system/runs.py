"""One run of a whole system from its seed, checked."""

from __future__ import annotations

from pathlib import Path

from tests.whole_system import properties
from tests.whole_system.faults import Broken, Faults
from tests.whole_system.world import World, prepared


def run(seed: int, folder: Path, faults: Faults | None = None, policy: str = "") -> World:
    """Raises `AssertionError`, with all that is needed to see it again, if a property does not hold."""
    world = World(seed, folder, faults, policy)
    try:
        with prepared(world):
            world.run()
            properties.check(world)
    except Broken as broken:
        again = f"python -m tests.whole_system.fuzz --seeds 1 --first {seed}" + (
            f" --policy {policy}" if policy else ""
        )
        raise AssertionError(f"seed {seed}: {broken}\n{world.faults}\nagain: {again}") from broken
    return world
