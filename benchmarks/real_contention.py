"""Contention on this machine: `python -m benchmarks.real_contention [--quick] [--only SECTION …] [--json FILE]`.

    pairs         a kernel that streams through memory and one that computes in its cache, alone and side by side on
                  cores of one socket: slow-down of each, in seconds and in processor time
    avoided       jobs of as many streams as computations, the streams first, by policies in turn: makespan, share of
                  the streams' time beside another stream, and learned demands
    pcie          kernels that copy over a GPU's link (`upload`: memory of the host that the GPU may read by itself;
                  `move`: NumPy's arrays, to the GPU and back) and one that computes on it, alone and side by side
    pcie-avoided  jobs of as many copies as computations on that GPU, the copies first, as above. Demands are measured
                  by NVML while a kernel is alone on the GPU. The copies are of the kind that slows down more beside
                  itself

As many streams run side by side as there are cores, less one for the pair. Seconds include other load of the machine,
processor time only its use of memory. Unfair to `fifo` and `heft`: the order of tasks is their worst. In earlier rounds
the order is random, so that all combinations occur; all policies start with the profiles learned there.

The GPU has two slots: two processes, which take turns when they compute. Without a GPU, its sections are left out.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import keep, machine, parser
from examples.mix import cache, ratio
from symphony.engines.engine import Finished, Function, Pickled, Work
from symphony.engines.worker import pickled
from symphony.problem.build import build
from symphony.problem.program_cache import keep_programs
from symphony.runtime.kernels import code_of, digest

SECTIONS = ("pairs", "avoided", "pcie", "pcie-avoided")
POLICIES = ("fifo", "heft", "tetris", "symphony-late")
STREAM_BYTES = 64 << 20  # of each of three arrays: more than a core's share of any cache
EACH = 6  # streams, and computations, of a job, for each core
LEARNING = 12  # rounds
COPY_BYTES, SIDE = 256 << 20, 8192  # of an array that is copied, and of a matrix
PAIR_S, RUN_S = 0.2, 0.45  # a run on a GPU, side by side and in jobs: of those, NVML has to tell something
TELLING = 4  # runs of each kernel on a GPU, alone
_kept: dict[str, Any] = {}  # of a process


def stream(repeats: int) -> float:
    """Two passes over three large arrays, bound by memory."""
    if "arrays" not in _kept:
        _kept["arrays"] = [np.ones(STREAM_BYTES // 8) for _ in range(3)]
    a, b, c = _kept["arrays"]
    for _ in range(repeats):
        np.multiply(b, 3.0, out=a)
        np.add(a, c, out=a)
    return float(a[0])


def compute(repeats: int) -> float:
    """Products of matrices that fit into the cache of a core."""
    a = np.ones((192, 192))
    for _ in range(repeats):
        a = np.tanh(a @ a / 192)
    return float(a[0, 0])


def upload(repeats: int, size: int) -> float:
    """Copies from memory of the host that the GPU reads by itself."""
    import jax

    if "copy" not in _kept:
        host, there = (
            jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind) for kind in ("pinned_host", "device")
        )
        _kept["pinned"] = jax.device_put(np.ones(size // 4, np.float32), host)
        _kept["copy"] = jax.jit(lambda array: jax.device_put(array, there))
    for _ in range(repeats):
        copied = jax.block_until_ready(_kept["copy"](_kept["pinned"]))
    return float(copied[0])


def move(repeats: int, size: int) -> float:
    """Copies of a NumPy array to the GPU and back, like values between kernels."""
    import jax

    if "array" not in _kept:
        _kept["array"] = np.ones(size // 4, np.float32)
    for _ in range(repeats):
        back = np.asarray(jax.block_until_ready(jax.device_put(_kept["array"])))
    return float(back[0])


def multiply(repeats: int, side: int) -> float:
    """Products of matrices that stay on the GPU."""
    import jax

    if "matrix" not in _kept:
        _kept["matrix"] = jax.numpy.full((side, side), 1 / side, jax.numpy.bfloat16)
        _kept["product"] = jax.jit(lambda a, b: a @ b)
    product = _kept["matrix"]
    for _ in range(repeats):
        product = _kept["product"](_kept["matrix"], product)
    return float(jax.block_until_ready(product)[0, 0])


def _on_gpu(function: Callable[..., Any]) -> Any:
    """Add implementations for GPUs and accelerators; JAX uses the device that exists."""
    kernel = sy.kernel(function, device="gpu")
    kernel.implementation(device="accelerator")(function)
    return kernel


@dataclass(frozen=True)
class Mix:
    """Kernels that run side by side, their arguments, and which of them contend."""

    kernels: Mapping[str, Any]
    calls: Mapping[str, tuple[int, ...]]  # the first number is how often
    contends: str  # the other one does not
    device: str = "cpu"  # implementations that run

    def job(self, each: int, order: Callable[[int], Sequence[int]] = range) -> sy.Graph:
        """A job of contending tasks, then as many others, or in another order."""
        [other] = set(self.kernels) - {self.contends}
        names = [self.contends] * each + [other] * each
        graph = sy.graph("contended")
        for number in order(len(names)):
            graph.task(self.kernels[names[number]], *self.calls[names[number]])
        return graph


ON_CORES = Mix(
    {"stream": sy.kernel(stream), "compute": sy.kernel(compute)}, {"stream": (10,), "compute": (250,)}, "stream"
)
COPIES = ("upload", "move")
GPU_KERNELS = {"upload": _on_gpu(upload), "move": _on_gpu(move), "multiply": _on_gpu(multiply)}


class Bench:
    """An engine on whose first device given kernels are started at the same time."""

    def __init__(self, topology: sy.Topology, kernels: Mapping[str, Any], stack: ExitStack) -> None:
        self.engine = sy.LocalEngine(topology)
        stack.callback(self.engine.close)
        self.number = 0
        kind = topology.kind_of[topology.devices[0].kind].type
        self.functions = {name: self._function(kernel, kind) for name, kernel in kernels.items()}

    def _function(self, kernel: Any, kind: str) -> Function:
        code = code_of(kernel, kind)
        return Function(kernel.name, digest(code), self.engine.put(code))

    def together(self, calls: Sequence[tuple[str, tuple[int, ...]]]) -> Finished:
        """Run kernels side by side; returns the results of the first."""
        numbers = []
        for name, given in calls:
            self.number += 1
            numbers.append(self.number)
            arguments = self.engine.put(Pickled(*pickled((given, {}))))
            self.engine.dispatch([Work(self.number, 0, self.functions[name], arguments)])
        first: Finished | None = None
        left = set(numbers)
        while left:
            for event in self.engine.poll(1.0):
                if not isinstance(event, Finished):
                    raise RuntimeError(f"{calls}: {event}")
                left.discard(event.number)
                if event.number == numbers[0]:
                    first = event
        assert first is not None
        return first


def pairs(
    bench: Bench,
    calls: Mapping[str, tuple[int, ...]],
    cases: Sequence[tuple[str, str]],
    slots: int,
    rounds: int,
    longer: int = 4,
) -> dict[str, list[dict[str, float]]]:
    """Times of kernels alone and beside others, which run longer, in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for number in rng.permutation(len(cases)):
            name, other = cases[number]
            often, *rest = calls[other or name]
            beside = [(other, (often * longer, *rest))] * (slots - 1 if other else 0)
            event = bench.together([(name, calls[name]), *beside])
            case = f"{name} beside {other}" if other else f"{name} alone"
            found.setdefault(case, []).append({"seconds": event.seconds, "busy_s": event.busy_s})
    return found


