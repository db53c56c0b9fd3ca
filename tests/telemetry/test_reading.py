"""How names in samples are understood."""

from __future__ import annotations

from dataclasses import replace

from symphony.telemetry.naming import CommonScope
from symphony.telemetry.reading import Reader
from tests.telemetry.topdown import model


def test_what_perf_adds_to_a_name_that_it_was_given() -> None:
    """Who may count only programs is told of `cycles:u` where `cycles` was asked for."""
    names = {"cycles": "cycles", "front_k": "front:k", "back:H": "back:+h", "bad:uk": "bad:uk"}
    reader = Reader(replace(model(), common=CommonScope()), names=names)
    assert [reader.node(printed) for printed in ("cycles:u", "front_k:k", "back:H", "bad:uk")] == list(names.values())
    assert [reader.node(asked) for asked in ("FRONT:k", "back:H", "bad:ku")] == ["front:k", "back:+h", "bad:uk"]


def test_a_name_that_was_asked_for_beside_the_plain_one() -> None:
    names = {"cycles": "cycles", "cycles:u": "cycles:u"}
    reader = Reader(replace(model(), common=CommonScope()), names=names)
    assert [reader.node(name) for name in ("cycles", "cycles:u", "cycles:upp")] == ["cycles", "cycles:u", "cycles:u"]
