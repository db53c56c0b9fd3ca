"""All three applications at once, by several policies in turn: `python -m examples.mix [--seconds 10]`.

Each policy has a cluster of its own: the processors of this machine, and what it has learned of the kernels. Jobs of
all applications are submitted at once; the policies take turns, in an order that is drawn for each round, so that other
load hits all of them alike. Rounds are compared one by one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from examples import eeg, genomics, security
from symphony.evaluation.statistics import paired
from symphony.problem.program_cache import keep_programs

APPLICATIONS = {"genomics": genomics, "eeg": eeg, "security": security}
POLICIES = ("fifo", "heft", "symphony-late")
WARM_UP = 2  # rounds in which processes import what they need, and times are learned


@dataclass(frozen=True)
class Round:
    """What became of the jobs of a round under one policy."""

    makespan_s: float
    completion_s: tuple[float, ...]  # of each job
    kernel_s: float  # of all kernels together
    jobs: tuple[sy.Job, ...] = ()

    @property
    def mean_completion_s(self) -> float:
        """Over the jobs."""
        return float(np.mean(self.completion_s))


def graphs(size: int = 2, copies: int = 2) -> list[sy.Graph]:
    """The jobs of a round, the largest first."""
    sizes = [size * (copies - copy) for copy in range(copies)]
    return [module.build(parts, seed) for seed, parts in enumerate(sizes) for module in APPLICATIONS.values()]


def run(cluster: sy.Cluster, jobs: Sequence[sy.Graph]) -> Round:
    """Submit all jobs at once, and wait for them."""
    began = time.monotonic()
    submitted = [cluster.submit(graph) for graph in jobs]
    for job in submitted:
        job.result()
    makespan = time.monotonic() - began
    ran = [attempt.seconds for job in submitted for task in job._state.runs for attempt in task.attempts]
    return Round(makespan, tuple(job.completion_s for job in submitted), float(np.nansum(ran)), tuple(submitted))


def clusters(policies: Sequence[str], topology: sy.Topology | None, stack: ExitStack) -> dict[str, sy.Cluster]:
    """One for each policy; none knows what the others have learned."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def start(number: int) -> sy.Cluster:
        return sy.local(topology, policy=policies[number], profiles=folder / f"{number}.json")

    with ThreadPoolExecutor() as pool:  # side by side: processes of a GPU take seconds to come up
        found = [stack.enter_context(cluster) for cluster in pool.map(start, range(len(policies)))]
    return dict(zip(policies, found, strict=True))


def rounds(
    found: Mapping[str, sy.Cluster], jobs: Sequence[sy.Graph], least: int, seconds: float, seed: int = 0
) -> Iterator[dict[str, Round]]:
    """In turns, after a warm-up: at least so many, and for so long."""
    for _ in range(WARM_UP):
        for cluster in found.values():
            run(cluster, jobs)
    rng, began, number = np.random.default_rng(seed), time.monotonic(), 0
    while number < least or time.monotonic() - began < seconds:
        yield {name: run(found[name], jobs) for name in rng.permutation(list(found)).tolist()}
        number += 1


def table(measured: Sequence[Mapping[str, Round]], names: Sequence[str], against: str) -> Table:
    """Medians, and ratios round by round with 95% intervals. It fits into 80 columns."""
    made = Table(box=None, pad_edge=False)
    for title in ("policy", "all", f"against {against}", "each", f"against {against}"):
        made.add_column(title, justify="left" if title == "policy" else "right", no_wrap=True)
    for name in names:
        cells = []
        for what in ("makespan_s", "mean_completion_s"):
            ours, theirs = ([getattr(one[who], what) for one in measured] for who in (name, against))
            cells += [f"{np.median(ours):.2f}", "" if name == against else ratio(ours, theirs)]
        made.add_row(name, *cells)
    return made


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Geometric mean of the ratios of two figures, with its interval."""
    found = paired(ours, theirs).ratio
    assert found is not None
    interval = "" if found.low is None else f" ({found.low:.2f}–{found.high:.2f})"
    return f"{found.value:.2f}{interval}"


def cache() -> Path:
    """Where compiled schedulers are kept, so that the next start is quick."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "symphony" / "compiled"


def main(argv: list[str] | None = None, topology: sy.Topology | None = None) -> list[dict[str, Round]]:
    """Compare, and say by how much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES), help="the first is what others are compared with")
    parser.add_argument("--size", type=int, default=2, help="parts of the input of the small jobs")
    parser.add_argument("--rounds", type=int, default=3, help="at least so many")
    parser.add_argument("--seconds", type=float, default=10.0, help="and for so long")
    options = parser.parse_args(argv)
    names = options.policies.split(",")
    jobs, out = graphs(options.size), Console()
    with ExitStack() as stack:
        found = clusters(names, topology, stack)
        first = found[names[0]]
        tasks = sum(len(graph.tasks) for graph in jobs)
        out.print(
            f"{len(jobs)} jobs of {tasks} real kernels, submitted at once to {first.topology.name}", highlight=False
        )
        measured = list(rounds(found, jobs, options.rounds, options.seconds))
        for name, cluster in found.items():
            if sum(cluster.statistics.fallbacks.values()):
                out.print(f"{name}: the heuristic stood in, {dict(cluster.statistics.fallbacks)}")
    out.print(f"{len(measured)} rounds, in turns: seconds until all jobs are done; until each is, on average")
    out.print(table(measured, names, names[0]))
    return measured


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # this process only decides: GPUs are for the kernels
    keep_programs(cache())
    main()
