"""The user's catalogues: added once, cached, found by name or by this machine's CPU.

The cache is `$XDG_CACHE_HOME/symphony/catalogue` (`~/.cache/…`): a compact JSON file for each microarchitecture, and
`index.json`, which lists them and the CPUs that use them. The listings are the kernel's and stay under its licence;
Symphony contains none of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from symphony.problem.errors import DataError, InputError
from symphony.telemetry import architectural, listing_files, listings, machine, perf_list
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.listings import Listing, MapLine

CATALOGUE_FORMAT = 1
_INDEX = "index.json"
_ADD_AGAIN_HINT = "add it again: `symphony catalogue add PATH`"


@dataclass(frozen=True)
class CatalogueEntry:
    """Summary of a cached catalogue."""

    name: str
    core: int  # events of the core
    other: int  # events of other units
    metrics: int
    source: str
    left_out: tuple[str, ...] = ()  # what could not be read, in whole sentences with file and record


@dataclass(frozen=True)
class _Index:
    entries: tuple[CatalogueEntry, ...] = ()
    lines: tuple[MapLine, ...] = ()


def folder() -> Path:
    """The cache folder of catalogues."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "symphony" / "catalogue"


# --- Adding ------------------------------------------------------------------------------------------------


def add(path: str | Path) -> tuple[CatalogueEntry, ...]:
    """Read listings and cache every catalogue in them; catalogues of the same names are replaced.

    `path`: a kernel tree, a folder of its listings, an archive of either, Debian's linux-source package, or the output
    of `perf list --json` (`-`: from standard input).
    """
    if str(path) == "-":
        return add_perf(sys.stdin.buffer.read(), source="standard input")
    place = Path(path).expanduser()
    if place.is_file() and not listing_files.is_archive(place):
        try:
            content = place.read_bytes()
        except OSError as error:
            raise DataError(
                f"cannot be read: {error.strerror}", where=str(place), hint=listing_files.LISTINGS_PATH_HINT
            ) from None
        if not content.lstrip().startswith(b"["):
            raise DataError(
                "this is neither an archive nor output of `perf list --json`",
                where=str(place),
                hint=listing_files.LISTINGS_PATH_HINT,
            )
        return add_perf(content, source=str(place))
    return _store(listings.read(listing_files.read(place), source=str(place)))


def add_perf(content: bytes | None = None, *, source: str = "perf list --json") -> tuple[CatalogueEntry, ...]:
    """Cache the output of `perf list --json` (by default run now) as the catalogue of this machine's CPU."""
    found = perf_list.read(perf_list.run() if content is None else content, source)
    cpuid = machine.cpuid()
    lines = (MapLine(perf_list.PERF_LIST_NAME, re.escape(cpuid), perf_list.PERF_LIST_NAME),) if cpuid else ()
    return _store(Listing((found,), lines))


def _store(listing: Listing) -> tuple[CatalogueEntry, ...]:
    left_out = [text for catalogue in listing.catalogues for text in catalogue.left_out]
    if left_out and not any(catalogue.events or catalogue.metrics for catalogue in listing.catalogues):
        raise DataError(
            f"nothing in it could be read: {left_out[0]}",
            where=listing.catalogues[0].source,
            hint="take the listings from the kernel tree again",
        )
    try:
        before = _index()
    except DataError:
        before = _Index()  # a damaged index is replaced
    added = tuple(_entry(catalogue) for catalogue in listing.catalogues)
    names = {entry.name for entry in added}
    kept = [entry for entry in before.entries if entry.name not in names]
    architectures = {line.architecture for line in listing.lines}
    lines = [line for line in before.lines if line.architecture not in architectures]
    for catalogue in listing.catalogues:
        write(file(catalogue.name), _packed(catalogue))
    index = _Index((*kept, *added), (*lines, *listing.lines))
    write(folder() / _INDEX, {"format": CATALOGUE_FORMAT, **asdict(index)})
    return added


def _entry(catalogue: Catalogue) -> CatalogueEntry:
    core = sum(event.core for event in catalogue.events)
    other, metrics = len(catalogue.events) - core, len(catalogue.metrics)
    return CatalogueEntry(catalogue.name, core, other, metrics, catalogue.source, catalogue.left_out)


# --- Finding -----------------------------------------------------------------------------------------------


def entries() -> tuple[CatalogueEntry, ...]:
    """All catalogues: the cached ones by name, and the built-in one."""
    return (*sorted(_index().entries, key=lambda entry: entry.name), _entry(architectural.CATALOGUE))


