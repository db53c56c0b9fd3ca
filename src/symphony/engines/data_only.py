"""Reads pickles of untrusted users as data: numbers, text, bytes, containers of these, and NumPy arrays of numbers.

A pickle is a program that unpickling runs: the result of one user's job could do anything on the machine of another
user who reads it. This module reads only pickles that build plain data. Two checks ensure that:

- every opcode is one that builds data, and refers only to what the pickle has built itself;
- the few names that it may call are those of NumPy arrays and built-in numbers. They map to functions below that check
  their arguments, not to those of NumPy, which trust them.

Anything else raises `NotData`, which says what was found.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Opcodes that build data; those that name or call something are also checked by `_Reader.find_class`.
_BUILD = {"BUILD", "REDUCE", "STACK_GLOBAL", "GLOBAL", "NEXT_BUFFER", "READONLY_BUFFER"}
_PLAIN = {
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET"),
    *("LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
}
_DTYPE_KINDS = "biufcSU"  # of NumPy's types: numbers and text


class NotData(Exception):
    """A pickle would build more than data; says what."""


def read_data(head: bytes, buffers: Sequence[Any]) -> Any:
    """The value of a pickle and its buffers. Raises `NotData`."""
    _check(head)
    try:
        return _finished(_Reader(io.BytesIO(head), buffers=buffers).load(), {})
    except NotData:
        raise
    except Exception as error:  # the pickle is not trusted and may raise anything
        raise NotData(f"it cannot be read ({type(error).__name__}: {error})") from None


def _check(head: bytes) -> None:
    """Refuse opcodes that do more than build data, and memo indices that would allocate much memory."""
    try:
        for number, (instruction, argument, _) in enumerate(pickletools.genops(head)):
            if instruction.name not in _PLAIN and instruction.name not in _BUILD:
                raise NotData(f"it contains the opcode {instruction.name}")
            if instruction.name.endswith("BINPUT") and not 0 <= int(argument or 0) <= number:
                raise NotData(f"it uses the memo index {argument}")
    except (ValueError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise NotData(f"it is not a pickle: {error}") from None


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED_NAMES.get((module.replace("numpy._core.", "numpy.core."), name))
        if found is None:
            raise NotData(f"it refers to {module}.{name}")
        return found


class _Function:
    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __setattr__(self, name: str, value: Any) -> None:
        raise NotData("it changes a function")

    def __setstate__(self, state: Any) -> None:
        raise NotData("it changes a function")

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


class _Type:
    """A NumPy dtype whose byte order is not known yet."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: str) -> None:
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        _, self._order, *rest = state
        if any(part is not None for part in rest[:3]):
            raise NotData("it contains an array of records")

    def made(self) -> np.dtype:
        if not isinstance(self._code, str) or self._order not in ("<", ">", "|", "="):
            raise NotData("it contains an array of an unknown type")
        made = np.dtype(self._code).newbyteorder(self._order)  # type: ignore[arg-type]
        if made.kind not in _DTYPE_KINDS or made.hasobject or made.subdtype is not None or made.fields is not None:
            raise NotData(f"it contains an array of type {self._code!r}")
        return made


class _Array:
    """An array whose bytes follow, as NumPy pickles those that are not contiguous."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        self.array = _array(data, kind, shape, "F" if by_columns else "C")


def _type(code: Any, align: Any = False, copy: Any = False) -> _Type:
    return _Type(code)


def _array(data: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(kind, _Type) or not isinstance(shape, tuple) or order not in ("C", "F"):
        raise NotData("it contains an invalid array")
    found = np.frombuffer(data, kind.made()).reshape(shape, order=order)
    return found if found.flags.writeable else found.copy(order)


def _scalar(kind: Any, data: Any) -> Any:
    if not isinstance(kind, _Type) or not isinstance(data, bytes):
        raise NotData("it contains an invalid number")
    [found] = np.frombuffer(data, kind.made())
    return found


def _empty(_: Any, shape: Any, kind: Any) -> _Array:
    return _Array()


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(float(real), float(imaginary))


def _range(*ends: Any) -> range:
    return range(*map(int, ends))


def _finished(value: Any, seen: dict[int, tuple[Any, Any]]) -> Any:
    """The value with its placeholders (`_Array`, `_Type`) replaced; refuses functions.

    `seen`: by id, containers and their replacements, since one may occur in several places.
    """
    if id(value) in seen:
        return seen[id(value)][1]
    if isinstance(value, _Array):
        if value.array is None:
            raise NotData("it contains an array without bytes")
        return value.array
    if isinstance(value, _Type):
        return value.made()
    if isinstance(value, _Function):
        raise NotData("it contains a function")
    if type(value) is list:
        seen[id(value)] = value, value
        value[:] = [_finished(one, seen) for one in value]
    elif type(value) is dict:
        seen[id(value)] = value, value
        value.update({key: _finished(one, seen) for key, one in value.items()})
    elif type(value) is tuple:
        made = tuple([_finished(one, seen) for one in value])
        seen[id(value)] = value, made
        return made
    return value


_ALLOWED_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Function(_type),
    ("numpy", "ndarray"): _Function(_array),  # only named, as the kind of what is built
    ("numpy.core.numeric", "_frombuffer"): _Function(_array),
    ("numpy.core.multiarray", "_reconstruct"): _Function(_empty),
    ("numpy.core.multiarray", "scalar"): _Function(_scalar),
    ("builtins", "complex"): _Function(_complex),
    ("builtins", "range"): _Function(_range),
}
