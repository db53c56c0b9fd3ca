"""The kernel's listings of events and metrics (`tools/perf/pmu-events/arch`), read into catalogues.

    x86/mapfile.csv                   which CPU uses which folder; the first matching line counts
    x86/skylakex/*.json               lists of records: an event (EventName), a metric (MetricName), or both
    x86/skylakex/counter.json         the number of counters of each unit (Intel only)
    x86/skylakex/metricgroups.json    descriptions of groups of metrics
    arm64/*.json                      standard records, which other records inherit from by name (ArchStdEvent)

Unknown keys are ignored: the kernel adds some with every version. Values of the wrong type or form raise a `DataError`
that names the file and the record.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.expressions import parse

MAPFILE = "mapfile.csv"
_LISTINGS_HINT = "take the listings from the kernel tree again, or give the folder of another microarchitecture alone"

Record = dict[str, Any]


@dataclass(frozen=True)
class MapLine:
    """A line of `mapfile.csv`: CPUs whose id matches the pattern use this catalogue."""

    architecture: str
    pattern: str
    name: str  # of a catalogue


@dataclass(frozen=True)
class Listing:
    """All that was read from one place."""

    catalogues: tuple[Catalogue, ...]
    lines: tuple[MapLine, ...] = ()


def read(files: Mapping[str, bytes], source: str = "") -> Listing:
    """The catalogues of all microarchitectures among files (path from `arch` → content)."""
    folders: dict[str, dict[str, bytes]] = {}
    for path, content in sorted(files.items()):
        folders.setdefault(str(PurePosixPath(path).parent), {})[path] = content
    architectures = [str(PurePosixPath(path).parent) for path in sorted(files) if PurePosixPath(path).name == MAPFILE]
    catalogues: list[Catalogue] = []
    lines: list[MapLine] = []
    for architecture in architectures:
        own = folders.pop(architecture)
        lines += _mapfile(architecture, own.pop(f"{architecture}/{MAPFILE}"))
        standard = _standard_records(own)
        for folder, inside in folders.items():
            if folder.startswith(f"{architecture}/"):
                catalogues.append(_catalogue(folder, inside, standard, source))
    return Listing(tuple(catalogues), tuple(lines))


def _mapfile(architecture: str, content: bytes) -> Iterator[MapLine]:
    path = f"{architecture}/{MAPFILE}"
    rows = csv.reader(content.decode("utf-8", errors="replace").replace("\0", "").splitlines())
    for number, row in enumerate(rows, 1):
        if not row or not row[0].strip() or row[0].startswith(("#", "Family-model")):
            continue
        if len(row) < 4:
            raise DataError(
                f"the line should have four columns (CPU, version, folder, type), not {len(row)}",
                where=f"{path}, line {number}",
                hint=_LISTINGS_HINT,
            )
        yield MapLine(architecture, row[0].strip(), f"{architecture}/{row[2].strip()}")


def _standard_records(files: Mapping[str, bytes]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for path, content in files.items():
        for record, _ in records(path, content):
            for name in (record.get("EventName"), record.get("MetricName")):
                if isinstance(name, str):
                    found[name.lower()] = record
    return found


def _catalogue(name: str, files: Mapping[str, bytes], standard: Mapping[str, Record], source: str) -> Catalogue:
    events: list[Event] = []
    metrics: list[Metric] = []
    pmus: list[Pmu] = []
    groups: dict[str, str] = {}
    for path, content in files.items():
        stem = PurePosixPath(path).stem
        if stem == "metricgroups":
            described = _json(path, content)
            if not isinstance(described, dict):
                raise DataError("the file should hold one object: group, text", where=path, hint=_LISTINGS_HINT)
            groups |= {group: str(text) for group, text in described.items()}
            continue
        for record, where in records(path, content):
            fields = Fields(_inherited(record, standard, where), where)
            if "CountersNumGeneric" in record:
                unit = fields.text("Unit")
                counts = fields.integer("CountersNumGeneric"), fields.integer("CountersNumFixed")
                pmus.append(Pmu("" if unit == "core" else unit, *counts))
            if fields.text("EventName"):
                events.append(event_of(fields, name, topic=stem))
            if fields.text("MetricName"):
                metrics.append(metric_of(fields))
    pmus += [pmu for pmu in _assumed(name) if pmu.unit not in {known.unit for known in pmus}]
    return Catalogue(name, tuple(events), tuple(metrics), tuple(pmus), groups, source)


# --- Files and records -------------------------------------------------------------------------------------


def _json(path: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise DataError(
            f"the file is not JSON, or was cut short: {error.msg}",
            where=f"{path}, line {error.lineno}",
            hint=_LISTINGS_HINT,
        ) from None
    except (UnicodeDecodeError, RecursionError):
        raise DataError("the file is not JSON", where=path, hint=_LISTINGS_HINT) from None


def records(path: str, content: bytes) -> Iterator[tuple[Record, str]]:
    """The records of a file, each with its place for error messages."""
    found = _json(path, content)
    if not isinstance(found, list):
        raise DataError("the file should hold a list of events or metrics", where=path, hint=_LISTINGS_HINT)
    for number, record in enumerate(found, 1):
        where = f"{path}, record {number}"
        if not isinstance(record, dict):
            raise DataError("the record should be an object", where=where, hint=_LISTINGS_HINT)
        name = record.get("EventName") or record.get("MetricName") or record.get("ArchStdEvent")
        yield record, f"{where} ({name})" if name else where


def _inherited(record: Record, standard: Mapping[str, Record], where: str) -> Record:
    name = record.get("ArchStdEvent")
    if name is None:
        return record
    if str(name).lower() not in standard:
        raise DataError(
            f"there is no standard event {name}", where=where, hint="the JSON files beside mapfile.csv belong to it"
        )
    return {**standard[str(name).lower()], **record}


@dataclass(frozen=True)
class Fields:
    """Typed access to the values of a record, which are strings, as a rule."""

    record: Record
    where: str

    def text(self, name: str) -> str:
        """A value as a string; "" if missing."""
        value = self.record.get(name, "")
        if not isinstance(value, str | int | float):
            raise self.wrong(name, "a string")
        return str(value).strip()

    def integer(self, name: str) -> int:
        """The first of some integers, decimal or hexadecimal; 0 if missing."""
        return self.integers(name)[0] if self.text(name) else 0

    def integers(self, name: str) -> tuple[int, ...]:
        """Integers separated by commas."""
        try:
            return tuple(int(part, 0) for part in self.text(name).split(",") if part.strip())
        except ValueError:
            raise self.wrong(name, "an integer") from None

    def flag(self, name: str) -> bool:
        return self.integer(name) != 0

    def listed(self, name: str) -> tuple[str, ...]:
        """Values separated by semicolons."""
        return tuple(part.strip() for part in self.text(name).split(";") if part.strip())

    def described(self) -> str:
        """The short description; some listings misspell the key."""
        for start in ("BriefDescri", "PublicDescri"):
            for name in self.record:
                if name.startswith(start):
                    return " ".join(self.text(name).split())
        return ""

    def scale(self) -> tuple[float, str]:
        """ "64Bytes" → 64 and "Bytes"."""
        if not (text := self.text("ScaleUnit")):
            return 1.0, ""
        if not (found := _SCALE.fullmatch(text)):
            raise self.wrong("ScaleUnit", "a number and a unit")
        return float(found[1]), found[2].strip()

    def expression(self, name: str) -> str:
        """An expression, after parsing it as a check."""
        if text := self.text(name):
            try:
                parse(text)
            except InputError as error:
                raise DataError(f"{name}: {error.message}", where=self.where, hint=_LISTINGS_HINT) from None
        return text

    def wrong(self, name: str, wanted: str) -> DataError:
        """The error for a value; `wanted` describes the valid ones."""
        return DataError(
            f"{name} should be {wanted}, not {self.record.get(name)!r}", where=self.where, hint=_LISTINGS_HINT
        )


_SCALE = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(.*)", re.DOTALL)

# --- Events and metrics ------------------------------------------------------------------------------------

_MSRS = {0x3F6: "ldlat", 0x1A6: "offcore_rsp", 0x1A7: "offcore_rsp", 0x3F7: "frontend"}
_TERMS = {
    "PortMask": "ch_mask",
    "FCMask": "fc_mask",
    "NodeType": "type",
    "RdWrMask": "rdwrmask",
    "EnAllCores": "enallcores",
    "EnAllSlices": "enallslices",
    "SliceId": "sliceid",
    "ThreadMask": "threadmask",
}


def event_of(fields: Fields, catalogue: str, topic: str) -> Event:
    """The event that a record describes."""
    codes = tuple(code | fields.integer("ExtSel") << 8 for code in fields.integers("EventCode"))
    counters, fixed = _counters(fields)
    if catalogue.startswith("powerpc/") and codes:
        counters, fixed = _power_counters(codes[0])
    if catalogue.startswith("arm64/") and codes == (0x11,) and not fields.text("Unit"):
        counters, fixed = tuple(range(_ARM_COUNTERS)), 0  # cycles have a fixed counter, but may use any
    scale, scale_unit = fields.scale()
    return Event(
        name=fields.text("EventName"),
        unit=fields.text("Unit"),
        codes=codes,
        umask=fields.integer("UMask"),
        cmask=fields.integer("CounterMask"),
        invert=fields.flag("Invert"),
        edge=fields.flag("EdgeDetect"),
        any_thread=fields.flag("AnyThread"),
        counters=counters,
        fixed=fixed,
        terms=tuple(_terms(fields)),
        scale=scale,
        scale_unit=scale_unit,
        per_package=fields.flag("PerPkg"),
        deprecated=fields.flag("Deprecated"),
        errata=fields.text("Errata"),
        topic=topic,
        description=fields.described(),
    )


def _terms(fields: Fields) -> Iterator[tuple[str, str]]:
    """Terms that perf needs beside event, umask, cmask, inv, edge and any."""
    for name, term in (("ConfigCode", "config"), ("EventidCode", "eventid"), *_TERMS.items()):
        if fields.integer(name):
            yield term, hex(fields.integer(name))
    for part in fields.text("Filter").split(","):
        if part.strip():
            term, _, value = part.strip().partition("=")
            yield term, value or "1"
    if fields.integer("MSRIndex") in _MSRS:
        yield _MSRS[fields.integer("MSRIndex")], fields.text("MSRValue") or "0"


def _counters(fields: Fields) -> tuple[tuple[int, ...], int | None]:
    """General counters and fixed counter of "0,1,2,3", "Fixed counter 1" or "FIXED"."""
    general: list[int] = []
    fixed: int | None = None
    for part in (part.strip().lower() for part in fields.text("Counter").split(",")):
        if part.isdigit():
            general.append(int(part))
        elif part.startswith("fixed"):
            number = part.rpartition(" ")[2]
            fixed = int(number) if number.isdigit() else -1
        elif part:
            raise fields.wrong("Counter", "a list of counters")
    return tuple(general), fixed


def _power_counters(code: int) -> tuple[tuple[int, ...], int | None]:
    """POWER encodes the counter in the event's code: 1 to 4, or 5 and 6, which are fixed; 0 = any."""
    number = code >> 16 & 0xF
    if number in (5, 6):
        return (), number - 5
    return ((number - 1,) if 1 <= number <= 4 else ()), None


