"""The kernel's listings of events and metrics (`tools/perf/pmu-events/arch`), read into catalogues.

    x86/mapfile.csv                   which CPU uses which folder; the first matching line counts
    x86/skylakex/*.json               lists of records: an event (EventName), a metric (MetricName), or both
    x86/skylakex/counter.json         the number of counters of each unit (Intel only)
    x86/skylakex/metricgroups.json    descriptions of groups of metrics
    arm64/*.json                      standard records, which other records inherit from by name (ArchStdEvent)

Unknown keys are ignored: the kernel adds some with every version. What cannot be used (a file that is not JSON, a
record with a value of the wrong form, a metric that refers to itself) is left out, and `Catalogue.left_out` names it.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.expressions import Constant, key, names, parse, walk
from symphony.telemetry.machine import Platform

MAPFILE = "mapfile.csv"
_MAX_MAPFILE_LINE = 10_000  # characters
MAX_LEFT_OUT = 100  # sentences on what was left out of a catalogue; more are counted

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
        left_out: list[str] = []
        own = folders.pop(architecture)
        lines += _mapfile(architecture, own.pop(f"{architecture}/{MAPFILE}"), left_out)
        standard = _standard_records(own, left_out)
        for folder, inside in folders.items():
            if folder.startswith(f"{architecture}/"):
                catalogues.append(_catalogue(folder, inside, standard, source, left_out))
    return Listing(tuple(catalogues), tuple(lines))


def _mapfile(architecture: str, content: bytes, left_out: list[str]) -> Iterator[MapLine]:
    path = f"{architecture}/{MAPFILE}"
    for number, line in enumerate(content.decode("utf-8-sig", errors="replace").replace("\0", "").splitlines(), 1):
        if not line.strip() or line.startswith(("#", "Family-model")):
            continue
        row = next(csv.reader([line[:_MAX_MAPFILE_LINE]]))
        if len(row) < 4:
            left_out.append(
                f"{path}, line {number}: it should have four columns (CPU, version, folder, type), not {len(row)}"
            )
        elif row[0].strip():
            yield MapLine(architecture, row[0].strip(), f"{architecture}/{row[2].strip()}")


def _standard_records(files: Mapping[str, bytes], left_out: list[str]) -> dict[str, Record]:
    found: dict[str, Record] = {}

    def add(record: Record, _: str) -> None:
        for name in (record.get("EventName"), record.get("MetricName")):
            if isinstance(name, str):
                found[name.lower()] = record

    for path, content in files.items():
        each_record(path, content, add, left_out)
    return found


def _catalogue(
    name: str, files: Mapping[str, bytes], standard: Mapping[str, Record], source: str, above: list[str]
) -> Catalogue:
    """The catalogue of a folder; `above`: what was left out of the files of its architecture."""
    events: list[Event] = []
    metrics: list[Metric] = []
    pmus: list[Pmu] = []
    groups: dict[str, str] = {}
    left_out = list(above)
    for path, content in files.items():
        stem = PurePosixPath(path).stem
        if stem == "metricgroups":
            groups |= _described_groups(path, content, left_out)
            continue

        def add(record: Record, where: str, stem: str = stem) -> None:
            fields = Fields(_inherited(record, standard, where), where)
            if "CountersNumGeneric" in record:
                unit = fields.text("Unit")
                counts = fields.integer("CountersNumGeneric"), fields.integer("CountersNumFixed")
                pmus.append(Pmu("" if unit == "core" else unit, *counts))
            if fields.text("EventName"):
                events.append(event_of(fields, name, topic=stem))
            if fields.text("MetricName"):
                metrics.append(metric_of(fields))

        each_record(path, content, add, left_out)
    pmus += [pmu for pmu in _assumed(name) if pmu.unit not in {known.unit for known in pmus}]
    found = Catalogue(name, tuple(events), tuple(metrics), tuple(pmus), groups, source)
    return without_cycles(found, left_out)


def _described_groups(path: str, content: bytes, left_out: list[str]) -> dict[str, str]:
    try:
        described = _json(path, content)
    except DataError as error:
        left_out.append(_sentence(error))
        return {}
    if not isinstance(described, dict):
        left_out.append(f"{path}: the file should hold one object: group, text")
        return {}
    return {group: str(text) for group, text in described.items()}


def without_cycles(catalogue: Catalogue, left_out: list[str]) -> Catalogue:
    """The catalogue without metrics that refer to one another in a circle, and without those that refer to such ones.

    `left_out`: what was left out of it before; the catalogue has it all.
    """
    circular: set[Metric] = set()
    for unit in dict.fromkeys(metric.unit for metric in catalogue.metrics):
        definitions = catalogue.definitions(unit)
        waiting = {name: {key(used) for used in names(definitions[name])} & definitions.keys() for name in definitions}
        while ready := {name for name, used in waiting.items() if not used & waiting.keys()}:
            waiting = {name: used for name, used in waiting.items() if name not in ready}
        circular |= {metric for metric in catalogue.metrics if metric.unit == unit and key(metric.name) in waiting}
    if circular:
        named = ", ".join(dict.fromkeys(metric.name for metric in catalogue.metrics if metric in circular))
        left_out.append(f"{catalogue.name}: these metrics refer to themselves, or to metrics that do: {named}")
    if len(left_out) > MAX_LEFT_OUT:
        left_out[MAX_LEFT_OUT - 1 :] = [f"… and {len(left_out) - MAX_LEFT_OUT + 1:,} more"]
    kept = tuple(metric for metric in catalogue.metrics if metric not in circular)
    return replace(catalogue, metrics=kept, left_out=tuple(left_out))


# --- Files and records -------------------------------------------------------------------------------------


def _json(path: str, content: bytes) -> Any:
    if not content.strip():
        raise DataError("the file is empty", where=path)
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        # Kernels before 5.20 have a comma before some brackets, which their own reader skipped.
        text = _TEXT_OR_COMMA.sub(lambda found: found[1] or "", content.decode("utf-8-sig", errors="replace"))
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise DataError(
                f"the file is not JSON, or was cut short: {error.msg}", where=f"{path}, line {error.lineno}"
            ) from None
    except (UnicodeDecodeError, RecursionError):
        raise DataError("the file is not JSON", where=path) from None


_TEXT_OR_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{\[])\s*,|,(?=\s*[}\]])')


def each_record(path: str, content: bytes, use: Callable[[Record, str], None], left_out: list[str]) -> None:
    """Pass every record of a file, with its place for messages, to a function.

    What is wrong with the file, or with a record (`use` raises `DataError`), is added to `left_out`.
    """
    try:
        found = _json(path, content)
        if not isinstance(found, list):
            raise DataError("the file should hold a list of events or metrics", where=path)
    except DataError as error:
        left_out.append(_sentence(error))
        return
    for number, record in enumerate(found, 1):
        where = f"{path}, record {number}"
        try:
            if not isinstance(record, dict):
                raise DataError("the record should be an object", where=where)
            name = record.get("EventName") or record.get("MetricName") or record.get("ArchStdEvent")
            use(record, f"{where} ({name})" if name else where)
        except DataError as error:
            left_out.append(_sentence(error))


def _sentence(error: DataError) -> str:
    return f"{error.where}: {error.message}"


def _inherited(record: Record, standard: Mapping[str, Record], where: str) -> Record:
    name = record.get("ArchStdEvent")
    if name is None:
        return record
    if str(name).lower() not in standard:
        raise DataError(f"there is no standard event {name} in the files beside {MAPFILE}", where=where)
    return {**standard[str(name).lower()], **record}


@dataclass(frozen=True)
class Fields:
    """Typed access to the values of a record, which are strings, as a rule."""

    record: Record
    where: str

    def text(self, name: str) -> str:
        """A value as a string; "" if missing."""
        value = self.record.get(name)
        if value is None:
            return ""
        if not isinstance(value, str | int | float):
            raise self.wrong(name, "a string")
        return str(int(value) if isinstance(value, bool) else value).strip()

    def integer(self, name: str) -> int:
        """The first of some integers, decimal or hexadecimal; 0 if missing."""
        return self.integers(name)[0] if self.text(name) else 0

    def integers(self, name: str) -> tuple[int, ...]:
        """Integers, 0 or more, separated by commas."""
        try:
            found = tuple(int(part, 0) for part in self.text(name).split(",") if part.strip())
        except ValueError:
            raise self.wrong(name, "an integer") from None
        if any(number < 0 for number in found):
            raise self.wrong(name, "0 or more")
        return found

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
        if not (found := _SCALE.fullmatch(text)) or math.isinf(float(found[1])):
            raise self.wrong("ScaleUnit", "a number and a unit")
        return float(found[1]), found[2].strip()

    def expression(self, name: str) -> str:
        """An expression, after a check that it can be parsed and that its constants are known."""
        if text := _KERNELS_OWN.sub(r"\1", self.text(name)):
            try:
                for part in walk(parse(text)):
                    if isinstance(part, Constant):
                        Platform().constant(part.name)
            except InputError as error:
                raise DataError(f"{name}: {error.message}", where=self.where) from None
        return text

    def wrong(self, name: str, wanted: str) -> DataError:
        """The error for a value; `wanted` describes the valid ones."""
        return DataError(f"{name} should be {wanted}, not {self.record.get(name)!r}", where=self.where)


# Since Linux 6.18: software@cpu\-clock\,name\=cpu\-clock@, which perf prints as cpu-clock.
_KERNELS_OWN = re.compile(r"\b(?:software|tool)@((?:\w|\\-)+)(?:\\,name\\=\1)?@")
_SCALE = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(.*)", re.DOTALL)

# --- Events and metrics ------------------------------------------------------------------------------------

_MSRS = {0x3F6: "ldlat", 0x1A6: "offcore_rsp", 0x1A7: "offcore_rsp", 0x3F7: "frontend"}
_TERMS = {
    "EventidCode": "eventid",
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
    if fields.text("ConfigCode"):
        yield "config", hex(fields.integer("ConfigCode"))  # also if it is 0: there is no other code
    for name, term in _TERMS.items():
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
        raise DataError("the metric has no MetricExpr", where=fields.where)
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
