"""Listings read into catalogues: small ones by hand, and all the real ones that are here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.telemetry import listing_files
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.expressions import parse
from symphony.telemetry.listings import MAX_LEFT_OUT, Listing, MapLine, read
from symphony.telemetry.machine import Platform
from tests.data import data
from tests.telemetry import small

LISTING = read(small.files(), source="here")
BY_NAME = {catalogue.name: catalogue for catalogue in LISTING.catalogues}
TINY = BY_NAME["x86/tiny"]


def test_every_folder_below_a_mapfile_is_a_catalogue() -> None:
    assert sorted(BY_NAME) == ["arm64/maker/small-1", "powerpc/big", "x86/mix", "x86/tiny"]
    assert TINY.source == "here" and TINY.groups == {"Cache": "Caches."}
    assert read({path: content for path, content in small.files().items() if "mapfile" not in path}).catalogues == ()


def test_events() -> None:
    assert TINY.event("CACHE.ALL") == Event(
        "CACHE.ALL", codes=(0x24,), umask=3, counters=(0, 1), topic="core", description="All accesses."
    )
    assert TINY.event("TICKS") == Event("TICKS", umask=2, fixed=1, topic="core", description="Cycles.")
    offcore = TINY.event("OFFCORE.READS")
    assert offcore.codes == (0xB7, 0xBB) and offcore.terms == (("offcore_rsp", "0x10001"),) and offcore.deprecated
    assert TINY.event("CACHE.MISS").errata == "X1"


def test_events_of_other_units() -> None:
    reads = TINY.event("BUS.READS")
    assert (reads.unit, reads.core, reads.umask, reads.per_package, reads.fixed) == ("BUS", False, 0x100CF, True, -1)
    assert (reads.scale, reads.scale_unit) == (64.0, "Bytes")
    assert reads.terms == (("ch_mask", "0x3"), ("edge", "1"), ("inv", "1"))
    assert TINY.pmus == (Pmu("", 2, 2), Pmu("bus", 4, 1)) and TINY.pmu("BUS").general == 4


def test_metrics() -> None:
    assert TINY.metric("miss_ratio") == Metric(
        "miss_ratio",
        "cache.miss / CACHE.ALL",
        groups=("Cache", "Memory"),
        scale=100.0,
        scale_unit="%",
        threshold="miss_ratio > 0.1 & ticks > 5",
        constraint="NO_GROUP_EVENTS",
    )


def test_standard_records_are_taken_over_and_changed() -> None:
    arm = BY_NAME["arm64/maker/small-1"]
    assert [event.name for event in arm.events] == ["CPU_CYCLES", "STALL"]
    assert arm.event("stall").description == "Stalls here." and arm.event("stall").codes == (0x3C,)
    stalled = arm.metric("stalled")
    assert "#slots" in stalled.expression and stalled.scale_unit == "%"
    assert arm.pmu().assumed


def test_power_has_the_counter_in_the_code() -> None:
    power = BY_NAME["powerpc/big"]
    assert [(event.counters, event.fixed) for event in power.events] == [((), None), ((2,), None), ((), 1)]
    assert power.pmu().holds([power.event("PM_ANY")] * 3 + [power.event("PM_THIRD"), power.event("PM_RUN_CYC")])
    assert power.metric("nest").aggregation == "PerChip"


def test_mapfiles_keep_their_order() -> None:
    assert [line for line in LISTING.lines if line.architecture == "x86"] == [
        MapLine("x86", "GenuineIntel-6-(55|5A)-[01234]", "x86/tiny"),
        MapLine("x86", "GenuineIntel-6-[[:xdigit:]]+", "x86/mix"),
    ]
    assert MapLine("arm64", "0x00000000410fd0c0", "arm64/maker/small-1") in LISTING.lines


def one(**fields: object) -> bytes:
    return json.dumps([{"EventName": "FINE"}, fields]).encode()


@pytest.mark.parametrize(
    ("content", "where", "message"),
    [
        (b'[{"EventName": "A"},\n {"EventNa', "x86/tiny/core.json, line 2", "cut short"),
        (b"\x89PNG\r\n\xff", "x86/tiny/core.json", "not JSON"),
        (b" \n", "x86/tiny/core.json", "the file is empty"),
        (b"[" * 100_000, "x86/tiny/core.json", "not JSON"),
        (b"{}", "x86/tiny/core.json", "a list of events"),
        (b"[3]", "x86/tiny/core.json, record 1", "an object"),
        (
            one(EventName="A", UMask="many"),
            "x86/tiny/core.json, record 2 (A)",
            "UMask should be an integer, not 'many'",
        ),
        (one(EventName="A", EventCode=["1"]), "x86/tiny/core.json, record 2 (A)", "EventCode should be a string"),
        (one(EventName="A", EventCode="-1"), "x86/tiny/core.json, record 2 (A)", "EventCode should be 0 or more"),
        (one(EventName="A", EventCode="c0"), "x86/tiny/core.json, record 2 (A)", "EventCode should be an integer"),
        (one(EventName="A", ScaleUnit="1e999B"), "x86/tiny/core.json, record 2 (A)", "a number and a unit"),
        (one(MetricName="M", MetricExpr="a / #new"), "x86/tiny/core.json, record 2 (M)", "there is no constant #new"),
        (one(EventName="A", Counter="first"), "x86/tiny/core.json, record 2 (A)", "a list of counters"),
        (one(EventName="A", ScaleUnit="much"), "x86/tiny/core.json, record 2 (A)", "a number and a unit"),
        (one(MetricName="M", MetricExpr="a + "), "x86/tiny/core.json, record 2 (M)", "at character 4"),
        (
            one(MetricName="M", MetricExpr="a", MetricThreshold=")"),
            "x86/tiny/core.json, record 2 (M)",
            "MetricThreshold",
        ),
        (one(MetricName="M"), "x86/tiny/core.json, record 2 (M)", "no MetricExpr"),
        (one(ArchStdEvent="GONE"), "x86/tiny/core.json, record 2 (GONE)", "no standard event GONE"),
    ],
)
def test_what_cannot_be_used_is_left_out_and_named(content: bytes, where: str, message: str) -> None:
    tiny = tiny_of(small.files(core=content))
    (sentence,) = tiny.left_out
    assert sentence.startswith(f"{where}: ") and message in sentence
    assert (tiny.find("FINE") is not None) == (b"FINE" in content)
    assert tiny.find("BUS.READS") is not None and len(tiny.metrics) == 4


def tiny_of(files: dict[str, bytes]) -> Catalogue:
    return next(catalogue for catalogue in read(files).catalogues if catalogue.name == "x86/tiny")


def test_mapfiles_with_odd_lines() -> None:
    text = b"\xef\xbb\xbfFamily-model,Version,Filename,EventType\r\n # \r\n\r\nGenuineIntel-6-1,v1\r\n(,1,mix,core\r\n"
    found = read({**small.files(), "x86/mapfile.csv": text + b'"GenuineIntel-6-2", 1, tiny ,core,' + b"x" * 200_000})
    assert [line for line in found.lines if line.architecture == "x86"] == [
        MapLine("x86", "(", "x86/mix"),
        MapLine("x86", "GenuineIntel-6-2", "x86/tiny"),
    ]
    sentence = "x86/mapfile.csv, line 4: it should have four columns (CPU, version, folder, type), not 2"
    assert {catalogue.name: sentence in catalogue.left_out for catalogue in found.catalogues} == {
        "arm64/maker/small-1": False,
        "powerpc/big": False,
        "x86/mix": True,
        "x86/tiny": True,
    }


def test_groups_that_are_not_a_mapping() -> None:
    for content, what in ((b"[]", "one object"), (b"{", "not JSON")):
        tiny = tiny_of(small.files(metricgroups=content))
        assert tiny.groups == {} and len(tiny.left_out) == 1 and what in tiny.left_out[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.replace(b"}", b",\n}").replace(b"]", b" ,]").replace(b"{", b"{, "),  # in old kernels
        lambda text: text.decode().encode("utf-16"),
        lambda text: text.replace(b'"Errata"', b'"Invert": null, "New": {"key": ["x,]"]}, "Errata"'),
    ],
)
def test_files_in_other_forms_are_the_same(change: Callable[[bytes], bytes]) -> None:
    text = json.dumps(small.RECORDS["x86/tiny/core.json"], indent=1).encode()
    assert tiny_of(small.files(core=change(text))) == replace(TINY, source="")


def test_events_with_a_whole_configuration_in_place_of_a_code() -> None:
    records = [{"EventName": name, "ConfigCode": code, "Unit": "ddrc"} for name, code in (("w", "0x00"), ("r", "0x1"))]
    tiny = tiny_of(
        small.files(core=json.dumps([*records, {"EventName": "n", "EventCode": 7, "Invert": True}]).encode())
    )
    assert [event.perf_terms for event in tiny.events[:3]] == ["config=0x0", "config=0x1", "event=0x7,inv=0x1"]


def test_metrics_that_refer_to_themselves_are_left_out() -> None:
    expressions = {"a": "b + ticks", "b": "1 / A", "c": "c", "uses": "min(b, 1)", "fine": "ticks * 2", "also": "fine"}
    records = [{"MetricName": name, "MetricExpr": text} for name, text in expressions.items()]
    tiny = tiny_of(small.files(core=json.dumps(records).encode()))
    assert [metric.name for metric in tiny.metrics[:2]] == ["fine", "also"] and len(tiny.metrics) == 6
    assert tiny.left_out == ("x86/tiny: these metrics refer to themselves, or to metrics that do: a, b, c, uses",)


def test_kinds_of_core_do_not_share_metrics() -> None:
    records = [
        {"MetricName": name, "MetricExpr": text, "Unit": unit}
        for unit, name, text in (
            ("cpu_atom", "a", "b"),
            ("cpu_atom", "b", "ticks"),
            ("cpu_core", "a", "ticks * 2"),
            ("cpu_core", "b", "a"),
        )
    ]
    tiny = tiny_of(small.files(core=json.dumps(records).encode()))
    assert tiny.left_out == () and tiny.evaluate("b", {"ticks": 1}) == 2.0


def test_only_so_many_sentences_are_kept() -> None:
    tiny = tiny_of(small.files(core=json.dumps([{"MetricName": "m"}] * (MAX_LEFT_OUT + 9)).encode()))
    assert len(tiny.left_out) == MAX_LEFT_OUT and tiny.left_out[-1] == "… and 10 more"


def test_the_kernels_own_events_have_their_plain_names() -> None:
    text = "software@cpu\\-clock\\,name\\=cpu\\-clock@ if #target_cpu else software@task\\-clock@ / tool@duration_time@"
    tiny = tiny_of(small.files(core=json.dumps([{"MetricName": "busy", "MetricExpr": text}]).encode()))
    assert tiny.needed(["busy"]) == ("task-clock", "duration_time")
    assert tiny.needed(["busy"], platform=Platform(target_cpu=True)) == ("cpu-clock",)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_listings_are_read_as_far_as_they_are_good(draws: st.DataObject) -> None:
    content = bytearray(small.files()["x86/tiny/tiny-metrics.json"])
    for _ in range(draws.draw(st.integers(1, 4))):
        content[draws.draw(st.integers(0, len(content) - 1))] = draws.draw(st.integers(0, 255))
    tiny = tiny_of(small.files(**{"tiny-metrics": bytes(content[: draws.draw(st.integers(0, len(content)))])}))
    assert all(text.startswith(("x86/tiny/tiny-metrics.json", "x86/tiny: these metrics")) for text in tiny.left_out)
    names = [metric.name for metric in tiny.metrics]
    assert set(tiny.compile(names).inputs) == set(tiny.needed(names))


# --- The real ones -----------------------------------------------------------------------------------------

# Core events, events of other units, metrics: the table of the data's own page.
COUNTS = {
    "x86/skylakex": (470, 3313, 263),
    "x86/icelakex": (361, 3978, 272),
    "x86/sapphirerapids": (396, 2268, 297),
    "x86/amdzen2": (199, 20, 11),
    "x86/amdzen3": (223, 20, 13),
    "x86/amdzen4": (336, 166, 75),
    "powerpc/power9": (889, 0, 328),
    "powerpc/power10": (654, 0, 238),
    "arm64/arm/neoverse-n1": (109, 0, 31),
    "arm64/arm/neoverse-v1": (131, 0, 31 + 4),
    "arm64/arm/neoverse-n2-v2": (154, 0, 41 + 4),
}


@cache
def real() -> Listing:
    return read(listing_files.read(data("pmu-events")))


def real_catalogue(name: str) -> Catalogue:
    return next(catalogue for catalogue in real().catalogues if catalogue.name == name)


def test_every_real_listing_is_read() -> None:
    found = {}
    for catalogue in real().catalogues:
        core = sum(event.core for event in catalogue.events)
        found[catalogue.name] = (core, len(catalogue.events) - core, len(catalogue.metrics))
    assert found == COUNTS


def test_every_real_expression_is_parsed() -> None:
    texts = [
        text
        for catalogue in real().catalogues
        for metric in catalogue.metrics
        for text in (metric.expression, metric.threshold)
        if text
    ]
    assert len(texts) == sum(metrics for _, _, metrics in COUNTS.values()) + 413  # so many have a threshold
    for text in texts:
        parse(text)


def test_no_real_metric_refers_to_itself() -> None:
    for catalogue in real().catalogues:
        assert catalogue.needed([metric.name for metric in catalogue.metrics])


def test_metrics_of_real_listings_expand_to_many_events() -> None:
    catalogue = real_catalogue("x86/sapphirerapids")
    sizes = {metric.name: len(catalogue.needed([metric.name])) for metric in catalogue.metrics}
    assert max(sizes.values()) > 60


def test_quirks_of_real_listings() -> None:
    zen4, power10 = real_catalogue("x86/amdzen4"), real_catalogue("powerpc/power10")
    assert len({metric.name for metric in zen4.metrics}) == 73
    assert len({metric.name for metric in power10.metrics}) == 237
    assert all(event.description for event in zen4.events)  # one key is misspelt
    assert "BR_MIS_PRED" in real_catalogue("arm64/arm/neoverse-v1").metric("frontend_bound").expression


def test_every_event_of_a_core_has_a_counter_that_can_hold_it() -> None:
    for catalogue in real().catalogues:
        pmu = catalogue.pmu()
        assert [event.name for event in catalogue.events if event.unit == "" and not pmu.holds([event])] == []
