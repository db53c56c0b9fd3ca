"""The cost of running a no-op kernel: `python -m benchmarks.execution [--quick] [--json FILE]`.

    engine    the local engine by itself: round trip of one kernel, and kernels a second with several under way
    pool      `concurrent.futures.ProcessPoolExecutor`, the same
    ray       if Ray is installed: one actor for each slot, called directly, and the Ray engine; both with one kernel
              in a call, and with 16. "Told": the actor receives bytes that name the kernel, and returns bytes, which is
              the cheapest message
    arrays    the same round trip with an array of 8 MB going in and out
    cluster   all of Symphony: graphs of no-ops submitted to `sy.local()` and `sy.ray()`, with every decision made by
              the core
    graphs    the same, one graph at a time as a user's script would submit it: wide ones of 30 to 20,000 tasks, chains
              and fan-ins, with the CPU time of this process; a small job beside the largest graph; and, if they are
              installed, Ray tasks and Dask with the same wide graph

All have as many processes as this machine has cores, and take turns, so that other load affects all alike; the best
and the median of several rounds are kept. Unfair to the pool and to Ray: they do more (Ray runs on many machines, the
processes of the pool share one queue). Unfair to us: our processes are pinned, a disadvantage on a busy machine, and
bare actors are called without arguments, except "told" ones.
"""

from __future__ import annotations

import hashlib
import os
import resource
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import symphony as sy
from benchmarks.common import arguments, keep, machine
from symphony.engines.engine import Finished, Function, Pickled, Work
from symphony.engines.worker import pickled, unpickled

SECTIONS = ("engine", "pool", "ray", "arrays", "cluster", "graphs")
UNDER_WAY = 32  # kernels for each process, where throughput is measured
ARRAY = np.arange(1_000_000.0)


def nothing(*_: Any) -> None: ...


def same(array: Any) -> Any:
    """A kernel that receives and returns an array."""
    return array


KERNELS: dict[bytes, Callable[[], Any]] = {b"nothing": nothing}


