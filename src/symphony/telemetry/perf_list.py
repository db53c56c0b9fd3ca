"""The events that perf lists on this machine (`perf list --json`), read into a catalogue."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

from symphony.problem.errors import DataError
from symphony.telemetry.events import Catalogue, Event, Metric
from symphony.telemetry.listings import Fields, Record, each_record, event_of, metric_of, without_cycles

PERF_LIST_NAME = "perf-list"
_COMMAND = ("perf", "list", "--json")
_PERF_LIST_HINT = "`perf list --json > events.json` makes such a file; perf 6.2 or later is needed"
_NEWER_PERF_HINT = "perf 6.2 or later has it; or add a kernel tree: symphony catalogue add PATH"
_KEYS = {
    "event": "EventCode",
    "umask": "UMask",
    "cmask": "CounterMask",
    "inv": "Invert",
    "edge": "EdgeDetect",
    "any": "AnyThread",
    "config": "ConfigCode",
}
_ENCODING = re.compile(r"([^/]*)/(.*)/[^/]*", re.DOTALL)


def run() -> bytes:
    """The output of `perf list --json` on this machine."""
    try:
        done = subprocess.run(_COMMAND, capture_output=True, check=True, timeout=60)
    except FileNotFoundError:
        raise DataError(
            "perf is not installed", hint="install it (Debian: linux-perf), or add a kernel tree: catalogue add PATH"
        ) from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode("utf-8", errors="replace").strip().splitlines()
        why = f": {lines[0].strip()}" if lines else ""
        raise DataError(f"this perf has no `list --json`{why}", hint=_NEWER_PERF_HINT) from None
    except (subprocess.SubprocessError, OSError) as error:
        raise DataError(f"`perf list --json` does not run: {error}", hint=_NEWER_PERF_HINT) from None
    return done.stdout


def read(content: bytes, source: str = "perf list --json") -> Catalogue:
    """The events and metrics that perf printed, without tracepoints, which are not counters of the CPU."""
    events: dict[tuple[str, str], Event] = {}
    metrics: dict[tuple[str, str], Metric] = {}
    left_out: list[str] = []

    def add(record: Record, place: str) -> None:
        fields = Fields(_as_listed(record), place)
        if fields.text("MetricName") and fields.text("MetricExpr"):
            metric = metric_of(fields)
            # perf prints a metric once for each of its groups.
            if before := metrics.get((metric.name, metric.unit)):
                metric = replace(before, groups=tuple(dict.fromkeys((*before.groups, *metric.groups))))
            metrics[metric.name, metric.unit] = metric
        elif fields.text("EventName") and "tracepoint" not in fields.text("EventType").lower():
            event = event_of(fields, PERF_LIST_NAME, topic=fields.text("Topic") or fields.text("EventType"))
            events.setdefault((event.name.lower(), event.unit), event)
            alias = fields.text("EventAlias")
            if alias and "/" not in alias:
                events.setdefault((alias.lower(), event.unit), replace(event, name=alias))

    each_record(source, content, add, left_out)
    if not events:
        what = f"there are no events in it{f': {left_out[0]}' if left_out else ''}"
        raise DataError(what, where=source, hint=_PERF_LIST_HINT)
    found = Catalogue(PERF_LIST_NAME, tuple(events.values()), tuple(metrics.values()), source=source)
    return without_cycles(found, left_out)


def _as_listed(record: Record) -> Record:
    """A record with its encoding (`cpu/event=0x24,umask=0x3f/`) as the fields that listings have."""
    found = {name: value for name, value in record.items() if name != "Encoding"}
    if found.get("Unit") in ("cpu", "default_core"):
        del found["Unit"]
    encoding = record.get("Encoding")
    if isinstance(encoding, str) and (parts := _ENCODING.fullmatch(encoding)):
        others = []
        for term in parts[2].split(","):
            name, _, value = term.partition("=")
            if name in _KEYS and re.fullmatch(r"0x[0-9a-fA-F]+|[0-9]+|", value):
                found[_KEYS[name]] = value or "1"
            elif name and name != "period":
                others.append(term)
        found["Filter"] = ",".join(others)
    return found
