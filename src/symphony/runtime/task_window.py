"""The part of a large graph that the core knows: tasks whose inputs exist, as many as there are places.

The core's arrays have room for small graphs. A larger graph gets one row of them, of which each gang is a place that
tasks take one after another: a task enters when its inputs exist and a place is free, and leaves when the core has
taken it off its devices. So neither the cost of a turn nor the memory grows with the graph, and tasks of other jobs
wait behind at most as many tasks of this one as there are places. Policies see the tasks of such a graph without its
edges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from symphony.runtime.jobs import TaskRun

MAX_WHOLE_TASKS = 256  # a larger graph is scheduled through a window …
PLACES_PER_SLOT = 16  # … with as many places, or more where there are many slots


class TaskWindow:
    """The places of one job. Place 0 stays empty: its gang keeps the job in the core (`LiveWorkload.add_window`)."""

    def __init__(self, places: int) -> None:
        self.tasks: list[TaskRun | None] = [None] * places
        self.waiting: deque[TaskRun] = deque()  # their inputs exist; no place was free so far
        self.free = places - 1  # number of free places
        self._free: dict[Hashable, list[int]] = {None: list(range(places - 1, 0, -1))}  # by what was there last

    @property
    def is_empty(self) -> bool:
        return self.free == len(self.tasks) - 1

    def enter(self, run: TaskRun, like: Hashable) -> int:
        """Give a task a free place, if possible one whose last task was `like` it: its arrays need no change."""
        places = self._free.get(like) or self._free.get(None) or next(some for some in self._free.values() if some)
        run.place = place = places.pop()
        self.tasks[place], self.free = run, self.free - 1
        return place

    def leave(self, place: int, like: Hashable) -> None:
        """The core has taken the task of a place off its devices."""
        self.tasks[place], self.free = None, self.free + 1
        self._free.setdefault(like, []).append(place)


def places(slots: int) -> int:
    """Number of places of a window, for a cluster with so many slots."""
    return max(MAX_WHOLE_TASKS, PLACES_PER_SLOT * slots)
