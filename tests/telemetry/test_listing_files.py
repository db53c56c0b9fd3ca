"""Where listings come from: all places give the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.problem.errors import DataError
from symphony.telemetry import listing_files
from tests.telemetry import small
from tests.telemetry.packing import deb, kernel, tar, unpacked

FILES = small.files()


@pytest.mark.parametrize("inside", ["", "tools/perf/pmu-events/arch"])
def test_a_folder_and_a_kernel_tree(tmp_path: Path, inside: str) -> None:
    unpacked(tmp_path / inside, FILES)
    (tmp_path / "README").write_text("not wanted")
    assert listing_files.read(tmp_path) == FILES


def test_one_architecture(tmp_path: Path) -> None:
    unpacked(tmp_path, FILES)
    assert listing_files.read(tmp_path / "x86") == {
        path: text for path, text in FILES.items() if path.startswith("x86/")
    }


def test_one_microarchitecture_brings_what_it_refers_to(tmp_path: Path) -> None:
    unpacked(tmp_path, FILES)
    assert set(listing_files.read(tmp_path / "x86/mix")) == {"x86/mapfile.csv", "x86/mix/core.json"}
    arm = {"arm64/mapfile.csv", "arm64/standard.json", "arm64/maker/small-1/core.json"}
    assert set(listing_files.read(tmp_path / "arm64/maker/small-1")) == arm
    assert set(listing_files.read(tmp_path / "arm64/maker")) == arm


@pytest.mark.parametrize("compression", ["xz", "gz", "bz2", ""])
def test_an_archive_of_a_kernel(tmp_path: Path, compression: str) -> None:
    (tmp_path / "linux").write_bytes(tar(kernel(FILES), compression))
    assert listing_files.is_archive(tmp_path / "linux")
    assert listing_files.read(tmp_path / "linux") == FILES


def test_debians_package_holds_an_archive_in_an_archive(tmp_path: Path) -> None:
    file = tmp_path / "linux-source-9.9_all.deb"
    file.write_bytes(deb(tar({"./usr/src/linux-source-9.9.tar.xz": tar(kernel(FILES))})))
    assert listing_files.is_archive(file)
    assert listing_files.read(file) == FILES


def test_the_newest_source_that_is_installed(tmp_path: Path) -> None:
    source, modules = tmp_path / "src", tmp_path / "modules"
    source.mkdir()
    assert listing_files.installed_source(source, modules) is None
    package = source / "linux-source-6.9.tar.xz"
    package.write_bytes(tar(kernel(FILES)))
    (source / "python3.11").mkdir()
    assert listing_files.installed_source(source, modules) == package
    unpacked(modules / "6.12.3-amd64" / "source" / listing_files.IN_KERNEL, FILES)
    assert listing_files.installed_source(source, modules) == modules / "6.12.3-amd64" / "source"
    unpacked(source / "linux-6.13" / listing_files.IN_KERNEL, FILES)
    assert listing_files.installed_source(source, modules) == source / "linux-6.13"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"\x7fELF" + bytes(1000), "cannot be read"),
        (tar(kernel(FILES))[:-200], "cannot be read"),
        (tar({"a/b": b"c"}), "no mapfile.csv"),
        (deb(tar(kernel(FILES)))[:400], "cannot be read"),
        (deb(b"", "data.tar.zst"), "zstd"),
        (deb(b"", "other"), "no data.tar"),
        (b"!<arch>\n" + b"x" * 60, "cannot be read"),
    ],
)
def test_what_is_no_archive_of_listings(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "it").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        listing_files.read(tmp_path / "it")
    assert caught.value.where == str(tmp_path / "it") and "linux-source" in caught.value.hint


def test_a_folder_without_listings(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"no mapfile\.csv"):
        listing_files.read(tmp_path / "a")
    with pytest.raises(DataError, match="no such file"):
        listing_files.read(tmp_path / "b")
    assert not listing_files.is_archive(tmp_path / "b")
