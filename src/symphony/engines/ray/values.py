"""Values on Ray: small ones are stored inline, large ones as objects of Ray's object store."""

from __future__ import annotations

import errno
import pickle
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError

from symphony.engines.engine import Pickled, Stored
from symphony.engines.messages import MAX_BUFFERS, Malformed
from symphony.engines.worker import MAX_INLINE_VALUE_BYTES
from symphony.problem.errors import EngineError


@dataclass
class RayValue:
    """A value: its pickle if it is small, else a reference of the object that contains it, and its index there."""

    head: bytes | None
    ref: Any = None
    part: int = 0


def put(value: Pickled) -> Stored:
    if not value.buffers and len(value.head) <= MAX_INLINE_VALUE_BYTES:
        return Stored(RayValue(value.head), value.size)
    parts = [(value.head, [pickle.PickleBuffer(buffer) for buffer in value.buffers])]
    try:
        return Stored(RayValue(None, ray.put(parts)), value.size)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise OSError(errno.ENOSPC, f"Ray's object store is full: {first_line(error)}") from error


def put_part(parts: Any, number: int) -> Stored:
    return put(Pickled(*_part(parts, number)))


def _part(parts: Any, number: int) -> tuple[bytes, list[memoryview]]:
    """One of the values in an object. Raises `Malformed`: kernels can change what their actor stores."""
    try:
        head, buffers = parts[number]
        views = [memoryview(buffer) for buffer in buffers]
    except (TypeError, ValueError, LookupError) as error:
        raise Malformed(f"its object contains no such value: {error}") from None
    if not isinstance(head, bytes) or len(views) > MAX_BUFFERS:
        raise Malformed(f"its value is a {type(head).__name__} and {len(views)} buffers")
    return head, views


def get(value: Stored) -> Pickled:
    kept: RayValue = value.at
    if kept.head is not None:
        return Pickled(kept.head)
    try:
        head, buffers = _part(ray.get(kept.ref), kept.part)
    except RayError as error:
        raise EngineError(
            f"a value was lost with the machine that stored it: {first_line(error)}", hint="submit the job again"
        ) from error
    except Malformed as error:
        raise EngineError(f"a value cannot be read: {error}", hint="submit the job again") from error
    return Pickled(head, [bytearray(buffer) for buffer in buffers])


def free(value: Stored) -> None:
    value.at.head = value.at.ref = None


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
