"""Hidden tenants as real processes: `python -m benchmarks.real_tenants [--quick] [--only SECTION …] [--json FILE]`.

    halves  the cores of this machine as two devices; a tenant that computes on the cores of one half
    gpu     all cores and one GPU; a tenant that computes on the GPU, and one on half of the cores

Tenants are processes that Symphony does not know. They switch on and off on a schedule drawn for each round, in which
jobs of real kernels arrive. The same rounds are run, in turns, by earliest finish with

    none    no readings: others are believed to be what is typical, and to have slowed no run
    belief  what Symphony believes from the kernel's figures, NVML and its own run times
    exact   the true load by the tenants, at this moment, also to learn times of kernels

and makespan and mean completion are compared by round. The belief is compared with the true load twenty times a second.
Unfair to `exact`: it does not know the future. The true load of a tenant that is on is a whole processor or GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import keep, parser
from benchmarks.real_contention import compute, multiply
from examples.mix import Round, ratio
from symphony.problem.discover import discover
from symphony.problem.topology import Device, DeviceKind, Hop, Resource

SECTIONS = ("halves", "gpu")
MODES = ("none", "belief", "exact")
WARM_UP = 3  # rounds without tenants, to learn times
JOBS, STAGES = 6, 3  # of a round; tasks of a stage need all tasks of the previous one
ON_S, OFF_S = 3.0, 3.0  # mean lengths of phases
TASK_S, GPU_TASK_S = 0.08, 0.02  # of a task, on a core where there is no GPU, and on a GPU
GPU_REPEATS = 12  # products, in that time on an H200
LOAD = 0.7  # of the machine, without tenants
SIDE = 8192  # of a matrix on the GPU


@dataclass
class Tenant:
    """Processes that load rows while they are on."""

    rows: dict[int, float]  # load by row
    processes: list[subprocess.Popen[str]]
    on: bool = False

    @classmethod
    def started(cls, stack: ExitStack, rows: dict[int, float], cpus: Sequence[int] = ()) -> Tenant:
        """Start a tenant that computes on these cores; without any, on the GPU."""
        processes = []
        for cpu in cpus or (-1,):
            command = [sys.executable, "-m", "benchmarks.real_tenants", "--tenant", str(cpu)]
            some = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # of the GPU's memory, not most of it
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, env=some, **pipes))
            stack.callback(processes[-1].kill)
        for process in processes:
            assert process.stdout is not None and process.stdout.readline()  # it is ready
        return cls(rows, processes)

    def switch(self, on: bool) -> None:
        for process in self.processes if on != self.on else ():
            assert process.stdin is not None
            process.stdin.write("on\n" if on else "off\n")
            process.stdin.flush()
        self.on = on


def tenant(cpu: int) -> None:
    """The process of a tenant. It works while the last line that it read was `on`."""
    if cpu >= 0:
        os.sched_setaffinity(0, [cpu])
    state = {"on": False, "over": False}

    def read() -> None:
        for line in sys.stdin:
            state["on"] = line == "on\n"
        state["over"] = True

    def work() -> None:
        if cpu >= 0:
            compute(20)
        else:
            multiply(4, SIDE)

    work()
    print("ready", flush=True)
    threading.Thread(target=read, daemon=True).start()
    while not state["over"]:
        if state["on"]:
            work()
        else:
            time.sleep(0.005)


@sy.kernel
def task(repeats, gpu_repeats, *_):
    compute(repeats)


@task.implementation(device="gpu")
def task_gpu(repeats, gpu_repeats, *_):
    multiply(gpu_repeats, SIDE)


@sy.kernel
def gather(*_):
    return None


@dataclass
class Setting:
    """A section: the machine, its tenants, and the jobs of a round."""

    topology: sy.Topology
    tenants: list[Tenant]
    task_s: float
    width: int  # tasks of a stage
    rate: float  # tasks a second that the machine can do
    truth: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.truth = np.zeros(len(self.topology.resources), np.float32)
        self.repeats = round(self.task_s / seconds_of(lambda: compute(20)) * 20)
        self.gap_s = STAGES * self.width / (LOAD * self.rate)  # between jobs

    def job(self) -> sy.Graph:
        graph = sy.graph("stages")
        before: tuple[Any, ...] = ()
        for _ in range(STAGES):
            stage = [graph.task(task, self.repeats, GPU_REPEATS, *before) for _ in range(self.width)]
            before = (graph.task(gather, *stage),)
        return graph

    def switch(self, number: int, on: bool) -> None:
        self.tenants[number].switch(on)
        self.truth = np.zeros_like(self.truth)  # replaced, not changed: others read it
        for one in self.tenants:
            for row, load in one.rows.items():
                self.truth[row] += load * one.on


def seconds_of(work: Callable[[], object]) -> float:
    """CPU seconds, the least of three: others may be there."""
    found = []
    for _ in range(3):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def phases(rng: np.random.Generator, tenants: int, seconds: float) -> list[tuple[float, int, bool]]:
    """Times at which tenants switch on or off."""
    found = []
    for number in range(tenants):
        on, now = bool(rng.integers(2)), 0.0
        while now < seconds:
            found.append((now, number, on))
            now += float(rng.gamma(4.0, (ON_S if on else OFF_S) / 4.0))
            on = not on
    return sorted(found)


def run(setting: Setting, cluster: sy.Cluster, schedule: Sequence[tuple[float, int, bool]], errors: list[Any]) -> Round:
    """One round: jobs arrive one after another, while tenants switch on and off."""
    over = threading.Event()
    began = time.monotonic()

    def play() -> None:
        left = list(schedule)
        while not over.is_set():
            now = time.monotonic()
            while left and now - began >= left[0][0]:
                setting.switch(*left.pop(0)[1:])
            believed = cluster._loop.observer.background.believed(now)
            errors.append([believed[0].tolist(), believed[1].tolist(), setting.truth.tolist()])
            time.sleep(0.05)

    player = threading.Thread(target=play)
    player.start()
    jobs = []
    for _ in range(JOBS):
        jobs.append(cluster.submit(setting.job()))
        time.sleep(setting.gap_s)
    for job in jobs:
        job.result()
    makespan = time.monotonic() - began
    over.set()
    player.join()
    for number in range(len(setting.tenants)):
        setting.switch(number, False)
    return Round(makespan, tuple(job.completion_s for job in jobs), float("nan"))


def clusters(setting: Setting, stack: ExitStack) -> dict[str, sy.Cluster]:
    """A cluster for each mode, with profiles of its own."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    found = {}
    for mode in MODES:
        cluster = stack.enter_context(sy.local(setting.topology, policy="eft-belief", profiles=folder / f"{mode}.json"))
        observer = cluster._loop.observer
        if mode != "belief":
            known = _Given(setting if mode == "exact" else None, np.zeros_like(setting.truth))
            observer._learner._background = observer._learner._estimator = known
            observer.loads = (lambda now_s: None) if mode == "none" else known.believed
        found[mode] = cluster
    return found


