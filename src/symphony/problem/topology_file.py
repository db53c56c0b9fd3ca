"""Topology files: TOML in, TOML out.

A file has one of two forms. The *hierarchical* form is for people: racks, machines, sockets, switches, devices (the
models of `symphony.problem.build`). The *flat* form (`form = "flat"`) lists rows and routes, and can hold any
`Topology` without loss. docs/guides/topologies.md shows both.

An error names the file, the line and the key, and says what to write.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, PlainValidator, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from symphony.problem import build
from symphony.problem.errors import InputError, TopologyError
from symphony.problem.topology import RESOURCE_KINDS, SPANS, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.validation_texts import wanted

FLAT = "flat"


def read(path: str | Path) -> Topology:
    """The topology that a file describes. Its name is the key `name`, or else that of the file."""
    path = Path(path)
    try:
        if not path.is_file():
            what = "it is not a file" if path.exists() else "there is no such file"
            raise TopologyError(what, where=str(path), hint="give the path of a topology file in TOML")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError(
            f"byte {error.start} is not UTF-8", where=str(path), hint="save the file as UTF-8 text"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise TopologyError(f"it cannot be read: {reason}", where=str(path), hint="check its permissions") from None
    return loads(text, where=str(path), name=path.stem)


def loads(text: str, *, where: str = "topology", name: str = "topology") -> Topology:
    """The topology that a text in either form describes; errors name the text by `where`."""
    text = text.replace("\r\n", "\n")
    try:
        data = {"name": name, **tomllib.loads(text)}
    except RecursionError:
        raise TopologyError(
            "it is nested too deeply", where=where, hint="a topology is six levels deep at most"
        ) from None
    except ValueError as error:
        raise _syntax_error(error, text, where) from None
    form = data.get("form", "")
    if form not in ("", FLAT):
        raise TopologyError(
            f"unknown form {form!r}",
            where=_at(where, "form", _lines(text)),
            hint='write form = "flat", or leave the key out for the form with racks and machines',
        )
    model: type[_FlatFile | build.ClusterSpec] = _FlatFile if form else build.ClusterSpec
    try:
        spec = model.model_validate(data)
    except ValidationError as error:
        raise _key_error(error, model, text, where) from None
    try:
        return spec.topology() if isinstance(spec, _FlatFile) else build.build(spec)
    except InputError as error:
        key = _keys(spec).get(error.where, error.where)
        raise type(error)(error.message, where=_at(where, key, _lines(text)), hint=error.hint) from None


def write(topology: Topology | build.ClusterSpec, path: str | Path, *, comment: str = "") -> None:
    """Write a topology file. `read` returns an equal topology."""
    try:
        Path(path).write_text(dumps(topology, comment=comment), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise TopologyError(f"it cannot be written: {reason}", where=str(path), hint="write to another path") from None


def dumps(topology: Topology | build.ClusterSpec, *, comment: str = "") -> str:
    """TOML text: the flat form of a topology, or the hierarchical form of a `ClusterSpec`."""
    if isinstance(topology, Topology):
        tables = _flat_tables(topology)
    else:
        tables = {"name": topology.name, **topology.model_dump(exclude_defaults=True)}
    header = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*header, *_emit(tables)]) + "\n"


# --- The flat form -----------------------------------------------------------------------------------------


def _hop(value: Any) -> Hop:
    """A hop is an array: the row's name, then the spans at which traffic crosses it."""
    if not isinstance(value, list) or not value or not all(isinstance(part, str) for part in value):
        raise _misfit(f"{value!r} is not a hop", 'write ["name of a row", "switch", "socket"]: a row, then spans')
    for span in value[1:]:
        if span not in SPANS:
            raise _misfit(f"unknown span {span!r}", f"use {_choice(span, SPANS)}")
    return Hop(value[0], tuple(SPANS.index(span) for span in value[1:]))


class _FlatKind(build.Spec):
    name: str
    type: str
    slots: build.Count = 1
    memory: build.Bytes = math.inf
    reconfigure: build.Seconds = 0.0


class _FlatResource(build.Spec):
    name: str
    kind: str
    capacity: float
    group: str

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in RESOURCE_KINDS:
            raise _misfit(f"unknown resource kind {kind!r}", f"use {_choice(kind, RESOURCE_KINDS)}")
        return kind

    @field_validator("capacity", mode="before")
    @classmethod
    def _in_its_unit(cls, value: Any, info: ValidationInfo) -> float:
        unit = RESOURCE_KINDS[info.data["kind"]][0] if "kind" in info.data else "number"
        return build.quantity(value, unit, above_zero=True)


class _FlatDevice(build.Spec):
    name: str
    kind: str
    machine: str
    rack: str
    socket: str
    switch: str
    home: str = ""
    peers: str = ""
    route: tuple[Annotated[Hop, PlainValidator(_hop)], ...] = ()


