"""Logs for machines: one object on each line, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from symphony.service.logs import JsonLines, Repeats


def line(text: str, *args: object, **more: object) -> dict:
    record = logging.LogRecord("symphony.service", logging.WARNING, "", 0, text, args, more.pop("error", None))
    record.__dict__.update(more)
    told = JsonLines().format(record)
    assert "\n" not in told
    return json.loads(told)


def test_a_line_has_its_text_and_its_fields() -> None:
    told = line("%s is\ndown", "it", fields={"status": 503, "path": "/v1/jobs"})
    assert told["message"] == "it is\ndown" and told["level"] == "warning" and told["status"] == 503
    assert told["at"].endswith("Z")


def test_an_exception_is_one_line_too() -> None:
    try:
        raise LookupError("no")
    except LookupError:
        told = line("failed", error=sys.exc_info())
    assert "LookupError: no" in told["traceback"]


def test_lines_that_differ_only_in_values_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    at, written = [0.0], []
    monkeypatch.setattr("symphony.service.logs.time.monotonic", lambda: at[0])
    limit = Repeats(most=3)

    def say(text: str, *args: object, **more: object) -> None:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, args, None)
        record.__dict__.update(more)
        if limit.filter(record):
            written.append(record.getMessage())

    for number in range(100):
        say("refused %d", number)
        say("served %d", number, always=True)
    assert [text for text in written if "refused" in text] == [
        "refused 0",
        "refused 1",
        "refused 2 (more like this are dropped for a minute)",
    ]
    assert written[-1] == "served 99" and len(written) == 103
    at[0] = 61.0
    say("refused %d", 7)
    say("refused %d", 8)
    say("another line")
    assert written[-3:] == ["refused 7 (97 more like this were dropped)", "refused 8", "another line"]


def test_lines_that_are_all_different_take_no_memory_without_bound() -> None:
    limit = Repeats()
    for number in range(3_000):
        limit.filter(logging.LogRecord("x", logging.WARNING, "", 0, f"line {number}", (), None))
    assert len(limit._seen) <= 1_000
