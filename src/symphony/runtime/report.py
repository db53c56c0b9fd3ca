"""Reports of a job: `explain` as text, `trace` for trace viewers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from symphony.problem.units import show

if TYPE_CHECKING:
    from symphony.runtime.jobs import Attempt, JobState, TaskRun


WAITS_FOR_ADMISSION = "waits until the job is admitted"
WAITING_PROCESS, FIRST_DEVICE = 0, 1  # processes of a trace
NEVER_STARTED = "never started: the job ended before"
# Parts of a job's time (`time_parts`).
RESTART = "until the service was started again"
ADMISSION, DEVICE, START = "waiting for admission", "waiting for a device", "starting and moving data"
RUN, LOST, PASS_ON = "running", "in runs that failed or were stopped", "handing on results"
MIN_SHOWN_PART = 1e-3  # of the whole time
KILLED_RUN = "killed, because the job had ended"  # how a run ended
MAX_SHOWN_RESUMES = 5  # steps from which a training job was resumed


@dataclass(frozen=True)
class TaskHistory:
    """All runs of a task. Times are on the clock of the job's history."""

    name: str
    kernel: str
    attempts: Sequence[Attempt]
    ready_s: float
    trial: bool  # it was placed to learn the run time on that device kind
    waits: str  # what it waits for, if it waits
    steps: int = 0  # of a training job; 0 for other tasks
    reads: Sequence[int] = ()  # indices of the tasks whose values it needs
    size: int = 0  # bytes of its own value; 0 = unknown


@dataclass(frozen=True)
class JobHistory:
    title: str
    graph: str
    status: str
    submitted_s: float
    ended_s: float  # NaN = it has not ended
    error: str
    tasks: Sequence[TaskHistory]
    restarts: Sequence[float] = ()  # of the service, while it had the job: what ran was lost


def job_history(job: JobState) -> JobHistory:
    tasks = [
        TaskHistory(
            run.name,
            run.kernel.name,
            run.attempts,
            run.ready_s,
            run.trial >= 0,
            _waits(job, run),
            _steps(run),
            run.call.reads,
            run.value.size if run.value is not None else 0,
        )
        for run in job.runs
    ]
    title = f"job {job.number} ({job.graph.name!r})"
    error = job.error.message if job.error is not None else ""
    return JobHistory(title, job.graph.name, job.status, job.submitted_s, job.ended_s, error, tasks)


def explain(history: JobHistory, now_s: float) -> str:
    """One line for each run of each task, and what waiting tasks wait for."""
    over = math.isfinite(history.ended_s)
    took = (history.ended_s if over else now_s) - history.submitted_s
    parts = " + ".join(
        f"{_s(seconds)} {part}"
        for part, seconds in time_parts(history, now_s).items()
        if seconds > MIN_SHOWN_PART * took
    )
    lines = [f"{history.title}: {history.status} {'after' if over else 'for'} {_s(took)}{parts and ' = '}{parts}"]
    if history.error:
        lines.append(f"  {history.error}")
    width = max(len(task.name) for task in history.tasks)
    for task in history.tasks:
        before_s = task.ready_s
        for attempt in task.attempts:
            lines.append(f"  {task.name:<{width}}  {_attempt_line(task, attempt, before_s, now_s)}")
            before_s = max(before_s, _end_s(attempt))
        if not over and (not task.attempts or task.attempts[-1].ended not in ("", "done")):
            lines.append(f"  {task.name:<{width}}  {task.waits}")
        if over and not task.attempts and history.status != "done":
            lines.append(f"  {task.name:<{width}}  {NEVER_STARTED}")
        if task.steps and task.attempts:
            lines.append(f"  {task.name:<{width}}  {_resumes_line(task)}")
    return "\n".join(lines)


