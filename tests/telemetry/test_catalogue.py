"""The cache of catalogues: what was added is found again, by name and by CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symphony.problem.errors import DataError, InputError
from symphony.telemetry import architectural, catalogue, listings, machine
from tests.telemetry import small
from tests.telemetry.packing import kernel, tar, unpacked

LISTING = listings.read(small.files())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "symphony" / "catalogue"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "tree", small.files())


def on_cpu(monkeypatch: pytest.MonkeyPatch, cpu: str, architecture: str = "x86") -> None:
    monkeypatch.setattr(machine, "cpuid", lambda: cpu)
    monkeypatch.setattr(machine, "architecture", lambda: architecture)


def test_what_was_added_comes_back_the_same(tree: Path) -> None:
    added = catalogue.add(tree)
    assert [(entry.name, entry.core, entry.other, entry.metrics) for entry in added if entry.name == "x86/tiny"] == [
        ("x86/tiny", 6, 1, 4)
    ]
    for original in listings.read(small.files(), source=str(tree)).catalogues:
        assert catalogue.load(original.name) == original


def test_names_may_be_shortened(tree: Path) -> None:
    catalogue.add(tree)
    assert catalogue.load("tiny").name == "x86/tiny"
    assert catalogue.load("Maker/Small-1").name == "arm64/maker/small-1"
    with pytest.raises(InputError):
        catalogue.load("iny")


def test_a_name_of_two_catalogues_has_to_be_longer(tmp_path: Path) -> None:
    files = small.files()
    files["arm64/other/small-1/core.json"] = b"[]"
    catalogue.add(unpacked(tmp_path / "two", files))
    with pytest.raises(InputError, match="is ambiguous") as caught:
        catalogue.load("small-1")
    assert "arm64/maker/small-1" in caught.value.hint


def test_unknown_names(tree: Path) -> None:
    with pytest.raises(InputError, match="no catalogue sapphirerapids") as caught:
        catalogue.load("sapphirerapids")
    assert "none has been added yet" in caught.value.hint and "catalogue add" in caught.value.hint
    catalogue.add(tree)
    with pytest.raises(InputError) as caught:
        catalogue.load("tinny")
    assert "did you mean tiny?" in caught.value.hint


def test_adding_again_replaces_and_keeps_the_rest(tree: Path) -> None:
    catalogue.add(tree)
    (tree / "x86/mix/core.json").write_text('[{"EventName": "ONE"}]')
    catalogue.add(tree / "x86/mix")
    counts = {entry.name: entry.core for entry in catalogue.entries()}
    assert counts["x86/mix"] == 1 and counts["x86/tiny"] == 6
    assert len(counts) == len(LISTING.catalogues) + 1
    assert catalogue.matching("0x004e1202", "powerpc") == "powerpc/big"
    assert catalogue.matching("0x004e1202", "x86") is None


def test_the_built_in_catalogue_is_always_there() -> None:
    assert [entry.name for entry in catalogue.entries()] == [architectural.ARCHITECTURAL_NAME]
    assert catalogue.load("architectural") is architectural.CATALOGUE


def test_the_cpu_at_hand(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch, "GenuineIntel-6-55-4")
    assert catalogue.at_hand() is architectural.CATALOGUE
    catalogue.add(tree)
    assert catalogue.at_hand().name == "x86/tiny"
    on_cpu(monkeypatch, "GenuineIntel-6-55-7")
    assert catalogue.at_hand().name == "x86/mix"  # the first line that matches
    on_cpu(monkeypatch, "AuthenticAMD-25-11-1")
    assert catalogue.at_hand() is architectural.CATALOGUE
    on_cpu(monkeypatch, "0x00000000413fd0c1", "arm64")
    assert catalogue.at_hand().name == "arm64/maker/small-1"


def test_a_cpu_whose_listing_was_not_added(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.add(tree / "x86/mix")
    on_cpu(monkeypatch, "GenuineIntel-6-55-4")
    assert catalogue.matching("GenuineIntel-6-55-4", "x86") == "x86/tiny"
    assert catalogue.at_hand() is architectural.CATALOGUE


def test_perf_list_is_for_the_cpu_it_ran_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch, "SomeVendor-1-2-3")
    (tmp_path / "events.json").write_text(json.dumps(small.PERF_LIST))
    assert [entry.name for entry in catalogue.add(tmp_path / "events.json")] == ["perf-list"]
    assert catalogue.at_hand().name == "perf-list"
    assert catalogue.matching("SomeVendor-1-2-3", "x86") == "perf-list"
    on_cpu(monkeypatch, "OtherVendor-1-2-3")
    assert catalogue.at_hand() is architectural.CATALOGUE


def test_files_that_are_neither(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="neither an archive nor") as caught:
        catalogue.add(tmp_path / "noise")
    assert caught.value.hint
    with pytest.raises(DataError, match="no such file"):
        catalogue.add(tmp_path / "nothing")


def test_what_cannot_be_read_is_left_out_and_named(tree: Path) -> None:
    (tree / "x86/tiny/core.json").write_text('[{"EventName": ')
    added = {entry.name: entry for entry in catalogue.add(tree)}
    assert added["x86/tiny"].left_out == (
        "x86/tiny/core.json, line 1: the file is not JSON, or was cut short: Expecting value",
    )
    assert added["x86/mix"].left_out == () and added["x86/tiny"].metrics == 4
    assert catalogue.entries()[-2] == added["x86/tiny"]
    assert catalogue.load("tiny").left_out == added["x86/tiny"].left_out


def test_listings_of_which_nothing_can_be_read_are_refused(tree: Path, cache: Path) -> None:
    for file in tree.rglob("*.json"):
        file.write_text("[{")
    with pytest.raises(DataError, match=r"nothing in it could be read: arm64/standard\.json, line 1"):
        catalogue.add(tree)
    assert not cache.exists()


def test_one_folder_without_anything_above_it(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "x86/mapfile.csv").unlink()
    (tree / "x86/tiny").rename(tmp_path / "tiny")
    assert [entry.name for entry in catalogue.add(tmp_path / "tiny")] == ["unknown/tiny"]
    assert [entry.name for entry in catalogue.add(tree / "x86/mix")] == ["x86/mix"]
    on_cpu(monkeypatch, "GenuineIntel-6-55-4")
    assert catalogue.at_hand() is architectural.CATALOGUE
    assert catalogue.load("tiny").event("TICKS").fixed == 1


def test_names_in_archives_do_not_lead_out_of_the_cache(tmp_path: Path, cache: Path) -> None:
    evil = {"arch/mapfile.csv": b"a,b,c,d\n", "arch/../../../out/e.json": b"[]"}
    (tmp_path / "evil.tar").write_bytes(tar(kernel(evil), ""))
    catalogue.add(tmp_path / "evil.tar")
    outside = [path for path in tmp_path.rglob("*.json") if cache not in path.parents]
    assert outside == []


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"\xff\x00", b'{"format":1,"name":"x"}', b'{"format":99}'])
def test_damaged_caches_say_so(tree: Path, cache: Path, damage: bytes) -> None:
    catalogue.add(tree)
    (cache / "x86__tiny.json").write_bytes(damage)
    with pytest.raises(DataError, match="cached catalogue") as caught:
        catalogue.load("tiny")
    assert "catalogue add" in caught.value.hint
    (cache / "index.json").write_bytes(damage or b"x")
    with pytest.raises(DataError, match="cached catalogue"):
        catalogue.entries()
    catalogue.add(tree)  # as the hint says
    assert catalogue.load("tiny").name == "x86/tiny"


def test_a_cache_of_other_columns_is_refused(tree: Path, cache: Path) -> None:
    catalogue.add(tree)
    text = (cache / "x86__tiny.json").read_text().replace('"umask"', '"mask"')
    (cache / "x86__tiny.json").write_text(text)
    with pytest.raises(DataError, match="another version"):
        catalogue.load("tiny")


def test_a_cache_that_cannot_be_written(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written") as caught:
        catalogue.add(tree)
    assert "XDG_CACHE_HOME" in caught.value.hint