class _FlatFile(build.Spec):
    form: str
    name: str
    latency: build.LatencySpec = build.LatencySpec()
    kind: tuple[_FlatKind, ...] = ()
    resource: tuple[_FlatResource, ...] = ()
    device: tuple[_FlatDevice, ...] = ()

    def topology(self) -> Topology:
        kinds = (DeviceKind(k.name, k.type, k.slots, k.memory, k.reconfigure) for k in self.kind)
        resources = (Resource(r.name, r.kind, r.capacity, r.group) for r in self.resource)
        devices = (
            Device(d.name, d.kind, d.machine, d.rack, d.socket, d.switch, d.route, d.home, d.peers) for d in self.device
        )
        return Topology(self.name, tuple(kinds), tuple(resources), tuple(devices), self.latency.by_span())


def _flat_tables(topology: Topology) -> dict[str, Any]:
    latency = build.LatencySpec(**dict(zip(SPANS, topology.latency_s, strict=True)))
    tables = {
        "latency": latency.model_dump(exclude_defaults=True),
        "kind": [_flat_kind(kind) for kind in topology.kinds],
        "resource": [
            {
                "name": row.name,
                "kind": row.kind,
                "capacity": build.written(row.capacity, RESOURCE_KINDS[row.kind][0]),
                "group": row.group,
            }
            for row in topology.resources
        ],
        "device": [_flat_device(device) for device in topology.devices],
    }
    return {"form": FLAT, "name": topology.name} | {key: table for key, table in tables.items() if table}


def _flat_kind(kind: DeviceKind) -> dict[str, Any]:
    table: dict[str, Any] = {"name": kind.name, "type": kind.type, "slots": kind.slots}
    if kind.memory < math.inf:
        table["memory"] = build.written(kind.memory, "bytes")
    if kind.reconfigurable:
        table["reconfigure"] = build.written(kind.reconfigure_s, "seconds")
    return table


def _flat_device(device: Device) -> dict[str, Any]:
    table: dict[str, Any] = {key: getattr(device, key) for key in _FlatDevice.model_fields}
    table["route"] = [[hop.resource, *(SPANS[span] for span in hop.spans)] for hop in device.route]
    return {key: value for key, value in table.items() if value or key not in ("home", "peers")}


# --- Writing TOML ------------------------------------------------------------------------------------------