def metric_of(fields: Fields) -> Metric:
    """The metric that a record describes; its expressions are checked."""
    expression = fields.expression("MetricExpr")
    if not expression:
        raise DataError("the metric has no MetricExpr", where=fields.where, hint=_LISTINGS_HINT)
    scale, scale_unit = fields.scale()
    return Metric(
        name=fields.text("MetricName"),
        expression=expression,
        unit=fields.text("Unit"),
        groups=fields.listed("MetricGroup"),
        scale=scale,
        scale_unit=scale_unit,
        threshold=fields.expression("MetricThreshold"),
        constraint=fields.text("MetricConstraint"),
        no_group=fields.listed("MetricgroupNoGroup"),
        aggregation=fields.text("AggregationMode"),
        description=fields.described(),
    )


_ARM_COUNTERS = 6


def _assumed(catalogue: str) -> tuple[Pmu, ...]:
    """Counters of CPUs whose listings do not state them, from their manuals."""
    if catalogue.startswith("x86/amdzen"):
        newer = catalogue.removeprefix("x86/amdzen") >= "4"
        sizes = {"": 6, "L3PMC": 6, "DFPMC": 16 if newer else 4, "UMCPMC": 4}
        return tuple(Pmu(unit, general, assumed=True) for unit, general in sizes.items())
    if catalogue.startswith("powerpc/"):
        return (Pmu("", 4, 2, assumed=True),)
    if catalogue.startswith("arm64/"):
        return (Pmu("", _ARM_COUNTERS, 1, assumed=True),)
    return ()
