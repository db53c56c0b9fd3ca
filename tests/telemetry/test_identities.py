"""Identities: each rule on a few events whose masks can be read, then all rules on the kernel's listings."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from symphony.problem.errors import DataError
from symphony.telemetry import architectural, identities, listing_files, listings
from symphony.telemetry.events import Catalogue, Event, Metric
from symphony.telemetry.identities import Identity, curated, everything, independent, mine
from symphony.telemetry.machine import Platform
from symphony.telemetry.reading import Model
from tests.data import data
from tests.telemetry import callgrind, small


def events(*masks: tuple[str, int], code: int = 0x24, **fields: object) -> list[Event]:
    return [Event(name, codes=(code,), umask=mask, **fields) for name, mask in masks]  # type: ignore[arg-type]


def catalogue(*found: list[Event], metrics: tuple[Metric, ...] = ()) -> Catalogue:
    return Catalogue("x86/made-up", tuple(event for some in found for event in some), metrics)


def named(found: tuple[Identity, ...]) -> dict[str, str]:
    return {one.name: one.source for one in found}


def says(text: str, found: tuple[Identity, ...]) -> bool:
    """Whether some sum is this one: `total = part + part`, in full names."""
    total, _, parts = text.partition(" = ")
    wanted = {total: 1.0} | {part: -1.0 for part in parts.split(" + ")}
    return any(one.relation == "=" and dict(one.terms) == wanted for one in found)


# --- The type ---


def test_slack_is_never_zero() -> None:
    one = Identity("t = a + b", (("t", 1.0), ("a", -1.0), ("b", -1.0)))
    assert one.slack > 0 and one.events == ("t", "a", "b")


def test_names_are_short_and_coefficients_whole() -> None:
    made = identities.identity({"c.a": -1 / 6, "c.b": -1 / 6, "d": 1.0}, "=", "residual", "")
    assert made is not None and made.name == "6 × d = c.a + c.b"
    made = identities.identity({"c.t": 1.0, "c.a": -1.0, "c.b": -1.0}, "=", "residual", "")
    assert made is not None and made.name == "c.t = a + b"


def test_what_says_nothing_is_no_identity() -> None:
    assert identities.identity({"a": 1.0, "b": 1.0}, ">=", "residual", "") is None


def test_implied_ones_are_dropped() -> None:
    def sum_(total: str, *parts: str) -> Identity:
        return Identity(total, ((total, 1.0), *((part, -1.0) for part in parts)))

    def bound(total: str, *parts: str) -> Identity:
        return Identity(f"{total} >=", ((total, 1.0), *((part, -1.0) for part in parts)), ">=")

    kept = independent(
        [
            sum_("t", "s", "c"),
            sum_("s", "a", "b"),
            sum_("t", "a", "b", "c"),  # both of the above
            bound("t", "b"),  # a part of a part
            bound("t", "a", "c"),
            bound("u", "a", "b"),
            bound("u", "a"),  # less than is known
            bound("a", "b"),
        ]
    )
    assert [one.name for one in kept] == ["t", "s", "u >=", "a >="]


# --- Masks ---

CACHE = (("CACHE.ALL", 7), ("CACHE.READ", 1), ("CACHE.WRITE", 2), ("CACHE.OTHER", 4))


def test_a_union_is_the_sum_of_its_parts() -> None:
    (found,) = mine(catalogue(events(*CACHE)))
    assert found.name == "cache.all = read + write + other"
    assert found.source == "umask union" and found.structural
    assert found.terms == (("cache.all", 1.0), ("cache.read", -1.0), ("cache.write", -1.0), ("cache.other", -1.0))


def test_the_finest_parts_and_the_chain() -> None:
    found = mine(catalogue(events(*CACHE, ("CACHE.DATA", 3))))
    assert set(named(found)) == {"cache.all = read + write + other", "cache.data = read + write"}
    # Without the finest, what there is; and what was implied before no longer is.
    some = mine(catalogue(events(*CACHE, ("CACHE.DATA", 3))), ["cache.all", "cache.other", "CACHE.DATA"])
    assert set(named(some)) == {"cache.all = data + other"}


def test_overlapping_parts_do_not_add_up() -> None:
    found = mine(catalogue(events(("C.T", 0x13), ("C.A", 0x11), ("C.B", 0x12), ("C.S", 0x10))))
    assert set(named(found)) == {"c.t >= a", "c.t >= b", "c.a >= s", "c.b >= s"}


@pytest.mark.parametrize("differing", [{"cmask": 1}, {"edge": True}, {"invert": True}, {"terms": (("ldlat", "3"),)}])
def test_events_that_count_otherwise_are_no_parts(differing: dict[str, object]) -> None:
    found = mine(catalogue(events(*CACHE[:2]), events(*CACHE[2:], **differing)))
    assert not [one for one in found if one.relation == "="]


def test_cycles_with_some_of_each_do_not_add_up() -> None:
    # In a cycle that has both a read and a write, the total counts one.
    found = mine(catalogue(events(*CACHE, cmask=1)))
    assert {one.relation for one in found} == {">="}
    assert set(named(found)) == {"cache.all >= read", "cache.all >= write", "cache.all >= other"}


def test_cycles_with_many_are_fewer() -> None:
    found = mine(catalogue(events(("Q", 1)), events(("Q_GE_1", 1), cmask=1), events(("Q_GE_6", 1), cmask=6)))
    assert set(named(found)) == {"q_ge_1 >= q_ge_6", "q >= q_ge_1", "q >= 6 × q_ge_6"}


def test_masks_overrule_names() -> None:
    # Reads and writes, by their names; but there is something else in the total.
    found = mine(catalogue(events(*CACHE)), ["cache.all", "cache.read", "cache.write"])
    assert set(named(found)) == {"cache.all >= read + write"}


def test_units_are_apart() -> None:
    found = mine(catalogue(events(*CACHE[:2]), events(*CACHE[2:], unit="iMC")))
    assert set(named(found)) == {"cache.all >= read"}


def test_the_listing_decides_whatever_is_asked_for() -> None:
    """The enumeration trap: 3 is not 1 + 2, though from these three alone it might be."""
    ops = events(("o.add", 1), ("o.sub", 2), ("o.mul", 3), ("o.mac", 4), ("o.div", 5), ("o.sqrt", 6), ("o.all", 0xF))
    found = mine(catalogue(ops), ["o.add", "o.sub", "o.mul"])
    assert found == ()
    found = mine(catalogue(ops))
    assert all(one.relation == ">=" and len(one.terms) == 2 and one.events[0] == "o.all" for one in found)
    assert len(found) == 6


def test_totals_of_enumerations_add_up() -> None:
    low = [(f"o.{name}", at) for at, name in enumerate(("add", "sub", "mul", "mac", "div"), 1)]
    wide = [(f"o.wide_{name}", at << 4) for at, name in enumerate(("add", "sub", "mul", "mac", "div"), 1)]
    found = mine(catalogue(events(*low, *wide, ("o.some_all", 0xF), ("o.wide_all", 0xF0), ("o.all", 0xFF))))
    assert [one.name for one in found if one.relation == "="] == ["o.all = some_all + wide_all"]


def test_one_value_with_two_bits_is_no_enumeration() -> None:
    found = mine(catalogue(events(("w.done", 0xE), ("w.small", 2), ("w.large", 4), ("w.huge", 8), ("w.start", 1))))
    assert named(found) == {"w.done = small + large + huge": "umask union"}


def test_values_that_do_not_cross_are_for_the_gate_to_decide() -> None:
    cas = events(
        ("cas.rd", 3), ("cas.wr", 0xC), ("cas.rd_reg", 1), ("cas.rd_fill", 2), ("cas.wr_a", 4), ("cas.wr_b", 8)
    )
    found = mine(catalogue(cas))
    assert named(found) == {"cas.rd = rd_reg + rd_fill": "likely union", "cas.wr = wr_a + wr_b": "likely union"}
    assert not any(one.structural for one in found)


def test_outside_the_core_a_union_needs_a_test() -> None:
    # There, bits may choose a kind and an outcome, and single ones be filters: 0x11 is not 0x1 + 0x10.
    tor = events(("tor.ia_hit", 0x11), ("tor.irq", 1), ("tor.hit", 0x10), unit="CHA")
    (found,) = mine(catalogue(tor))
    assert found.source == "likely union" and not found.structural


def test_banks_are_numbered() -> None:
    banks = [(f"cas.bank{at}", at) for at in range(1, 16)]
    groups = [(f"cas.bankg{at}", 0x11 + at) for at in range(4)]
    assert mine(catalogue(events(*banks, ("cas.allbanks", 0x10), *groups, unit="iMC"))) == ()


def test_counters_that_run_by_themselves_have_numbers_for_masks() -> None:
    free = events(("iio_clockticks", 0x10), ("iio_in.part0", 0x20), ("iio_out.part0", 0x30), code=0xFF, unit="free")
    assert mine(catalogue(free)) == ()


def test_outside_the_core_parts_are_called_like_the_whole() -> None:
    assert mine(catalogue(events(("a.t", 3), ("b.x", 1), ("b.y", 2), unit="M2M"))) == ()
    assert mine(catalogue(events(("a.t", 3), ("b.x", 1), ("b.y", 2))))  # as AMD has it


def test_cycles_do_not_add_up_whatever_they_are_called() -> None:
    for what in ("q_cycles_ne", "q_cycles_full", "q_ne"):
        found = mine(catalogue(events((f"{what}.all", 3), (f"{what}.a", 1), (f"{what}.b", 2), unit="M2M")))
        assert set(named(found)) == {f"{what}.all >= a", f"{what}.all >= b"}
    waits = events(("clk.wait", 3), ("clk.c1", 1), ("clk.pause", 2), description="Cycles in a state, one at a time.")
    assert set(named(mine(catalogue(waits))).values()) == {"likely union"}
    retiring = events(("no_retire.all", 3), ("no_retire.a", 1), ("no_retire.b", 2), description="Cycles without any.")
    assert set(named(mine(catalogue(retiring))).values()) == {"likely union"}


def test_a_total_is_no_part_of_what_is_none() -> None:
    assert mine(catalogue(events(("victims.local_m", 0x21), ("victims.total_m", 1), ("victims.local", 0x20)))) == ()
    fills = events(("fills_from_memory", 3), ("any_fills.local", 1), ("any_fills.remote", 2))
    assert named(mine(catalogue(fills))) == {"fills_from_memory = any_fills.local + any_fills.remote": "umask union"}
    assert says("v.all = v.a_all + v.b_all", mine(catalogue(events(("v.all", 3), ("v.a_all", 1), ("v.b_all", 2)))))


def test_bits_that_nothing_else_has() -> None:
    # 0x20 is not listed: a total may have it; what is no total may use it as a filter.
    found = mine(catalogue(events(("f.all", 0xFF), ("f.a", 0xC), ("f.b", 0xD3))))
    assert named(found) == {"f.all = b + a": "reserved bits"}
    assert not mine(catalogue(events(("n.load_waits", 0xA2), ("n.waits", 2), ("n.other", 1))))


KINDS = {"data": 1, "code": 2, "fetch": 4}
OUTCOMES = {"all": 0xE0, "hit": 0xC0, "miss": 0x20}


def two_fields() -> list[Event]:
    masks = [(f"L.{kind}_{how}", mask | bits) for kind, mask in KINDS.items() for how, bits in OUTCOMES.items()]
    return events(*masks, ("L.demand_miss", 0x23), ("L.misses", 0x27), ("L.everything", 0xE7))


def test_masks_that_choose_kind_and_outcome() -> None:
    found = mine(catalogue(two_fields()))
    for kind in KINDS:
        assert says(f"l.{kind}_all = l.{kind}_miss + l.{kind}_hit", found)
    assert says("l.misses = l.data_miss + l.code_miss + l.fetch_miss", found)
    assert says("l.everything = l.data_all + l.code_all + l.fetch_all", found)
    assert {one.source for one in found if one.relation == "="} == {"umask product"}
    # 0x23 and 0xc4 are disjoint, and their union is 0xe7; but hits of data are in neither.
    some = mine(catalogue(two_fields()), ["l.everything", "l.demand_miss", "l.fetch_hit"])
    assert not [one for one in some if one.relation == "="]


def test_aliases() -> None:
    same = events(("A", 1), ("B", 1), ("C", 2))
    (found,) = mine(catalogue(same))
    assert found.name == "a = b" and found.source == "alias" and found.structural
    fixed = [Event("INST_RETIRED.ANY", fixed=0), Event("INST_RETIRED.ANY_P", codes=(0xC0,))]
    assert named(mine(catalogue(fixed))) == {"inst_retired.any = any_p": "alias"}


def test_what_counts_for_others_is_no_alias_and_no_part() -> None:
    """One code on two kinds of core, or for programs and the kernel, gives two counts."""
    listed = catalogue(events(("X.A", 1), ("X.B", 2), ("X.ALL", 3)))
    assert mine(listed, ["cpu_core/x.a/", "cpu_atom/x.a/"]) == ()
    assert mine(listed, ["x.a:u", "x.a:k", "x.a"]) == ()
    core = ["cpu_core/x.all/", "cpu_core/x.a/", "cpu_core/x.b/"]
    (whole,) = mine(listed, [*core, "cpu_atom/x.a/"])
    assert set(whole.events) == set(core) and whole.relation == "="
    assert mine(listed, [*core[:2], "cpu_atom/x.b/"]) == mine(listed, [*core[:2]])


def test_numbers_of_fixed_counters_are_no_masks() -> None:
    fixed = [Event(f"FIXED{at}", codes=(0,), umask=at, fixed=at - 1) for at in (1, 2, 3)]
    assert mine(catalogue(fixed)) == ()


# --- Names ---


def test_names_that_differ_in_a_word() -> None:
    found = mine(
        catalogue(
            [
                Event("L2.DATA_HIT", codes=(1,)),
                Event("L2.DATA_MISS", codes=(2,)),
                Event("L2.ALL_DATA", codes=(3,)),
                Event("D_CACHE_RD", codes=(4,)),
                Event("D_CACHE_WR", codes=(5,)),
                Event("D_CACHE", codes=(6,)),
                Event("STALL_LOAD", codes=(7,)),
                Event("STALL_STORE", codes=(8,)),
                Event("STALL", codes=(9,)),
                Event("X_HIT", codes=(10,), unit="CHA"),
                Event("X_MISS", codes=(11,), unit="CHA"),
                Event("X", codes=(12,)),
            ]
        )
    )
    assert named(found) == {
        "l2.all_data = data_hit + data_miss": "hit + miss",
        "d_cache = d_cache_rd + d_cache_wr": "hit + miss",
    }
    assert not any(one.structural for one in found)


# --- Metrics ---

COUNTS = [Event(name, codes=(at,)) for at, name in enumerate(("a", "b", "c", "clk"), 1)]


def test_residual_metrics_are_not_negative() -> None:
    metrics = (
        Metric("rest", "1 - a / clk - b / clk"),
        Metric("difference", "max(0, (a - b) / clk)"),
        Metric("crooked", "a * b - c"),
    )
    found = mine(catalogue(COUNTS, metrics=metrics))
    assert named(found) == {"clk >= a + b": "residual", "a >= b": "residual"}


def test_percentages_are_at_most_100() -> None:
    metrics = (
        Metric("share", "4 * a / clk", scale=100.0, scale_unit="%"),
        Metric("arm_share", "100 * b / clk", scale_unit="percent of cycles"),
        Metric("part", "c / (c + b)", scale=100.0, scale_unit="%"),  # never more
        Metric("rate", "c / clk"),  # no percentage
        Metric("in_time", "c / duration_time", scale=100.0, scale_unit="%"),
    )
    found = mine(catalogue(COUNTS, metrics=metrics))
    assert named(found) == {"clk >= 4 × a": "percentage", "clk >= b": "percentage"}


def test_children_add_up_to_their_parent() -> None:
    metrics = (
        Metric("slots", "4 * clk"),
        Metric("tma_front", "a / slots", groups=("TopdownL1",)),
        Metric("tma_back", "b / slots", groups=("TopdownL1",)),
        Metric("tma_late", "4 * c / slots", groups=("TopdownL2", "tma_front_group")),
        Metric("tma_slow", "d / slots", groups=("TopdownL2", "tma_front_group")),
        Metric("tma_x", "e / slots", groups=("TopdownL3", "tma_late_group")),
        Metric("tma_y", "f / slots", groups=("TopdownL3", "tma_late_group")),
    )
    counts = [*COUNTS, *(Event(name, codes=(20 + at,)) for at, name in enumerate("def"))]
    found = mine(catalogue(counts, metrics=metrics))
    # Below the second level children are estimates that may overlap.
    assert named(found) == {"4 × clk = a + b": "top-down", "a = 4 × c + d": "top-down"}


def test_children_that_are_defined_by_their_parent_say_nothing() -> None:
    metrics = (
        Metric("tma_p", "a / clk", groups=("TopdownL1",)),
        Metric("tma_q", "1 - tma_p", groups=("TopdownL1",)),
    )
    assert named(mine(catalogue(COUNTS, metrics=metrics))) == {"clk >= a": "residual"}


def test_constants_of_the_machine_decide() -> None:
    metrics = (Metric("m", "(a - b) / clk if #SMT_on else (a - c) / clk"),)
    made = catalogue(COUNTS, metrics=metrics)
    assert named(mine(made)) == {"a >= c": "residual"}
    assert named(mine(made, platform=Platform(smt_on=True))) == {"a >= b": "residual"}
    assert named(Model(made, Platform(smt_on=True)).claims("abc")) == {"a >= b": "residual"}


def test_only_among_the_events_asked_for() -> None:
    made = catalogue(COUNTS, metrics=(Metric("rest", "1 - a / clk - b / clk"), Metric("n", "(a - kernels\\-own) / b")))
    assert named(mine(made, ["A", "b"])) == {}
    assert named(mine(made, ["A", "b", "clk"])) == {"clk >= a + b": "residual"}
    assert named(mine(made, ["a", "kernels-own"])) == {"a >= kernels-own": "residual"}


# --- Curated ---

TEXT = """
catalogues = 'x86/.*'
[[identity]]
says = '{total} = a + 2 * {part}'
for = { total = ["T", "u"], part = ["b"] }
tolerance = 0.03
why = "so it is"
"""


def test_a_curated_file() -> None:
    lines = identities.read_curated(TEXT, "some.toml")
    assert [line.identity.name for line in lines] == ["t = a + 2 × b", "u = a + 2 × b"]
    assert lines[0].identity.source == "curated: some.toml" and lines[0].identity.tolerance == 0.03


@pytest.mark.parametrize(
    "text",
    [
        "catalogues",
        "catalogues = '.*'\n[[identity]]\nsays = 'a = b'",
        TEXT.replace("2 *", "a *"),
        TEXT.replace("a + 2 *", "0 *"),
        TEXT.replace("a + ", "a + ("),
    ],
)
def test_a_broken_curated_file_is_named(text: str) -> None:
    with pytest.raises(DataError, match=r"some\.toml"):
        identities.read_curated(text, "some.toml")


def test_curated_lines_are_about_events_that_there_are() -> None:
    found = named(curated(architectural.CATALOGUE))
    assert "page-faults = minor-faults + major-faults" in found and "l1-dcache-loads >= l1-dcache-load-misses" in found
    assert set(named(curated(architectural.CATALOGUE, ["cycles", "cache-misses", "cache-references"]))) == {
        "cache-references >= cache-misses"
    }


CALLGRIND = ["Ir", "Dr", "Dw", "I1mr", "D1mr", "D1mw", "ILmr", "DLmr", "DLmw", "Bc", "Bcm", "Bi", "Bim"]


def test_callgrind() -> None:
    found = callgrind.identities(CALLGRIND)
    assert {one.relation for one in found} == {">="} and len(found) == 9
    sums = {one.name for one in callgrind.identities([*CALLGRIND, "D1m", "LLm", "B"]) if one.relation == "="}
    assert sums == {"d1m = d1mr + d1mw", "llm = ilmr + dlmr + dlmw", "b = bc + bi"}


# --- The kernel's listings ---


def test_small_listings_of_every_kind() -> None:
    found = {listed.name: named(everything(listed)) for listed in listings.read(small.files()).catalogues}
    assert found["x86/tiny"] == {"cache.all = hit + miss": "umask union"}
    assert found["arm64/maker/small-1"] == {"cpu_cycles >= stall": "curated: arm.toml"}
    assert found["x86/mix"] == {}  # two kinds of core, one name


@cache
def _real(folder: Path) -> dict[str, Catalogue]:
    return {found.name: found for found in listings.read(listing_files.read(folder)).catalogues}


def real(name: str) -> Catalogue:
    return _real(data("pmu-events"))[name]


def test_every_listing_and_no_nonsense() -> None:
    for name, found in _real(data("pmu-events")).items():
        every = everything(found)
        assert every, name
        assert len({one.name for one in every}) == len(every), name
        for one in every:
            assert len(one.terms) > 1 and len(set(one.events)) == len(one.terms), (name, one)
            assert all(math.isfinite(value) and value for _, value in one.terms), (name, one)
            assert {value > 0 for _, value in one.terms} == {True, False}, (name, one)
            assert 0 < one.tolerance <= 0.1 and one.source and one.why, (name, one)


@pytest.mark.parametrize("name", ["skylakex", "icelakex", "sapphirerapids"])
def test_intel(name: str) -> None:
    found = everything(real(f"x86/{name}"))
    for text in (
        "l2_rqsts.all_demand_data_rd = l2_rqsts.demand_data_rd_miss + l2_rqsts.demand_data_rd_hit",
        "l2_rqsts.all_rfo = l2_rqsts.rfo_miss + l2_rqsts.rfo_hit",
        "mem_load_retired.l1_miss = mem_load_retired.l2_hit + mem_load_retired.l2_miss",
        "mem_load_retired.l2_miss = mem_load_retired.l3_hit + mem_load_retired.l3_miss",
        "mem_inst_retired.any = mem_inst_retired.all_loads + mem_inst_retired.all_stores",
        "inst_retired.any = inst_retired.any_p",
        "fp_arith_inst_retired.scalar = fp_arith_inst_retired.scalar_double + fp_arith_inst_retired.scalar_single",
    ):
        assert says(text, found), text
    some = ["unc_m_cas_count.all", "unc_m_cas_count.rd", "unc_m_cas_count.wr", "l2_rqsts.references", "l2_rqsts.miss"]
    few = everything(real(f"x86/{name}"), some)
    assert says("unc_m_cas_count.all = unc_m_cas_count.rd + unc_m_cas_count.wr", few)
    assert len(few) == (1 if name == "icelakex" else 2)  # which does not list the other two
    assert ("l2_rqsts.references >= miss" in named(few)) is (name != "icelakex")


def test_what_is_structural_can_be_read_in_an_hour() -> None:
    """And was: sums that are used untested. Whoever lets more in has to look at them."""
    counts = {
        name: sum(one.source == "umask union" for one in everything(real(name)))
        for name in ("x86/skylakex", "x86/icelakex", "x86/sapphirerapids", "x86/amdzen4", "powerpc/power9")
    }
    expected = (7, 9, 11, 29, 0)
    assert tuple(counts.values()) == expected
    for name in ("x86/skylakex", "x86/icelakex", "x86/sapphirerapids", "x86/amdzen4"):
        core = {event.name.lower() for event in real(name).events if event.core}
        assert all(core.issuperset(one.events) for one in everything(real(name)) if one.source == "umask union")


def test_intel_known_wrong() -> None:
    server = real("x86/skylakex")
    # Disjoint masks whose union is the total's; they choose kind and outcome.
    some = ["l2_rqsts.references", "l2_rqsts.all_demand_miss", "l2_rqsts.pf_hit"]
    assert all(one.relation == ">=" for one in mine(server, some))
    # `max(0, …)` in the middle of an estimate is no claim.
    assert not [one for one in mine(server) if set(one.events) == {"mem_inst_retired.lock_loads", "l2_rqsts.all_rfo"}]
    # Children of the third level overlap.
    assert not [one for one in mine(server) if "uops_dispatched_port.port_7" in one.events and one.relation == "="]


def test_intel_top_down() -> None:
    found = named(everything(real("x86/sapphirerapids")))
    assert "topdown.slots = topdown-retiring + topdown-bad-spec + topdown-fe-bound + topdown-be-bound" in found
    assert "topdown-retiring >= topdown-heavy-ops" in found
    old = named(mine(real("x86/skylakex")))
    assert "idq_uops_not_delivered.core >= 4 × cycles_0_uops_deliv.core" in old


def test_amd() -> None:
    zen = real("x86/amdzen4")
    found = everything(zen)
    assert says(
        "ls_any_fills_from_sys.local_all = ls_any_fills_from_sys.local_l2 + ls_any_fills_from_sys.local_ccx", found
    )
    assert says("umc_cas_cmd.all = umc_cas_cmd.rd + umc_cas_cmd.wr", found)
    kinds = "fp_ops_retired_by_type"
    assert says(f"{kinds}.all = {kinds}.scalar_all + {kinds}.vector_all", found)
    # Codes 0x0a to 0x0d: 3 is a number there, not 1 and 2.
    for op in (f"{kinds}.scalar_mul", f"{kinds}.vector_div", "packed_int_op_type.int128_mul"):
        assert not [one for one in found if one.relation == "=" and op in one.events], op
    assert mine(zen, [f"{kinds}.scalar_{op}" for op in ("add", "sub", "mul")]) == ()
    slots = {"ls_not_halted_cyc": 6.0, "de_src_op_disp.all": -1.0, "de_no_dispatch_per_slot.backend_stalls": -1.0}
    (top,) = [one for one in found if one.source == "top-down"]
    assert slots.items() <= dict(top.terms).items() and len(top.terms) == 5
    # A mask with bits that are filters: less is counted, not more.
    assert "ex_no_retire.load_not_complete >= not_complete" not in named(found)


def test_arm_and_power() -> None:
    arm = everything(real("arm64/arm/neoverse-n1"))
    assert says("l1d_cache = l1d_cache_rd + l1d_cache_wr", arm)
    assert says("mem_access = mem_access_rd + mem_access_wr", arm)
    assert "l1d_cache >= l1d_cache_refill" in named(arm)
    nine = everything(real("powerpc/power9"))
    assert says("pm_l2_ld = pm_l2_ld_hit + pm_l2_ld_miss", nine)
    assert "pm_run_cyc >= pm_1plus_ppc_cmpl + pm_cmplu_stall + pm_cmplu_stall_thrd + pm_ict_noslot_cyc" in named(nine)
    ten = everything(real("powerpc/power10"))
    # Loads and stores are not all that can stall.
    assert not says("pm_exec_stall = pm_exec_stall_load + pm_exec_stall_store", ten)
