"""Figures for Prometheus, in its text format."""

from __future__ import annotations

import bisect
import math
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from starlette.types import Scope

from symphony.runtime.jobs import RUNNING, WAITING
from symphony.service.connections import CONNECTION_HINTS, Connections
from symphony.service.service import Service
from symphony.service.state import ACCEPTED, BROKE, FINISHED, LOST

HTTP_METHODS = {"GET", "HEAD", "POST", "PUT"}  # of our routes
BUCKET_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds


class Histogram:
    """How many took how long. Any thread may add."""

    def __init__(self) -> None:
        self._counts, self._sum = [0] * (len(BUCKET_EDGES_S) + 1), 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """One more."""
        with self._lock:
            self._counts[bisect.bisect_left(BUCKET_EDGES_S, seconds)] += 1
            self._sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        """As Prometheus wants it: each bucket with all that are below it."""
        total = 0
        for edge, count in zip((*BUCKET_EDGES_S, math.inf), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if edge == math.inf else edge}"}} {total}'
        yield f"{name}_sum {self._sum:.9g}"
        yield f"{name}_count {total}"


class Metrics:
    """What is counted of requests; the rest is read from the service."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self.submit_s = Histogram()

    def count(self, scope: Scope, status: int) -> None:
        """A request. Labels are of a fixed set, whatever clients invent: each is a row for ever."""
        method = scope["method"] if scope["method"] in HTTP_METHODS else "other"
        self._requests[method, getattr(scope.get("route"), "path", "other"), status] += 1

    def text(self, service: Service) -> str:
        """The page."""
        state, found = service.state, service.cluster.statistics
        under_way = len(service.running.line.under_way)
        statuses = Counter(service.running.status(job) for job in list(state.open.values()))
        commits = list(service.ledger.commit_s)
        parts = [
            _gauge("jobs_waiting", "Jobs none of whose tasks has started.", statuses[WAITING]),
            _gauge("jobs_running", "Jobs that have started and are not over.", statuses[RUNNING]),
            _gauge("jobs_let_in", "Jobs in the hands of the cluster, running or not.", under_way),
            _counter("jobs_accepted_total", "Jobs accepted, as far as the journal goes back.", state.counts[ACCEPTED]),
            _labelled(
                "jobs_ended_total",
                "counter",
                "Jobs that are over, by how they ended.",
                "status",
                {status: state.counts[status] for status in ("done", "failed", "cancelled")},
            ),
            _labelled(
                "task_runs_total",
                "counter",
                "Runs of tasks that have ended: finished, lost (and run again), broke.",
                "how",
                {kind: state.counts[kind] for kind in (FINISHED, LOST, BROKE)},
            ),
            _counter("journal_events_total", "Events in the journal.", state.events),
            _gauge("journal_stuck", "1 if the journal cannot be written.", int(bool(service.ledger.stuck))),
            _gauge("journal_commit_seconds", "The longest of the last transactions.", max(commits, default=0.0)),
            _counter("turns_total", "Turns of the scheduler.", found.turns),
            _counter("decisions_total", "Decisions.", found.decisions),
            _counter("decisions_refused_total", "Decisions that were against the rules.", found.refused),
            _labelled(
                "fallbacks_total",
                "counter",
                "Turns that the heuristic took instead of the policy, by reason.",
                "reason",
                dict(found.fallbacks) or {"late": 0},
            ),
            _labelled(
                "decision_seconds",
                "gauge",
                "Latency of the last turns with decisions, quantiles.",
                "quantile",
                {str(share): found.latency_quantile(share) for share in (0.5, 0.9, 0.99)},
            ),
            _gauge("connections", "Connections.", len(self._connections)),
            _labelled(
                "connections_refused_total",
                "counter",
                "Connections that were refused, by what there was too little of.",
                "reason",
                {why: self._connections.refused[why] for why in CONNECTION_HINTS},
            ),
            _gauge("descriptors", "File descriptors in use.", len(os.listdir("/proc/self/fd"))),
            _gauge("descriptors_most", "File descriptors allowed.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            _gauge("draining", "1 if nothing new is accepted.", int(service.draining)),
        ]
        if others := service.cluster.others:
            mean, deviation = ({row: load[at] for row, load in others.items()} for at in (0, 1))
            about = "What others load a row of the machine with, as a share of its capacity"
            parts.append(_labelled("others_load", "gauge", f"{about}.", "row", mean))
            parts.append(_labelled("others_load_deviation", "gauge", f"{about}: deviation.", "row", deviation))
        lines = ["# HELP symphony_submit_seconds From request to answer.", "# TYPE symphony_submit_seconds histogram"]
        lines += self.submit_s.lines("symphony_submit_seconds")
        lines += ["# HELP symphony_requests_total Requests.", "# TYPE symphony_requests_total counter"]
        for (method, route, status), count in sorted(self._requests.items()):
            lines.append(f'symphony_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        return "\n".join(["\n".join(parts), *lines, ""])


def _gauge(name: str, about: str, value: float) -> str:
    return f"# HELP symphony_{name} {about}\n# TYPE symphony_{name} gauge\nsymphony_{name} {_number(value)}"


def _counter(name: str, about: str, value: float) -> str:
    return f"# HELP symphony_{name} {about}\n# TYPE symphony_{name} counter\nsymphony_{name} {_number(value)}"


def _labelled(name: str, kind: str, about: str, label: str, values: Mapping[str, float]) -> str:
    lines = [f"# HELP symphony_{name} {about}", f"# TYPE symphony_{name} {kind}"]
    lines += [f'symphony_{name}{{{label}="{key}"}} {_number(value)}' for key, value in values.items()]
    return "\n".join(lines)


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.9g}"
