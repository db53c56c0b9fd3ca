"""What is told of a job: an explanation for people, a trace for viewers."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symphony.problem.units import show

if TYPE_CHECKING:
    from symphony.runtime.jobs import Attempt, JobState, TaskRun


def explain(job: JobState) -> str:
    """One line for each run of each task, and why what waits does."""
    took = (job.ended_s if job.over.is_set() else time.monotonic()) - job.submitted_s
    head = f"job {job.number} ({job.graph.name!r}): {job.status} {'after' if job.over.is_set() else 'for'} {_s(took)}"
    lines = [head]
    if job.error is not None:
        lines.append(f"  {job.error.message}")
    width = max(len(run.name) for run in job.runs)
    for run in job.runs:
        for attempt in run.attempts:
            lines.append(f"  {run.name:<{width}}  {_told(run, attempt)}")
        if not run.attempts and not job.over.is_set():
            lines.append(f"  {run.name:<{width}}  {_waits(job, run)}")
    return "\n".join(lines)


def _told(run: TaskRun, attempt: Attempt) -> str:
    expected = f"expected {_s(attempt.expected_s)}, times or over {math.exp(attempt.spread):.1f}"
    first = "; its first run there, to learn how long it takes" if run.trial >= 0 else ""
    if not attempt.ended:
        return f"on {attempt.device}, for {_s(time.monotonic() - attempt.sent_s)}; {expected}{first}"
    if attempt.ended != "done":
        return f"on {attempt.device}: {attempt.ended} after {_s(attempt.seconds)}"
    waited = max(attempt.began_s - run.ready_s, 0.0)
    cold = "; the first call in its process" if attempt.cold else ""
    return f"on {attempt.device}: waited {_s(waited)}, took {_s(attempt.seconds)} ({expected}){cold}{first}"


def _waits(job: JobState, run: TaskRun) -> str:
    if job.row < 0:
        return "waits until the job is let in"
    waiting = [job.runs[source].name for source in run.call.reads if job.runs[source].value is None]
    if waiting:
        return f"waits for {', '.join(waiting[:3])}{f' and {len(waiting) - 3} more' if len(waiting) > 3 else ''}"
    return "waits for a device"


def _s(seconds: float) -> str:
    return show(float(f"{seconds:.3g}"), "seconds") if math.isfinite(seconds) else "?"


def trace_events(job: JobState) -> list[dict[str, Any]]:
    """Chrome's trace events: a process for each device, a thread for each of its slots that was used."""
    runs = [
        (attempt.began_s, attempt.began_s + attempt.seconds, run, attempt)
        for run in job.runs
        for attempt in run.attempts
        if math.isfinite(attempt.began_s) and math.isfinite(attempt.seconds)
    ]
    devices: dict[str, list[float]] = {}  # when each slot is free again
    events: list[dict[str, Any]] = []
    for began, ended, run, attempt in sorted(runs, key=lambda x: x[:2]):
        slots = devices.setdefault(attempt.device, [])
        slot = next((k for k, free in enumerate(slots) if free <= began + 1e-6), len(slots))
        slots[slot : slot + 1] = [ended]
        about = {"kernel": run.kernel.name, "expected_s": attempt.expected_s, "ended": attempt.ended}
        about |= {"waited_s": max(began - run.ready_s, 0.0), "cold": attempt.cold}
        events.append(
            {
                "name": run.name,
                "cat": run.kernel.name,
                "ph": "X",
                "ts": (began - job.submitted_s) * 1e6,
                "dur": (ended - began) * 1e6,
                "pid": list(devices).index(attempt.device) + 1,
                "tid": slot + 1,
                "args": about,
            }
        )
    for number, device in enumerate(devices, start=1):
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": device}})
    return events


def write_trace(job: JobState, path: Path) -> None:
    """As a file."""
    content = {"traceEvents": trace_events(job), "displayTimeUnit": "ms", "otherData": {"job": job.graph.name}}
    path.write_text(json.dumps(content))
