"""Messages from a worker process to its engine: frames of a fixed format, validated by the reader.

The worker runs users' code, so its bytes are not trusted: a kernel may write anything into the connection. The reader
therefore calls no code, builds nothing but numbers, text and bytes, and holds at most one frame in memory. It raises
`Malformed` for invalid bytes; the engine then kills the worker.

    frame = magic (2 bytes), kind (1), 0 (1), length of the payload (4), number of the attempt (8); payload

The engine itself checks that an answer belongs to the attempt under way. This file is also loaded by its path, in
processes without Symphony: it must not import Symphony.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

MAGIC = b"sy"
READY, DONE, FAILED = 1, 2, 3
HEADER, HEADER_BYTES = "<2sBBIQ", 16  # writers use format strings: a `struct.Struct` cannot be sent by value to Ray
MAX_PAYLOAD = 256 << 10  # bytes
MAX_NAME = 200  # bytes of the name of a type or a file
MAX_TEXT = 16 << 10  # bytes of a message, a traceback or a pickled exception
MAX_BUFFERS = 4_096  # of a value
# Stages of a call: unpickle the function, unpickle its arguments, call it, pickle the result.
STEPS = ("function", "arguments", "call", "result")
_DONE = "<dddBBHI"  # began, seconds, busy seconds, cold, value in the frame, bytes of a name, spans
_FAILED = "<ddBHHIIi"  # began, seconds, step, lengths of type, classes, message, traceback, exception (-1: none)
_SPAN = "<QQ"

# A value in a message: its pickle if that is short, else None; the name of the file with the rest; (offset, length) of
# the pickle (if it is in the file) and of each buffer; size in bytes.
Portable = tuple[bytes | None, str | None, tuple[tuple[int, int], ...], int]


class Malformed(Exception):
    """A worker has sent invalid bytes; says what is wrong."""


class Ready(NamedTuple):
    number: int
    problem: str  # why it cannot run kernels; "" = none


class Done(NamedTuple):
    """A kernel has returned. Times are on the clock of the worker."""

    number: int
    began_s: float
    seconds: float
    cold: bool
    value: Portable
    busy_s: float


class Broke(NamedTuple):
    """A kernel failed at a stage."""

    number: int
    began_s: float
    seconds: float
    step: str  # one of STEPS
    type: str
    classes: str  # names of its class and all base classes, separated by spaces
    message: str
    traceback: str
    exception: bytes | None  # pickled; only the user who submitted the kernel may unpickle it


Message = Ready | Done | Broke


# --- written by the worker


def ready(problem: str) -> bytes:
    return _frame(READY, 0, _cut(problem, MAX_TEXT))


def done(number: int, began: float, seconds: float, cold: bool, value: Portable, busy: float) -> bytes:
    head, name, spans, _ = value
    named = b"" if name is None else name.encode()
    if len(spans) > MAX_BUFFERS + 1:
        raise ValueError(f"the value has {len(spans)} buffers")
    fixed = struct.pack(_DONE, began, seconds, busy, cold, head is not None, len(named), len(spans))
    return _frame(DONE, number, b"".join([fixed, named, *(struct.pack(_SPAN, *span) for span in spans), head or b""]))


def failed(
    number: int,
    began: float,
    seconds: float,
    step: str,
    name: str,
    classes: str,
    message: str,
    text: str,
    exception: bytes | None,
) -> bytes:
    parts = _cut(name, MAX_NAME), _cut(classes, MAX_TEXT), _cut(message, MAX_TEXT), _cut(text, MAX_TEXT, end=True)
    length = -1 if exception is None else len(exception)
    fixed = struct.pack(_FAILED, began, seconds, STEPS.index(step), *map(len, parts), length)
    return _frame(FAILED, number, b"".join([fixed, *parts, exception or b""]))


def _frame(kind: int, number: int, payload: bytes) -> bytes:
    return struct.pack(HEADER, MAGIC, kind, 0, len(payload), number) + payload


def _cut(text: str, most: int, end: bool = False) -> bytes:
    """Encoded text, cut to its first (or, with `end`, last) bytes."""
    text = text[-most:] if end else text[:most]
    data = text.encode("utf-8", "backslashreplace")
    return data[-most:] if end else data[:most]


# --- read by the engine


class Inbox:
    def __init__(self) -> None:
        self.rest = b""  # an incomplete message

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages completed by `data`. Raises `Malformed` at the first invalid one; nothing may be read after
        that.
        """
        data, at = self.rest + data if self.rest else data, 0
        last = len(data) - HEADER_BYTES
        while at <= last:
            magic, kind, zero, length, number = _read_header(data, at)
            if magic != MAGIC or zero or kind not in _READERS:
                raise Malformed(f"it begins with {data[at : at + 8].hex(' ')}, which is not a valid header")
            if length > MAX_PAYLOAD:
                raise Malformed(f"its length is {length:,} bytes; at most {MAX_PAYLOAD:,} are allowed")
            begin, at = at, at + HEADER_BYTES + length
            if at > len(data):
                at = begin
                break
            try:
                found = _READERS[kind](number, data, begin + HEADER_BYTES, at)
            except (struct.error, ValueError) as error:
                raise Malformed(f"its parts are inconsistent: {error}") from None
            yield found
        self.rest = data[at:]


