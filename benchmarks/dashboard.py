"""The cost of the dashboard: `python -m benchmarks.dashboard [--quick] [--json FILE] [--only SECTION…]`.

    scale     pages of a service with 1,000 devices, 10,000 jobs and 20,000 runs, in a real Chromium: milliseconds to
              the first contentful paint, and the longest task of the page's thread, while it is loaded and after
    ten       a graph of no-op kernels through a real service, with ten dashboards open and without, in turns: kernels a
              second, CPU seconds of service and clients, and the ratios. A dashboard is its stream and the requests
              that its page makes at every change; it is not drawn

Unfair to the dashboard: browser, clients and service share the cores of one machine.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

import symphony as sy
from benchmarks.common import keep
from symphony.engines.engine import EngineEvent
from symphony.problem import topologies
from symphony.service.client import RemoteCluster
from symphony.service.state import ACCEPTED, ENDED, FINISHED
from tests.engines.by_hand import ByHand
from tests.service.dashboard.browser import browser
from tests.service.dashboard.places import Visitor, visitor
from tests.service.places import Place, place

PAGES = ("/ui/", "/ui/jobs", "/ui/timeline", "/ui/learning")
SETTLE_S = 4.0  # for which a loaded page is measured


class Idle(ByHand):
    """An engine without events."""

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        time.sleep(min(timeout_s, 0.2))
        return []


@sy.kernel
def nothing(): ...


def fill(here: Place, jobs: int, runs: int) -> None:
    """Journal jobs of one user; the newer half has not ended."""
    devices, now = here.service.cluster.topology.devices, time.time()

    def command(entry: Any) -> None:
        names = {"user": "ann", "queue": "", "priority": 0, "tasks": 8, "outputs": [7], "names": [], "key": ""}
        for number in range(1, jobs + 1):
            entry.add(ACCEPTED, number, -1, name=f"sample-{number}", digest="", **names)
        for number in range(runs):
            began = now - 600.0 * (1.0 - number / runs)
            at = {"device": devices[number % len(devices)].name, "sent_s": began, "began_s": began, "seconds": 20.0}
            more = {"expected_s": 15.0, "spread": 0.3, "ended": "done", "name": f"align-{number % 8}"}
            entry.add(FINISHED, 1 + number % jobs, number % 8, **at, **more)
        for number in range(1, jobs // 2 + 1):
            entry.add(ENDED, number, -1, status="done", error=None)

    here.service.ledger.post_required(command).result()


def scale(quick: bool) -> dict[str, dict[str, float]]:
    """Milliseconds by page."""
    devices, jobs, runs = (64, 300, 600) if quick else (1_000, 10_000, 20_000)
    topology, found = topologies.topology(f"fat-tree:{devices}"), {}
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), engine=lambda: Idle(topology)) as here:
        fill(here, jobs, runs)
        with browser() as page:
            page.log_in(here.server.url, here.token("ann"))
            for path in PAGES[:2] if quick else PAGES:
                page.open(f"{here.server.url}{path}")
                time.sleep(1.0 if quick else SETTLE_S)
                paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                loaded = "performance.getEntriesByType('navigation')[0].loadEventEnd"
                tasks, end = page.run("window.longTasks"), page.run(loaded)
                found[path] = {
                    "first paint": page.run(paint),
                    "longest task while loading": max((x for at, x in tasks if at <= end), default=0.0),
                    "longest task after": max((x for at, x in tasks if at > end), default=0.0),
                    "elements": page.run("document.getElementsByTagName('*').length"),
                }
                assert page.problems == [], page.problems
    return found


def watch(who: Visitor, stop: threading.Event) -> None:
    """A dashboard: the stream of the cluster's page, and its request at every change."""
    here = who.here
    machine = here.service.cluster.topology.machines[0]
    connection = http.client.HTTPConnection("127.0.0.1", here.server.port, timeout=60)
    connection.request("GET", f"/ui/events?machines={machine}", headers={"cookie": who.cookie})
    stream = connection.getresponse()
    assert stream.status == 200
    while not stop.is_set():
        if stream.readline().startswith(b"event: change"):
            assert who.ask("GET", "/ui/", hx_request="true")[0] == 200
    connection.close()


class Speed(NamedTuple):
    kernels_per_s: float
    cpu_s: float  # of this process: service, client and dashboards
    seconds: float


def speed(cluster: RemoteCluster, kernels: int) -> Speed:
    """Measure no-op kernels, from the submission of their graph to its result."""
    graph = sy.graph("no-ops")
    for _ in range(kernels):
        graph.task(nothing)
    began, used = time.perf_counter(), time.process_time()
    cluster.submit(graph).result(240.0)
    seconds = time.perf_counter() - began
    return Speed(kernels / seconds, time.process_time() - used, seconds)


def ten(quick: bool) -> dict[str, Any]:
    """Speeds with and without dashboards, in turns."""
    kernels, rounds = (100, 1) if quick else (2_000, 6)
    found: dict[int, list[Speed]] = {0: [], 10: []}
    with tempfile.TemporaryDirectory() as folder, place(Path(folder)) as here, here.connect("ann") as cluster:
        speed(cluster, kernels)
        visitors = [visitor(here, f"user-{number}", "read", "admin") for number in range(10)]
        for number in range(2 * rounds):
            count, stop = (0, 10, 10, 0)[number % 4], threading.Event()
            threads = [threading.Thread(target=watch, args=(who, stop)) for who in visitors[:count]]
            for thread in threads:
                thread.start()
            found[count].append(speed(cluster, kernels))
            stop.set()
            for thread in threads:
                thread.join()
    pairs = list(zip(found[10], found[0], strict=True))
    return {
        "without": found[0],
        "with ten": found[10],
        "ratio of kernels a second": statistics.median(a.kernels_per_s / b.kernels_per_s for a, b in pairs),
        "ratio of CPU seconds": statistics.median(a.cpu_s / b.cpu_s for a, b in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--only", nargs="*", choices=("scale", "ten"), default=("scale", "ten"))
    options, out = parser.parse_args(), Console()
    figures: dict[str, Any] = {}
    for section in options.only:
        figures[section] = {"scale": scale, "ten": ten}[section](options.quick)
        out.print(section, figures[section])
    keep(options.json, **figures)


if __name__ == "__main__":
    main()
