"""Makes packages look as if they were not installed: those that NOT_INSTALLED lists.

Python loads it at the start of every process that has this folder on its path, so also in the workers of an engine.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_LISTED = frozenset(os.environ["NOT_INSTALLED"].split())


class _BaseOnly(PathFinder):
    """Finds what Python finds, but for what is listed."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname in _LISTED else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _BaseOnly
