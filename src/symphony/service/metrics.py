"""Metrics for Prometheus, in its text format."""

from __future__ import annotations

import bisect
import math
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from starlette.types import Scope

from symphony.runtime.budget import HEURISTIC, DecisionCounts
from symphony.runtime.jobs import RUNNING, WAITING
from symphony.service.connections import CONNECTION_HINTS, Connections
from symphony.service.futures import Futures
from symphony.service.service import Service
from symphony.service.state import ACCEPTED, BROKE, FINISHED, LOST

HTTP_METHODS = {"GET", "HEAD", "POST", "PUT"}  # of our routes
BUCKET_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds
GAUGE, COUNTER = "gauge", "counter"


class Histogram:
    """Durations by bucket. Thread-safe."""

    def __init__(self) -> None:
        self._counts, self._sum = [0] * (len(BUCKET_EDGES_S) + 1), 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect.bisect_left(BUCKET_EDGES_S, seconds)] += 1
            self._sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        """In Prometheus' format, with cumulative buckets."""
        total = 0
        for edge, count in zip((*BUCKET_EDGES_S, math.inf), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if edge == math.inf else edge}"}} {total}'
        yield f"{name}_sum {self._sum:.9g}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts requests; all other metrics are read from the service."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self.submit_s = Histogram()

    def count(self, scope: Scope, status: int) -> None:
        """Count a request. Labels are from a fixed set, because Prometheus stores a series for each."""
        method = scope["method"] if scope["method"] in HTTP_METHODS else "other"
        self._requests[method, getattr(scope.get("route"), "path", "other"), status] += 1

    def text(self, service: Service, futures: Futures | None = None) -> str:
        state, decisions = service.state, service.cluster.statistics
        statuses = Counter(service.running.status(job) for job in list(state.open.values()))
        ended = {status: state.counts[status] for status in ("done", "failed", "cancelled")}
        runs = {kind: state.counts[kind] for kind in (FINISHED, LOST, BROKE)}
        slowest_commit_s = max(list(service.ledger.commit_s), default=0.0)
        fallbacks = dict(decisions.fallbacks) or {"late": 0}
        deciders = decisions.deciders or {HEURISTIC: DecisionCounts(decisions.decisions)}
        by = {
            field: {who: getattr(one, field) for who, one in deciders.items()}
            for field in ("decisions", "seconds", "kernel_s")
        }
        latency_s = {str(share): decisions.latency_quantile(share) for share in (0.5, 0.9, 0.99)}
        refused = {reason: self._connections.refused[reason] for reason in CONNECTION_HINTS}
        descriptors, most = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        lines = [
            *_metric("jobs_waiting", GAUGE, "Jobs none of whose tasks has started.", statuses[WAITING]),
            *_metric("jobs_running", GAUGE, "Jobs that have started and not ended.", statuses[RUNNING]),
            *_metric("jobs_let_in", GAUGE, "Jobs admitted to the cluster.", len(service.running.queue.under_way)),
            *_metric("jobs_accepted_total", COUNTER, "Accepted jobs in the journal.", state.counts[ACCEPTED]),
            *_metric("jobs_ended_total", COUNTER, "Jobs that have ended, by status.", ended, "status"),
            *_metric("task_runs_total", COUNTER, "Runs of tasks: finished, lost (and retried), broke.", runs, "how"),
            *_metric("journal_events_total", COUNTER, "Events in the journal.", state.events),
            *_metric("journal_stuck", GAUGE, "1 if the journal cannot be written.", bool(service.ledger.stuck)),
            *_metric("journal_commit_seconds", GAUGE, "The longest of the last transactions.", slowest_commit_s),
            *_metric("turns_total", COUNTER, "Turns of the scheduler.", decisions.turns),
            *_metric("decisions_total", COUNTER, "Decisions.", decisions.decisions),
            *_metric("decisions_refused_total", COUNTER, "Decisions that were not allowed.", decisions.refused),
            *_metric("fallbacks_total", COUNTER, "Turns taken by the heuristic, by reason.", fallbacks, "reason"),
            *_metric("decider_decisions_total", COUNTER, "Decisions, by what decided.", by["decisions"], "by"),
            *_metric("decider_seconds_total", COUNTER, "Time that decisions took.", by["seconds"], "by"),
            *_metric("decider_kernel_seconds_total", COUNTER, "Expected time of their kernels.", by["kernel_s"], "by"),
            *_metric("decision_seconds", GAUGE, "Latency of the last turns with decisions.", latency_s, "quantile"),
            *_metric("connections", GAUGE, "Connections.", len(self._connections)),
            *_metric("connections_refused_total", COUNTER, "Refused connections, by reason.", refused, "reason"),
            *_metric("descriptors", GAUGE, "File descriptors in use.", descriptors),
            *_metric("descriptors_most", GAUGE, "File descriptors allowed.", most),
            *_metric("draining", GAUGE, "1 if no new jobs are accepted.", service.draining),
        ]
        if loads := service.cluster.others:
            mean, deviation = ({row: load[index] for row, load in loads.items()} for index in (0, 1))
            about = "Background load of a row of the machine, as a fraction of its capacity"
            lines += _metric("others_load", GAUGE, f"{about}.", mean, "row")
            lines += _metric("others_load_deviation", GAUGE, f"{about}: standard deviation.", deviation, "row")
        if futures is not None:
            lines += _forecast_metrics(futures)
        lines += _header("submit_seconds", "histogram", "Time from request to answer.")
        lines += self.submit_s.lines("symphony_submit_seconds")
        lines += _header("requests_total", COUNTER, "Requests.")
        for (method, route, status), count in sorted(self._requests.items()):
            lines.append(f'symphony_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        return "\n".join([*lines, ""])


def _forecast_metrics(futures: Futures) -> list[str]:
    rows = {row.what: row for row in futures.record.rows() if row.by == "all"}
    lines = _metric("forecasts_total", COUNTER, "Forecasts of jobs in the record.", futures.made)
    lines += _metric("forecasts_scored_total", COUNTER, "Those whose outcome is known.", futures.scored)
    if rows:
        coverage, width = (
            {what: row.coverage for what, row in rows.items()},
            {w: row.width for w, row in rows.items()},
        )
        lines += _metric("forecast_coverage", GAUGE, "Share of outcomes within 80% bands.", coverage, "what")
        lines += _metric("forecast_width", GAUGE, "Median relative width of 80% bands.", width, "what")
    return lines


def _header(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP symphony_{name} {about}", f"# TYPE symphony_{name} {kind}"]


def _metric(name: str, kind: str, about: str, value: float | Mapping[str, float], label: str = "") -> list[str]:
    """A metric with one value, or with one for each value of a label."""
    if isinstance(value, Mapping):
        values = {f'symphony_{name}{{{label}="{_escaped(key)}"}}': number for key, number in value.items()}
    else:
        values = {f"symphony_{name}": value}
    return _header(name, kind, about) + [f"{series} {_number(number)}" for series, number in values.items()]


def _escaped(text: str) -> str:
    """The value of a label: names of rows are those of the topology file."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.9g}"
