"""Complete run records as JSON files.

Jobs and stays of gangs are stored by columns, one list for each field. The first line of a file holds everything but
the runs; each run has a line of its own, so that a long file can be read run by run. A path that ends in `.gz` is
compressed.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from symphony.evaluation.metrics import METRICS, metrics
from symphony.problem.errors import InputError
from symphony.simulator.records import GangRecord, JobRecord, RunRecord

if TYPE_CHECKING:
    from symphony.simulator.scenarios import Scenario  # brings in JAX, which reading a report does not need

REPORT_FORMAT, REPORT_VERSION = "symphony.report", 1
_INTEGER_FIELDS = {"job", "graph", "gang", "priority"}  # of records; other numbers are floats


@dataclass(frozen=True)
class DeviceMeta:
    """What a report keeps of a device."""

    name: str
    kind: str
    machine: str
    slots: int = 1


@dataclass(frozen=True)
class GraphMeta:
    """What a report keeps of a task graph: the names of its gangs and the kernel of each."""

    name: str
    gangs: tuple[str, ...]
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class ScenarioMeta:
    """What a report keeps of a scenario: the names for the indices in records, and the disturbances."""

    topology: str
    devices: tuple[DeviceMeta, ...]
    workload: str
    graphs: tuple[GraphMeta, ...]
    disturbances: Mapping[str, float | bool | str | tuple[str, ...] | None]

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> ScenarioMeta:
        t, w = scenario.topology, scenario.workload
        graphs = []
        for graph in w.graphs:
            kernel = {task.name: task.kernel for task in graph.tasks}
            gangs = graph.all_gangs
            graphs.append(GraphMeta(graph.name, tuple(g.name for g in gangs), tuple(kernel[g.tasks[0]] for g in gangs)))
        return cls(
            topology=t.name,
            devices=tuple(DeviceMeta(d.name, d.kind, d.machine, t.kind_of[d.kind].slots) for d in t.devices),
            workload=w.name,
            graphs=tuple(graphs),
            disturbances=dataclasses.asdict(scenario.disturbances) | {"job_slots": scenario.job_slots},
        )


class Contents(NamedTuple):
    """The content of a report and of its file, in the order of `Report`'s arguments."""

    runs: Sequence[RunRecord]
    scenarios: Mapping[int, ScenarioMeta]  # by seed
    cheats: Set[str]
    command: str
    baseline: str | None


def save(contents: Contents, path: str | Path) -> None:
    """Write a report's contents as JSON, one line for each run."""
    path = Path(path)
    index_of: dict[str, int] = {}  # seeds often share all names and differ in draws only
    seeds = {
        str(seed): index_of.setdefault(_dump(_scenario_out(meta)), len(index_of))
        for seed, meta in contents.scenarios.items()
    }
    head = {
        "format": REPORT_FORMAT,
        "version": REPORT_VERSION,
        "command": contents.command,
        "baseline": contents.baseline,
        "cheats": sorted(contents.cheats),
        "metrics": {name: dataclasses.asdict(metric) for name, metric in METRICS.items()},
        "scenario_of_seed": seeds,
    }
    try:
        with path.open("wb") as raw, _packed(raw) if path.suffix == ".gz" else nullcontext(raw) as file:
            file.write(f'{_dump(head)[:-1]},"scenarios":[{",".join(index_of)}],"runs":['.encode())
            for number, run in enumerate(contents.runs):
                file.write(f"{',' if number else ''}\n{_dump(_run_out(run))}".encode())
            file.write(b"\n]}\n")
    except OSError as error:
        hint = "name a file in a directory that exists and can be written"
        raise InputError(f"it cannot be written ({error.strerror})", where=str(path), hint=hint) from error


