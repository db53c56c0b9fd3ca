"""Logs for machines: one object on each line, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys

from symphony.service.logs import JsonLines


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
