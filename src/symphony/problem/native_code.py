"""The parts that are written in C: one library, loaded with ctypes. Without a compiler at installation it is not there.

Each part has the same in Python, which is used where the library cannot be.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from functools import cache
from importlib.util import find_spec
from pathlib import Path

log = logging.getLogger("symphony")
SOURCES = ("estimation/flow_filter.c", "runtime/native.c")  # below the package; setup.py compiles the same


@cache
def library() -> ctypes.PyDLL | None:
    """The compiled sources; None where they could not be compiled, or have changed since."""
    found = find_spec("symphony._native")
    if found is None or found.origin is None:
        return None
    digest = hashlib.sha256()
    try:  # without releasing the interpreter's lock: getting it back may take longer than a call
        loaded = ctypes.PyDLL(found.origin)
        compiled = (ctypes.c_char * 65).in_dll(loaded, "native_source").value.decode()
        for source in SOURCES:
            digest.update((Path(__file__).parents[1] / source).read_bytes())
        loaded.flow_update.argtypes, loaded.flow_update.restype = [ctypes.c_void_p], None
        loaded.flow_room.restype = ctypes.c_int64
    except (OSError, AttributeError, ValueError):
        return None
    if compiled != digest.hexdigest():
        log.warning("%s was compiled from other sources and is not used; install Symphony again", found.origin)
        return None
    return loaded