def load(path: str | Path) -> Contents:
    """Read a file that `save` wrote; its format and version are checked first."""
    where = str(path)
    hint = "name a file that `symphony compare --output FILE` or Report.to_json wrote"
    try:
        data = Path(path).read_bytes()
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror or error})", where=where, hint=hint) from error
    except (EOFError, ValueError) as error:
        raise InputError(f"it is not a complete JSON file ({error})", where=where, hint=hint) from error
    if not isinstance(document, dict) or document.get("format") != REPORT_FORMAT:
        raise InputError("it is JSON, but not a report", where=where, hint=hint)
    if document.get("version") != REPORT_VERSION:
        raise InputError(
            f"it has version {document.get('version')!r} of the format; this Symphony reads version {REPORT_VERSION}",
            where=where,
            hint="read it with the Symphony that wrote it, or run the comparison again",
        )
    try:
        scenarios = [_scenario_in(meta) for meta in document["scenarios"]]
        return Contents(
            runs=tuple(_run_in(run) for run in document["runs"]),
            scenarios={int(seed): scenarios[index] for seed, index in document["scenario_of_seed"].items()},
            cheats=frozenset(document["cheats"]),
            command=document["command"],
            baseline=document["baseline"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"a part is missing or malformed ({error!r})", where=where, hint=hint) from error


def _packed(raw: BinaryIO) -> gzip.GzipFile:
    # Without a name and a time in it: equal records give equal files.
    return gzip.GzipFile("", "wb", 6, raw, mtime=0)


def _dump(value: Any) -> str:
    # allow_nan=False: a bare NaN or Infinity would not be JSON; `_plain` has made strings of them.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """A field as JSON types; infinity and nan as strings that `float` reads back."""
    if value is None or isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    value = float(value)
    return value if math.isfinite(value) else str(value)


def _columns(records: Sequence[Any], kind: type[Any]) -> dict[str, list[Any]]:
    return {field.name: [_plain(getattr(x, field.name)) for x in records] for field in dataclasses.fields(kind)}


def _rows(columns: Mapping[str, list[Any]], kind: type[Any]) -> tuple[Any, ...]:
    ready = []
    for field in dataclasses.fields(kind):
        values = columns[field.name]
        if field.name == "devices":
            values = [tuple(value) for value in values]
        elif field.name not in _INTEGER_FIELDS and field.name != "outcome":
            values = [float(value) for value in values]
        ready.append(values)
    return tuple(kind(*row) for row in zip(*ready, strict=True))


def _run_out(run: RunRecord) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(RunRecord) if field.name not in ("jobs", "gangs")]
    return {
        **{name: _plain(getattr(run, name)) for name in names},
        "metrics": _plain(metrics(run)),  # for readers without Symphony
        "jobs": _columns(run.jobs, JobRecord),
        "gangs": _columns(run.gangs, GangRecord),
    }


def _run_in(run: Mapping[str, Any]) -> RunRecord:
    return RunRecord(
        policy=run["policy"],
        seed=run["seed"],
        jobs=_rows(run["jobs"], JobRecord),
        gangs=_rows(run["gangs"], GangRecord),
        makespan_s=float(run["makespan_s"]),
        utilisation={kind: float(value) for kind, value in run["utilisation"].items()},
        decisions=run["decisions"],
        events=run["events"],
        refused=run["refused"],
        wall_s=float(run["wall_s"]),
        stalled=run["stalled"],
        jobs_outside=run["jobs_outside"],
        devices=run.get("devices", 0),  # files of earlier versions have neither
        idle_ready_share=run.get("idle_ready_share"),
    )


def _scenario_out(meta: ScenarioMeta) -> dict[str, Any]:
    return {
        "topology": meta.topology,
        "devices": _columns(meta.devices, DeviceMeta),
        "workload": meta.workload,
        "graphs": _columns(meta.graphs, GraphMeta),
        "disturbances": _plain(meta.disturbances),
    }


def _setting(value: Any) -> Any:
    """A setting from JSON: `inf` and `nan` are numbers, other strings are words, lists are tuples."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def _scenario_in(meta: Mapping[str, Any]) -> ScenarioMeta:
    devices = zip(*(meta["devices"][f.name] for f in dataclasses.fields(DeviceMeta)), strict=True)
    graphs = zip(*(meta["graphs"][f.name] for f in dataclasses.fields(GraphMeta)), strict=True)
    return ScenarioMeta(
        topology=meta["topology"],
        devices=tuple(DeviceMeta(*device) for device in devices),
        workload=meta["workload"],
        graphs=tuple(GraphMeta(name, tuple(gangs), tuple(kernels)) for name, gangs, kernels in graphs),
        disturbances={name: _setting(value) for name, value in meta["disturbances"].items()},
    )
