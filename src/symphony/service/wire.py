"""The messages between client and service, defined once for both.

A graph is sent as structure (names, kernels, edges, device kinds) and pickled bytes (functions, arguments). The service
reads the structure and never unpickles the bytes: only worker processes and the user who submitted them do.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from symphony.problem import errors, limits
from symphony.problem.errors import SymphonyError
from symphony.problem.texts import readable
from symphony.training_jobs.job_forecast import SampleEvidence
from symphony.training_jobs.options import MAX_MODEL_SIZE, MAX_STEPS, Training

PROTOCOL = 1  # version; client and service must have the same
VERSION_HEADER, KEY_HEADER = "symphony-protocol", "idempotency-key"
MAX_INLINE_BYTES = 64 << 10  # larger contents are sent as blobs
MAX_AFTER = 10_000  # jobs that a job may wait for
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # pickled functions need the same minor version

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
ExceptionName = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^\S+$")]
Index = Annotated[int, Field(ge=0, lt=limits.TASKS_PER_GRAPH)]
# Text for display. Journals of old services may contain lone surrogates, which JSON cannot encode.
Text = Annotated[str, AfterValidator(readable)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
EVENT: Final = "event"  # kinds of lines of a log
OUTPUT: Final = "output"
MARK: Final = "mark"  # about the output that follows


class Message(BaseModel):
    """Refuses unknown fields: a misspelled one would otherwise be ignored silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Content(Message):
    """Bytes: inline, or the SHA-256 of a blob."""

    inline: Base64Bytes | None = Field(None, max_length=MAX_INLINE_BYTES)
    blob: Digest | None = None

    @model_validator(mode="after")
    def _one(self) -> Content:
        if (self.inline is None) == (self.blob is None):
            raise ValueError("give either inline or blob")
        return self


class Value(Message):
    """A pickled value: the pickle stream and its out-of-band buffers."""

    head: Content
    buffers: list[Content] = Field(default=[], max_length=10_000)


class TrainingSpec(Message):
    steps: Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)]
    kind: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    servers: int = Field(0, strict=True, ge=0, lt=limits.WORKERS_PER_GANG)
    batch: int = Field(0, strict=True, ge=0, le=MAX_STEPS)
    parameters: float = Field(0.0, ge=0, le=MAX_MODEL_SIZE)
    operations: float = Field(0.0, ge=0, le=MAX_MODEL_SIZE)
    checkpoint_s: float = Field(0.0, ge=0, le=limits.SECONDS)
    restore_s: float = Field(0.0, ge=0, le=limits.SECONDS)
    every_s: float = Field(600.0, gt=0, le=limits.SECONDS)
    exact: bool = True

    def training(self) -> Training:
        return Training(**self.model_dump())


class KernelSpec(Message):
    """A kernel, with code for each kind or type of device that it supports."""

    name: Name
    key: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
    timeout_s: Annotated[float, Field(gt=0, le=limits.SECONDS)] | None = None
    retries: int = Field(2, ge=0, le=1_000)
    retry_on: list[ExceptionName] = Field(default=[], max_length=100)
    retry_delay_s: Annotated[float, Field(ge=0, le=limits.SECONDS)] = 0.0
    preemptible: bool = False
    workers: int = Field(1, ge=1, le=limits.WORKERS_PER_GANG)
    training: TrainingSpec | None = None
    cores: int = Field(1, ge=1, le=limits.SLOTS_PER_DEVICE)
    memory: float = Field(0.0, ge=0, le=limits.TRANSFER_BYTES)
    implementations: dict[Name, Value] = Field(min_length=1, max_length=64)


class TaskSpec(Message):
    name: Name
    kernel: Index
    arguments: Value
    reads: list[Index] = Field(default=[], max_length=limits.EDGES_PER_GRAPH)


class GraphSpec(Message):
    name: Name
    kernels: list[KernelSpec] = Field(min_length=1, max_length=limits.KERNELS)
    tasks: list[TaskSpec] = Field(min_length=1, max_length=limits.TASKS_PER_GRAPH)
    outputs: list[Index] = Field(default=[], max_length=limits.TASKS_PER_GRAPH)
    names: list[Name] = Field(default=[], max_length=limits.TASKS_PER_GRAPH)


