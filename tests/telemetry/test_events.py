"""Catalogues: names, counters, metrics."""

from __future__ import annotations

import numpy as np
import pytest

from symphony.problem.errors import InputError
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.listings import read
from symphony.telemetry.machine import Platform
from tests.telemetry import small
from tests.telemetry.trees import evaluate

CATALOGUES = {catalogue.name: catalogue for catalogue in read(small.files()).catalogues}
TINY, MIX = CATALOGUES["x86/tiny"], CATALOGUES["x86/mix"]


def test_names_are_found_in_any_case() -> None:
    assert TINY.event("cache.miss").name == "CACHE.MISS"
    assert TINY.metric("Miss_Ratio").name == "miss_ratio"


def test_unknown_names_are_answered_with_close_ones() -> None:
    with pytest.raises(InputError, match=r"no event CACHE\.MIS") as caught:
        TINY.event("CACHE.MIS")
    assert "cache.miss" in caught.value.hint
    with pytest.raises(InputError, match="no metric zzz") as caught:
        TINY.metric("zzz")
    assert "symphony catalogue show x86/tiny --metrics" in caught.value.hint


def test_two_kinds_of_core() -> None:
    for metric, unit, value in (("work", "cpu_core", 3.0), ("work", "cpu_atom", 2.0), ("double", "cpu_core", 6.0)):
        definitions = MIX.definitions(unit)
        assert evaluate(definitions[metric], {"ops": 1}, definitions=definitions) == value


def test_names_of_two_kinds_of_core_mean_the_large_ones() -> None:
    both = Catalogue("x86/both", MIX.events[::-1], MIX.metrics)  # the small cores are listed first
    assert both.event("ops").codes == (1,) and both.metric("work").unit == "cpu_core"
    assert both.evaluate("double", {"ops": 1}) == MIX.evaluate("double", {"ops": 1}) == 6.0
    for name, codes in (("cpu_atom@OPS@", (2,)), ("cpu_core/ops,cmask=2/", (1,)), ("cpu/ops/k", (1,))):
        event = both.resolve(name)
        assert event is not None and event.codes == codes
    assert Catalogue("x86/large", MIX.events[:1]).resolve("cpu_atom/OPS/") is None


def test_metrics_of_several_kinds_of_core_at_once() -> None:
    few = Metric("few", "work + 1", unit="cpu_atom")
    both = Catalogue("x86/both", MIX.events, (few, *MIX.metrics))
    compiled = both.compile(["double", "few", "work"])
    assert compiled.inputs == ("ops",) and compiled.outputs == ("double", "few", "work")
    np.testing.assert_array_equal(compiled(np.array([[1.0], [2.0]])), [[6.0, 3.0, 3.0], [12.0, 5.0, 6.0]])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cpu@CACHE.MISS,cmask=1,edge@", {"cmask": 1, "edge": True, "umask": 2}),
        ("cpu/cache.miss,cmask=0x6,inv=1/", {"cmask": 6, "invert": True}),
        ("CACHE.MISS@umask=0xF@", {"umask": 15}),
        ("CACHE.MISS:k", {"terms": (("modifiers", "k"),)}),
        ("cpu@CACHE.MISS,any@P", {"any_thread": True, "terms": (("modifiers", "P"),)}),
        ("cpu@CACHE.MISS,thresh=1@", {"terms": (("thresh", "1"),)}),
        ("cpu@CACHE.MISS,umask=lots@", {"umask": 2, "terms": (("umask", "lots"),)}),
    ],
)
def test_resolve_changes_the_event_as_the_name_says(name: str, changes: dict[str, object]) -> None:
    event = TINY.resolve(name)
    assert event is not None and event.name == name and event.codes == (0x24,) and event.counters == (0,)
    assert {field: getattr(event, field) for field in changes} == changes


@pytest.mark.parametrize(
    "name", ["cycles", "topdown-retiring", "msr@tsc@", "CACHE.MISSk", "cha_0@event=0x0@", "a/b/c/d"]
)
def test_resolve_leaves_the_kernels_own(name: str) -> None:
    assert TINY.resolve(name) is None


def test_needed_follows_metrics_and_constants() -> None:
    assert TINY.needed(["hit_ratio"]) == ("cache.miss", "cache.all")
    assert TINY.needed(["per_package"]) == ("bus.reads:k",)
    assert TINY.needed(["per_package"], platform=Platform(smt_on=True)) == ("cpu/cache.miss,cmask=1,edge/",)
    assert TINY.needed(["bytes"]) == ("bus.reads", "duration_time")


def test_evaluate_applies_the_scale_once() -> None:
    counts = {"CACHE.MISS": 1, "cache.all": 4}
    assert TINY.evaluate("hit_ratio", counts) == 75.0
    assert TINY.evaluate("bytes", {"bus.reads": 10, "duration_time": 2}) == 320.0


def test_compile_agrees() -> None:
    compiled = TINY.compile(["hit_ratio", "miss_ratio"])
    np.testing.assert_array_equal(compiled(np.array([1.0, 4.0])), [75.0, 25.0])
    assert compiled.inputs == ("cache.miss", "cache.all")


def test_perf_terms() -> None:
    assert TINY.event("CACHE.ALL").perf_terms == "event=0x24,umask=0x3"
    assert TINY.event("INST_RETIRED.ANY").perf_terms == "event=0xc0"
    assert TINY.event("offcore.reads").perf_terms == "event=0xb7,offcore_rsp=0x10001"
    event = TINY.resolve("cpu@CACHE.MISS,cmask=1,edge@k")
    assert event is not None and event.perf_terms == "event=0x24,umask=0x2,cmask=0x1,edge=0x1"


def test_places() -> None:
    pmu = TINY.pmu()
    assert (pmu.general, pmu.fixed, pmu.assumed) == (2, 2, False)
    assert pmu.places(TINY.event("CACHE.HIT")) == ("0", "1")
    assert pmu.places(TINY.event("TICKS")) == ("fixed 1",)
    assert TINY.pmu("BUS").places(TINY.event("BUS.READS")) == ("fixed 0",)
    assert pmu.places(Event("any")) == ("0", "1")
    assert pmu.places(Event("beyond", counters=(1, 4))) == ("1",)
    assert TINY.pmu("elsewhere") == Pmu("elsewhere", 4, assumed=True)
    arm = CATALOGUES["arm64/maker/small-1"]
    assert arm.pmu().places(arm.event("CPU_CYCLES")) == ("fixed 0", "0", "1", "2", "3", "4", "5")


def test_placement_moves_events_to_make_room() -> None:
    hit, miss, ticks = (TINY.event(name) for name in ("CACHE.HIT", "CACHE.MISS", "TICKS"))
    assert TINY.pmu().placement([hit, miss, ticks]) == ("1", "0", "fixed 1")
    assert TINY.pmu().holds([hit, hit, ticks])
    assert not TINY.pmu().holds([miss, miss])
    assert TINY.pmu().placement([hit, hit, miss]) is None
    assert TINY.pmu().placement([]) == ()


def test_an_empty_catalogue() -> None:
    empty = Catalogue("nothing", ())
    with pytest.raises(InputError):
        empty.event("a")
    assert empty.resolve("a") is None
