"""Workload families by name: `cholesky:10`, `variant-calling?load=0.9&arrivals=bursty`.

A family is a seeded generator. It draws a few dozen graphs, the templates; jobs are arrivals of them, at a
rate that is a share (`load`) of what the cluster can sustain. The same (spec, topology, seed) is always the
same workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial

import numpy as np

from symphony.lowering.applications import eeg, intrusion, variant_calling
from symphony.lowering.arrivals import PROCESSES
from symphony.lowering.capacity import jobs_per_second
from symphony.lowering.factorisations import TILE, factorisation
from symphony.lowering.random_graphs import random_graphs
from symphony.lowering.templates import Templates
from symphony.lowering.training_jobs import mixed, training
from symphony.problem import limits
from symphony.problem.errors import WorkloadError
from symphony.problem.runnable import check_graphs
from symphony.problem.topology import Topology
from symphony.problem.workload import Job, Workload

Value = int | float | str


@dataclass(frozen=True)
class Option:
    """A knob of a family. Its type is that of the default."""

    default: Value
    about: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind}, {self.low:,.10g} to {self.high:,.10g}"

    def read(self, value: Value) -> Value | None:
        """The value, from text or as given, or None if it is not allowed."""
        if self.choices:
            return value if value in self.choices else None
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        if isinstance(value, bool) or not self.low <= number <= self.high:
            return None
        if isinstance(self.default, int):
            return int(number) if number == int(number) else None
        return number


@dataclass(frozen=True)
class Family:
    """A workload family with its options, all of them with a value."""

    name: str
    about: str
    draw: Callable[..., Templates]  # (rng, topology, **own) -> kernels and graphs
    own: Mapping[str, Option]  # what `draw` takes
    common: Mapping[str, Option]  # jobs and their arrivals
    size: str  # the option that N of `name:N` sets
    values: Mapping[str, Value] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, Option]:
        """Every option, its own first."""
        return {**self.own, **self.common}

    def set(self, **values: Value | None) -> Family:
        """The family with options set; None leaves one as it is."""
        chosen = dict(self.values)
        for key, value in values.items():
            if value is None:
                continue
            if key not in self.options:
                close = get_close_matches(key, self.options, n=1)
                meant = f"did you mean {close[0]!r}? " if close else ""
                raise WorkloadError(
                    f"it has no option {key!r}",
                    where=f"workload {self.name!r}",
                    hint=f"{meant}the options are {', '.join(self.options)}",
                )
            option = self.options[key]
            read = option.read(value)
            if read is None:
                raise WorkloadError(
                    f"{key} is {value!r}",
                    where=f"workload {self.name!r}",
                    hint=f"write {key}={option.default}, or another value: {option.allowed}",
                )
            chosen[key] = read
        return replace(self, values=chosen)

    def templates(self, topology: Topology, rng: np.random.Generator) -> Templates:
        """Draw kernels and graphs for a topology, and refuse them if it cannot run them."""
        kernels, graphs = self.draw(rng, topology, **{key: self.values[key] for key in self.own})
        check_graphs(topology, kernels, graphs)
        return kernels, graphs


def names() -> tuple[str, ...]:
    """Names of the families."""
    return tuple(_FAMILIES)


def family(spec: str) -> Family:
    """The family that `name`, `name:N` or `name:N?option=value&…` says, its options set."""
    head, _, query = spec.partition("?")
    name, colon, size = head.partition(":")
    if name not in _FAMILIES:
        close = get_close_matches(name, _FAMILIES, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise WorkloadError(f"unknown workload {name!r}", hint=f"{meant}the families are {', '.join(names())}")
    found = _FAMILIES[name]
    given: dict[str, Value] = {found.size: size} if colon else {}
    for part in query.split("&") if query else []:
        key, equals, value = part.partition("=")
        if not equals:
            raise WorkloadError(
                f"{part!r} is no option", where=f"workload {spec!r}", hint="write ?option=value&option=value"
            )
        if key in given:
            raise WorkloadError(f"{key} is given twice", where=f"workload {spec!r}", hint="leave one of them out")
        given[key] = value
    return found.set(**given)


def workload(
    spec: str,
    topology: Topology,
    seed: int,
    *,
    jobs: int | None = None,
    load: float | None = None,
    arrivals: str | None = None,
) -> Workload:
    """Draw a workload for a topology. `jobs`, `load` and `arrivals` override what the spec says."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise WorkloadError(f"the seed is {seed!r}", where=f"workload {spec!r}", hint="write a whole number, 0 or more")
    chosen = family(spec).set(jobs=jobs, load=load, arrivals=arrivals)
    # Streams of their own, so that another load or process leaves the graphs as they are.
    graph_rng, pick_rng, time_rng = (np.random.default_rng([int(seed), 0, stream]) for stream in range(3))
    kernels, graphs = chosen.templates(topology, graph_rng)
    values = chosen.values
    count = int(values["jobs"])
    process = str(values["arrivals"])
    # A batch has no rate; the fluid capacity is not worth computing then.
    full = 1.0 if process == "batch" else jobs_per_second(topology, graphs, [1.0] * len(graphs), kernels)
    times = PROCESSES[process](float(values["load"]) * full, count, time_rng)
    # Every graph comes equally often, in random order: with a few huge ones among many small, independent
    # draws would make the load of a short workload a matter of luck.
    rounds = np.tile(np.arange(len(graphs)), (-(-count // len(graphs)), 1))
    picks = pick_rng.permuted(rounds, axis=1).ravel()[:count]
    priorities = pick_rng.integers(int(values["priorities"]), size=count)
    homes = pick_rng.integers(len(topology.machines), size=count)
    columns = zip(picks.tolist(), times.tolist(), priorities.tolist(), homes.tolist(), strict=True)
    return Workload(spec, kernels, graphs, tuple(Job(*row) for row in columns))


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
) -> Family:
    if graphs:
        own = {**own, "graphs": Option(graphs, "distinct graphs", 1, limits.GRAPHS_PER_WORKLOAD)}
    common = {
        "jobs": Option(jobs, "jobs that arrive", 1, limits.JOBS_PER_WORKLOAD),
        "load": Option(load, "arrival rate over the rate that the cluster can sustain", 1e-6, 1e6),
        "arrivals": Option("poisson", "arrival process", choices=tuple(PROCESSES)),
        "priorities": Option(1, "priority levels, drawn evenly", 1, 1000),
    }
    made = Family(name, about, draw, own, common, size)
    return made.set(**{key: option.default for key, option in made.options.items()})


_SPREAD = Option(0.5, "spread of sizes (standard deviation of their logarithm)", 0, 3)
_MINUTES = "median length of a job of one worker on a V100, in minutes"
_RANDOM = {
    "tasks": Option(16, "tasks in a graph", 1, limits.TASKS_PER_GRAPH),
    "degree": Option(4, "most tasks that one reads from (or that read from it)", 1, 64),
    "ccr": Option(0.3, "time to transfer all data over time of all tasks on their best devices", 0, 1000),
    "heterogeneity": Option(1.0, "spread of a kernel's times across device kinds (of their logarithm)", 0, 4),
    "kernels": Option(12, "distinct kernels", 1, limits.KERNELS),
}


def _random(shape: str, about: str) -> Family:
    return _family(shape, about, partial(random_graphs, shape=shape), _RANDOM, size="tasks")


def _tiled(algorithm: str, about: str, largest: int) -> Family:
    own = {
        "tiles": Option(10, "tiles along a side", 1, largest),
        "tile": Option(TILE, "doubles along the side of a tile", 64, 8192),
    }
    draw = partial(factorisation, algorithm=algorithm)
    return _family(algorithm, about, draw, own, size="tiles", graphs=0, jobs=10, load=0.2)


_FAMILIES: Mapping[str, Family] = {
    made.name: made
    for made in (
        _family(
            "variant-calling",
            "genomics: align reads, realign indels (CPU only), call variants, over regions of a genome",
            variant_calling,
            {
                "regions": Option(2, "regions of the genome", 1, 256),
                "chunks": Option(2, "chunks of reads in a region", 1, 64),
                "spread": _SPREAD,
            },
            size="regions",
        ),
        _family(
            "eeg",
            "brain state from 3-second chunks of a recording; very fast on an FPGA",
            eeg,
            {"chunks": Option(6, "chunks in a recording", 1, 4096), "spread": replace(_SPREAD, default=0.3)},
            size="chunks",
        ),
        _family(
            "intrusion",
            "attack detection: many small jobs of short factor-graph kernels",
            intrusion,
            {
                "users": Option(12, "most users in a job", 1, 4096),
                "events": Option(40, "mean events of a user", 1, 100_000),
                "spread": replace(_SPREAD, default=1.0),
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
                "minutes": Option(18.0, _MINUTES, 0.01, 1e5),
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
                "minutes": Option(0.05, _MINUTES, 0.01, 1e5),
            },
            size="graphs",
            graphs=64,
        ),
    )
}
