"""Read-only views of jobs and of the cluster. Many of them read the database."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import lru_cache

import sqlalchemy as sa

from symphony.problem.errors import JobError, ServiceError, SymphonyError
from symphony.runtime import report
from symphony.runtime.jobs import CANCELLED, DONE, FAILED, RUNNING, WAITING, Attempt
from symphony.service import job_logs, wire
from symphony.service.journal import read_events, read_values
from symphony.service.recorder import wall
from symphony.service.running import AGAIN, shape_of, steps_of
from symphony.service.service import Service
from symphony.service.state import BROKE, FINISHED, KILLED, RESTARTED, RUN_ENDINGS, ServiceJob, job_numbers
from symphony.training_jobs.job_forecast import Band, JobForecast, forecast_line
from symphony.training_jobs.live.checkpoint_folders import safe_folder_name
from symphony.training_jobs.live.progress import Progress


def detail(service: Service, job: ServiceJob) -> wire.JobDetail:
    """A job with its tasks, and every run of each, ended or under way."""
    tasks = shape_of(service.database, job.id)
    runs: dict[int, list[wire.RunView]] = {}
    status: dict[int, str] = {}
    restarts: list[float] = []
    for event in read_events(service.database, job.id):
        if event.kind == RESTARTED:
            restarts.append(event.at)
        if event.kind in RUN_ENDINGS:
            runs.setdefault(event.task, []).append(wire.RunView.model_validate(event.data))
            status[event.task] = {FINISHED: DONE, BROKE: FAILED, KILLED: CANCELLED}.get(event.kind, WAITING)
    for task, run in _under_way(service, job):
        if status.get(task) != DONE:  # its end is journalled, but the loop has not processed it yet
            runs.setdefault(task, []).append(run)
            status[task] = RUNNING
    admitted = service.running.admitted.get(job.id)
    live = {} if admitted is None else {admitted.tasks[run.index]: run for run in admitted.state.runs}
    before = service.running.steps_before.get(job.id, {})
    views = []
    for index, (name, kernel, reads, steps) in enumerate(tasks):
        now, own = status.get(index, WAITING), runs.get(index, [])
        task_run = live.get(index)
        reached = None if task_run is None else task_run.progress
        progress = _progress(steps, now, own, reached, before.get(index)) if steps else None
        ready_s = next((one.ready_s for one in reversed(own) if one.ready_s is not None), None)
        if ready_s is None and task_run is not None:
            ready_s = wire.optional(wall(task_run.ready_s))
        views.append(
            wire.TaskView(
                name=name, kernel=kernel, reads=reads, status=now, runs=own, ready_s=ready_s, training=progress
            )
        )
    return wire.JobDetail(job=service.running.view(job), tasks=views, restarts=restarts)


def _progress(
    steps: int, status: str, runs: Sequence[wire.RunView], live: Progress | None, before: int | None
) -> wire.TrainingView:
    if live is not None and status != DONE:
        per_s = wire.optional(live.per_s) if status == RUNNING else None
        return wire.TrainingView(steps=steps, step=live.step, saved=live.saved, per_s=per_s, runs=status == RUNNING)
    reported = [run for run in runs if run.began_step is not None]
    step = reported[-1].step if reported else 0
    if status == DONE:  # no step is repeated
        return wire.TrainingView(steps=steps, step=step, saved=step)
    if before is not None:  # it has not run since a restart
        return wire.TrainingView(steps=steps, step=before, saved=before)
    return wire.TrainingView(steps=steps, step=step, saved=reported[-1].saved_step if reported else 0)


def _under_way(service: Service, job: ServiceJob) -> list[tuple[int, wire.RunView]]:
    admitted = service.running.admitted.get(job.id)
    if admitted is None:
        return []
    views = []
    for run in admitted.state.runs:
        if run.number >= 0 and run.attempts:
            attempt = run.attempts[-1]
            view = wire.RunView(
                device=attempt.device,
                sent_s=wall(attempt.sent_s),
                expected_s=attempt.expected_s,
                spread=attempt.spread,
                trial=run.trial >= 0,
                **steps_of(attempt),  # type: ignore[arg-type]
            )
            views.append((admitted.tasks[run.index], view))
    return views


def job_history(job: wire.JobDetail, waits: str = "") -> report.JobHistory:
    """A job in the form of the runtime's reports; times are seconds since 1970. `waits`: what all tasks wait for."""
    view, done = job.job, {k for k, task in enumerate(job.tasks) if task.status == DONE}
    tasks = []
    for task in job.tasks:
        missing = [job.tasks[source].name for source in task.reads if source not in done]
        ready = math.nan if task.ready_s is None else task.ready_s
        trial = any(run.trial for run in task.runs)
        tasks.append(
            report.TaskHistory(
                task.name,
                task.kernel,
                [_attempt(run) for run in task.runs],
                ready,
                trial,
                waits or _waits_to_retry(task) or report.waits_for(missing),
                task.training.steps if task.training is not None else 0,
                task.reads,
                task.runs[-1].bytes if task.runs else 0,
            )
        )
    ended = math.nan if view.ended_s is None else view.ended_s
    error = view.error.message if view.error is not None else ""
    return report.JobHistory(
        f"job {view.id} ({view.name!r})", view.name, view.status, view.accepted_s, ended, error, tasks, job.restarts
    )