class Submit(Message):
    graph: GraphSpec
    priority: int = Field(0, ge=-limits.PRIORITY, le=limits.PRIORITY)
    queue: Annotated[str, StringConstraints(max_length=100, pattern=r"^[\w.-]*$")] = ""
    python: Annotated[str, StringConstraints(max_length=20)] = PYTHON
    after: list[Annotated[int, Field(ge=1, le=2**62)]] = Field(default=[], max_length=MAX_AFTER)  # jobs to wait for
    time_limit_s: Annotated[float, Field(gt=0, le=limits.SECONDS)] | None = None  # from the start of its first task


class ErrorView(BaseModel):
    """An error of the class `kind` in `symphony.problem.errors`."""

    kind: Text
    message: Text
    hint: Text = ""
    where: Text = ""
    traceback: Text = ""
    signal: int = 0
    cause: Base64Bytes | None = None  # the pickled exception of a kernel; only its user may unpickle it

    @classmethod
    def of(cls, error: SymphonyError, cause: bytes | None = None) -> ErrorView:
        extra = {name: getattr(error, name) for name in ("traceback", "signal") if hasattr(error, name)}
        view = cls(kind=type(error).__name__, message=error.message, hint=error.hint, where=error.where, **extra)
        return view.model_copy(update={"cause": cause})

    def error(self) -> SymphonyError:
        """The error; a `ServiceError` if this version does not know its class."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, SymphonyError)):
            kind = errors.ServiceError
        extra: dict[str, Any] = {}
        if issubclass(kind, errors.KernelError):
            extra["traceback"] = self.traceback
        if issubclass(kind, errors.WorkerDiedError):
            extra["signal"] = self.signal
        return kind(self.message, hint=self.hint, where=self.where, **extra)


class Refusal(BaseModel):
    """The body of every error response."""

    error: ErrorView


class About(BaseModel):
    service: str = "symphony"
    version: str
    protocol: int = PROTOCOL
    python: str = PYTHON
    ready: bool
    draining: bool
    trouble: Text = ""  # for administrators: why connections are refused, if any are
    containment: list[Text] = []  # who enforces which limits of jobs
    degraded: list[str] = []  # names of the parts that are not ok; `/v1/health` says why


HealthState = Literal["ok", "degraded", "failing"]


class HealthPart(BaseModel):
    name: str
    state: HealthState
    text: Text  # what is the case, and what to do


class Health(BaseModel):
    """The parts of a service; `state` is that of the worst."""

    state: HealthState
    parts: list[HealthPart]


class Me(BaseModel):
    """The user and the scopes of a token."""

    user: str
    scopes: list[str]


class NewToken(Message):
    user: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.@-]+$")]
    scopes: list[Literal["submit", "read", "admin"]] = Field(default=["submit", "read"], min_length=1, max_length=3)
    days: float | None = Field(None, gt=0, le=36_500, allow_inf_nan=False)  # until it expires; None = never
    priority: int = Field(0, ge=-limits.PRIORITY, le=limits.PRIORITY)


class RotateToken(Message):
    days: float | None = Field(None, gt=0, le=36_500, allow_inf_nan=False)  # None = as long as the old one had
    grace_s: float = Field(0.0, ge=0, le=30 * 86_400, allow_inf_nan=False)  # for which the old one stays valid


class TokenView(BaseModel):
    """A token, without its secret. Times are seconds since 1970."""

    id: str
    user: Text
    scopes: list[str]
    priority: int
    created_s: float
    expires_s: float | None


class TokenList(BaseModel):
    tokens: list[TokenView]


class IssuedToken(BaseModel):
    """A new token. `token` is its text, which is not stored."""

    token: str
    about: TokenView


class AuditView(BaseModel):
    id: int
    at_s: float  # seconds since 1970
    user: Text  # who did it; "" = unknown
    token: str  # ID of the token; "" = none, with access to the database
    address: Text  # of the client; "" = the command line of the service's machine
    action: str
    target: Text
    detail: dict[str, Any]


class AuditLog(BaseModel):
    entries: list[AuditView]


class RunView(BaseModel):
    """One run of a task. Times are seconds since 1970."""

    device: Text
    sent_s: float
    expected_s: float
    spread: float
    began_s: float | None = None
    seconds: float | None = None
    ready_s: float | None = None
    ahead: bool = False
    cold: bool = False
    trial: bool = False
    ended: Text = ""  # "" = under way, "done", or the reason of a failure
    bytes: int = 0  # of its value; 0 = none, or unknown
    began_step: int | None = None  # of a training job: the step from which it resumed; None: not reported yet
    step: int = 0  # steps done
    saved_step: int = 0  # steps in the last checkpoint
    saves: int = 0  # checkpoints written by this run
    retry: int = 0  # if the task is tried again after it: which of its …
    retries: int = 0  # … retries that is …
    retry_at_s: float | None = None  # … and when it may begin


class TrainingView(BaseModel):
    """Progress of a training job, or of all those in a graph."""

    steps: int
    step: int  # steps done
    saved: int  # steps in the last checkpoint
    per_s: float | None = None  # recent speed
    runs: bool = False  # whether it runs at present


class BandView(BaseModel):
    """A median and an interval around it; None = infinite."""

    low: float | None
    mid: float | None
    high: float | None


class LossView(BaseModel):
    """The fraction of its speed that a training job keeps beside another; job 0 = another user's."""

    job: int
    task: Text
    kept: BandView


