"""Run records as JSON, complete, so that nobody has to rerun to ask another question.

The layout is by columns (one list for each field of the jobs and of the gangs' stays), which is small and
what data frames like. It is also by lines: the first holds everything but the runs, then each run has a line
of its own, so that a reader may go through a long file one run at a time. A path that ends in `.gz` is
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from symphony.evaluation.metrics import METRICS, metrics
from symphony.problem.errors import InputError
from symphony.simulator.records import GangRecord, JobRecord, RunRecord

if TYPE_CHECKING:
    from symphony.simulator.scenarios import Scenario  # brings in JAX, which reading a report does not need

REPORT_FORMAT, REPORT_VERSION = "symphony.report", 1
_INTEGERS = {
    "job",
    "graph",
    "gang",
    "priority",
}  # fields of records that are integers; the other numbers are floats


@dataclass(frozen=True)
class DeviceMeta:
    """A device, as far as a report shows it."""

    name: str
    kind: str
    machine: str
    slots: int = 1


@dataclass(frozen=True)
class GraphMeta:
    """A task graph, as far as a report shows it: names of its gangs, and the kernel of each."""

    name: str
    gangs: tuple[str, ...]
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class ScenarioMeta:
    """What a report keeps of a scenario: the names behind the records' indices, and how it was disturbed."""

    topology: str
    devices: tuple[DeviceMeta, ...]
    workload: str
    graphs: tuple[GraphMeta, ...]
    disturbances: Mapping[str, float | bool | None]

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> ScenarioMeta:
        """The part of a scenario that a report keeps."""
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
    """What a report is made from and what its file holds, in the order of `Report`'s arguments."""

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
        hint = "give a path in a directory that exists and may be written to"
        raise InputError(f"it cannot be written ({error.strerror})", where=str(path), hint=hint) from error


def load(path: str | Path) -> Contents:
    """Read what `save` wrote; checks the format's version before anything else."""
    where = str(path)
    hint = "give a file that `symphony compare --json FILE` or Report.to_json wrote"
    try:
        data = Path(path).read_bytes()
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror or error})", where=where, hint=hint) from error
    except (EOFError, ValueError) as error:
        raise InputError(f"it is no whole JSON file ({error})", where=where, hint=hint) from error
    if not isinstance(document, dict) or document.get("format") != REPORT_FORMAT:
        raise InputError("it is JSON, but no report", where=where, hint=hint)
    if document.get("version") != REPORT_VERSION:
        raise InputError(
            f"it has version {document.get('version')!r} of the format; this Symphony reads {REPORT_VERSION}",
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
    # allow_nan=False: a bare NaN or Infinity would not be JSON; _number has made strings of them.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _number(value: float) -> float | str:
    """A float as JSON; an infinite one or nan as a string that `float` reads back."""
    value = float(value)  # numpy's scalars too
    return value if math.isfinite(value) else str(value)


def _columns(records: Sequence[Any], kind: type[Any]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for field in dataclasses.fields(kind):
        values = (getattr(record, field.name) for record in records)
        if field.name in _INTEGERS:
            columns[field.name] = [int(value) for value in values]
        elif field.name == "devices":
            columns[field.name] = [[int(device) for device in value] for value in values]
        elif field.name == "outcome":
            columns[field.name] = list(values)
        else:
            columns[field.name] = [_number(value) for value in values]
    return columns


def _rows(columns: Mapping[str, list[Any]], kind: type[Any]) -> tuple[Any, ...]:
    ready = []
    for field in dataclasses.fields(kind):
        values = columns[field.name]
        if field.name == "devices":
            values = [tuple(value) for value in values]
        elif field.name not in _INTEGERS and field.name != "outcome":
            values = [float(value) for value in values]
        ready.append(values)
    return tuple(kind(*row) for row in zip(*ready, strict=True))


def _run_out(run: RunRecord) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "seed": int(run.seed),
        "makespan_s": _number(run.makespan_s),
        "utilisation": {kind: _number(value) for kind, value in run.utilisation.items()},
        "decisions": int(run.decisions),
        "events": int(run.events),
        "refused": int(run.refused),
        "wall_s": _number(run.wall_s),
        "stalled": bool(run.stalled),
        "jobs_outside": int(run.jobs_outside),
        "devices": int(run.devices),
        "idle_ready_share": run.idle_ready_share,
        "metrics": {name: _number(value) for name, value in metrics(run).items()},  # for readers without Symphony
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
        devices=run.get("devices", 0),  # archives of earlier versions have none …
        idle_ready_share=run.get("idle_ready_share"),  # … nor this
    )


def _scenario_out(meta: ScenarioMeta) -> dict[str, Any]:
    return {
        "topology": meta.topology,
        "devices": {f.name: [getattr(d, f.name) for d in meta.devices] for f in dataclasses.fields(DeviceMeta)},
        "workload": meta.workload,
        "graphs": {f.name: [getattr(g, f.name) for g in meta.graphs] for f in dataclasses.fields(GraphMeta)},
        "disturbances": {k: v if v is None or isinstance(v, int) else _number(v) for k, v in meta.disturbances.items()},
    }


def _scenario_in(meta: Mapping[str, Any]) -> ScenarioMeta:
    devices = zip(*(meta["devices"][f.name] for f in dataclasses.fields(DeviceMeta)), strict=True)
    graphs = zip(*(meta["graphs"][f.name] for f in dataclasses.fields(GraphMeta)), strict=True)
    return ScenarioMeta(
        topology=meta["topology"],
        devices=tuple(DeviceMeta(*device) for device in devices),
        workload=meta["workload"],
        graphs=tuple(GraphMeta(name, tuple(gangs), tuple(kernels)) for name, gangs, kernels in graphs),
        disturbances={k: float(v) if isinstance(v, str) else v for k, v in meta["disturbances"].items()},
    )
