"""What is told of jobs and of the cluster. Everything here only reads; much of it reads the database."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import lru_cache

import sqlalchemy as sa

from symphony.problem.errors import JobError, ServiceError, SymphonyError
from symphony.runtime import report
from symphony.runtime.jobs import DONE, FAILED, RUNNING, WAITING, Attempt
from symphony.service import job_logs, tables
from symphony.service.journal import read_events, value_of
from symphony.service.recorder import wall
from symphony.service.running import AGAIN, shape_of, steps_of
from symphony.service.service import Service
from symphony.service.state import BROKE, FINISHED, RUN_ENDINGS, ServiceJob
from symphony.service.wire import (
    BandView,
    ClusterView,
    DecisionsView,
    DeviceView,
    ErrorView,
    Forecasts,
    ForecastView,
    JobDetail,
    Logs,
    LossView,
    ResultView,
    RunView,
    SamplesView,
    TaskView,
    TrainingView,
    UserView,
    optional,
)
from symphony.training_jobs.job_forecast import Band, JobForecast, forecast_line
from symphony.training_jobs.live.checkpoints import safe_folder_name
from symphony.training_jobs.live.progress import Progress


def detail(service: Service, job: ServiceJob) -> JobDetail:
    """A job with all its tasks, and every run of each: those that have ended, and those that are under way."""
    tasks = shape_of(service.database, job.id)
    runs: dict[int, list[RunView]] = {}
    status: dict[int, str] = {}
    for event in read_events(service.database, job.id):
        if event.kind in RUN_ENDINGS:
            runs.setdefault(event.task, []).append(RunView.model_validate(event.data))
            status[event.task] = {FINISHED: DONE, BROKE: FAILED}.get(event.kind, WAITING)
    for task, run in _under_way(service, job):
        if status.get(task) != DONE:  # its end is written down, and the loop is about to hear of it
            runs.setdefault(task, []).append(run)
            status[task] = RUNNING
    handed = service.running.handed.get(job.id)
    live = {} if handed is None else {handed.tasks[run.index]: run.progress for run in handed.state.runs}
    before = service.running.before.get(job.id, {})
    views = []
    for k, (name, kernel, reads, steps) in enumerate(tasks):
        now, mine = status.get(k, WAITING), runs.get(k, [])
        trains = _trained(steps, now, mine, live.get(k), before.get(k)) if steps else None
        views.append(TaskView(name=name, kernel=kernel, reads=reads, status=now, runs=mine, training=trains))
    return JobDetail(job=service.running.view(job), tasks=views)


def _trained(
    steps: int, status: str, runs: Sequence[RunView], live: Progress | None, before: int | None
) -> TrainingView:
    if live is not None and status != DONE:
        per_s = optional(live.per_s) if status == RUNNING else None
        return TrainingView(steps=steps, step=live.step, saved=live.saved, per_s=per_s, runs=status == RUNNING)
    said = [run for run in runs if run.began_step is not None]
    if status == DONE:  # none of its steps is done again
        step = said[-1].step if said else 0
        return TrainingView(steps=steps, step=step, saved=step)
    if before is not None:  # since a restart it has not run
        return TrainingView(steps=steps, step=before, saved=before)
    return TrainingView(steps=steps, step=said[-1].step if said else 0, saved=said[-1].saved_step if said else 0)


def _under_way(service: Service, job: ServiceJob) -> list[tuple[int, RunView]]:
    handed = service.running.handed.get(job.id)
    if handed is None:
        return []
    found = []
    for run in handed.state.runs:
        if run.number >= 0 and run.attempts:
            a, trial = run.attempts[-1], run.trial >= 0
            told = RunView(
                device=a.device,
                sent_s=wall(a.sent_s),
                expected_s=a.expected_s,
                spread=a.spread,
                trial=trial,
                **steps_of(a),  # type: ignore[arg-type]
            )
            found.append((handed.tasks[run.index], told))
    return found


def job_history(job: JobDetail, *, let_in: bool = True) -> report.JobHistory:
    """A job as the reports of the runtime take it; times are seconds since 1970."""
    view, done = job.job, {k for k, task in enumerate(job.tasks) if task.status == DONE}
    tasks = []
    for task in job.tasks:
        missing = [job.tasks[source].name for source in task.reads if source not in done]
        waits = report.waits_for(missing) if let_in else report.WAITS_FOR_ADMISSION
        ready = next((run.ready_s for run in reversed(task.runs) if run.ready_s is not None), math.nan)
        trial = any(run.trial for run in task.runs)
        tasks.append(
            report.TaskHistory(
                task.name,
                task.kernel,
                [_attempt(run) for run in task.runs],
                ready,
                trial,
                waits,
                task.training.steps if task.training is not None else 0,
            )
        )
    ended = math.nan if view.ended_s is None else view.ended_s
    error = view.error.message if view.error is not None else ""
    return report.JobHistory(
        f"job {view.id} ({view.name!r})", view.name, view.status, view.accepted_s, ended, error, tasks
    )


def _attempt(run: RunView) -> Attempt:
    began = math.nan if run.began_s is None else run.began_s
    seconds = math.nan if run.seconds is None else run.seconds
    devices = tuple(run.device.split(", "))
    told = Attempt(devices, run.sent_s, run.expected_s, run.spread, run.ahead, began, seconds, run.cold, run.ended)
    if run.began_step is not None:
        told.progress = Progress("", run.began_step, run.step, run.saved_step, run.saves)
    return told


def explanation(service: Service, job: ServiceJob) -> str:
    """Where everything ran, and why it took so long; of training jobs, what they may expect."""
    handed = service.running.handed.get(job.id)
    let_in = job.over or (handed is not None and handed.state.row >= 0)
    text = report.explain(job_history(detail(service, job), let_in=let_in), time.time())
    if not job.steps or job.over:
        return text
    mine = {number for number, one in list(service.state.jobs.items()) if one.user == job.user}
    try:
        expected = [f"  {forecast_line(one)}" for one in _expected(service, mine) if one.job == job.id]
    except (SymphonyError, TimeoutError) as error:  # what has happened can be told all the same
        expected = [f"  what it may expect cannot be said: {error}"]
    return "\n".join([text, *expected])


def forecasts(service: Service, *, everybody: bool, user: str, share: float) -> Forecasts:
    """What training jobs may expect. Others' jobs are for administrators."""
    mine = {number for number, job in list(service.state.jobs.items()) if everybody or job.user == user}
    found = [_forecast(one) for one in _expected(service, mine, share) if one.job in mine]
    return Forecasts(share=share, forecasts=found)


