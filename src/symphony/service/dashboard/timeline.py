"""Runs of tasks, from the journal and under way: for the timeline, for trace viewers, and against what was expected."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

import sqlalchemy as sa

from symphony.runtime import report
from symphony.runtime.jobs import DONE, Attempt
from symphony.service import tables
from symphony.service.dashboard.row_use import BANDS
from symphony.service.recorder import wall
from symphony.service.service import Service
from symphony.service.state import RUN_ENDINGS
from symphony.service.tokens import ADMIN, Token

MAX_RUNS = 3_000  # that a page shows
MAX_EXPORTED = 50_000
DRIFT_RUNS = 20  # the newest of a device …
DRIFT_FACTOR = 1.5  # … whose median differs from what was expected by more than this


class Run(NamedTuple):
    """One run of a task. Times are seconds since 1970."""

    event: int  # with which it ended; 0: it is under way
    job: int  # 0: of another user
    task: str
    devices: list[str]
    sent_s: float
    began_s: float | None
    seconds: float | None
    expected_s: float
    spread: float
    ended: str  # "" = under way, "done", or why it ended otherwise


def ended_runs(service: Service, token: Token, after: int = 0, most: int = MAX_RUNS) -> list[Run]:
    """The newest runs that ended after an event, newest first. Names of other users' work are hidden."""
    rows = tables.events.c
    wanted = sa.select(rows.id, rows.job, rows.data).where(rows.kind.in_(RUN_ENDINGS), rows.id > after)
    with service.database.connect() as connection:
        found = connection.execute(wanted.order_by(rows.id.desc()).limit(most)).all()
    return [_run(service, token, *row) for row in found]


def _run(service: Service, token: Token, event: int, number: int, text: str) -> Run:
    data = json.loads(text)
    mine = _is_visible(service, token, number)
    return Run(
        event,
        number if mine else 0,
        data["name"] if mine else "another user's",
        data["device"].split(", "),
        data["sent_s"],
        data["began_s"],
        data["seconds"],
        data["expected_s"],
        data["spread"],
        data["ended"],
    )


def runs_under_way(service: Service, token: Token) -> list[Run]:
    found = {}
    for run, _, _ in service.cluster.row_shares():
        attempt, number = run.attempts[-1], run.job.number
        mine = _is_visible(service, token, number)
        name, job = (run.name, number) if mine else ("another user's", 0)
        times = wall(attempt.sent_s), None, None, attempt.expected_s, attempt.spread
        found[run] = Run(0, job, name, list(attempt.devices), *times, "")
    return list(found.values())


def _is_visible(service: Service, token: Token, number: int) -> bool:
    job = service.state.jobs.get(number)
    return ADMIN in token.scopes or (job is not None and job.user == token.user)


def trace(service: Service, token: Token) -> dict[str, Any]:
    """All runs in the journal as one trace for chrome://tracing or ui.perfetto.dev."""
    tasks = []
    for run in ended_runs(service, token, most=MAX_EXPORTED):
        began, seconds = (math.nan if x is None else x for x in (run.began_s, run.seconds))
        attempt = Attempt(tuple(run.devices), run.sent_s, run.expected_s, run.spread, False, began, seconds)
        attempt.ended = run.ended
        name = f"job {run.job}: {run.task}" if run.job else run.task
        tasks.append(report.TaskHistory(name, run.task, [attempt], run.sent_s, False, ""))
    first = min((task.ready_s for task in tasks), default=0.0)
    return report.trace(report.JobHistory("", service.cluster.topology.name, "", first, math.nan, "", tasks))


def coverage(runs: Iterable[Run]) -> tuple[int, dict[int, float]]:
    """Finished runs, and the share of them whose time was within the band of each probability (in percent)."""
    done = [run for run in runs if run.ended == DONE and run.seconds and run.expected_s > 0 and run.spread > 0]
    off = [abs(math.log((run.seconds or 1.0) / run.expected_s)) / run.spread for run in done]
    return len(off), {share: sum(x <= width for x in off) / max(len(off), 1) for share, width in BANDS.items()}


def drift(runs: Sequence[Run]) -> list[tuple[str, int, float, bool]]:
    """Of each device: its newest runs, the median of their time over the expected one, and whether that is an alarm."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        for device in run.devices:
            if run.ended == DONE and run.seconds and run.expected_s > 0 and len(ratios[device]) < DRIFT_RUNS:
                ratios[device].append(run.seconds / run.expected_s)
    middles = {device: median(found) for device, found in ratios.items() if found}
    return [
        (device, len(ratios[device]), middle, abs(math.log(middle)) > math.log(DRIFT_FACTOR))
        for device, middle in sorted(middles.items(), key=lambda one: -one[1])
    ]
