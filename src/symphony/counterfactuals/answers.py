"""Answers, as figures and in words: why a job waits, when it starts and ends, and what a change would do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from symphony.counterfactuals.change import Addition, Change
from symphony.counterfactuals.futures import PLAY_POLICY, PlayedTimes, Stage, typical_s
from symphony.counterfactuals.outlook import band
from symphony.counterfactuals.snapshot import Snapshot, SnapshotJob, SnapshotTask
from symphony.scheduling.policy import Policy
from symphony.training_jobs.job_forecast import Band, seconds, spelled

MIN_GAIN = 0.1  # share of its waiting time by which a change has to bring a job forward to be said to help …
MIN_GAIN_S = 0.1  # … and seconds
MAX_ROWS = 200  # jobs that an answer lists
MAX_KINDS = 4  # device kinds of which one more is tried
ADMISSION, AFTER, INPUTS, DEVICE, RUNS = "admission", "after", "inputs", "device", "runs"
REASON_TEXTS = {
    ADMISSION: "the job waits to be admitted",
    AFTER: "wait for other jobs",
    INPUTS: "wait for tasks whose values they read",
    DEVICE: "wait for a device",
    RUNS: "run",
}


class Help(NamedTuple):
    """A change that brings a job forward."""

    change: Change
    start_s: Band
    finish_s: Band
    gain_s: float  # median, by which it starts (or, if it runs, ends) earlier


def reasons(job: SnapshotJob, admitted: bool) -> Counter[str]:
    """How many unfinished tasks wait for what."""
    if job.after:
        return Counter({AFTER: len(job.tasks)})
    if not admitted:
        return Counter({ADMISSION: len(job.tasks)})
    return Counter(RUNS if task.devices else INPUTS if task.reads else DEVICE for task in job.tasks)


def ahead(snapshot: Snapshot, played: PlayedTimes, number: int) -> list[tuple[int, float]]:
    """Jobs with work on the devices that a job could use, which run or start before it: seconds of work, most first."""
    me = snapshot.jobs[number]
    kinds = {kind for task in me.tasks for kind in _kinds(snapshot, task.kernel)}
    found: defaultdict[int, float] = defaultdict(float)
    for n, job in enumerate(snapshot.jobs):
        before = float(np.mean(played.start_s[:, n] < played.start_s[:, number])) > 0.5
        for task in job.tasks if n != number else ():
            shared = kinds & _kinds(snapshot, task.kernel)
            if shared and task.devices:
                left_s = float(np.median(played.finish_s[:, n]))
                found[job.job] += min(left_s, max(_typical_s(snapshot, task, min(shared)) - task.elapsed_s, left_s / 2))
            elif shared and before and not task.reads:
                found[job.job] += _typical_s(snapshot, task, min(shared))
    return sorted(found.items(), key=lambda one: -one[1])


def _kinds(snapshot: Snapshot, kernel: int) -> set[str]:
    present = snapshot.topology.kind_counts
    return {
        kind.name
        for kind in snapshot.topology.kinds
        if present[kind.name] and snapshot.kernels[kernel].kernel.on(kind) is not None
    }


def _typical_s(snapshot: Snapshot, task: SnapshotTask, kind: str) -> float:
    return typical_s(snapshot.kernels[task.kernel].kernel, snapshot.topology.kind_of[kind], task) or 0.0


def spares(snapshot: Snapshot) -> tuple[Addition, ...]:
    """One more device of each kind, of the most frequent kinds."""
    counts = Counter(snapshot.topology.kind_counts)
    return tuple(Addition(1, kind) for kind, count in counts.most_common(MAX_KINDS) if count)


def helps(stage: Stage, number: int, policy: Policy | str = PLAY_POLICY) -> list[Help]:
    """Single changes that bring a job forward, the smallest first: a higher priority costs nothing, then devices."""
    s, job = stage.snapshot, stage.jobs[number]
    now = stage.play(policy=policy)
    runs = job.runs
    top = max(one.priority for one in s.jobs)
    tried = [Change(priority={job.job: top + 1})] if job.priority <= top and len(s.jobs) > 1 else []
    usable = set().union(*(_kinds(s, task.kernel) for task in job.tasks)) if job.tasks else set()
    tried += [Change(more=(one,)) for one in stage.spare if one.what in usable]
    found = []
    for change in tried:
        then = stage.play(change, policy)
        before, after = ((x.finish_s if runs else x.start_s)[:, number] for x in (now, then))
        gain = _median_gain(before, after)
        if gain > max(MIN_GAIN_S, MIN_GAIN * float(np.median(before))):
            found.append(Help(change, band(then.start_s[:, number]), band(then.finish_s[:, number]), gain))
    return found


def _median_gain(before: np.ndarray, after: np.ndarray) -> float:
    both = np.isfinite(before) & np.isfinite(after)
    return float(np.median((before - after)[both])) if both.any() else 0.0


# ----------------------------------------------------------------------------------------------------------- what if


class Measure(NamedTuple):
    name: str
    text: str
    now: Band
    then: Band
    change: Band  # then - now, future by future


class JobChange(NamedTuple):
    job: int
    name: str
    user: str
    now: Band  # of its end
    then: Band


@dataclass(frozen=True)
class WhatIf:
    text: str
    change: str
    draws: int
    jobs: int
    measures: tuple[Measure, ...]
    rows: tuple[JobChange, ...]  # most changed first
    stranded: tuple[int, ...]  # jobs that no remaining device can run
    start_s: Band | None = None  # of the submitted job
    finish_s: Band | None = None


def what_if(
    stage: Stage,
    change: Change,
    policy: Policy | str = PLAY_POLICY,
    visible: Container[int] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> WhatIf:
    """Play the futures as they are and changed, and compare. The answer is about `visible` jobs; None = all."""
    if change.policy:  # only the simulator plays policies
        stage = replace(stage, snapshot=replace(stage.snapshot, admission=None))
    now = stage.play(policy=policy, progress=lambda share: progress(share / 2))
    then = stage.play(change, policy, progress=lambda share: progress(0.5 + share / 2))
    known = [
        n for n, job in enumerate(stage.jobs) if job is not stage.extra and (visible is None or job.job in visible)
    ]
    ran = [n for n in known if np.isfinite(now.finish_s[:, n]).all()]
    lost = [n for n in ran if np.isinf(then.finish_s[:, n]).all()]
    both = np.asarray([n for n in ran if np.isfinite(then.finish_s[:, n]).all()], int)
    measures = _measures(stage, now, then, both) if len(both) else ()
    rows = [
        JobChange(job.job, job.name, job.user, band(now.finish_s[:, n]), band(then.finish_s[:, n]))
        for n in both
        for job in [stage.jobs[n]]
    ]
    rows.sort(key=lambda row: -abs(row.then.mid - row.now.mid))
    made = WhatIf(
        text="",
        change=str(change),
        draws=stage.draws,
        jobs=len(ran),
        measures=measures,
        rows=tuple(rows[:MAX_ROWS]),
        stranded=tuple(stage.jobs[n].job for n in lost),
    )
    if change.submit is not None:
        n = len(stage.jobs) - 1
        made = replace(made, start_s=band(then.start_s[:, n]), finish_s=band(then.finish_s[:, n]))
    return replace(made, text=_what_if_text(made))


def _measures(stage: Stage, now: PlayedTimes, then: PlayedTimes, some: np.ndarray) -> tuple[Measure, ...]:
    arrives = np.asarray([max(stage.jobs[n].arrives_s, 0.0) for n in some])

    def per_future(one: PlayedTimes) -> dict[str, np.ndarray]:
        took = one.finish_s[:, some] - arrives
        end = one.finish_s[:, some].max(axis=1)
        return {
            "mean_completion_s": took.mean(axis=1),
            "p50_completion_s": np.median(took, axis=1),
            "p90_completion_s": np.quantile(took, 0.9, axis=1),
            "mean_wait_s": (one.start_s[:, some] - arrives).mean(axis=1),
            "makespan_s": end,
            "utilisation": np.minimum(one.used_s / np.maximum(end * max(one.devices, 1), 1e-9), 1.0),
        }

    texts = ("mean time to completion", "median time to completion", "90th percentile of it", "mean time to the start",
             "until the last job is done", "devices in use")  # fmt: skip
    a, b = per_future(now), per_future(then)
    return tuple(
        Measure(name, text, band(a[name]), band(b[name]), band(b[name] - a[name]))
        for name, text in zip(a, texts, strict=True)
    )


def _what_if_text(made: WhatIf) -> str:
    lines = []
    if made.start_s is not None and made.finish_s is not None:
        lines.append(f"The job would start {spelled(made.start_s)} and end {spelled(made.finish_s)}.")
    what = made.change[0].upper() + made.change[1:]
    if made.measures:
        mean = made.measures[0]
        word = "longer" if mean.change.mid > 0 else "shorter"
        if mean.change.low <= 0 <= mean.change.high and abs(mean.change.mid) < MIN_GAIN * max(mean.now.mid, MIN_GAIN_S):
            effect = f"about as long as now, {seconds(mean.now.mid)} on average"
        else:
            low, high = sorted((abs(mean.change.low), abs(mean.change.high)))
            across = mean.change.low < 0 < mean.change.high
            sure = (
                f"between {seconds(-mean.change.low)} shorter and {seconds(mean.change.high)} longer"
                if across
                else (f"{seconds(low)} to {seconds(high)}")
            )
            effect = (f"{seconds(mean.then.mid)} on average instead of {seconds(mean.now.mid)}: "
                      f"{seconds(abs(mean.change.mid))} {word} ({sure})")  # fmt: skip
        lines.append(f"{what}, {made.jobs} job{'s' if made.jobs != 1 else ''} would take {effect}.")
    if made.stranded:
        count = len(made.stranded)
        shown = ", ".join(map(str, made.stranded[:5])) + (f" and {count - 5} more" if count > 5 else "")
        lines.append(f"{count} job{'s' if count > 1 else ''} could not run at all: no device is left for {shown}.")
    if not lines:
        lines.append(f"{what}, nothing changes: there are no jobs to compare.")
    return "\n".join(lines)