@dataclass
class _Given:
    """In place of what is believed: the true load by tenants, or none. No run and no counter changes it."""

    setting: Setting | None
    nothing: np.ndarray
    watches: bool = False

    def believed(self, now_s: float) -> tuple[np.ndarray, np.ndarray]:
        truth = self.nothing if self.setting is None else self.setting.truth
        return truth, np.full_like(truth, 1e-3)

    def weigh(self, now_s: float) -> list[Any]:
        return []


def cpu_share(seconds: float = 1.0) -> float:
    """Share of the processors that is in use now."""

    def ticks() -> np.ndarray:
        return np.array(Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9], float)

    before = ticks()
    time.sleep(seconds)
    used = ticks() - before
    return float(1 - used[3:5].sum() / max(used.sum(), 1))


def halves(stack: ExitStack) -> Setting:
    cpus, sides = sorted(os.sched_getaffinity(0)), ("left", "right")
    half = len(cpus) // 2
    rows = tuple(Resource(f"{side}/compute", "compute", half, "here") for side in sides)
    devices = tuple(Device(side, "half", "here", "rack", side, side, (Hop(f"{side}/compute"),)) for side in sides)
    topology = sy.Topology("halves", (DeviceKind("half", "cpu", slots=half),), rows, devices)
    tenants = [Tenant.started(stack, {0: 1.0}, cpus[:half])]
    return Setting(topology, tenants, TASK_S, len(cpus), len(cpus) / TASK_S)