def load(name: str) -> Catalogue:
    """The catalogue of a microarchitecture: `sapphirerapids`, or `x86/sapphirerapids` if that is ambiguous."""
    if name.lower() == architectural.ARCHITECTURAL_NAME:
        return architectural.CATALOGUE
    known = [entry.name for entry in _index().entries]
    found = [full for full in known if f"/{full.lower()}".endswith(f"/{name.lower().strip('/')}")]
    if len(found) > 1:
        raise InputError(f"{name} is ambiguous: {' or '.join(found)}", hint=f"write {found[0]}, for example")
    if not found:
        last = {full.rpartition("/")[2]: full for full in known}
        close = get_close_matches(name.lower(), [*last, architectural.ARCHITECTURAL_NAME], n=3)
        more = "`symphony catalogue list` lists the catalogues" if known else "none has been added yet"
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            f"there is no catalogue {name}",
            hint=f"{meant}{more}; `symphony catalogue add PATH` adds the catalogues of a kernel tree",
        )
    return _unpacked(file(found[0]))


def matching(cpuid: str, architecture: str) -> str | None:
    """The name of the catalogue for a CPU, whether or not it has been added; None if no `mapfile.csv` has the CPU."""
    return next(iter(_matching(cpuid, architecture)), None)


def this_cpu() -> tuple[str, str | None]:
    """The id of this machine's CPU ("" if unknown), and the name of its catalogue, whether or not it has been added."""
    cpuid = machine.cpuid()
    return cpuid, matching(cpuid, machine.architecture()) if cpuid else None


def at_hand() -> Catalogue:
    """The catalogue of this machine's CPU; otherwise perf's own list if it was added, else the architectural one."""
    known = {entry.name for entry in _index().entries}
    found = (name for name in _matching(machine.cpuid(), machine.architecture()) if name in known)
    return load(next(found, architectural.ARCHITECTURAL_NAME))


def _matching(cpuid: str, architecture: str) -> Iterator[str]:
    """The first match of the architecture's `mapfile.csv`, then perf's list if it is of this CPU."""
    for wanted in (architecture, perf_list.PERF_LIST_NAME):
        lines = (line for line in _index().lines if line.architecture == wanted)
        yield from islice((line.name for line in lines if machine.matches(line.pattern, cpuid)), 1)


# --- Files -------------------------------------------------------------------------------------------------


def file(name: str) -> Path:
    """The file of a catalogue: a flat file name without path separators: names come from archives."""
    return folder() / f"{re.sub(r'[^A-Za-z0-9_.+-]', '_', name.replace('/', '__')).lstrip('.')}.json"


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file of the cache atomically: another process may be reading it."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise DataError(
            f"{path.parent.name}/{path.name} cannot be written: {error.strerror or error}",
            where=str(path.parent),
            hint="set XDG_CACHE_HOME to a folder that you may write to",
        ) from None


def _columns(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _table(kind: type, rows: Iterable[Any]) -> dict[str, Any]:
    columns = _columns(kind)
    return {"columns": columns, "rows": [[getattr(row, name) for name in columns] for row in rows]}


def _packed(catalogue: Catalogue) -> dict[str, Any]:
    return {
        "format": CATALOGUE_FORMAT,
        "name": catalogue.name,
        "source": catalogue.source,
        "groups": dict(catalogue.groups),
        "left_out": catalogue.left_out,
        "events": _table(Event, catalogue.events),
        "metrics": _table(Metric, catalogue.metrics),
        "pmus": _table(Pmu, catalogue.pmus),
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(file) from None
    except (OSError, ValueError, RecursionError):
        raise _damaged(file) from None
    if not isinstance(content, dict) or content.get("format") != CATALOGUE_FORMAT:
        raise _damaged(file)
    return content


def _damaged(file: Path) -> DataError:
    return DataError(
        "the cached catalogue cannot be read, or was written by another version of Symphony",
        where=str(file),
        hint=_ADD_AGAIN_HINT,
    )


def _unpacked(file: Path) -> Catalogue:
    try:
        content = _read(file)
        return Catalogue(
            content["name"],
            tuple(_rows(Event, content["events"])),
            tuple(_rows(Metric, content["metrics"])),
            tuple(_rows(Pmu, content["pmus"])),
            content["groups"],
            content["source"],
            tuple(content.get("left_out", ())),
        )
    except (FileNotFoundError, KeyError, TypeError):
        raise _damaged(file) from None


def _rows(kind: type, table: dict[str, Any]) -> Iterable[Any]:
    if table["columns"] != _columns(kind):
        raise KeyError("columns")
    for row in table["rows"]:
        yield kind(*(_tuples(value) if isinstance(value, list) else value for value in row))


def _tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _index() -> _Index:
    try:
        content = _read(folder() / _INDEX)
        return _Index(
            tuple(
                CatalogueEntry(**{**entry, "left_out": tuple(entry.get("left_out", ()))})
                for entry in content["entries"]
            ),
            tuple(MapLine(**line) for line in content["lines"]),
        )
    except FileNotFoundError:
        return _Index()
    except (KeyError, TypeError):
        raise _damaged(folder() / _INDEX) from None
