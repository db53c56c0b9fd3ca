"""Workload families by name: `cholesky:10`, `variant-calling?load=0.9&arrivals=bursty`, `traces/jobs.csv?jobs=50`.

A family is a seeded generator. It draws a few dozen graphs, the templates; jobs are arrivals of them, at `load` times
the largest rate that the cluster can sustain. A file is a family too, whose draws are parts of it
(`lowering/trace.py`). The same (spec, topology, seed) always gives the same workload.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from symphony.lowering import readers, trace
from symphony.lowering.applications import eeg, intrusion, variant_calling
from symphony.lowering.arrivals import PROCESSES
from symphony.lowering.factorisations import DEFAULT_TILE, factorisation
from symphony.lowering.random_graphs import random_graphs
from symphony.lowering.readers.reading import FileContents
from symphony.lowering.templates import Templates
from symphony.lowering.trace import DrawnWorkload
from symphony.lowering.training_family import mixed, training
from symphony.problem import limits
from symphony.problem.errors import SymphonyWarning, WorkloadError
from symphony.problem.runnable import check_graphs
from symphony.problem.texts import did_you_mean
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload

Value = int | float | str


@dataclass(frozen=True)
class Option:
    """An option of a family. Its type is that of the default."""

    default: Value
    about: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """Its values, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if isinstance(self.default, str):
            return "text"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind}, {self.low:,.10g} to {self.high:,.10g}"

    def read(self, value: Value) -> Value | None:
        """The value, parsed if it is text; None if it is not allowed."""
        if self.choices:
            return value if value in self.choices else None
        if isinstance(self.default, str):
            return str(value)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        if isinstance(value, bool) or not self.low <= number <= self.high:
            return None
        if isinstance(self.default, int):
            return int(number) if number == int(number) else None
        return number


@dataclass(frozen=True)
class WorkloadFamily:
    """A workload family and the values of its options; for a file, only of the options in the spec."""

    name: str
    about: str
    # (name, topology, seed, values) -> workload
    make: Callable[[str, Topology, int, Mapping[str, Value]], DrawnWorkload]
    own: Mapping[str, Option]
    common: Mapping[str, Option]  # options of all families: jobs and their arrivals
    size: str = ""  # the option that N of `name:N` sets
    values: Mapping[str, Value] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, Option]:
        """All options, its own first."""
        return {**self.own, **self.common}

    def set(self, **values: Value | None) -> WorkloadFamily:
        """The family with these options; None leaves an option as it is."""
        chosen = dict(self.values)
        for key, value in values.items():
            if value is None:
                continue
            if key not in self.options:
                raise WorkloadError(
                    f"it has no option {key!r}",
                    where=f"workload {self.name!r}",
                    hint=f"{did_you_mean(key, self.options)}the options are {', '.join(self.options)}",
                )
            option = self.options[key]
            parsed = option.read(value)
            if parsed is None:
                raise WorkloadError(
                    f"{key} is {value!r}",
                    where=f"workload {self.name!r}",
                    hint=f"write {key}={option.default}, or another value: {option.allowed}",
                )
            chosen[key] = parsed
        return replace(self, values=chosen)


def names() -> tuple[str, ...]:
    return tuple(_FAMILIES)


def family(spec: str) -> WorkloadFamily:
    """The family of a spec with its options: `name`, `name:N`, `name:N?option=value&…` or `path?option=value&…`."""
    head, _, query = spec.partition("?")
    given: dict[str, Value] = {}
    for part in query.split("&") if query else []:
        key, equals, value = part.partition("=")
        if not equals:
            raise WorkloadError(
                f"{part!r} is not an option", where=f"workload {spec!r}", hint="write ?option=value&option=value"
            )
        _add(given, key, value, spec)
    name, colon, size = head.partition(":")
    if name in _FAMILIES:
        found = _FAMILIES[name]
        if colon:
            _add(given, found.size, size, spec)
    elif is_path(head):
        found = _file(head, given.get("format"))
    else:
        hint = (
            f"{did_you_mean(name, _FAMILIES)}the families are {', '.join(names())}; anything else is the path of a file"
        )
        raise WorkloadError(f"unknown workload {name!r}", hint=hint)
    return found.set(**given)