def _waits_to_retry(task: wire.TaskView) -> str:
    last = task.runs[-1] if task.runs else None
    left_s = 0.0 if last is None or last.retry_at_s is None else last.retry_at_s - time.time()
    return report.waits_to_retry(last.retry, last.retries, left_s) if last is not None and left_s > 0 else ""


def _attempt(run: wire.RunView) -> Attempt:
    began = math.nan if run.began_s is None else run.began_s
    seconds = math.nan if run.seconds is None else run.seconds
    devices = tuple(run.device.split(", "))
    attempt = Attempt(devices, run.sent_s, run.expected_s, run.spread, run.ahead, began, seconds, run.cold, run.ended)
    if run.began_step is not None:
        attempt.progress = Progress("", run.began_step, run.step, run.saved_step, run.saves)
    return attempt


def explanation(service: Service, job: ServiceJob) -> str:
    """Where each task ran and why it took so long; for training jobs, also forecasts."""
    admitted = service.running.admitted.get(job.id)
    is_admitted = job.over or (admitted is not None and admitted.state.row >= 0)
    before = service.running.waits_for(job)
    waits = f"waits for {job_numbers(before)}" if before else "" if is_admitted else report.WAITS_FOR_ADMISSION
    text = report.explain(job_history(detail(service, job), waits), time.time())
    if not job.steps or job.over:
        return text
    own = {number for number, one in list(service.state.jobs.items()) if one.user == job.user}
    try:
        expected = [f"  {forecast_line(one)}" for one in _expected(service, own) if one.job == job.id]
    except (SymphonyError, TimeoutError) as error:  # the rest of the explanation is still valid
        expected = [f"  there is no forecast: {error}"]
    return "\n".join([text, *expected])


def forecasts(service: Service, *, everybody: bool, user: str, share: float) -> wire.Forecasts:
    """Forecasts of training jobs; those of other users are for administrators."""
    own = {number for number, job in list(service.state.jobs.items()) if everybody or job.user == user}
    found = [_forecast(one) for one in _expected(service, own, share) if one.job in own]
    return wire.Forecasts(share=share, forecasts=found)


def _expected(service: Service, known: Container[int], share: float = 0.8) -> list[JobForecast]:
    """Forecasts of all training jobs; the names of jobs that are not `known` are hidden."""
    training = frozenset(number for number, job in list(service.state.open.items()) if job.steps)
    return [
        replace(one, loses=tuple(loss if loss.job in known else loss._replace(job=0, task="") for loss in one.loses))
        for one in service.forecasts.get(share, training).forecasts
    ]


def _forecast(one: JobForecast) -> wire.ForecastView:
    b = one.evidence
    return wire.ForecastView(
        job=one.job,
        task=one.task,
        runs=one.runs,
        devices=list(one.devices),
        kind=one.kind,
        steps_left=one.steps_left,
        speed=band_view(one.speed),
        start_s=band_view(one.start_s),
        finish_s=band_view(one.finish_s),
        loses=[wire.LossView(job=loss.job, task=loss.task, kept=band_view(loss.kept)) for loss in one.loses],
        samples=wire.SamplesView(here=b.signature, elsewhere=b.kernel, family=b.family, newest_s=b.newest_s),
    )


def band_view(band: Band) -> wire.BandView:
    return wire.BandView(low=wire.optional(band.low), mid=wire.optional(band.mid), high=wire.optional(band.high))


def logs(service: Service, job: ServiceJob, after: str) -> wire.Logs:
    """Journal events and output of a job, after a cursor."""
    tasks, cursor = _folders(service.database, job.id), job_logs.Cursor.parse(after)
    if not tasks:  # the job is being journalled: do not cache this
        _folders.cache_clear()
    return job_logs.read(service.database, service.outputs, job.id, tasks, cursor)