class Engine:
    """An engine of Symphony."""

    fewer = 1  # factor by which it runs fewer kernels than the fastest

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.devices = len(self.engine.inventory().devices)
        self.slots = len(self.engine._slots)
        self.number = 0
        self.functions = {f: self._function(f) for f in (nothing, same)}
        self.empty = self.engine.put(Pickled(*pickled(((), {}))))

    def _function(self, function: Callable[..., Any]) -> Function:
        code = Pickled(*pickled(function, lambda _: None))
        return Function(function.__name__, hashlib.sha256(code.head).hexdigest(), self.engine.put(code))

    def work(self, function: Callable[..., Any] = nothing, value: Any = None) -> Work:
        self.number += 1
        given = self.empty if value is None else self.engine.put(Pickled(*pickled(((value,), {}))))
        return Work(self.number, self.number % self.devices, self.functions[function], given)

    def round_trip(self) -> None:
        self.engine.dispatch([self.work()])
        assert [type(event) for event in self._events(1)] == [Finished]

    def array(self) -> None:
        work = self.work(same, ARRAY)
        self.engine.dispatch([work])
        [event] = self._events(1)
        assert isinstance(event, Finished)
        found = self.engine.get(event.value)
        assert unpickled(found.head, found.buffers)[-1] == ARRAY[-1]
        self.engine.free(work.arguments)
        self.engine.free(event.value)

    def many(self, count: int) -> None:
        sent = ended = 0
        while ended < count:
            room = min(self.slots * UNDER_WAY - (sent - ended), count - sent)
            self.engine.dispatch([self.work() for _ in range(room)])
            sent += room
            ended += len(self._events(1))

    def _events(self, least: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < least:
            found += self.engine.poll(1.0)
        return found

    def close(self) -> None:
        self.engine.close()


class Pool:
    """Python's process pool."""

    fewer = 1

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.pool = ProcessPoolExecutor(slots, mp_context=get_context("spawn"))

    def round_trip(self) -> None:
        self.pool.submit(nothing).result()

    def array(self) -> None:
        assert self.pool.submit(same, ARRAY).result()[-1] == ARRAY[-1]

    def many(self, count: int) -> None:
        under_way: set[Any] = set()
        sent = ended = 0
        while ended < count:
            while len(under_way) < self.slots * UNDER_WAY and sent < count:
                under_way.add(self.pool.submit(nothing))
                sent += 1
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            ended += len(done)

    def close(self) -> None:
        self.pool.shutdown()


class Actors:
    """Ray's actors, one for each slot, called directly."""

    fewer = 5

    def __init__(self, slots: int, together: int = 1, told: bool = False) -> None:
        import ray

        @ray.remote(num_cpus=1)
        class Actor:
            def nothing(self) -> None:
                pass

            def told(self, name: bytes) -> bytes:
                return KERNELS[name]() or b""

            def several(self, count: int) -> list[None]:
                return [nothing() for _ in range(count)]

            def same(self, array: Any) -> Any:
                return array

        self.ray, self.together, self.told = ray, together, told
        self.actors = [Actor.remote() for _ in range(slots)]
        self.next = 0

    def _call(self) -> Any:
        self.next += 1
        actor = self.actors[self.next % len(self.actors)]
        if self.told:
            return actor.told.remote(b"nothing")
        return actor.nothing.remote() if self.together == 1 else actor.several.remote(self.together)

    def round_trip(self) -> None:
        self.ray.get(self._call())

    def array(self) -> None:
        assert self.ray.get(self.actors[0].same.remote(ARRAY))[-1] == ARRAY[-1]

    def many(self, count: int) -> None:
        under_way: deque[Any] = deque()
        room = len(self.actors) * max(UNDER_WAY // self.together, 2)
        sent = ended = 0
        while ended < count:
            while len(under_way) < room and sent < count:
                under_way.append(self._call())
                sent += self.together
            self.ray.get(under_way.popleft())  # in order: faster than `ray.wait` for whichever is first
            ended += self.together

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)


class OnRay(Engine):
    """The Ray engine, on the devices of the local engine."""

    fewer = 5

    def __init__(self, together: int) -> None:
        from symphony.engines.ray import RayEngine

        super().__init__(RayEngine(topology=sy.discover().topology, together=together))


def start_ray(slots: int) -> None:
    """Start Ray at 127.0.0.1, with enough CPUs for all actors, and with a token."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported
    import ray

    ray.init("local", num_cpus=5 * slots, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def round_trips(run: Callable[[], None], count: int) -> dict[str, float]:
    """Quantiles of the time of one call, in seconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    times.sort()
    return {"p50": times[count // 2], "p99": times[count * 99 // 100], "least": times[0]}


def measure(parts: dict[str, Any], rounds: int, count: int) -> dict[str, Any]:
    """Measure all in turns."""
    figures: dict[str, Any] = {name: {"round_trips": [], "per_s": []} for name in parts}
    for part in parts.values():
        part.many(200)  # processes start, imports are done
    for _ in range(rounds):
        for name, part in parts.items():
            number = count // part.fewer
            figures[name]["round_trips"].append(round_trips(part.round_trip, number // 4))
            began = time.perf_counter()
            part.many(number)
            figures[name]["per_s"].append(number / (time.perf_counter() - began))
    return figures


def measure_cluster(rounds: int, cluster_of: Callable[..., sy.Cluster]) -> dict[str, Any]:
    """Chains (latency of dependent tasks) and wide graphs (throughput), decisions included."""
    kernel = sy.kernel(nothing)
    figures: dict[str, Any] = {"chain_s": [], "per_s": []}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with cluster_of(profiles=Path(folder) / "profiles.json") as cluster:
            figures["start_s"] = time.perf_counter() - began
            for number in range(rounds + 1):
                chain, wide = sy.graph("chain"), [sy.graph("wide") for _ in range(16)]
                last = None
                for _ in range(60):
                    last = chain.task(kernel, last)
                for graph in wide:
                    for _ in range(60):
                        graph.task(kernel)
                began = time.perf_counter()
                cluster.submit(chain).result()
                chained = time.perf_counter() - began
                began = time.perf_counter()
                for job in [cluster.submit(graph) for graph in wide]:
                    job.result()
                took = time.perf_counter() - began
                if number:  # the first is for learning
                    figures["chain_s"].append(chained / 60)
                    figures["per_s"].append(16 * 60 / took)
            counted = cluster.statistics
            figures["turn_s"] = {"p50": counted.latency_quantile(0.5), "p99": counted.latency_quantile(0.99)}
    return figures


def wide(count: int) -> sy.Graph:
    graph, kernel = sy.graph("wide"), sy.kernel(nothing)
    for _ in range(count):
        graph.task(kernel)
    return graph


def chain(count: int) -> sy.Graph:
    graph, kernel, last = sy.graph("chain"), sy.kernel(nothing), None
    for _ in range(count):
        last = graph.task(kernel, last)
    return graph


def fan_in(count: int) -> sy.Graph:
    graph, kernel = sy.graph("fan-in"), sy.kernel(nothing)
    graph.task(kernel, [graph.task(kernel) for _ in range(count)])
    return graph


def ray_tasks() -> Callable[[int], Any]:
    import ray

    task = ray.remote(num_cpus=1)(nothing)
    return lambda count: ray.get([task.remote() for _ in range(count)])


def dask_tasks() -> Callable[[int], Any]:
    from distributed import Client

    client = Client(n_workers=os.cpu_count(), threads_per_worker=1, dashboard_address=None)
    return lambda count: client.gather(client.map(nothing, range(count), pure=False))


def measure_graphs(rounds: int, largest: int, with_ray: bool) -> dict[str, Any]:
    """Seconds and CPU seconds of this process for each graph, from `submit` to the result; peers take turns with us."""
    sizes = [count for count in (30, 300, 1_000, 3_000, 10_000, 20_000) if count <= largest]
    made: dict[str, tuple[Callable[[int], sy.Graph], int]] = {f"wide, {n:,}": (wide, n) for n in sizes}
    made |= {f"chain, {n:,}": (chain, n) for n in (1_000, 5_000) if n <= largest}
    made |= {f"fan-in, {n:,}": (fan_in, n) for n in (1_000, 5_000) if n <= largest}
    peers: dict[str, Callable[[int], Any]] = {}
    if with_ray:
        peers["Ray tasks, 1,000"] = ray_tasks()
    with suppress(ModuleNotFoundError):
        peers["Dask, 1,000"] = dask_tasks()
    figures: dict[str, Any] = {name: {"tasks": n, "s": [], "cpu_s": []} for name, (_, n) in made.items()}
    figures |= {name: {"tasks": 1_000, "s": [], "cpu_s": []} for name in peers}
    beside_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with sy.local(profiles=Path(folder) / "profiles.json") as cluster:
            start_s = time.perf_counter() - began
            cluster.submit(wide(60)).result()  # for learning
            for peer in peers.values():
                peer(100)
            for _ in range(rounds):
                for name, (graph, count) in made.items():
                    built = graph(count)
                    with timed(figures[name]):
                        cluster.submit(built).result()
                for name, peer in peers.items():
                    with timed(figures[name]):
                        peer(1_000)
                job = cluster.submit(wide(largest))
                while job.status == "waiting":
                    time.sleep(0.001)
                began = time.perf_counter()
                cluster.submit(wide(1)).result()
                beside_s.append(time.perf_counter() - began)
                job.result()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"start_s": start_s, "graphs": figures, "beside_s": beside_s, "largest": largest, "peak_mb": peak_mb}


@contextmanager
def timed(figures: dict[str, Any]) -> Iterator[None]:
    began, cpu = time.perf_counter(), time.process_time()
    yield
    figures["s"].append(time.perf_counter() - began)
    figures["cpu_s"].append(time.process_time() - cpu)


def main() -> None:
    options = arguments(__doc__ or "", SECTIONS)
    rounds, count = (3, 2_000) if options.quick else (9, 20_000)
    console, figures = Console(), {}
    parts: dict[str, Any] = {"engine": Engine(sy.LocalEngine())}
    if "pool" in options.only:
        parts["pool"] = Pool(parts["engine"].slots)
    if "ray" in options.only:
        slots = parts["engine"].slots
        try:
            start_ray(slots)
            parts |= {"actors": Actors(slots), "actors, told": Actors(slots, told=True), "ray engine": OnRay(1)}
            parts |= {"actors, 16 a call": Actors(slots, 16), "ray engine, 16 a call": OnRay(16)}
        except ModuleNotFoundError:
            console.print("Ray is left out: it is not installed; type: make install-dev")
    graphs: dict[str, Any] | None = None
    try:
        figures = measure(parts, rounds, count)
        if "arrays" in options.only:
            for name, part in parts.items():
                figures[name]["array"] = round_trips(part.array, 20 if options.quick else 100)
    finally:
        for part in parts.values():
            with suppress(Exception):
                part.close()
    if "cluster" in options.only:
        figures["cluster"] = measure_cluster(rounds, sy.local)
        if "actors" in parts:
            figures["cluster on ray"] = measure_cluster(rounds, partial(sy.ray, topology=sy.discover().topology))

    table = Table("", "round trip p50, ms", "p99, ms", "kernels/s (best)", "8 MB in and out, ms", "against engine")
    ours = statistics.median(figures["engine"]["per_s"])
    for name in parts:
        mine = figures[name]
        trip = {q: statistics.median(x[q] for x in mine["round_trips"]) * 1e3 for q in ("p50", "p99")}
        rate, array = statistics.median(mine["per_s"]), mine.get("array", {}).get("p50", float("nan")) * 1e3
        mine["ratio"] = rate / ours
        cells = (f"{trip['p50']:.3f}", f"{trip['p99']:.3f}", f"{rate:,.0f} ({max(mine['per_s']):,.0f})")
        table.add_row(name, *cells, f"{array:.1f}", f"{mine['ratio']:.2f}")
    console.print(table)
    for mine, theirs in (("", ""), ("", ", told"), (", 16 a call", ", 16 a call")):
        if f"actors{theirs}" in figures:
            pairs = zip(figures[f"ray engine{mine}"]["per_s"], figures[f"actors{theirs}"]["per_s"], strict=True)
            ratio = statistics.median(ours / bare for ours, bare in pairs)
            console.print(f"ray engine{mine} against actors{theirs}: {ratio:.2f} of their kernels/s, round by round")
    for name in ("cluster", "cluster on ray"):
        if name not in figures:
            continue
        mine = figures[name]
        console.print(
            f"{name}: up after {mine['start_s']:.1f} s; {statistics.median(mine['per_s']):,.0f} kernels/s; "
            f"a chain takes {statistics.median(mine['chain_s']) * 1e3:.2f} ms a kernel; "
            f"a turn with decisions takes {mine['turn_s']['p50'] * 1e3:.2f} ms (p99 {mine['turn_s']['p99'] * 1e3:.2f})"
        )
    if "graphs" in options.only:
        graphs = measure_graphs(rounds, 1_000 if options.quick else 20_000, "actors" in parts)
        table = Table("one graph at a time", "kernels/s (best)", "ms a kernel", "CPU of this process, µs a kernel")
        for name, mine in graphs["graphs"].items():
            n, seconds = mine["tasks"], statistics.median(mine["s"])
            rate = f"{n / seconds:,.0f} ({n / min(mine['s']):,.0f})"
            table.add_row(name, rate, f"{seconds / n * 1e3:.3f}", f"{statistics.median(mine['cpu_s']) / n * 1e6:.0f}")
        console.print(table)
        console.print(
            f"one task beside {graphs['largest']:,}: {statistics.median(graphs['beside_s']):.2f} s; "
            f"peak memory {graphs['peak_mb']:,.0f} MiB"
        )
    keep(options.json, rounds=rounds, count=count, figures=figures, graphs=graphs, machine_after=machine())


if __name__ == "__main__":
    main()