def pairs_on_cores(topology: sy.Topology, slots: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Each kernel alone, beside computations, and beside streams."""
    kernels = ON_CORES.kernels
    with ExitStack() as stack:
        bench = Bench(topology, kernels, stack)
        for _ in range(2):  # every process makes its arrays
            bench.together([("stream", ON_CORES.calls["stream"])] * slots)
        cases = [(name, other) for name in kernels for other in ("", *kernels)]
        return pairs(bench, ON_CORES.calls, cases, slots, rounds)


def pairs_on_gpu(
    topology: sy.Topology, rounds: int, sizes: Mapping[str, int]
) -> tuple[dict[str, list[dict[str, float]]], dict[str, float], dict[str, str]]:
    """Each kernel alone, beside its like, and copies beside computations; also seconds of one repeat of each, and why
    kernels are left out that do not run here."""
    with ExitStack() as stack:
        bench = Bench(topology, GPU_KERNELS, stack)
        once, wrong = {}, {}
        for name, size in sizes.items():
            try:
                for often in (1, 1, 3):  # both processes compile
                    event = bench.together([(name, (often, size))] * 2)
                often = max(round(PAIR_S * 3 / event.seconds), 1)
                once[name] = bench.together([(name, (often, size))]).seconds / often
            except RuntimeError as error:
                wrong[name] = str(error)
        calls = {name: (lasting(PAIR_S, once[name]), sizes[name]) for name in once}
        cases = [(name, other) for name in once for other in ("", name)]
        cases += [(name, other) for name in once for other in once if (name in COPIES) != (other in COPIES)]
        return pairs(bench, calls, cases, 2, rounds, longer=2), once, wrong


def lasting(seconds: float, once_s: float) -> int:
    """The number of repeats that take so long."""
    return max(round(seconds / once_s), 1)


def pairs_table(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """A table of medians, and of ratios to the times alone."""
    made = Table(
        title=f"{len(next(iter(found.values())))} rounds, in turns: medians, and ratios to alone (95% interval)"
    )
    for title in ("", "seconds", "/ alone", "of the processor", "/ alone"):
        made.add_column(title, justify="right" if title else "left")
    for case in sorted(found):
        alone, cells = f"{case.split()[0]} alone", []
        for what in ("seconds", "busy_s"):
            ours, theirs = ([one[what] for one in found[which]] for which in (case, alone))
            cells += [f"{np.median(ours):.3f}", "" if case == alone else ratio(ours, theirs)]
        made.add_row(case, *cells)
    return made


def slower(found: Mapping[str, Sequence[Mapping[str, float]]], name: str, other: str) -> float:
    """Median time of a kernel beside another over that alone."""
    beside, alone = (found[case] for case in (f"{name} beside {other}", f"{name} alone"))
    return float(np.median([one["seconds"] for one in beside]) / np.median([one["seconds"] for one in alone]))


def measured(cluster: sy.Cluster, graph: sy.Graph, contends: str) -> dict[str, float]:
    """Makespan, processor time, and the share of the contending kernels' time beside their own kind."""
    done = cluster.submit(graph)
    done.result()
    ran = [(run.kernel.name, run.attempts[-1]) for run in done._state.runs]
    spans = [(a.began_s, a.began_s + a.seconds) for name, a in ran if name == contends]
    both = sum(
        max(min(one[1], other[1]) - max(one[0], other[0]), 0.0) for one in spans for other in spans if one is not other
    )
    return {
        "makespan_s": done.completion_s,
        "beside_its_like": both / sum(end - begin for begin, end in spans),
        "kernel_s": sum(a.seconds for _, a in ran),
    }


Runs = list[tuple[str, float, float]]  # kernel, when it began, seconds


def in_any_order(mix: Mix, each: int, rounds: int) -> Callable[[sy.Cluster], Runs]:
    """Learn profiles from jobs in random order."""
    rng = np.random.default_rng(1)

    def learn(cluster: sy.Cluster) -> Runs:
        runs: Runs = []
        for _ in range(rounds):
            done = cluster.submit(mix.job(each, lambda count: rng.permutation(count).tolist()))
            done.result()
            last = [(run.kernel.name, run.attempts[-1]) for run in done._state.runs]
            runs += [(name, one.began_s, one.seconds) for name, one in last if not one.cold]
        return runs

    return learn


def one_by_one(mix: Mix, runs: int) -> Callable[[sy.Cluster], Runs]:
    """Learn profiles from counters of runs alone; the first two compile."""

    def learn(cluster: sy.Cluster) -> Runs:
        for name, kernel in mix.kernels.items():
            for number in range(runs + 2):
                graph = sy.graph("alone")
                for _ in range(2 if number < 2 else 1):
                    graph.task(kernel, *mix.calls[name])
                cluster.submit(graph).result()
        return []

    return learn


def avoided(
    topology: sy.Topology,
    mix: Mix,
    each: int,
    rounds: int,
    learn: Callable[[sy.Cluster], Runs],
    names: Sequence[str],
    kept: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Run policies in turns, all with the learned profiles. `kept` is called after every round."""
    rng = np.random.default_rng(1)
    figures: dict[str, Any] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        known = folder / "learned.json"
        with sy.local(topology, policy=names[0], profiles=known) as cluster:
            figures["runs before"] = learn(cluster)
            figures["learned before"] = str(cluster.profiles).splitlines()

        def start(name: str) -> sy.Cluster:
            return sy.local(topology, policy=name, profiles=shutil.copy(known, folder / name))

        with ThreadPoolExecutor() as pool:
            found = dict(zip(names, map(stack.enter_context, pool.map(start, names)), strict=True))
        for cluster in found.values():  # processes make their arrays
            measured(cluster, mix.job(each), mix.contends)
        for _ in range(rounds):
            for name in rng.permutation(names).tolist():
                figures[name].append(measured(found[name], mix.job(each), mix.contends))
            kept(figures)
        figures["learned"] = {name: str(cluster.profiles).splitlines() for name, cluster in found.items()}
    return figures


def avoided_table(figures: Mapping[str, Any], names: Sequence[str], contends: str) -> Table:
    """A table relative to the first policy."""
    first = names[0]
    made = Table(title=f"{len(figures[first])} rounds, in turns: medians, and ratios to {first} (95% interval)")
    for title in ("", "makespan, s", f"/ {first}", f"{contends} beside {contends}", "kernels, s"):
        made.add_column(title, justify="right" if title else "left")
    for name in names:
        ours, theirs = ([one["makespan_s"] for one in figures[who]] for who in (name, first))
        beside, kernels = (np.median([one[what] for one in figures[name]]) for what in ("beside_its_like", "kernel_s"))
        against = "" if name == first else ratio(ours, theirs)
        made.add_row(name, f"{np.median(ours):.3f}", against, f"{beside:.2f}", f"{kernels:.2f}")
    return made


def socket() -> sy.Topology:
    """The cores of one socket of this machine."""
    found = sy.discover().topology
    kinds = found.kind_of
    cores = tuple(device for device in found.devices if kinds[device.kind].type == "cpu")
    return sy.Topology(found.name, found.kinds, found.resources, cores[:1])


def shared_gpu() -> sy.Topology | None:
    """The first GPU of this machine, with two slots; None if there is none."""
    found = sy.discover().cluster
    kinds = {
        name: kind.model_copy(update={"slots": 2}) if kind.type == "gpu" else kind
        for name, kind in found.device.items()
    }
    built = build(found.model_copy(update={"device": kinds}))
    gpus = tuple(device for device in built.devices if built.kind_of[device.kind].type == "gpu")
    return sy.Topology(built.name, built.kinds, built.resources, gpus[:1]) if gpus else None


def main() -> None:
    """Measure and print slow-downs."""
    taken = parser(__doc__ or "", SECTIONS)
    taken.add_argument("--policies", nargs="+", default=POLICIES, help="the first is the reference")
    taken.add_argument("--rounds", type=int, help="rounds of pairs and of jobs")
    taken.add_argument("--each", type=int, default=EACH, help="kernels of each kind in a job, per core")
    taken.add_argument("--learning", type=int, default=LEARNING, help="rounds before those that count")
    options = taken.parse_args()
    out, figures = Console(), {}
    keep_programs(cache())
    jax.config.update("jax_platforms", "cpu")
    before = machine()
    rounds = {name: options.rounds or (3 if options.quick else 12) for name in SECTIONS}

    def done(section: str, found: Any, *shown: Any) -> None:
        figures[section] = found
        if shown:
            out.print(*shown, sep="\n")
        keep(options.json, before=before, cores=slots, **figures)

    cores = socket()
    slots = cores.kind_of[cores.devices[0].kind].slots
    if "pairs" in options.only:
        beside = pairs_on_cores(cores, slots, rounds["pairs"])
        done("pairs", beside, pairs_table(beside))
    if "avoided" in options.only:
        each = options.each * slots
        learn = in_any_order(ON_CORES, each, options.learning)
        jobs = avoided(cores, ON_CORES, each, rounds["avoided"], learn, options.policies, partial(done, "avoided"))
        learned = jobs["learned"][options.policies[-1]]
        done("avoided", jobs, avoided_table(jobs, options.policies, "stream"), *learned)
    if {"pcie", "pcie-avoided"} & set(options.only):
        gpu = shared_gpu()
        if gpu is None:
            done(
                "pcie",
                "left out: this machine has no GPU that /sys or NVML tells of",
                "pcie: left out, there is no GPU",
            )
        else:
            measure_pcie(gpu, {"upload": COPY_BYTES, "move": COPY_BYTES, "multiply": SIDE}, rounds, options, done)
    out.print(before)


def measure_pcie(
    gpu: sy.Topology, sizes: Mapping[str, int], rounds: Mapping[str, int], options: Any, done: Callable[..., None]
) -> None:
    """Copies and computations on one GPU."""
    beside, once, wrong = pairs_on_gpu(gpu, rounds["pcie"], sizes)
    link = [row for row in gpu.resources if row.name in {hop.resource for hop in gpu.devices[0].route}]
    rates = {name: (1 + (name == "move")) * sizes[name] / once[name] for name in once if name in COPIES}
    told = {"link": {row.name: row.capacity for row in link}, "bytes_per_s": rates, "left_out": wrong}
    shown = [f"{name} alone: {rate / 1e9:.1f} GB/s" for name, rate in rates.items()]
    done("pcie", {"beside": beside, **told}, pairs_table(beside), *shown, *(f"{k}: {v}" for k, v in wrong.items()))
    if "pcie-avoided" in options.only:
        worst = max(rates, key=lambda name: slower(beside, name, name))
        kernels = {name: GPU_KERNELS[name] for name in (worst, "multiply")}
        mix = Mix(kernels, {name: (lasting(RUN_S, once[name]), sizes[name]) for name in kernels}, worst)
        names = options.policies
        learn, kept = one_by_one(mix, TELLING), partial(done, "pcie-avoided")
        jobs = avoided(gpu, mix, options.each, rounds["pcie-avoided"], learn, names, kept)
        done("pcie-avoided", jobs, avoided_table(jobs, names, worst), *jobs["learned before"])


if __name__ == "__main__":
    main()