class SamplesView(BaseModel):
    """Numbers of the samples behind an estimate."""

    here: int  # of its kind, in the same place beside the same neighbours
    elsewhere: int  # of its kind
    family: int  # of similarly named kinds
    newest_s: float | None  # age of the newest; None: there are none


class ForecastView(BaseModel):
    """Forecast for a training job. Times are seconds from now."""

    job: int
    task: Text
    runs: bool
    devices: list[Text]
    kind: Text  # of the device where it runs, or will most likely start; "" = none
    steps_left: float
    speed: BandView  # steps a second
    start_s: BandView
    finish_s: BandView
    loses: list[LossView]
    samples: SamplesView

    @property
    def evidence(self) -> SampleEvidence:
        """The samples, with the names that `JobForecast` gives them."""
        samples = self.samples
        return SampleEvidence(samples.here, samples.elsewhere, samples.family, samples.newest_s)


class Forecasts(BaseModel):
    share: float  # the probability that the bands should cover
    forecasts: list[ForecastView]


class When(BaseModel):
    """When a job starts and ends. Times are seconds from now."""

    job: int
    status: str
    share: float  # the probability that the bands should cover
    text: Text
    start_s: BandView
    finish_s: BandView
    draws: int
    made_s: float  # when it was computed, seconds since 1970
    calibrated: int  # recent forecasts with known outcome behind the bands


class ReasonView(BaseModel):
    reason: str  # admission, after, inputs, device or runs
    count: int  # tasks
    text: str


class AheadView(BaseModel):
    """Work of a job on the devices that another one could use; job 0 = of other users, all together."""

    job: int
    seconds: float


class HelpView(BaseModel):
    """A change that would bring a job forward."""

    change: Text
    text: Text
    start_s: BandView
    finish_s: BandView
    gain_s: float


class Why(BaseModel):
    """Why a job waits, or what it waits for. Times are seconds from now."""

    job: int
    status: str
    text: Text
    reasons: list[ReasonView]
    ahead: list[AheadView]
    helps: list[HelpView]  # the smallest change first
    start_s: BandView
    finish_s: BandView


class AskWhatIf(Message):
    """Changes to play: on the jobs that are open, or (`since_s`) on the journalled jobs of the last seconds."""

    policy: Annotated[str, StringConstraints(max_length=100, pattern=r"^[\w:.+-]*$")] = ""
    without: list[Name] = Field(default=[], max_length=1_000)
    more: list[Name] = Field(default=[], max_length=10)
    fail: list[Name] = Field(default=[], max_length=1_000)
    fail_s: float = Field(3_600.0, gt=0, le=limits.SECONDS)
    priority: dict[
        Annotated[int, Field(ge=1, le=2**62)], Annotated[int, Field(ge=-limits.PRIORITY, le=limits.PRIORITY)]
    ] = {}
    submit: Submit | None = None
    since_s: float = Field(0.0, ge=0, le=limits.SECONDS)


class MeasureView(BaseModel):
    name: str
    text: str
    now: BandView
    then: BandView
    change: BandView  # then - now, future by future


class JobChangeView(BaseModel):
    job: int
    name: Text
    user: Text
    now: BandView  # of its end
    then: BandView


class WhatIfAnswer(BaseModel):
    text: Text
    change: Text
    draws: int
    jobs: int
    left_out: int  # journalled jobs that could not be played
    measures: list[MeasureView]
    rows: list[JobChangeView]
    stranded: list[int]  # jobs that no remaining device can run
    start_s: BandView | None = None  # of the submitted job
    finish_s: BandView | None = None


