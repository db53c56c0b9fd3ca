"""Workloads of measured training jobs by name: `measured:48?load=2`, or one of Gavel's job lists, `jobs.csv?jobs=60`.

They are not families (`family.py`): they need a run that knows both true and believed speeds (`closed_loop.py`), and
Gavel's tables, which do not come with the package.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from symphony.lowering import readers
from symphony.lowering.family import Option, Value
from symphony.problem.errors import DataError, InfeasibleError, WorkloadError
from symphony.problem.topology import Topology
from symphony.training_jobs.ground_truth import MeasuredSpeeds, measured
from symphony.training_jobs.job_features import GPUS
from symphony.training_jobs.measured_jobs import MeasuredJobs, drawn, listed

MEASURED_NAME = "measured"
DRAWN_OPTIONS = {
    "jobs": Option(48, "jobs that arrive", 1, 1000),
    "load": Option(2.0, "arrival rate over the rate that the cluster sustains without sharing", 0.01, 100),
    "hours": Option(1.0, "median time of a job on its best GPU", 0.001, 1000),
}
LIST_OPTIONS = {"jobs": Option(60, "number of jobs, from the start of the list", 1, 1000)}
DATA_VARIABLE, GAVEL_FOLDER = "SYMPHONY_DATA", "gavel"


def tables(folder: Path | None = None) -> MeasuredSpeeds:
    """Gavel's tables in a folder; by default $SYMPHONY_DATA/gavel."""
    root = os.environ.get(DATA_VARIABLE, "")
    path = folder or (Path(root) / GAVEL_FOLDER if root else None)
    if path is None or not (path / "isolated_throughput.csv").is_file():
        problem = f"{path} does not contain them" if path else "no folder is given"
        hint = f"give their folder with --tables, or set {DATA_VARIABLE} to the folder that contains {GAVEL_FOLDER}"
        raise DataError(f"measured jobs need Gavel's tables, and {problem}", hint=hint)
    return measured(path)


def workload(spec: str, topology: Topology, seed: int, folder: Path | None = None) -> MeasuredJobs:
    """The jobs of a spec, with true and believed speeds. `folder`: of Gavel's tables."""
    head, _, query = spec.partition("?")
    name, colon, size = head.partition(":")
    drawing = name == MEASURED_NAME
    if not drawing and not Path(head).is_file():
        raise WorkloadError(
            f"{head!r} is neither {MEASURED_NAME!r} nor a file",
            where=f"workload {spec!r}",
            hint=f"write {MEASURED_NAME}:48?load=2, or the path of one of Gavel's job lists",
        )
    settings = dict(part.partition("=")[::2] for part in query.split("&")) if query else {}
    if drawing and colon:
        settings["jobs"] = size
    values = _values(settings, DRAWN_OPTIONS if drawing else LIST_OPTIONS, spec)
    for kind in (kind.name for kind in topology.kinds if kind.name not in GPUS):
        where, hint = f"topology {topology.name!r}", f"use gpu24, or another topology of {', '.join(GPUS)}"
        raise InfeasibleError(f"no data on the device kind {kind!r}", where=where, hint=hint)
    table = tables(folder)
    if drawing:
        jobs, load, hours = int(values["jobs"]), float(values["load"]), float(values["hours"])
        return drawn(table, topology, seed, jobs=jobs, load=load, hours=hours)
    reading = readers.read(Path(head), "gavel-jobs")
    made = listed(reading, table, topology, reading.jobs[: int(values["jobs"])])
    first_s = min(job.arrival_s for job in made.workload.jobs)
    jobs_from_0 = tuple(replace(job, arrival_s=job.arrival_s - first_s) for job in made.workload.jobs)
    return made._replace(workload=replace(made.workload, jobs=jobs_from_0))


def _values(settings: dict[str, str], options: dict[str, Option], spec: str) -> dict[str, Value]:
    values: dict[str, Value] = {key: option.default for key, option in options.items()}
    for key, text in settings.items():
        if key not in options:
            hint = f"the options are {', '.join(options)}"
            raise WorkloadError(f"there is no option {key!r}", where=f"workload {spec!r}", hint=hint)
        value = options[key].read(text)
        if value is None:
            hint = f"write {key}={options[key].default}, or another value: {options[key].allowed}"
            raise WorkloadError(f"{key} is {text!r}", where=f"workload {spec!r}", hint=hint)
        values[key] = value
    return values
