"""CPU time of the live estimator: one window of one machine, and windows of many machines at once.

`python -m benchmarks.estimator [--quick] [--json FILE]`. Compiled and NumPy updates take turns on the same readings, in
one thread. A live window goes through `LiveEstimator`: readings of all rows of a machine, with our own part measured,
or the median times of runs of four kernels. In a batch, the filter updates 1,000 machines at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import arguments, keep, machine
from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowParameters, Readings
from symphony.estimation.live import RUNS_WEIGHED, WINDOW_S, LiveEstimator, RunReading
from symphony.problem import native_code
from symphony.runtime.profiles import Profiles

TOPOLOGIES = ("machine", "paper")  # of the second, its first machine
MACHINES, KERNELS, TARGET_MS = 1000, 4, 0.3
COMPILED = native_code.library()
Step = Callable[[], None]


class Live:
    """A machine whose rows are all read in every window; tenants come and go."""

    def __init__(self, topology: str) -> None:
        self.rng, self.now_s = np.random.default_rng(0), 0.0
        found = sy.topology(topology)
        self.host = found.resources[0].group
        self.rows = np.array([n for n, row in enumerate(found.resources) if row.group == self.host])
        kinds = {n: device.kind for n, device in enumerate(found.devices) if device.machine == self.host}
        self.device, self.kind = next(iter(kinds.items()))
        index = {row.name: n for n, row in enumerate(found.resources)}
        self.route = [
            index[hop.resource] for hop in found.devices[self.device].route if index[hop.resource] in self.rows
        ]
        self.estimator, self.load = LiveEstimator(found, Profiles()), np.zeros(len(self.rows))

    def window(self) -> None:
        self.now_s += WINDOW_S
        changed = self.rng.random(len(self.rows)) < 0.05
        self.load = np.where(changed, self.rng.uniform(0, 1.5, len(self.rows)), self.load)
        own = 0.2 * self.rng.random(len(self.rows))
        total = own + self.load * self.rng.uniform(0.9, 1.1, len(self.rows))
        self.estimator.rows(self.rows, total, own, np.zeros(len(self.rows), bool), self.now_s)

    def runs(self) -> None:
        self.now_s += WINDOW_S
        for n in range(KERNELS * RUNS_WEIGHED):
            seconds, own = 0.01 * self.rng.uniform(1.0, 1.2), dict.fromkeys(self.route, 0.1)
            run = RunReading(self.device, f"k{n % KERNELS}", self.kind, 1e6, seconds, own, self.now_s)
            self.estimator.ran(run)
        self.estimator.weigh(self.now_s)


def batch() -> Step:
    """Windows of many machines like the first one of `paper`."""
    from symphony.problem.arrays import topology_arrays

    rng, p = np.random.default_rng(0), FlowParameters()
    event = np.repeat(topology_arrays(sy.topology("paper")).flow_load[:1], MACHINES, axis=0)
    shape, belief = event.shape[:2], flow_filter.start(np, event.shape[-1], p, (MACHINES,))

    def step() -> None:
        nonlocal belief
        seen = Readings(rng.uniform(0, 2, shape), np.zeros(shape), np.full(shape, 0.2), rng.random(shape) < 0.5)
        belief = flow_filter.update(np, event, p, belief, seen)

    return step


def cpu_ms(step: Step, steps: int, compiled: bool) -> list[float]:
    native_code.library = lambda: COMPILED if compiled else None  # type: ignore[assignment]
    times = []
    for _ in range(steps):
        began = time.thread_time()
        step()
        times.append(1e3 * (time.thread_time() - began))
    return times


def measure(name: str, make: Callable[[], Step], steps: int, rounds: int, machines: int = 1) -> dict[str, Any]:
    """Medians and 99th percentiles in ms for each machine, compiled and in NumPy, in turns."""
    ways = {"compiled": COMPILED is not None, "numpy": False}
    made, times = {way: make() for way in ways}, {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, compiled in ways.items():
            found = cpu_ms(made[way], steps, compiled)
            times[way] += found if turn else []  # the first round warms up
    return {"what": name} | {
        f"{way}_{at}": float(value) / machines
        for way, found in times.items()
        for at, value in (("p50_ms", statistics.median(found)), ("p99_ms", np.percentile(found, 99)))
    }


def main() -> None:
    options = arguments("CPU time of the live estimator.", ("live", "batch"))
    steps, rounds = (20, 2) if options.quick else (100, 10)
    rows = []
    if "live" in options.only:
        for topology in TOPOLOGIES:
            rows.append(measure(f"window, {topology}", lambda t=topology: Live(t).window, steps, rounds))
            rows.append(
                measure(f"runs of {KERNELS} kernels, {topology}", lambda t=topology: Live(t).runs, steps, rounds)
            )
    if "batch" in options.only:
        rows.append(measure(f"{MACHINES:,} machines, each", batch, 2, 1 if options.quick else 5, MACHINES))
    table = Table("CPU time, ms", "compiled p50", "p99", "NumPy p50", "p99", box=None)
    for row in rows:
        table.add_row(row["what"], *(f"{value:.3f}" for name, value in row.items() if name != "what"))
    Console().print(table, f"\nTarget: {TARGET_MS} ms for each machine and window; in a batch 0.1 ms.")
    keep(options.json, machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