def gpu(stack: ExitStack) -> Setting | None:
    topology, cpus = discover().topology, sorted(os.sched_getaffinity(0))
    kinds = {kind.name: kind.type for kind in topology.kinds}
    index = {row.name: number for number, row in enumerate(topology.resources)}
    row = {
        kinds[device.kind]: index[hop.resource]
        for device in topology.devices
        for hop in device.route
        if topology.resources[index[hop.resource]].kind == "compute"
    }
    if "gpu" not in row:
        return None
    busy = cpus[: len(cpus) // 2]
    tenants = [Tenant.started(stack, {row["gpu"]: 1.0}), Tenant.started(stack, {row["cpu"]: 0.5}, busy)]
    return Setting(topology, tenants, 3 * TASK_S, len(cpus), len(cpus) / (3 * TASK_S) + 1 / GPU_TASK_S)


def summary(measured: Sequence[dict[str, Round]], errors: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for what in ("makespan_s", "mean_completion_s"):
        found[what] = {mode: [getattr(one[mode], what) for one in measured] for mode in MODES}
    mean, std, truth = np.array(errors).transpose(1, 0, 2)
    told = truth.max(axis=0) > 0
    off = np.abs(mean - truth)[:, told]
    within = off <= 1.645 * std[:, told]
    found["series"] = np.round(np.array(errors)[::4], 3).tolist()  # mean, deviation, truth of every row
    found["rows that tenants load"] = {
        "mean error": float(off.mean()),
        "mean load": float(truth[:, told].mean()),
        "within 90% bands": float(within.mean()),
        "error of what is typical": float(np.abs(truth[:, told]).mean()),
    }
    return found


def measure(section: str, rounds: int, seconds: float, out: Console) -> Iterator[dict[str, Any]]:
    """The figures so far, after each round: a run that is cut has some."""
    busy = cpu_share()
    out.print(f"{section}: before it began, others used {busy:.0%} of the processors; no mode is told of them")
    with ExitStack() as stack:
        setting = {"halves": halves, "gpu": gpu}[section](stack)
        if setting is None:
            out.print("gpu: this machine has none")
            return
        found = clusters(setting, stack)
        for cluster in found.values():
            for _ in range(WARM_UP):
                run(setting, cluster, [], [])
        measured: list[dict[str, Round]] = []
        errors: list[Any] = []
        began = time.monotonic()
        while len(measured) < rounds and (len(measured) < 2 or time.monotonic() - began < seconds):
            rng = np.random.default_rng(1000 + len(measured))
            schedule = phases(rng, len(setting.tenants), 600.0)
            order = rng.permutation(MODES).tolist()
            measured.append(
                {mode: run(setting, found[mode], schedule, errors if mode == "belief" else []) for mode in order}
            )
            yield {"rows": [summary(measured, errors)], "used before": busy}
        out.print(table(section, measured))
        out.print(summary(measured, errors)["rows that tenants load"])


def table(section: str, measured: Sequence[dict[str, Round]]) -> Table:
    made = Table(title=f"{section}: {len(measured)} rounds, in turns", title_justify="left", box=None, pad_edge=False)
    for title in ("readings", "makespan s", "against none", "mean completion s", "against none"):
        made.add_column(title, justify="left" if title == "readings" else "right")
    for mode in MODES:
        cells = []
        for what in ("makespan_s", "mean_completion_s"):
            ours, theirs = ([getattr(one[who], what) for one in measured] for who in (mode, "none"))
            cells += [f"{np.median(ours):.2f}", "" if mode == "none" else ratio(ours, theirs)]
        made.add_row(mode, *cells)
    return made


def main() -> None:
    known = parser(__doc__ or "", SECTIONS)
    known.add_argument("--seconds", type=float, default=300.0, help="of each section, after the warm-up")
    known.add_argument("--tenant", type=int, help=argparse.SUPPRESS)
    options = known.parse_args()
    if options.tenant is not None:
        tenant(options.tenant)
        return
    out = Console(width=100)
    rounds = 2 if options.quick else 1000
    jax.config.update("jax_platforms", "cpu")  # this process only decides: the GPUs are for kernels
    found = {}
    for section in options.only:
        for figures in measure(section, rounds, options.seconds, out):
            found[section] = figures
            keep(options.json, **found)


if __name__ == "__main__":
    main()