def is_path(head: str) -> bool:
    """Whether a spec without its options is the path of a file; the name of a family takes precedence."""
    if head.partition(":")[0] in _FAMILIES or not head:
        return False
    return "/" in head or Path(head).suffix in _SUFFIXES or Path(head).exists()


def workload(
    spec: str,
    topology: Topology,
    seed: int,
    *,
    jobs: int | None = None,
    load: float | None = None,
    arrivals: str | None = None,
) -> Workload:
    """Draw a workload for a topology. `jobs`, `load` and `arrivals` override the values in the spec."""
    made = drawn(spec, topology, seed, jobs=jobs, load=load, arrivals=arrivals)
    source = spec.partition("?")[0]
    if made.modelled:
        _warn_once(f"{source}: {made.modelled}")
    if made.problems:
        left_out = f"{len(made.problems):,} record{'s were' if len(made.problems) > 1 else ' was'} left out"
        _warn_once(f"{left_out}, first {made.problems[0]}; `symphony workload show` lists them all")
    return made.workload


def drawn(spec: str, topology: Topology, seed: int, **overrides: Value | None) -> DrawnWorkload:
    """As `workload`, with remarks: assumptions, modelled times, records left out. None overrides nothing."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise WorkloadError(f"the seed is {seed!r}", where=f"workload {spec!r}", hint="write a whole number, 0 or more")
    chosen = family(spec).set(**overrides)
    return chosen.make(spec, topology, int(seed), chosen.values)


def reading(spec: str) -> FileContents:
    """All contents of the file of a spec, also if the spec selects a part."""
    head = spec.partition("?")[0]
    if not is_path(head):
        raise WorkloadError(f"{head!r} is a family, not a file", hint="give the path of a file")
    return _read(head, family(spec).values)


@lru_cache(maxsize=1024)
def _warn_once(text: str) -> None:
    """Warn once, not for each of twenty seeds."""
    warnings.warn(text, SymphonyWarning, stacklevel=3)


def _add(given: dict[str, Value], key: str, value: str, spec: str) -> None:
    if key in given:
        raise WorkloadError(f"{key} is given twice", where=f"workload {spec!r}", hint="leave one of them out")
    given[key] = value


# --- Generated families ------------------------------------------------------------------------------------


def _generate(
    name: str,
    topology: Topology,
    seed: int,
    values: Mapping[str, Value],
    *,
    draw: Callable[..., Templates],
    own: Mapping[str, Option],
) -> DrawnWorkload:
    """Graphs of a generator, and their arrivals. Refuses graphs that the topology cannot run."""
    kernels, graphs = draw(trace.streams(seed)[0], topology, **{key: values[key] for key in own})
    check_graphs(topology, kernels, graphs)
    jobs = trace.arrivals_of(
        topology,
        kernels,
        graphs,
        jobs=int(values["jobs"]),
        load=float(values["load"]),
        arrivals=str(values["arrivals"]),
        priorities=int(values["priorities"]),
        seed=seed,
    )
    return DrawnWorkload(Workload(name, kernels, graphs, jobs))


def _family(
    name: str,
    about: str,
    draw: Callable[..., Templates],
    own: Mapping[str, Option],
    *,
    size: str,
    graphs: int = 32,
    jobs: int = 200,
    load: float = 0.7,
) -> WorkloadFamily:
    if graphs:
        own = {**own, "graphs": Option(graphs, "distinct graphs", 1, limits.GRAPHS_PER_WORKLOAD)}
    made = WorkloadFamily(name, about, partial(_generate, draw=draw, own=own), own, _common(jobs, load), size)
    return made.set(**{key: option.default for key, option in made.options.items()})


def _common(jobs: int, load: float) -> Mapping[str, Option]:
    return {
        "jobs": Option(jobs, "jobs that arrive", 1, limits.JOBS_PER_WORKLOAD),
        "load": Option(load, "arrival rate over the largest rate that the cluster can sustain", 1e-6, 1e6),
        "arrivals": Option(trace.DEFAULT_ARRIVALS, "arrival process", choices=tuple(PROCESSES)),
        "priorities": Option(1, "priority levels, drawn evenly", 1, 1000),
    }


_SPREAD_OPTION = Option(0.5, "spread of sizes (standard deviation of their logarithm)", 0, 3)
_MINUTES_HELP = "median length of a job of one worker on a V100, in minutes"
_RANDOM_OPTIONS = {
    "tasks": Option(16, "tasks in a graph", 1, limits.TASKS_PER_GRAPH),
    "degree": Option(4, "most parents (or children) of a task", 1, 64),
    "ccr": Option(0.3, "time to transfer all data over time of all tasks on their best devices", 0, 1000),
    "heterogeneity": Option(1.0, "spread of a kernel's times across device kinds (of their logarithm)", 0, 4),
    "kernels": Option(12, "distinct kernels", 1, limits.KERNELS),
}


def _random(shape: str, about: str) -> WorkloadFamily:
    return _family(shape, about, partial(random_graphs, shape=shape), _RANDOM_OPTIONS, size="tasks")


def _tiled(algorithm: str, about: str, largest: int) -> WorkloadFamily:
    own = {
        "tiles": Option(10, "tiles along a side", 1, largest),
        "tile": Option(DEFAULT_TILE, "doubles along the side of a tile", 64, 8192),
    }
    draw = partial(factorisation, algorithm=algorithm)
    return _family(algorithm, about, draw, own, size="tiles", graphs=0, jobs=10, load=0.2)


_FAMILIES: Mapping[str, WorkloadFamily] = {
    made.name: made
    for made in (
        _family(
            "variant-calling",
            "genomics: align reads, realign indels (CPU only), call variants, over regions of a genome",
            variant_calling,
            {
                "regions": Option(2, "regions of the genome", 1, 256),
                "chunks": Option(2, "chunks of reads in a region", 1, 64),
                "spread": _SPREAD_OPTION,
            },
            size="regions",
        ),
        _family(
            "eeg",
            "brain state from 3-second chunks of a recording; very fast on an FPGA",
            eeg,
            {"chunks": Option(6, "chunks in a recording", 1, 4096), "spread": replace(_SPREAD_OPTION, default=0.3)},
            size="chunks",
        ),
        _family(
            "intrusion",
            "attack detection: many small jobs of short factor-graph kernels",
            intrusion,
            {
                "users": Option(12, "most users in a job", 1, 4096),
                "events": Option(40, "mean events of a user", 1, 100_000),
                "spread": replace(_SPREAD_OPTION, default=1.0),
            },
            size="users",
        ),
        _random("layered", "random graphs in layers, over random kernels"),
        _random("fork-join", "random forks and joins, over random kernels"),
        _random("series-parallel", "random series-parallel graphs, over random kernels"),
        _tiled("cholesky", "tiled Cholesky factorisation of N by N tiles", 45),
        _tiled("lu", "tiled LU factorisation without pivoting, N by N tiles", 36),
        _tiled("qr", "tiled QR factorisation with a flat tree, N by N tiles", 36),
        _family(
            "training",
            "distributed training: preemptible gangs of 1 to 8 workers, heavy-tailed lengths",
            training,
            {
                "workers": Option(8, "most workers in a gang (fewer if fewer GPUs can hold the model)", 1, 8),
                "minutes": Option(18.0, _MINUTES_HELP, 0.01, 1e5),
                "spread": Option(2.0, "spread of lengths (standard deviation of their logarithm)", 0, 4),
            },
            size="workers",
            graphs=128,
        ),
        _family(
            "mixed",
            "the three applications and short training jobs together; needs CPUs and GPUs",
            mixed,
            {
                "training_share": Option(0.15, "share of training jobs", 0, 1),
                "minutes": Option(0.05, _MINUTES_HELP, 0.01, 1e5),
            },
            size="graphs",
            graphs=64,
        ),
    )
}


# --- Files -------------------------------------------------------------------------------------------------

_SUFFIXES = {".json", ".jsonl", ".csv", ".tsv", ".txt", ".dot", ".yaml", ".yml", ".xml", ".gz", ".xz"}
_AUTO = "auto"
_FILE_OPTIONS: Mapping[str, Option] = {
    "format": Option(_AUTO, "format of the file", choices=(_AUTO, *(known.name for known in readers.FORMATS))),
    "keep_good": Option(0, "1: leave out bad records and jobs that cannot run, and list them; 0: refuse them", 0, 1),
    "first": Option(0, "number of the first job (or graph); drawn unless given", 0, limits.SECONDS),
    "time_scale": Option(1.0, "factor on the gaps between recorded arrivals", 1e-9, 1e9),
    "heterogeneity": replace(
        _RANDOM_OPTIONS["heterogeneity"], about="spread of modelled times, if the file has CPUs only"
    ),
}


def file_options() -> Mapping[str, Option]:
    """The options of every file. An option that is not given leaves the file's own value."""
    common = _common(trace.DEFAULT_JOBS, trace.DEFAULT_LOAD)
    jobs = replace(common["jobs"], about=f"jobs that arrive; all, or {trace.DEFAULT_JOBS} of a file without arrivals")
    return {**_FILE_OPTIONS, **common, "jobs": jobs}


