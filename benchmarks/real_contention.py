"""Contention for memory, for real: `python -m benchmarks.real_contention [--quick] [--only SECTION …] [--json FILE]`.

    pairs     a kernel that streams through memory and one that computes in its cache, alone and side by side on cores
              of one socket: how much longer each takes, in seconds and in time of the processor
    avoided   jobs of as many streams as computations, the streams first, by policies in turn: makespan, how much of
              the streams' time was beside another stream, and what was learned of their demands

As many streams run side by side as there are cores, less one for the pair. Other load of the machine is in the seconds;
in the time of the processor only as far as it uses memory, too. Unfair to `fifo` and `heft`: the order of tasks is the
worst for them. Before the rounds that count come some in which the order is drawn, so that all company is met; what is
learned there is what all policies begin with.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from examples.mix import cache, ratio
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import arguments, keep, machine
from symphony.engines.engine import Finished, Function, Pickled, Work
from symphony.engines.worker import pickled
from symphony.runtime.programs import keep_programs

SECTIONS = ("pairs", "avoided")
POLICIES = ("fifo", "heft", "tetris", "symphony-late")
STREAM_BYTES = 64 << 20  # of each of three arrays: more than a core's share of any cache
REPEATS = {"stream": 10, "compute": 250}
EACH = 6  # streams, and computations, of a job, for each core
LEARNING = 12  # rounds
_arrays: list[np.ndarray] = []  # of a process


def stream(repeats: int) -> float:
    """Two passes over three large arrays: what it waits for is memory."""
    if not _arrays:
        _arrays.extend(np.ones(STREAM_BYTES // 8) for _ in range(3))
    a, b, c = _arrays
    for _ in range(repeats):
        np.multiply(b, 3.0, out=a)
        np.add(a, c, out=a)
    return float(a[0])


def compute(repeats: int) -> float:
    """Products of matrices that fit into a core's own cache."""
    a = np.ones((192, 192))
    for _ in range(repeats):
        a = np.tanh(a @ a / 192)
    return float(a[0, 0])


KERNELS = {"stream": sy.kernel(stream), "compute": sy.kernel(compute)}


class Bench:
    """An engine on which given kernels are started at the same time."""

    def __init__(self, topology: sy.Topology, stack: ExitStack) -> None:
        self.engine = sy.LocalEngine(topology)
        stack.callback(self.engine.close)
        self.number = 0
        self.functions = {name: self._function(kernel) for name, kernel in KERNELS.items()}

    def _function(self, kernel: Any) -> Function:
        code = Pickled(*pickled(kernel.implementations["cpu"], lambda _: None))
        return Function(kernel.name, hashlib.sha256(code.head).hexdigest(), self.engine.put(code))

    def together(self, names: Sequence[str]) -> Finished:
        """Run kernels side by side; what came of the first, beside which the others run until it is done."""
        numbers = []
        for place, name in enumerate(names):
            self.number += 1
            numbers.append(self.number)
            often = REPEATS[name] * (1 if place == 0 else 4)  # the others end later
            arguments = self.engine.put(Pickled(*pickled(((often,), {}))))
            self.engine.dispatch([Work(self.number, 0, self.functions[name], arguments)])
        first: Finished | None = None
        left = set(numbers)
        while left:
            for event in self.engine.poll(1.0):
                assert isinstance(event, Finished), event
                left.discard(event.number)
                if event.number == numbers[0]:
                    first = event
        assert first is not None
        return first