def _emit(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The lines of a table: its own keys first, then its tables, as TOML requires."""
    for key, value in table.items():
        if not _tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        here = f"{path}.{_key(key)}" if path else _key(key)
        for inner in _tables(value):
            # A table that only holds tables, such as `device`, needs no header; an element of an array does.
            if inner is not value:
                yield from ("", f"[[{here}]]")
            elif not inner or not all(map(_tables, inner.values())):
                yield from ("", f"[{here}]")
            yield from _emit(inner, here)


def _tables(value: Any) -> Sequence[Mapping[str, Any]]:
    """The table or the array of tables that a value is; () for a plain value."""
    if isinstance(value, Mapping):
        return [value]
    return value if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping) else ()


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # TOML escapes as JSON does, except for one character that JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


# --- Error messages ----------------------------------------------------------------------------------------

# Where our words for a problem (`validation_texts.py`) are not those of TOML.
_WANTED = {"tuple_type": "an array", "list_type": "an array", "string_type": "text in quotes"}
_BARE_QUANTITY = re.compile(r"=\s*[\d.]+\s*[A-Za-zµ]")
# Strings and comments. The long strings come first: their quotes start with a short one.
_QUOTED = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'[\s\S]*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)


def _misfit(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("misfit", "{message}", {"message": message, "hint": hint})


def _choice(given: object, known: Iterable[str]) -> str:
    """The known words, and the closest one, for a hint."""
    words = list(known)
    close = get_close_matches(str(given), words, n=1)
    return (f"{close[0]!r} instead? Known here: " if close else "one of: ") + ", ".join(words)


def _syntax_error(error: ValueError, text: str, where: str) -> TopologyError:
    message = str(error)
    found = re.search(r" \(at line (\d+), column \d+\)$", message)
    number = int(found[1]) if found else text.count("\n") + 1
    line = text.split("\n")[number - 1] if number <= text.count("\n") + 1 else ""
    hint = "write one `key = value` on a line, text in double quotes"
    if _BARE_QUANTITY.search(line):
        hint = 'put a quantity with a unit in quotes: "16 GB"'
    what = re.sub(r" \(at .*\)$", "", message)
    return TopologyError(f"this is not TOML: {what}", where=f"{where}:{number}", hint=hint)


def _key_error(error: ValidationError, model: type[BaseModel], text: str, where: str) -> TopologyError:
    """The first problem in the order of the file, and how many more there are."""
    lines = _lines(text)

    def order(problem: ErrorDetails) -> tuple[bool, int]:
        # Missing keys come last: often the key is there, misspelt, and the unknown key is the better message.
        return problem["type"] == "missing", _line(_path(problem["loc"]), lines) or 0

    problems = sorted(error.errors(), key=order)
    first = problems[0]
    message, hint = _explain(first, model)
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more)"
    return TopologyError(message, where=_at(where, _path(first["loc"]), lines), hint=hint)


def _explain(problem: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    """What is wrong with a key, and what to write instead."""
    loc, context = problem["loc"], problem.get("ctx", {})
    table, field = _field(model, loc)
    key = next((part for part in reversed(loc) if isinstance(part, str)), "")
    example = field.examples[0] if field and field.examples else '"…"'
    about = f" ({field.description})" if field and field.description else ""
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}", f"write {_choice(key, table.model_fields)}"
    if problem["type"] == "missing":
        return f"the key {key!r} is missing", f"write {key} = {example}{about}"
    if "hint" in context:
        return problem["msg"], context["hint"]
    should = _WANTED.get(problem["type"]) or wanted(problem)
    return f"{reprlib.repr(problem['input'])} should be {should}", f"write {key} = {example}{about}"


def _field(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The model of the table that a key path ends in, and the last key's field if the table has it."""
    table, field, inner = model, None, model
    free = False  # whether the next part is a name that the file's author chose, not a key
    for part in loc:
        if isinstance(part, int) or free:
            free = False
            continue
        table, field = inner, inner.model_fields.get(part)
        if field is None:
            break
        free = get_origin(field.annotation) is dict
        models = [a for a in (field.annotation, *get_args(field.annotation)) if isinstance(a, type)]
        inner = next((a for a in models if issubclass(a, BaseModel)), inner)
    return table, field


def _keys(spec: _FlatFile | build.ClusterSpec) -> dict[str, str]:
    """`where` of an error of `Topology` -> key path in the file."""
    if isinstance(spec, build.ClusterSpec):
        named = [(f"device kind {kind!r}", f"device.{kind}") for kind in spec.device]
    else:
        named = [(f"device kind {kind.name!r}", f"kind[{i}]") for i, kind in enumerate(spec.kind)]
        named += [(f"resource {row.name!r}", f"resource[{i}]") for i, row in enumerate(spec.resource)]
        named += [(f"device {device.name!r}", f"device[{i}]") for i, device in enumerate(spec.device)]
    return {f"{spec.name}: {thing}": key for thing, key in named}


def _path(loc: Iterable[int | str]) -> str:
    """A key path as people read it: `rack[0].machine[1].nic`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _at(where: str, path: str, lines: Mapping[str, int]) -> str:
    """`lab.toml:12: rack[0].nic`."""
    line = _line(path, lines)
    place = f"{where}:{line}" if line else where
    return f"{place}: {path}" if path else place


def _line(path: str, lines: Mapping[str, int]) -> int | None:
    """The line of a key, or of the innermost table or key around it that has one."""
    cuts = [match.start() for match in re.finditer(r"[.\[]|$", path)]
    return next((lines[path[:cut]] for cut in reversed(cuts) if path[:cut] in lines), None)


def _lines(text: str) -> dict[str, int]:
    """The first line of each table and key. `text` is valid TOML."""
    lines: dict[str, int] = {}
    arrays: dict[str, int] = {}  # arrays of tables -> index of the current one
    table = ""
    for number, statement in _statements(text):
        try:
            content: Any = tomllib.loads(statement)
        except ValueError:
            continue  # without a line number, the error is still reported
        header = statement.lstrip().startswith("[")
        path = "" if header else table
        while isinstance(content, dict) and len(content) == 1:
            ((part, content),) = content.items()
            path = f"{path}.{part}" if path else part
            lines.setdefault(path, number)
            if header and content == [{}]:
                arrays[path] = arrays.get(path, -1) + 1
            if path in arrays:
                path = f"{path}[{arrays[path]}]"
            lines.setdefault(path, number)
        if header:
            table = path
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header or `key = value` of a TOML text, with its line; a value may run over several lines."""
    # Brackets in strings do not count. A string is replaced by brackets, which keep the lines of a long one together.
    bare = _QUOTED.sub(lambda match: "[" + "\n" * match[0].count("\n") + "]", text).split("\n")
    lines, start, depth = text.split("\n"), 0, 0
    for number, line in enumerate(bare):
        depth += sum(map(line.count, "[{")) - sum(map(line.count, "]}"))
        if depth == 0:
            yield start + 1, "\n".join(lines[start : number + 1])
            start = number + 1