def time_parts(history: JobHistory, now_s: float) -> dict[str, float]:
    """The time of a job so far, in seconds by part, along the tasks that determined it. The parts add up to the time.

    From the end backwards: what happened to the task that ended last, then to the one of its inputs that came last.
    """
    end_s = history.ended_s if math.isfinite(history.ended_s) else now_s
    found = dict.fromkeys((RESTART, ADMISSION, DEVICE, START, RUN, LOST, PASS_ON), 0.0)

    def spend(part: str, since_s: float) -> None:
        """What is left of the time after `since_s` was spent on a part; nothing if it is unknown."""
        nonlocal end_s
        if since_s < end_s:
            since_s = max(since_s, history.submitted_s)
            waited = part in (ADMISSION, DEVICE)
            again_s = max((x for x in history.restarts if waited and since_s < x < end_s), default=since_s)
            found[part] += end_s - again_s
            found[RESTART] += again_s - since_s
            end_s = since_s

    def importance(one: TaskHistory) -> tuple[bool, bool, float]:
        """The task that determined the end of the job, or that is not done, is the largest."""
        over = math.isfinite(history.ended_s)
        killed = bool(one.attempts) and one.attempts[-1].ended == KILLED_RUN
        return not over or bool(one.attempts), not killed, _last_s(one, now_s)

    task = max(history.tasks, key=importance, default=None)
    while task is not None:
        for number in reversed(range(len(task.attempts))):
            attempt = task.attempts[number]
            if number + 1 == len(task.attempts):  # after the last run
                last = attempt.ended == "done" or math.isfinite(history.ended_s)
                spend(PASS_ON if last else DEVICE, _end_s(attempt, now_s))
            spend(RUN if attempt.ended in ("", "done") else LOST, attempt.began_s)
            spend(START if math.isfinite(attempt.began_s) else RUN, attempt.sent_s)
            spend(DEVICE, _end_s(task.attempts[number - 1], now_s) if number else task.ready_s)
        if not task.attempts:
            spend(DEVICE, task.ready_s)
        inputs = [history.tasks[source] for source in task.reads]
        task = max(inputs, key=lambda one: _last_s(one, now_s), default=None)
        if task is not None:
            spend(PASS_ON if task.attempts else DEVICE, _last_s(task, now_s))
    spend(ADMISSION, history.submitted_s)
    return found


def _last_s(task: TaskHistory, now_s: float) -> float:
    """When its last run ended, or now if it runs or waits for a device; -inf if it waits for others, or never ran."""
    if task.attempts:
        return _end_s(task.attempts[-1], now_s) if task.attempts[-1].ended else now_s
    return now_s if math.isfinite(task.ready_s) else -math.inf


def _resumes_line(task: TaskHistory) -> str:
    """How often a training job was saved, stopped and resumed, and from which steps."""
    reports = [attempt.progress for attempt in task.attempts if attempt.progress is not None]
    step = reports[-1].step if reports else 0
    so_far = f"{step} of {task.steps} steps"
    if task.attempts[-1].ended == "done" and step < task.steps:
        so_far = f"returned after {so_far}" if step else f"returned without reporting any of its {task.steps} steps"
    stopped = sum(attempt.ended == "stopped" for attempt in task.attempts)
    lost = sum(attempt.ended not in ("", "done", "stopped") for attempt in task.attempts)
    resumes = [str(progress.began) for k, progress in enumerate(reports) if k or progress.began]
    often = f" {len(resumes)} times, lately" if len(resumes) > MAX_SHOWN_RESUMES else ""
    resumed = f"; resumed{often} from step {', '.join(resumes[-MAX_SHOWN_RESUMES:])}" if resumes else ""
    counts = {"saved": sum(progress.saves for progress in reports), "stopped": stopped, "lost": lost}
    parts = [f"{what} {'once' if count == 1 else f'{count} times'}" for what, count in counts.items() if count]
    if not counts["saved"]:
        parts.insert(0, "never saved")
    return f"{so_far}; {', '.join(parts)}{resumed}"


def _steps(run: TaskRun) -> int:
    training = run.kernel.options.training
    return 0 if training is None else training.steps


def _end_s(attempt: Attempt, now_s: float = -math.inf) -> float:
    """When a run ended; `now_s` if it has not, or if that is unknown."""
    end_s = attempt.began_s + attempt.seconds
    return end_s if math.isfinite(end_s) else now_s


def _attempt_line(task: TaskHistory, attempt: Attempt, before_s: float, now_s: float) -> str:
    """A run that could have begun at `before_s`."""
    expected = f"expected {_s(attempt.expected_s)}, × or ÷ {math.exp(attempt.spread):.1f}"
    first = "; its first run there, to learn how long it takes" if task.trial else ""
    if not attempt.ended:
        at_start = " at its start" if task.steps else ""  # forecasts have the present expectation
        return f"on {attempt.device}, for {_s(now_s - attempt.sent_s)}; {expected}{at_start}{first}"
    if attempt.ended != "done":
        how = attempt.ended.partition("\n")[0]  # of a program: without its standard error
        return f"on {attempt.device}: {how} after {_s(attempt.seconds)}"
    waited = max(attempt.began_s - before_s, 0.0)
    cold = "; the first call in its process" if attempt.cold else ""
    by, decided_s = attempt.decided
    placed = f"; placed by the {by} in {_s(decided_s)}" if by else ""
    return f"on {attempt.device}: waited {_s(waited)}, took {_s(attempt.seconds)} ({expected}){placed}{cold}{first}"


def _waits(job: JobState, run: TaskRun) -> str:
    if job.row < 0:
        return WAITS_FOR_ADMISSION
    if run.retry_s > (now_s := time.monotonic()):
        return waits_to_retry(run.lost, run.kernel.options.retries, run.retry_s - now_s)
    return waits_for([job.runs[source].name for source in run.call.reads if job.runs[source].value is None])


def waits_to_retry(lost: int, retries: int, seconds: float) -> str:
    return f"is tried again ({lost} of {retries} retries) in {_s(seconds)}"