def reader_options(known: readers.Format) -> Mapping[str, tuple[str, Any]]:
    """The options of a format's reader: name in a spec -> (name in the reader, default).

    A name that `file_options` has, too, gets the prefix `file_`.
    """
    own = readers.options(known).items()
    return {f"file_{key}" if key in file_options() else key: (key, default) for key, default in own}


def _file(path: str, format: Value | None) -> WorkloadFamily:
    known = _format(path, format)
    own = {key: _reader_option(default) for key, (_, default) in reader_options(known).items()}
    common = {key: option for key, option in file_options().items() if key not in _FILE_OPTIONS}
    return WorkloadFamily(path, known.about, partial(_replay, path), {**own, **_FILE_OPTIONS}, common)


def _format(path: str, name: Value | None) -> readers.Format:
    readers.existing(path)
    return readers.sniff(path) if name in (None, _AUTO) else readers.named(str(name))


def _reader_option(default: Any) -> Option:
    about = "of this format"
    if isinstance(default, bool):
        return Option(int(default), about, 0, 1)
    if isinstance(default, int | float):
        return Option(default, about, -math.inf, math.inf)
    return Option("" if default is None else str(default), about)


def _replay(path: str, name: str, topology: Topology, seed: int, values: Mapping[str, Value]) -> DrawnWorkload:
    chosen: dict[str, Any] = {key: values[key] for key in file_options() if key in values and key != "format"}
    return trace.draw(_read(path, values), topology, seed, name=name, **chosen)


def _read(path: str, values: Mapping[str, Value]) -> FileContents:
    known = _format(path, values.get("format"))
    own = tuple((key, values[name]) for name, (key, _) in reader_options(known).items() if name in values)
    return _cached(path, _stamp(Path(path)), known.name, not values.get("keep_good"), own)


@lru_cache(maxsize=16)
def _cached(
    path: str, stamp: tuple[Any, ...], format: str, strict: bool, options: tuple[tuple[str, Value], ...]
) -> FileContents:
    """A file is read once, not for every seed; `stamp` changes with the file."""
    return readers.read(path, format, strict=strict, **dict(options))


def _stamp(path: Path) -> tuple[Any, ...]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
