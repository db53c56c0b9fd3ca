"""Problems of a source: the first of each kind with its place, and the number of the others.

A source may run for weeks and a file may be corrupt from end to end, so the list is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from symphony.telemetry.samples import Problem

MAX_PROBLEM_KINDS = 1000  # kinds that are distinguished; all others count as one kind
_REST = "more kinds of problems, which are not listed"


class Problems(Sequence[Problem]):
    """A list of problems with one entry for each kind."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Problem, int]] = {}

    def add(self, where: str, what: str, *, kind: str = "") -> None:
        """Record a problem. Later ones of the same `kind` (by default: with the same text) are only counted."""
        kind = kind or what
        if kind not in self._found and len(self._found) >= MAX_PROBLEM_KINDS:
            kind = what = _REST
        first, times = self._found.get(kind, (Problem(where, what), 0))
        self._found[kind] = (first, times + 1)

    @overload
    def __getitem__(self, at: int) -> Problem: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Problem]: ...
    def __getitem__(self, at: int | slice) -> Problem | Sequence[Problem]:
        return tuple(self)[at]

    def __iter__(self) -> Iterator[Problem]:
        for first, times in self._found.values():
            more = f" (and {times - 1} more like it)" if times > 1 else ""
            yield Problem(first.where, f"{first.what}{more}")

    def __len__(self) -> int:
        return len(self._found)
