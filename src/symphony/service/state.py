"""The state of a service: the replay of the events in its journal. Nothing else changes it.

accepted ─► begun ─► finished, lost, broke, stopped (of tasks; several, in any order) ─► ended
   │          ▲  ├─► killed (of tasks that ran when the job was about to end) ─► ended
   │          │  └─► restarted (the service) ─┐                                            ▲
   │          └───────────────────────────────┘                                            │
   └──────► cancel, quarantined ───────────────────────────────────────────────────────────┘

`stopped` is journalled only for training jobs, which resume; other tasks restart from the beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from symphony.problem.units import show
from symphony.runtime.jobs import WAITING
from symphony.service.wire import ErrorView, JobView, TrainingView

ACCEPTED, FINISHED, LOST, BROKE, CANCEL, ENDED = "accepted", "finished", "lost", "broke", "cancel", "ended"
STOPPED = "stopped"
KILLED = "killed"  # the job ends, and this run with it
BEGUN = "begun"  # the job is about to be given to the cluster
RESTARTED = "restarted"  # the service restarted while the cluster had the job
QUARANTINED = "quarantined"  # an operator has forbidden the job to run
RUN_ENDINGS = (FINISHED, LOST, BROKE, STOPPED, KILLED)  # how a run of a task ends
MAX_JOB = 1 << 62  # above all numbers of jobs
MIN_ENDED = 1_000  # ended jobs that are listed for a user even if they were forgotten
USAGE_HALF_LIFE_S = 3_600.0  # of past usage in fair shares
HOUR_S, HOURS_OF_A_DAY = 3_600.0, 24


class JournalEvent(NamedTuple):
    id: int
    at: float
    job: int
    kind: str
    task: int
    seconds: float  # device time used
    data: dict[str, Any]  # specific to the kind, JSON; the state does not need that of task runs that did not break
    follows: int | None = None  # id of the previous event of the same job, 0 = none; None: written by an old version


@dataclass(slots=True)
class ServiceJob:
    id: int
    user: str
    name: str
    queue: str
    priority: int
    tasks: int
    outputs: tuple[int, ...]
    names: tuple[str, ...]
    accepted_s: float
    key: str = ""  # idempotency key
    status: str = WAITING  # until it has ended: no event says whether it runs (see `JobRunner.status`)
    finished: int = 0
    done: set[int] | None = field(default_factory=set)  # finished tasks; None once the job has ended
    broke: dict[str, Any] | None = None  # the error of a task that is not retried, or of a quarantine
    begun: bool = False  # whether the cluster has it
    deaths: int = 0  # consecutive crashes of the service while the cluster had it, without progress
    cancelled: bool = False
    ended_s: float | None = None
    seconds: float = 0.0  # device time used
    error: dict[str, Any] | None = None
    change: int = 0  # id of its last event
    steps: int = 0  # of all its training tasks …
    step: int = 0  # … those done when it ended …
    saved: int = 0  # … and those saved then, or at the last restart
    after: tuple[int, ...] = ()  # jobs that must be done before it
    time_limit_s: float | None = None  # from the start of its first task

    @property
    def over(self) -> bool:
        return self.ended_s is not None

    def view(self) -> JobView:
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
            after=list(self.after),
            time_limit_s=self.time_limit_s,
        )


@dataclass(slots=True)
class Usage:
    """Device-seconds with exponential decay."""

    seconds: float = 0.0
    at: float = 0.0

    def now(self, at: float) -> float:
        return self.seconds * 0.5 ** (max(at - self.at, 0.0) / USAGE_HALF_LIFE_S)

    def add(self, seconds: float, at: float) -> None:
        self.seconds, self.at = self.now(at) + seconds, max(at, self.at)


@dataclass(slots=True)
class UserRecord:
    usage: Usage = field(default_factory=Usage)
    queues: dict[str, Usage] = field(default_factory=dict)
    jobs: dict[int, None] = field(default_factory=dict)  # an ordered set
    open: int = 0
    ended: list[tuple[int, int]] = field(default_factory=list)  # events with which jobs ended, and these jobs
    by_hour: dict[int, float] = field(default_factory=dict)  # device-seconds, by the hour in which a run ended

    def used(self, queue: str, seconds: float, at: float) -> None:
        """A run of one of its jobs has ended."""
        self.usage.add(seconds, at)
        self.queues[queue].add(seconds, at)
        hour = int(at // HOUR_S)
        self.by_hour[hour] = self.by_hour.get(hour, 0.0) + seconds
        if len(self.by_hour) > HOURS_OF_A_DAY + 1:
            del self.by_hour[min(self.by_hour)]

    def used_today(self, at: float) -> float:
        """Device-seconds of runs that ended in this hour, or in the 23 before it.

        Hours to come are of a clock that was set back since.
        """
        now = at // HOUR_S
        return sum(seconds for hour, seconds in self.by_hour.items() if now - HOURS_OF_A_DAY < hour <= now)

    def ended_between(self, after: int, last: int) -> list[int]:
        """Jobs that ended with one of the events after `after`, up to `last`. Forgotten ones may be among them."""
        first = bisect_right(self.ended, (after, MAX_JOB))
        return [job for event, job in self.ended[first:] if event <= last]


class State:
    def __init__(self) -> None:
        self.jobs: dict[int, ServiceJob] = {}
        self.open: dict[int, ServiceJob] = {}
        self.users: dict[str, UserRecord] = {}
        self.keys: dict[
            tuple[str, str], tuple[int, str]
        ] = {}  # by user and idempotency key: job, and digest of its request
        self.counts: Counter[str] = Counter()  # of events by kind, and of ended jobs by status
        self.events, self.last_job = 0, 0
        self.lost: dict[int, str] = {}  # jobs of which the journal has too little, and why

    def apply(self, event: JournalEvent) -> None:
        self.events = event.id
        self.counts[event.kind] += 1
        if event.kind == ACCEPTED:
            self._accepted(event)
            return
        job = self.jobs.get(event.job)
        if job is None:
            return  # it was forgotten
        job.change = event.id
        if event.kind in RUN_ENDINGS:
            self._used(job, event)
        if job.done is None:
            return  # it has ended
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
            after=tuple(data.get("after", ())),
            time_limit_s=data.get("time_limit_s"),
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
        self.users[job.user].used(job.queue, event.seconds, event.at)

    def _ended(self, job: ServiceJob, event: JournalEvent) -> None:
        job.status, job.ended_s, job.error = event.data["status"], event.at, event.data.get("error")
        job.step, job.saved = event.data.get("step", 0), event.data.get("saved", 0)
        job.done = job.broke = None
        del self.open[job.id]
        user = self.users[job.user]
        user.open -= 1
        user.ended.append((event.id, job.id))
        self.counts[job.status] += 1

    def forget(self, job: ServiceJob) -> None:
        """Remove a job that has ended."""
        del self.jobs[job.id]
        user = self.users[job.user]
        del user.jobs[job.id]
        if len(user.ended) > 2 * len(user.jobs) + MIN_ENDED:
            user.ended = [one for one in user.ended if one[1] in user.jobs]
        self.keys.pop((job.user, job.key), None)


def job_numbers(numbers: Sequence[int]) -> str:
    """Some jobs, for messages: "jobs 3, 4 and 17 more"."""
    shown = ", ".join(str(number) for number in numbers[:3])
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return f"job{'s' if len(numbers) > 1 else ''} {shown}{more}"


def text_of(event: JournalEvent) -> str:
    """A line of the job's log."""
    data = event.data
    if event.kind == ACCEPTED:
        after = f", after {job_numbers(data['after'])}" if data.get("after") else ""
        return f"accepted: {data['tasks']} task{'s' if data['tasks'] > 1 else ''}, from {data['user']}{after}"
    if event.kind == ENDED:
        return data["status"]
    if event.kind == CANCEL:
        return f"cancelled by {data['by']}"
    if event.kind == RESTARTED:
        return f"the service {'crashed' if data['died'] else 'was stopped'} and was started again"
    if event.kind == QUARANTINED:
        return f"{data['error']['message']}"
    name, device, printed = data["name"], data["device"], data.get("printed", "")
    if event.kind == FINISHED:
        text = f"{name}: done on {device} in {_time(data['seconds'])}"
    elif event.kind == LOST:
        text = f"{name}: {data['ended']}, on {device}; it is retried"
        if data.get("retry_delay_s"):
            text += f" ({data['retry']} of {data['retries']}) in {_time(data['retry_delay_s'])}"
    elif event.kind == KILLED:
        text = f"{name}: killed on {device} after {_time(data['seconds'])}"
    elif event.kind == STOPPED:
        step = data.get("saved_step", 0)
        text = f"{name}: stopped on {device} after {_time(data['seconds'])}; it resumes from step {step}"
    else:
        text = "\n".join([f"{name}: {data['error']['message']}", *data["error"].get("traceback", "").splitlines()])
    return "\n".join([text, *(f"{name} | {line}" for line in printed.splitlines())])


def _time(seconds: float) -> str:
    return show(float(f"{seconds:.3g}"), "seconds")