def waits_for(missing: Sequence[str]) -> str:
    """What a task waits for. `missing`: names of the tasks whose values it needs and that have not finished."""
    if missing:
        return f"waits for {', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}"
    return "waits for a device"


def _s(seconds: float) -> str:
    return show(float(f"{seconds:.3g}"), "seconds") if math.isfinite(seconds) else "?"


def trace(history: JobHistory) -> dict[str, Any]:
    """A Chrome trace: a process for each device, a thread for each of its slots that was used.

    Arrows lead from the end of a task to those that read its value. A slice "… gets 24 MB" before a task is the time
    from its dispatch to its start, in which its process gets these values. The process "waiting" has a row for each
    task, from the time at which it could have started to its dispatch.
    """
    runs = [
        (attempt.began_s, attempt.began_s + attempt.seconds, device, index, attempt)
        for index, task in enumerate(history.tasks)
        for attempt in task.attempts
        for device in attempt.devices
        if math.isfinite(attempt.began_s) and math.isfinite(attempt.seconds)
    ]
    devices: dict[str, list[float]] = {}  # when each slot is free again
    events: list[dict[str, Any]] = []
    first: dict[int, dict[str, Any]] = {}  # where each task was done: its slice on the first device
    free_s = [task.ready_s for task in history.tasks]  # since when a task could have started
    for began, ended, device, index, attempt in sorted(runs, key=lambda x: x[:2]):
        task = history.tasks[index]
        slots = devices.setdefault(device, [])
        slot = next((k for k, free in enumerate(slots) if free <= began + 1e-6), len(slots))
        idle_s = slots[slot] if slot < len(slots) else -math.inf
        slots[slot : slot + 1] = [ended]
        about = {"kernel": task.kernel, "expected_s": attempt.expected_s, "ended": attempt.ended}
        about |= {"waited_s": max(began - task.ready_s, 0.0), "cold": attempt.cold}
        place = {"pid": list(devices).index(device) + FIRST_DEVICE, "tid": slot + 1}
        start_us, took_us = (began - history.submitted_s) * 1e6, (ended - began) * 1e6
        events.append({"name": task.name, "cat": task.kernel, "ph": "X", "ts": start_us, "dur": took_us, **place})
        events[-1]["args"] = about
        if attempt.ended == "done" and device == attempt.devices[0]:
            first[index] = events[-1]
        sent_s = max(attempt.sent_s, idle_s, free_s[index]) if task.reads else began
        if sent_s < began:
            size = show(float(sum(history.tasks[source].size for source in task.reads)), "bytes")
            sources = [(history.tasks[source], first[source]) for source in task.reads if source in first]
            made = {one.name: [*devices][where["pid"] - FIRST_DEVICE] for one, where in sources}
            moved = {"name": f"{task.name} gets {size}", "cat": "transfer", "ph": "X", **place, "args": {"from": made}}
            events.append({**moved, "ts": (sent_s - history.submitted_s) * 1e6, "dur": (began - sent_s) * 1e6})
            start_us = events[-1]["ts"]
        since_us = (free_s[index] - history.submitted_s) * 1e6
        if start_us > since_us:  # neither if that is unknown
            waited = {"name": f"{task.name} waits", "cat": "waiting", "ph": "X", "ts": since_us, "pid": WAITING_PROCESS}
            events.append({**waited, "tid": index + 1, "dur": start_us - since_us, "args": {"for": device}})
        free_s[index] = max(ended, free_s[index]) if math.isfinite(free_s[index]) else ended
    events += _arrows(history, first)
    names = {WAITING_PROCESS: "waiting"} if any(one.get("cat") == "waiting" for one in events) else {}
    names |= dict(enumerate(devices, start=FIRST_DEVICE))
    for number, device in names.items():
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": device}})
    for number, tid in sorted({(one["pid"], one["tid"]) for one in events if one["ph"] == "X"}):
        name = f"task {history.tasks[tid - 1].name}" if number == WAITING_PROCESS else f"slot {tid}"
        events.append({"name": "thread_name", "ph": "M", "pid": number, "tid": tid, "args": {"name": name}})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"job": history.graph}}


def _arrows(history: JobHistory, done: Mapping[int, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """From the end of each task to the start of those that read its value. `done`: their slices, by task."""
    reads = [(source, index) for index, task in enumerate(history.tasks) for source in task.reads]
    for number, (source, target) in enumerate(reads, start=1):
        if source in done and target in done:
            ends, begins = done[source], done[target]
            arrow = {"name": "value", "cat": "dependency", "id": number}
            end_us = ends["ts"] + ends["dur"]
            yield {**arrow, "ph": "s", "ts": end_us, "pid": ends["pid"], "tid": ends["tid"]}
            yield {**arrow, "ph": "f", "bp": "e", "ts": begins["ts"], "pid": begins["pid"], "tid": begins["tid"]}
