"""Errors that say what is wrong, where, and what to type next."""

from __future__ import annotations

import inspect
import re

import pytest

from symphony.problem import errors
from symphony.problem.errors import InputError, SymphonyError

CLASSES = [x for x in vars(errors).values() if inspect.isclass(x) and issubclass(x, SymphonyError)]


def drawn_tree(text: str) -> dict[str, str]:
    """Each class of a tree drawn in text, and the class that it hangs from."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"([│├└─ ]*)(\w+(?:Error))\b", line):
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            parents[match[2]] = path[-2] if depth else "Exception"
    return parents


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    assert drawn_tree(errors.__doc__ or "") == {x.__name__: x.__bases__[0].__name__ for x in CLASSES}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_where_what_and_hint(kind: type[SymphonyError]) -> None:
    error = kind("slots is 0", where="lab.toml:3", hint="write slots = 1")
    assert str(error) == "lab.toml:3: slots is 0\nhint: write slots = 1"
    assert (error.message, error.where, error.hint) == ("slots is 0", "lab.toml:3", "write slots = 1")
    assert str(kind("slots is 0")) == "slots is 0"


def test_the_callers_mistakes_are_told_apart_from_ours() -> None:
    """The command line and a service answer an `InputError` as the caller's fault."""
    ours = {"SymphonyError", "PolicyError", "DataError", "EngineError"}
    jobs = {"JobError", "KernelError", "WorkerDiedError", "KernelTimeoutError", "KernelLimitError", "JobCancelledError"}
    service = {"ServiceError", "TokenError", "ScopeError", "UnknownJobError", "JobLostError", "BusyError"}
    service |= {"UnavailableError", "VersionError"}  # the service answers each with a status of its own
    service |= {"TrustError"}  # of the client, about what another user produced
    assert {x.__name__ for x in CLASSES if not issubclass(x, InputError)} == ours | jobs | service


def test_a_warning_is_no_error() -> None:
    assert issubclass(errors.SymphonyWarning, UserWarning)
    assert not issubclass(errors.SymphonyWarning, SymphonyError)


def test_input_of_any_length_is_not_echoed_whole() -> None:
    error = SymphonyError(f"unknown name {'x' * 3000!r}", where="y" * 3000, hint="z" * 3000)
    assert len(error.message) < 420 and error.message.startswith("unknown name 'xxx") and error.message.endswith("x'")
    assert len(error.where) < 420
    assert len(error.hint) == 3000, "a hint is written by us"


def test_errors_of_kernels_carry_what_happened_where_they_ran() -> None:
    error = errors.KernelError("it raised", hint="look", traceback="Traceback …\nValueError: x\n")
    assert str(error) == "it raised\nhint: look\n\nTraceback …\nValueError: x"
    assert errors.WorkerDiedError("it died", signal=9).signal == 9


def test_whatever_is_echoed_can_be_encoded_and_printed() -> None:
    error = InputError("job '\ud800\x1b[2J'", where="\udcff.toml", hint="not \x00")
    assert str(error).encode() == b"\\udcff.toml: job '\\ud800\\x1b[2J'\nhint: not \\x00"
    told = errors.KernelError("x", traceback="line\ud800\n" * 100_000).traceback
    assert told.startswith("line\\ud800\nline") and len(told) < 100_000 and told.encode()
