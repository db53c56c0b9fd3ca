"""What is found out about a whole catalogue, kept as long as the catalogue is."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from symphony.telemetry.events import Catalogue

_known: dict[tuple[int, object], Any] = {}


def cached(catalogue: Catalogue, what: object, compute: Callable[[], Any]) -> Any:
    """What is found out about a whole catalogue is found out once, and forgotten with it."""
    at = (id(catalogue), what)
    if at not in _known:
        _known[at] = compute()
        weakref.finalize(catalogue, _known.pop, at, None)
    return _known[at]