class WhatIfView(BaseModel):
    id: int
    state: Literal["running", "done", "failed"]
    progress: float
    error: ErrorView | None = None
    answer: WhatIfAnswer | None = None


class RecordRowView(BaseModel):
    what: str  # start or finish
    by: str  # all, horizon or user
    value: Text
    count: int
    coverage: float  # share of outcomes in the bands that were shown …
    raw_coverage: float  # … and in those of the model, before calibration
    width: float  # median width of bands over the time that was forecast
    error: float  # median error of the middle, relative to what happened


class RecordView(BaseModel):
    """Forecasts against what happened."""

    forecasts: int
    scored: int
    share: float
    text: Text
    rows: list[RecordRowView]


class TaskView(BaseModel):
    name: Text
    kernel: Text
    reads: list[int]
    status: str  # waiting, running, done, failed, cancelled (it ran when the job ended)
    runs: list[RunView]
    ready_s: float | None = None  # when it could first start, seconds since 1970; None: unknown, or not yet
    training: TrainingView | None = None


class JobView(BaseModel):
    id: int
    user: Text
    name: Text
    queue: Text
    priority: int
    status: str  # waiting (none of its tasks has started), running, done, failed, cancelled
    tasks: int
    finished: int
    accepted_s: float
    ended_s: float | None
    seconds: float  # device time used so far
    error: ErrorView | None
    change: int  # increases with every event of the job
    waits: Text = ""  # why it is not admitted yet; "" = it is, or has ended
    training: TrainingView | None = None
    after: list[int] = []  # jobs that must be done before it
    time_limit_s: float | None = None


class JobList(BaseModel):
    jobs: list[JobView]


class EndedJobs(BaseModel):
    """Jobs of a user that have ended, in order."""

    jobs: list[JobView]
    next: int  # the value of `after` for the next request


class JobDetail(BaseModel):
    job: JobView
    tasks: list[TaskView]
    restarts: list[float] = []  # when the service started again while it had the job, in seconds since 1970


class ResultView(BaseModel):
    names: list[str]
    values: list[Value]


class ExplanationView(BaseModel):
    text: Text


class LogLine(BaseModel):
    number: int  # of the event; 0 for output
    at_s: float
    text: Text
    kind: Literal["event", "output", "mark"] = EVENT
    task: Text = ""  # that wrote it …
    rank: int = 0  # … and the rank of its worker


class Logs(BaseModel):
    """Events and output of a job, in order."""

    lines: list[LogLine]
    next: str = ""  # the value of `after` for the next page
    more: bool = False  # whether there are more lines already
    over: bool = False  # whether there will never be more lines
    at_s: float = 0.0  # when it was read, seconds since 1970; 0 = sent by an old service


class DeviceView(BaseModel):
    name: Text
    kind: Text
    slots: int
    running: list[Text]  # "job 17: align-0"
    up: bool = True  # whether it accepts work


class DecisionsView(BaseModel):
    turns: int
    decisions: int
    refused: int
    fallbacks: dict[str, int]  # turns taken by the heuristic instead of the policy, by reason
    p50_s: float | None
    p99_s: float | None
    by: dict[str, int] = {}  # decisions of the network and of the heuristic, under a time budget


class UserView(BaseModel):
    user: Text
    waiting: int
    running: int
    usage_s: float  # device time with exponential decay


class UserUsage(BaseModel):
    """Jobs of a user that ended in a period or have not ended, and the device time that they have used in all."""

    user: Text
    device_s: float
    jobs: int
    done: int
    failed: int
    cancelled: int
    unfinished: int


class Usage(BaseModel):
    since_s: float  # seconds since 1970
    kept_s: float  # for which ended jobs are kept: earlier ones are not counted
    users: list[UserUsage]  # by device time, the largest first


class ClusterView(BaseModel):
    name: Text
    policy: str
    devices: list[DeviceView]
    waiting: int  # jobs, by their status
    running: int
    counts: dict[str, int]  # ended jobs, by status
    users: list[UserView]
    decisions: DecisionsView
    draining: bool


class TopologyFile(BaseModel):
    """A topology file: devices of the cluster and what they share."""

    toml: str


class ProfileFile(BaseModel):
    """Learned profiles of kernels, as in the file of `symphony.runtime.profiles`."""

    format: str
    timings: list[dict[str, Any]]
    demands: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []


def optional(number: float) -> float | None:
    """None for NaN and infinities, which JSON lacks."""
    return number if math.isfinite(number) else None