def pairs(topology: sy.Topology, slots: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Times of each kernel alone, beside computations, and beside streams; all in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    rng = np.random.default_rng(0)
    cases = [(name, other) for name in KERNELS for other in ("", *KERNELS)]
    with ExitStack() as stack:
        bench = Bench(topology, stack)
        for _ in range(2):  # every process makes its arrays
            bench.together(["stream"] * slots)
        for _ in range(rounds):
            for number in rng.permutation(len(cases)):
                name, other = cases[number]
                event = bench.together([name, *[other] * (slots - 1 if other else 0)])
                case = f"{name} beside {other}" if other else f"{name} alone"
                found.setdefault(case, []).append({"seconds": event.seconds, "busy_s": event.busy_s})
    return found


def pairs_table(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """Medians, and ratios to the times alone."""
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


def job(slots: int, order: Callable[[int], Sequence[int]]) -> sy.Graph:
    """Streams, then computations; unless they are put into another order."""
    names = ["stream"] * EACH * slots + ["compute"] * EACH * slots
    graph = sy.graph("contended")
    for number in order(len(names)):
        graph.task(KERNELS[names[number]], REPEATS[names[number]])
    return graph


def measured(cluster: sy.Cluster, graph: sy.Graph) -> dict[str, float]:
    """Makespan, processor time, and how much of the streams' time was beside a stream."""
    done = cluster.submit(graph)
    done.result()
    ran = [(run.kernel.name, run.attempts[-1]) for run in done._state.runs]
    spans = [(a.began_s, a.began_s + a.seconds) for name, a in ran if name == "stream"]
    both = sum(
        max(min(one[1], other[1]) - max(one[0], other[0]), 0.0) for one in spans for other in spans if one is not other
    )
    return {
        "makespan_s": done.completion_s,
        "beside_its_like": both / sum(end - begin for begin, end in spans),
        "kernel_s": sum(a.seconds for _, a in ran),
    }


def avoided(topology: sy.Topology, slots: int, rounds: int, learning: int) -> dict[str, Any]:
    """Policies in turns; all begin with what was learned in rounds in which order was drawn."""
    rng = np.random.default_rng(1)
    figures: dict[str, Any] = {name: [] for name in POLICIES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        known = folder / "learned.json"
        with sy.local(topology, policy=POLICIES[0], profiles=known) as cluster:
            for _ in range(learning):
                measured(cluster, job(slots, lambda count: rng.permutation(count).tolist()))
        found = {
            name: stack.enter_context(sy.local(topology, policy=name, profiles=shutil.copy(known, folder / name)))
            for name in POLICIES
        }
        for cluster in found.values():  # processes make their arrays
            measured(cluster, job(slots, range))
        for _ in range(rounds):
            for name in rng.permutation(POLICIES).tolist():
                figures[name].append(measured(found[name], job(slots, range)))
        figures["learned"] = {name: str(cluster.profiles).splitlines() for name, cluster in found.items()}
    return figures


def avoided_table(figures: Mapping[str, Any]) -> Table:
    """Against the first policy."""
    first = POLICIES[0]
    made = Table(title=f"{len(figures[first])} rounds, in turns: medians, and ratios to {first} (95% interval)")
    for title in ("", "makespan, s", f"/ {first}", "streams beside streams", "kernels, s"):
        made.add_column(title, justify="right" if title else "left")
    for name in POLICIES:
        ours, theirs = ([one["makespan_s"] for one in figures[who]] for who in (name, first))
        beside, kernels = (np.median([one[what] for one in figures[name]]) for what in ("beside_its_like", "kernel_s"))
        against = "" if name == first else ratio(ours, theirs)
        made.add_row(name, f"{np.median(ours):.3f}", against, f"{beside:.2f}", f"{kernels:.2f}")
    return made


def main() -> None:
    """Measure, and say what company costs."""
    options = arguments(__doc__ or "", SECTIONS)
    out, figures, before = Console(), {}, machine()
    keep_programs(cache())
    jax.config.update("jax_platforms", "cpu")
    topology = sy.discover().topology
    kinds = topology.kind_of
    topology = sy.Topology(
        topology.name,
        topology.kinds,
        topology.resources,
        tuple(device for device in topology.devices if kinds[device.kind].type == "cpu")[:1],  # one socket
    )
    slots = kinds[topology.devices[0].kind].slots
    if "pairs" in options.only:
        figures["pairs"] = pairs(topology, slots, 4 if options.quick else 15)
        out.print(pairs_table(figures["pairs"]))
    if "avoided" in options.only:
        figures["avoided"] = avoided(topology, slots, 3 if options.quick else 12, LEARNING)
        out.print(avoided_table(figures["avoided"]))
        out.print("\n".join(figures["avoided"]["learned"][POLICIES[-1]]))
    out.print(before)
    keep(options.json, before=before, cores=slots, **figures)


if __name__ == "__main__":
    main()