_read_header = struct.Struct(HEADER).unpack_from
_read_done, _DONE_BYTES = struct.Struct(_DONE).unpack_from, struct.calcsize(_DONE)
_read_failed, _FAILED_BYTES = struct.Struct(_FAILED).unpack_from, struct.calcsize(_FAILED)


def _ready(number: int, data: bytes, at: int, end: int) -> Ready:
    return Ready(number, _text(data[at:end]))


def _done(number: int, data: bytes, at: int, end: int) -> Done:
    if end - at < _DONE_BYTES:
        raise ValueError(f"{end - at} bytes are too few")
    began, seconds, busy, cold, inline, named, count = _read_done(data, at)
    at += _DONE_BYTES
    if not math.isfinite(began + seconds) or cold > 1 or inline > 1:
        raise ValueError(f"it began at {began} and took {seconds} s")
    if inline and not named and not count:
        return Done(number, began, seconds, bool(cold), (data[at:end], None, (), end - at), busy)
    if not named or named > MAX_NAME or not count or count > MAX_BUFFERS + 1:
        raise ValueError(f"a name of {named} bytes, {count} buffers")
    name, at = _text(data[at : at + named]), at + named
    body = at + count * struct.calcsize(_SPAN)
    if body > end or (body < end and not inline):
        raise ValueError(f"{end - at} bytes for {count} buffers")
    spans = tuple(struct.iter_unpack(_SPAN, data[at:body]))
    head = data[body:end] if inline else None
    size = end - body + sum([length for _, length in spans])
    return Done(number, began, seconds, bool(cold), (head, name, spans, size), busy)


def _broke(number: int, data: bytes, at: int, end: int) -> Broke:
    if end - at < _FAILED_BYTES:
        raise ValueError(f"{end - at} bytes are too few")
    began, seconds, step, *lengths, exception = _read_failed(data, at)
    at += _FAILED_BYTES
    if not math.isfinite(began + seconds) or step >= len(STEPS):
        raise ValueError(f"it began at {began} and took {seconds} s; step {step}")
    texts = []
    for length in lengths:
        texts.append(_text(data[at : at + length]))
        at += length
    if at + max(exception, 0) != end or exception < -1:
        raise ValueError("its texts are longer or shorter than it says")
    name, classes, message, text = texts
    exception_bytes = data[at:end] if exception >= 0 else None
    return Broke(number, began, seconds, STEPS[step], name, classes, message, text, exception_bytes)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_READERS: dict[int, Callable[[int, bytes, int, int], Message]] = {
    READY: _ready,
    DONE: _done,
    FAILED: _broke,
}


def read_answers(data: bytes, count: int) -> Sequence[Done | Broke]:
    """Parse exactly `count` answers, numbered from 0 in order."""
    inbox = Inbox()
    messages = list(inbox.feed(data))
    answers = [one for one in messages if isinstance(one, Done | Broke)]
    if inbox.rest or len(answers) != len(messages) or [one.number for one in answers] != list(range(count)):
        raise Malformed(f"it has answers for {len(messages)} kernels, expected {count}")
    return answers
