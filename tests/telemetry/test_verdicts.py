"""What was found of identities, remembered."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from symphony.problem.errors import DataError
from symphony.telemetry import gate, verdicts
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.reading import Model
from tests.telemetry.demo import DEMO, EVENTS, recording

ONE = Identity("a = b + c", (("a", 1.0), ("b", -1.0), ("c", -1.0)), source="curated: test", tolerance=0.01)
HOLDS = Verdict(ONE, True, 0.001, 0.002, 0.0, "holds")
OFF = Verdict(ONE, False, 0.3, 0.002, 150.0, "off by 30%")
UNTESTED = Verdict(ONE, False, math.nan, math.nan, math.nan, "not tested", tested=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_they_come_back_as_they_were() -> None:
    found = gate.check_identities(Model(DEMO).claims(EVENTS), recording())
    assert verdicts.store("x86/demo", found, windows=40)
    assert verdicts.load("x86/demo") == tuple(one for one in found if one.tested)
    assert verdicts.load("x86/other") == ()


def test_what_is_tested_anew_replaces_what_was(cache: Path) -> None:
    verdicts.store("cpu", [HOLDS], 10)
    assert verdicts.store("cpu", [UNTESTED], 100) is None
    assert verdicts.load("cpu") == (HOLDS,)
    verdicts.store("cpu", [OFF, replace(HOLDS, identity=replace(ONE, name="other"))], 10)
    assert [one.accepted for one in verdicts.load("cpu")] == [False, True]


def test_what_could_not_be_tested_in_a_short_run_stays_open() -> None:
    assert verdicts.store("cpu", [UNTESTED], 10) is None
    assert verdicts.store("cpu", [UNTESTED], verdicts.WINDOWS_UNTIL_UNTESTABLE)
    (one,) = verdicts.load("cpu")
    assert not one.tested and math.isnan(one.residual)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"format": 2, "verdicts": [{"identity": 3}]}', '{"format": 9}', "\xff"]
)
def test_a_damaged_file_is_none(text: str) -> None:
    place = verdicts.file("cpu")
    place.parent.mkdir(parents=True)
    place.write_text(text, encoding="latin-1")
    assert verdicts.load("cpu") == ()
    assert verdicts.store("cpu", [HOLDS], 1) == place and verdicts.load("cpu") == (HOLDS,)


def test_what_was_found_by_other_rules_is_forgotten() -> None:
    place = verdicts.store("cpu", [HOLDS], 10)
    assert place is not None
    place.write_text(
        place.read_text().replace(f'"format":{verdicts.VERDICTS_FORMAT}', f'"format":{verdicts.VERDICTS_FORMAT - 1}')
    )
    assert verdicts.load("cpu") == ()


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    (cache / "symphony").write_text("a file")
    with pytest.raises(DataError, match="cannot be written"):
        verdicts.store("cpu", [HOLDS], 1)


def test_places_decide_by_majority() -> None:
    (one,) = verdicts.together([[HOLDS], [HOLDS], [OFF], [UNTESTED]])
    assert one.accepted and one.reason == "holds; so at 2 of 3 places"
    (one,) = verdicts.together([[OFF], [OFF], [HOLDS]])
    assert not one.accepted
    assert verdicts.together([[UNTESTED], [HOLDS]]) == (HOLDS,)
    assert verdicts.together([]) == ()
