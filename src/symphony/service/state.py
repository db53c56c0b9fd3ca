"""The state of a service: what the events of its journal add up to. It is changed by nothing else.

accepted ─► begun ─► finished, lost, broke, stopped (of tasks; several, in any order) ─► ended
   │          ▲  └─► restarted (the service) ─┐                                            ▲
   │          └───────────────────────────────┘                                            │
   └──────► cancel, quarantined ───────────────────────────────────────────────────────────┘

Only runs of training jobs are told to have been stopped: those of others begin afresh.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from symphony.problem.units import show
from symphony.runtime.jobs import WAITING
from symphony.service.wire import ErrorView, JobView, TrainingView

ACCEPTED, FINISHED, LOST, BROKE, CANCEL, ENDED = "accepted", "finished", "lost", "broke", "cancel", "ended"
STOPPED = "stopped"
BEGUN = "begun"  # the job is about to be given to the cluster
RESTARTED = "restarted"  # the service was, while the cluster had the job
QUARANTINED = "quarantined"  # an operator has said that the job is not to run
RUN_ENDINGS = (FINISHED, LOST, BROKE, STOPPED)  # how a run of a task ends
USAGE_HALF_LIFE_S = 3_600.0  # after which what a user has used counts half


class JournalEvent(NamedTuple):
    """Something that happened to a job."""

    id: int
    at: float
    job: int
    kind: str
    task: int
    seconds: float  # of a device, that it took
    data: dict[str, Any]  # its own, as JSON has it; that of tasks which have finished is not needed for the state
    follows: int | None = None  # the event of the same job before, 0 = none; None: an older version did not say


@dataclass(slots=True)
class ServiceJob:
    """A job."""

    id: int
    user: str
    name: str
    queue: str
    priority: int
    tasks: int
    outputs: tuple[int, ...]
    names: tuple[str, ...]
    accepted_s: float
    key: str = ""  # of its submission
    status: str = WAITING  # until it is over: whether it runs by then, no event says (`JobRunner.status`)
    finished: int = 0
    done: set[int] | None = field(default_factory=set)  # tasks that have finished; None once the job is over
    broke: dict[str, Any] | None = None  # the error of a task that is not run again, or why it is quarantined
    begun: bool = False  # whether the cluster has it
    deaths: int = 0  # of services that had it under way, in a row, without any progress of its own
    cancelled: bool = False
    ended_s: float | None = None
    seconds: float = 0.0  # of devices
    error: dict[str, Any] | None = None
    change: int = 0  # the last event
    steps: int = 0  # of its training jobs, in all …
    step: int = 0  # … and how many were done when it ended …
    saved: int = 0  # … and saved, then or at the last restart

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.ended_s is not None

    def view(self) -> JobView:
        """What the journal says of it, for others to see."""
        return JobView(
            id=self.id,
            user=self.user,
            name=self.name,
            queue=self.queue,
            priority=self.priority,
            status=self.status,
            tasks=self.tasks,
            finished=self.finished,
            accepted_s=self.accepted_s,
            ended_s=self.ended_s,
            seconds=self.seconds,
            error=None if self.error is None else ErrorView.model_validate(self.error),
            change=self.change,
            training=TrainingView(steps=self.steps, step=self.step, saved=self.saved) if self.steps else None,
        )


@dataclass(slots=True)
class Usage:
    """Device-seconds, older ones counting less."""

    seconds: float = 0.0
    at: float = 0.0

    def now(self, at: float) -> float:
        """What it has come down to."""
        return self.seconds * 0.5 ** (max(at - self.at, 0.0) / USAGE_HALF_LIFE_S)

    def add(self, seconds: float, at: float) -> None:
        """Count some more."""
        self.seconds, self.at = self.now(at) + seconds, max(at, self.at)


@dataclass(slots=True)
class UserRecord:
    """Somebody who has submitted something."""

    usage: Usage = field(default_factory=Usage)
    queues: dict[str, Usage] = field(default_factory=dict)
    jobs: dict[int, None] = field(default_factory=dict)  # in order
    open: int = 0


class State:
    """Everything that the journal says."""

    def __init__(self) -> None:
        self.jobs: dict[int, ServiceJob] = {}
        self.open: dict[int, ServiceJob] = {}
        self.users: dict[str, UserRecord] = {}
        self.keys: dict[tuple[str, str], tuple[int, str]] = {}  # idempotency: job and digest of what was submitted
        self.counts: Counter[str] = Counter()  # of events by kind, and of jobs that are over by status
        self.events, self.last_job = 0, 0

    def apply(self, event: JournalEvent) -> None:
        """Take an event in."""
        self.events = event.id
        self.counts[event.kind] += 1
        if event.kind == ACCEPTED:
            self._accepted(event)
            return
        job = self.jobs.get(event.job)
        if job is None:
            return  # forgotten since
        job.change = event.id
        if event.kind in RUN_ENDINGS:
            self._used(job, event)
        if job.done is None:
            return  # over
        if event.kind == FINISHED:
            job.done.add(event.task)
            job.finished = len(job.done)
            job.deaths = 0
        elif event.kind == BEGUN:
            job.begun = True
        elif event.kind == RESTARTED:
            self._restarted(job, event)
        elif event.kind in (BROKE, QUARANTINED):
            job.broke = event.data["error"]
        elif event.kind == CANCEL:
            job.cancelled = True
        elif event.kind == ENDED:
            self._ended(job, event)

    def _accepted(self, event: JournalEvent) -> None:
        data = event.data
        digest = data["digest"]
        job = ServiceJob(
            event.job,
            data["user"],
            data["name"],
            data["queue"],
            data["priority"],
            data["tasks"],
            tuple(data["outputs"]),
            tuple(data["names"]),
            event.at,
            data["key"],
            change=event.id,
            steps=data.get("steps", 0),
        )
        self.jobs[job.id] = self.open[job.id] = job
        self.last_job = max(self.last_job, job.id)
        user = self.users.setdefault(job.user, UserRecord())
        user.queues.setdefault(job.queue, Usage())
        user.jobs[job.id] = None
        user.open += 1
        if job.key:
            self.keys[job.user, job.key] = job.id, digest

    def _restarted(self, job: ServiceJob, event: JournalEvent) -> None:
        saved = event.data.get("saved", 0)
        if event.data["died"]:
            job.deaths = 1 if saved > job.saved else job.deaths + 1
        job.begun, job.saved = False, saved

    def _used(self, job: ServiceJob, event: JournalEvent) -> None:
        job.seconds += event.seconds
        user = self.users[job.user]
        user.usage.add(event.seconds, event.at)
        user.queues[job.queue].add(event.seconds, event.at)

    def _ended(self, job: ServiceJob, event: JournalEvent) -> None:
        job.status, job.ended_s, job.error = event.data["status"], event.at, event.data.get("error")
        job.step, job.saved = event.data.get("step", 0), event.data.get("saved", 0)
        job.done = job.broke = None
        del self.open[job.id]
        self.users[job.user].open -= 1
        self.counts[job.status] += 1

    def forget(self, job: ServiceJob) -> None:
        """A job that ended long ago, and its events."""
        del self.jobs[job.id]
        del self.users[job.user].jobs[job.id]
        self.keys.pop((job.user, job.key), None)


def text_of(event: JournalEvent) -> str:
    """For people."""
    data = event.data
    if event.kind == ACCEPTED:
        return f"accepted: {data['tasks']} task{'s' if data['tasks'] > 1 else ''}, from {data['user']}"
    if event.kind == ENDED:
        return data["status"]
    if event.kind == CANCEL:
        return f"cancelled by {data['by']}"
    if event.kind == RESTARTED:
        return f"the service {'died' if data['died'] else 'was stopped'}, and has been started again"
    if event.kind == QUARANTINED:
        return f"{data['error']['message']}"
    name, device, printed = data["name"], data["device"], data.get("printed", "")
    if event.kind == FINISHED:
        told = f"{name}: done on {device} in {_time(data['seconds'])}"
    elif event.kind == LOST:
        told = f"{name}: {data['ended']}, on {device}; it is run again"
    elif event.kind == STOPPED:
        step = data.get("saved_step", 0)
        told = f"{name}: stopped on {device} after {_time(data['seconds'])}; it goes on from step {step}"
    else:
        told = "\n".join([f"{name}: {data['error']['message']}", *data["error"].get("traceback", "").splitlines()])
    return "\n".join([told, *(f"{name} | {line}" for line in printed.splitlines())])


def _time(seconds: float) -> str:
    return show(float(f"{seconds:.3g}"), "seconds")


def dumped(data: dict[str, Any]) -> str:
    """As the journal keeps it."""
    return json.dumps(data, separators=(",", ":"))
