"""Messages: what is too large or misspelt is refused, and errors arrive as what they were."""

from __future__ import annotations

import base64

import pytest
from pydantic import ValidationError

import symphony as sy
from symphony.problem import errors
from symphony.service.wire import MAX_INLINE_BYTES, Content, ErrorView


def test_bytes_are_here_or_elsewhere_and_not_too_many() -> None:
    data = b"x" * MAX_INLINE_BYTES
    told = Content(inline=base64.b64encode(data))
    assert told.inline == data and Content.model_validate_json(told.model_dump_json()) == told
    for wrong in ({}, {"inline": base64.b64encode(data + b"x")}, {"inline": "eA==", "blob": "0" * 64}, {"blob": "0"}):
        with pytest.raises(ValidationError):
            Content.model_validate(wrong)


def subclasses(kind: type) -> list[type]:
    return [kind, *(one for below in kind.__subclasses__() for one in subclasses(below))]


@pytest.mark.parametrize("kind", subclasses(sy.SymphonyError))
def test_errors_arrive_as_what_they_were(kind: type[sy.SymphonyError]) -> None:
    if kind.__module__ != errors.__name__:
        return  # some test's own
    sent = kind("what", hint="type", where="here")
    found = ErrorView.model_validate_json(ErrorView.of(sent, b"cause").model_dump_json())
    again = found.error()
    assert type(again) is kind and str(again) == str(sent) and found.cause == b"cause"


def test_what_errors_know_besides_arrives_too() -> None:
    assert ErrorView.of(sy.KernelError("x", traceback="line 1")).error().traceback == "line 1"  # type: ignore[attr-defined]
    assert ErrorView.of(sy.WorkerDiedError("x", signal=9)).error().signal == 9  # type: ignore[attr-defined]


def test_an_error_of_a_newer_service_is_still_an_error() -> None:
    assert type(ErrorView(kind="NewError", message="x").error()) is sy.ServiceError
    assert type(ErrorView(kind="LONGEST", message="x").error()) is sy.ServiceError