@lru_cache(maxsize=64)
def _folders(database: sa.Engine, job: int) -> dict[str, tuple[int, str]]:
    """Indices and names of the tasks of a job, by the folders of their output. Cached: clients poll often."""
    return {safe_folder_name(name): (task, name) for task, (name, *_) in enumerate(shape_of(database, job))}


def outcome(service: Service, job: ServiceJob) -> wire.ResultView:
    """The result of a job. Raises `JobEnded` if the job failed, `ServiceError` if it has not ended."""
    if job.error is not None:
        view = job.view().error
        assert view is not None
        raise JobEnded(view)
    if job.status != DONE:
        raise ServiceError("it has not finished yet", where=f"job {job.id}", hint="wait for it: ?wait_s=30")
    values = read_values(service.database, job.id)
    if not values.keys() >= set(job.outputs):
        lost = JobError("it has finished, but its result is damaged or lost", where=f"job {job.id}", hint=AGAIN)
        raise JobEnded(wire.ErrorView.of(lost))
    return wire.ResultView(names=list(job.names), values=[values[task] for task in job.outputs])


class JobEnded(Exception):
    """A job ended without a result, for this reason."""

    def __init__(self, problem: wire.ErrorView) -> None:
        super().__init__(problem.message)
        self.problem = problem


def cluster(service: Service, *, everybody: bool, user: str) -> wire.ClusterView:
    """Devices and what runs there, users and their jobs. Names of others are for administrators."""
    state, topology = service.state, service.cluster.topology
    on: dict[str, list[str]] = {device.name: [] for device in topology.devices}
    for run in service.cluster.running():
        job = state.jobs[run.job.number]
        for device in run.attempts[-1].devices:
            on[device].append(f"job {job.id}: {run.name}" if everybody or job.user == user else "another user's")
    open_jobs = [(job.user, service.running.status(job)) for job in list(state.open.values())]
    counted, by_user = Counter(status for _, status in open_jobs), Counter(open_jobs)
    users = [
        wire.UserView(
            user=name,
            waiting=by_user[name, WAITING],
            running=by_user[name, RUNNING],
            usage_s=one.usage.now(time.time()),
        )
        for name, one in list(state.users.items())
        if everybody or name == user
    ]
    down = service.cluster.down
    return wire.ClusterView(
        name=topology.name,
        policy=service.policy,
        devices=[
            wire.DeviceView(
                name=d.name,
                kind=d.kind,
                slots=topology.kind_of[d.kind].slots,
                running=on[d.name],
                up=d.name not in down,
            )
            for d in topology.devices
        ],
        waiting=counted[WAITING],
        running=counted[RUNNING],
        counts={status: state.counts[status] for status in (DONE, FAILED, "cancelled")},
        users=users,
        decisions=decisions(service),
        draining=service.draining,
    )


def usage(service: Service, *, everybody: bool, user: str, since_s: float) -> wire.Usage:
    """Device time and jobs of users since a time (seconds since 1970)."""
    counts: dict[str, Counter[str]] = {}
    device_s: defaultdict[str, float] = defaultdict(float)
    running = service.cluster.used_s()
    for job in list(service.state.jobs.values()):
        if (everybody or job.user == user) and (job.ended_s is None or job.ended_s >= since_s):
            counts.setdefault(job.user, Counter())[job.status if job.over else "unfinished"] += 1
            device_s[job.user] += job.seconds + (0.0 if job.over else running.get(job.id, 0.0))
    users = [
        wire.UserUsage(
            user=name,
            device_s=device_s[name],
            jobs=count.total(),
            done=count[DONE],
            failed=count[FAILED],
            cancelled=count[CANCELLED],
            unfinished=count["unfinished"],
        )
        for name, count in counts.items()
    ]
    users.sort(key=lambda one: (-one.device_s, one.user))
    return wire.Usage(since_s=since_s, kept_s=service.limits.keep_s, users=users)


def decisions(service: Service) -> wire.DecisionsView:
    statistics = service.cluster.statistics
    return wire.DecisionsView(
        turns=statistics.turns,
        decisions=statistics.decisions,
        refused=statistics.refused,
        fallbacks=dict(statistics.fallbacks),
        p50_s=wire.optional(statistics.latency_quantile(0.5)),
        p99_s=wire.optional(statistics.latency_quantile(0.99)),
        by={who: found.decisions for who, found in statistics.deciders.items()},
    )
