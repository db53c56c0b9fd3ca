"""Makes packages look as if they were not installed: those that NOT_INSTALLED lists.

Python loads it at the start of every process that has this folder on its path, so also in the workers of an engine.
"""

from __future__ import annotations

import os
import sys


class _Missing:
    """A finder that refuses what is listed, and leaves the rest to others."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _LISTED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_LISTED = frozenset(os.environ["NOT_INSTALLED"].split())
sys.meta_path.insert(0, _Missing())  # type: ignore[arg-type]
