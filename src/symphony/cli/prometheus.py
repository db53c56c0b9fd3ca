"""The latest estimates for Prometheus: a text page on this machine's loopback address."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

from symphony.problem.errors import InputError
from symphony.telemetry import Span, StatRow

_HELP = {
    "event": "Events per second",
    "metric": "Metrics",
}


class Page:
    """Means and standard deviations of the latest span of each place."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._places: dict[str, tuple[Span, Sequence[StatRow]]] = {}
        self._spans = 0

    def update(self, span: Span, rows: Sequence[StatRow]) -> None:
        with self._lock:
            self._places[span.where] = (span, rows)
            self._spans += 1

    def text(self) -> str:
        """The page, in Prometheus' text format."""
        with self._lock:
            places, spans = dict(self._places), self._spans
        lines = []
        for kind, about in _HELP.items():
            for what, words in (("mean", "mean"), ("stddev", "standard deviation of the belief")):
                name = f"symphony_{kind}_{what}"
                lines += [f"# HELP {name} {about}: {words}, over the last window.", f"# TYPE {name} gauge"]
                for where, (span, rows) in places.items():
                    per = span.duration_s if kind == "event" else 1.0
                    for row in (row for row in rows if row.kind == kind and per > 0):
                        value = (row.value if what == "mean" else row.std) / per
                        labels = {kind: row.name, "place": where, "unit": row.unit}
                        lines.append(f"{name}{{{_labels(labels)}}} {_number(value)}")
        lines += ["# HELP symphony_window_seconds Length of the last window.", "# TYPE symphony_window_seconds gauge"]
        for where, (span, _) in places.items():
            lines.append(f"symphony_window_seconds{{{_labels({'place': where})}}} {_number(span.duration_s)}")
        lines += [
            "# HELP symphony_windows_total Windows so far, of all places.",
            "# TYPE symphony_windows_total counter",
        ]
        return "\n".join([*lines, f"symphony_windows_total {spans}", ""])


@contextmanager
def serve(page: Page, port: int) -> Iterator[int]:
    """Serve a page as /metrics until the block ends; yields the port, which is a free one if `port` is 0."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] in ("/", "/metrics")
            body = page.text().encode() if found else b"metrics are at /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: the terminal is for counts."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}",
            hint="--prometheus 0 takes a free port and prints it",
        ) from None
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _labels(labels: dict[str, str]) -> str:
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:.9g}" if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
