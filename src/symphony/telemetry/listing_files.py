"""Files of the kernel's listings: from a kernel tree, a folder of it, an archive, or Debian's source package.

The result is always the same: the JSON files and `mapfile.csv`, by their paths from the folder that holds the
architectures, which are recognised by their `mapfile.csv`.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

from symphony.problem.errors import DataError
from symphony.telemetry.listings import MAPFILE

T = TypeVar("T")

IN_KERNEL = "tools/perf/pmu-events/arch"
LISTINGS_PATH_HINT = f"give a kernel tree, its folder {IN_KERNEL}, or Debian's linux-source package as downloaded"
_MAX_FILE_BYTES = 1 << 26  # bytes of one file: the kernel's are a few MB
_MAX_FOLDER_ENTRIES = 300_000  # entries of a folder that is searched
_ARCHITECTURES = ("arm64", "powerpc", "riscv", "s390", "x86")
_DEB = b"!<arch>\n"
_INNER_TAR = re.compile(r"linux-source-[^/]*\.tar(\.\w+)?$|linux-[^/]*\.tar(\.\w+)?$")


def read(path: Path) -> dict[str, bytes]:
    """The files of the listings at a path, by path from the folder of architectures."""
    if path.is_dir():
        return _folder(path)
    try:
        with path.open("rb") as file:
            package = file.read(len(_DEB)) == _DEB
            file.seek(0)
            found = dict(_package(file) if package else _archive(file))
    except FileNotFoundError:
        raise DataError("there is no such file or folder", where=str(path), hint=LISTINGS_PATH_HINT) from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"the archive cannot be read: {error}", where=str(path), hint=f"download it again, or {LISTINGS_PATH_HINT}"
        ) from None
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror or error}", where=str(path), hint=LISTINGS_PATH_HINT
        ) from None
    return _rooted(found, str(path))


def installed_source(source: Path = Path("/usr/src"), modules: Path = Path("/lib/modules")) -> Path | None:
    """The newest kernel source on this machine: Debian's linux-source package, or a tree; None if there is none."""
    trees = [path for path in (*source.glob("*"), *modules.glob("*/source")) if (path / IN_KERNEL).is_dir()]

    def version(path: Path) -> list[int]:
        return [int(part) for part in re.findall(r"[0-9]+", f"{path.parent.name}/{path.name}")]

    return max((*source.glob("linux-source-*.tar*"), *trees), key=version, default=None)


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, compressed or not, or a Debian package, by its first bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError:
        return False
    magics = (_DEB, b"\xfd7zXZ\x00", b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")
    return head.startswith(magics) or head[257:262] == b"ustar"


# --- Folders -----------------------------------------------------------------------------------------------


def _folder(path: Path) -> dict[str, bytes]:
    inside = path / IN_KERNEL
    found = _below(inside if inside.is_dir() else path)
    if any(PurePosixPath(name).name == MAPFILE for name in found):
        return _contents(_rooted(found, str(path)))
    # The folder of one microarchitecture or vendor: the architecture is the folder above that has a mapfile.csv.
    path = path.absolute()
    for above in path.parents[:3]:
        if (above / MAPFILE).is_file():
            start = f"{path.relative_to(above).as_posix()}/"
            own = {name: file for name, file in _below(above).items() if "/" not in name or name.startswith(start)}
            return _contents({f"{above.name}/{name}": file for name, file in own.items()})
    if any(path.glob("*.json")):
        # The folder of one microarchitecture alone: no CPU is known to use it, so users name it.
        above = next((above for above in path.parents if above.name in _ARCHITECTURES), path.parent)
        start = f"{above.name if above.name in _ARCHITECTURES else 'unknown'}/"
        own = {f"{start}{file.relative_to(above).as_posix()}": file for file in path.glob("*.json")}
        return {f"{start}{MAPFILE}": b"", **_contents(own)}
    raise DataError(f"there is no {MAPFILE} in the folder, nor above it", where=str(path), hint=LISTINGS_PATH_HINT)


def _below(folder: Path) -> dict[str, Path]:
    """Files below a folder that may be listings, by relative path. They are not opened: there may be many others."""
    found: dict[str, Path] = {}
    seen = 0
    for parent, _, files in os.walk(folder):
        seen += len(files)
        if seen > _MAX_FOLDER_ENTRIES:
            raise DataError(
                f"more than {_MAX_FOLDER_ENTRIES:,} files are in the folder", where=str(folder), hint=LISTINGS_PATH_HINT
            )
        paths = (Path(parent, name) for name in files if _wanted(name))
        found |= {file.relative_to(folder).as_posix(): file for file in paths if file.is_file()}
    return found


def _contents(files: Mapping[str, Path]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name, file in files.items():
        try:
            if file.stat().st_size > _MAX_FILE_BYTES:
                raise DataError(
                    f"the file has more than {_MAX_FILE_BYTES:,} bytes", where=str(file), hint=LISTINGS_PATH_HINT
                )
            contents[name] = file.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(file), hint=LISTINGS_PATH_HINT) from None
    return contents


def _wanted(name: str) -> bool:
    return name.endswith(".json") or PurePosixPath(name).name == MAPFILE


def _rooted(files: Mapping[str, T], where: str) -> dict[str, T]:
    """The files of all folders with a `mapfile.csv`, by paths that begin with the name of the architecture."""
    found: dict[str, T] = {}
    for mapfile in files:
        if PurePosixPath(mapfile).name == MAPFILE:
            folder = PurePosixPath(mapfile).parent
            start = "" if str(folder) == "." else f"{folder}/"
            name = folder.name or Path(where).resolve().name
            found |= {f"{name}/{path.removeprefix(start)}": files[path] for path in files if path.startswith(start)}
    if not found:
        raise DataError(
            f"there is no {MAPFILE} in it, so it does not contain the kernel's listings",
            where=where,
            hint=LISTINGS_PATH_HINT,
        )
    return found


# --- Archives ----------------------------------------------------------------------------------------------


def _archive(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The listings in a tar archive, or in a kernel's archive inside it. Reads once, from front to back."""
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if not member.isfile():
                continue
            if _INNER_TAR.search(member.name) and (inner := archive.extractfile(member)):
                yield from _archive(inner)
            elif _wanted(member.name) and "pmu-events/" in member.name and member.size <= _MAX_FILE_BYTES:
                content = archive.extractfile(member)
                if content:
                    yield member.name.removeprefix("./"), content.read()


def _package(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The listings in a Debian package: an `ar` archive that contains the tar archive `data.tar`."""
    file.seek(len(_DEB))
    while len(header := file.read(60)) == 60:
        name, size = header[:16].decode("ascii", errors="replace").strip().rstrip("/"), int(header[48:58])
        start = file.tell()
        if name.startswith("data.tar"):
            if name.endswith(".zst"):
                raise ValueError("its content is compressed with zstd; unpack it with dpkg-deb -x")
            yield from _archive(io.BytesIO(file.read(size)))
            return
        file.seek(start + size + size % 2)
    raise ValueError("the package has no data.tar")