def _expected(service: Service, known: Container[int], share: float = 0.8) -> list[JobForecast]:
    """Of all training jobs, naming only those that are `known`."""
    return [
        replace(one, loses=tuple(loss if loss.job in known else loss._replace(job=0, task="") for loss in one.loses))
        for one in service.cluster.forecasts(share)
    ]


def _forecast(one: JobForecast) -> ForecastView:
    b = one.evidence
    return ForecastView(
        job=one.job,
        task=one.task,
        runs=one.runs,
        devices=list(one.devices),
        kind=one.kind,
        steps_left=one.steps_left,
        speed=_band(one.speed),
        start_s=_band(one.start_s),
        finish_s=_band(one.finish_s),
        loses=[LossView(job=loss.job, task=loss.task, kept=_band(loss.kept)) for loss in one.loses],
        samples=SamplesView(here=b.signature, elsewhere=b.kernel, family=b.family, newest_s=b.newest_s),
    )


def _band(band: Band) -> BandView:
    return BandView(low=optional(band.low), mid=optional(band.mid), high=optional(band.high))


def logs(service: Service, job: ServiceJob, after: str) -> Logs:
    """What happened to a job and what it wrote, after a cursor."""
    tasks, cursor = _folders(service.database, job.id), job_logs.Cursor.parse(after)
    if not tasks:  # the job is being written down: that it has none is not to be remembered
        _folders.cache_clear()
    return job_logs.read(service.database, service.outputs, job.id, tasks, cursor)


@lru_cache(maxsize=64)
def _folders(database: sa.Engine, job: int) -> dict[str, tuple[int, str]]:
    """Numbers and names of the tasks of a job, by the folders of what they write. Whoever follows asks often."""
    return {safe_folder_name(name): (task, name) for task, (name, *_) in enumerate(shape_of(database, job))}


def outcome(service: Service, job: ServiceJob) -> ResultView:
    """What a job results in. Refuses one that is not done, with its error if it has one."""
    if job.error is not None:
        view = job.view().error
        assert view is not None
        raise JobEnded(view)
    if job.status != DONE:
        raise ServiceError("it is not over yet", where=f"job {job.id}", hint="wait for it: ?wait_s=30")
    rows = tables.outputs.c
    with service.database.connect() as connection:
        found = connection.execute(sa.select(rows.task, rows.body, rows.checksum).where(rows.job == job.id))
        values = {task: value_of(body, known, f"task {task} of job {job.id}") for task, body, known in found}
    wanted = [values.get(task) for task in job.outputs]
    whole = [value for value in wanted if value is not None]
    if len(whole) < len(wanted):
        lost = JobError("it was done, and its result is damaged or lost", where=f"job {job.id}", hint=AGAIN)
        raise JobEnded(ErrorView.of(lost))
    return ResultView(names=list(job.names), values=whole)


class JobEnded(Exception):
    """A job without a result, and why."""

    def __init__(self, problem: ErrorView) -> None:
        super().__init__(problem.message)
        self.problem = problem


def cluster(service: Service, *, everybody: bool, user: str) -> ClusterView:
    """Devices and what runs there, users and what they wait for. Others' names are for administrators."""
    state, topology = service.state, service.cluster.topology
    on: dict[str, list[str]] = {device.name: [] for device in topology.devices}
    under_way = list(service.running.line.under_way.values())
    for job in under_way:
        handed = service.running.handed.get(job.id)
        for run in handed.state.runs if handed is not None else ():
            if run.number >= 0 and run.attempts:
                named = everybody or job.user == user
                for device in run.attempts[-1].devices:
                    on[device].append(f"job {job.id}: {run.name}" if named else "another user's")
    open_jobs = [(job.user, service.running.status(job)) for job in list(state.open.values())]
    counted, by_user = Counter(status for _, status in open_jobs), Counter(open_jobs)
    users = [
        UserView(
            user=name,
            waiting=by_user[name, WAITING],
            running=by_user[name, RUNNING],
            usage_s=one.usage.now(time.time()),
        )
        for name, one in list(state.users.items())
        if everybody or name == user
    ]
    down = service.cluster.down
    return ClusterView(
        name=topology.name,
        policy=service.policy,
        devices=[
            DeviceView(
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


def decisions(service: Service) -> DecisionsView:
    """How deciding went so far."""
    found = service.cluster.statistics
    return DecisionsView(
        turns=found.turns,
        decisions=found.decisions,
        refused=found.refused,
        fallbacks=dict(found.fallbacks),
        p50_s=optional(found.latency_quantile(0.5)),
        p99_s=optional(found.latency_quantile(0.99)),
    )
