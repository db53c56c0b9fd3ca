"""What travels between client and service: one definition of every message, for both ends.

A graph travels as structure (names, kernels, edges, device kinds) and bytes (functions, arguments). The service reads
the first and never the second: those are for the processes that run kernels, and for the one who asked.
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

PROTOCOL = 1  # of these messages; client and service must have the same
VERSION_HEADER, KEY_HEADER = "symphony-protocol", "idempotency-key"
MAX_INLINE_BYTES = 64 << 10  # bytes that may travel within a message; more goes by itself, under its digest
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # pickled functions are for one minor version

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Index = Annotated[int, Field(ge=0, lt=limits.TASKS_PER_GRAPH)]
# What is shown. Journals of older services have such text as it was written: lone surrogates cannot be sent.
Text = Annotated[str, AfterValidator(readable)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
EVENT: Final = "event"  # kinds of lines of a log …
OUTPUT: Final = "output"
MARK: Final = "mark"  # … which says what those that follow are


class Message(BaseModel):
    """Nothing that is not known is accepted: a key that is misspelt would be lost in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Content(Message):
    """Bytes: here, or elsewhere under their SHA-256."""

    inline: Base64Bytes | None = Field(None, max_length=MAX_INLINE_BYTES)
    blob: Digest | None = None

    @model_validator(mode="after")
    def _one(self) -> Content:
        if (self.inline is None) == (self.blob is None):
            raise ValueError("give either inline or blob")
        return self


class Value(Message):
    """A pickled value: its pickle, and the large buffers that were left out of it."""

    head: Content
    buffers: list[Content] = Field(default=[], max_length=10_000)


class TrainingSpec(Message):
    """What a training job says of itself."""

    steps: Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)]
    kind: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    servers: int = Field(0, strict=True, ge=0, lt=limits.WORKERS_PER_GANG)
    batch: int = Field(0, strict=True, ge=0, le=MAX_STEPS)
    parameters: float = Field(0.0, ge=0, le=MAX_MODEL_SIZE)
    operations: float = Field(0.0, ge=0, le=MAX_MODEL_SIZE)
    checkpoint_s: float = Field(0.0, ge=0, le=limits.SECONDS)
    restore_s: float = Field(0.0, ge=0, le=limits.SECONDS)
    every_s: float = Field(600.0, gt=0, le=limits.SECONDS)

    def training(self) -> Training:
        """As the runtime has it."""
        return Training(**self.model_dump())


class KernelSpec(Message):
    """A kernel: what is known of it, and code by the kind or type of device that it is for."""

    name: Name
    key: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
    timeout_s: Annotated[float, Field(gt=0, le=limits.SECONDS)] | None = None
    retries: int = Field(2, ge=0, le=1_000)
    preemptible: bool = False
    workers: int = Field(1, ge=1, le=limits.WORKERS_PER_GANG)
    training: TrainingSpec | None = None
    implementations: dict[Name, Value] = Field(min_length=1, max_length=64)


class TaskSpec(Message):
    """A call of a kernel."""

    name: Name
    kernel: Index
    arguments: Value
    reads: list[Index] = Field(default=[], max_length=limits.EDGES_PER_GRAPH)


class GraphSpec(Message):
    """A graph of kernels."""

    name: Name
    kernels: list[KernelSpec] = Field(min_length=1, max_length=limits.KERNELS)
    tasks: list[TaskSpec] = Field(min_length=1, max_length=limits.TASKS_PER_GRAPH)
    outputs: list[Index] = Field(default=[], max_length=limits.TASKS_PER_GRAPH)
    names: list[Name] = Field(default=[], max_length=limits.TASKS_PER_GRAPH)


class Submit(Message):
    """A graph to run."""

    graph: GraphSpec
    priority: int = Field(0, ge=-limits.PRIORITY, le=limits.PRIORITY)
    queue: Annotated[str, StringConstraints(max_length=100, pattern=r"^[\w.-]*$")] = ""
    python: Annotated[str, StringConstraints(max_length=20)] = PYTHON


class ErrorView(BaseModel):
    """An error, as it travels: a class of `symphony.problem.errors` and what it says."""

    kind: Text
    message: Text
    hint: Text = ""
    where: Text = ""
    traceback: Text = ""
    signal: int = 0
    cause: Base64Bytes | None = None  # the exception of a kernel, pickled; for the one who submitted it

    @classmethod
    def of(cls, error: SymphonyError, cause: bytes | None = None) -> ErrorView:
        """From an error."""
        extra = {name: getattr(error, name) for name in ("traceback", "signal") if hasattr(error, name)}
        told = cls(kind=type(error).__name__, message=error.message, hint=error.hint, where=error.where, **extra)
        return told.model_copy(update={"cause": cause})

    def error(self) -> SymphonyError:
        """The error; one that this version does not know is a `ServiceError`."""
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
    """The body of every answer that is an error."""

    error: ErrorView


class About(BaseModel):
    """What a service is."""

    service: str = "symphony"
    version: str
    protocol: int = PROTOCOL
    python: str = PYTHON
    ready: bool
    draining: bool
    trouble: Text = ""  # what an administrator should know: connections are refused, and why


class Me(BaseModel):
    """Whom a service takes the one for who asks."""

    user: str
    scopes: list[str]


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
    ended: Text = ""  # "" = under way, "done", or why it was not
    began_step: int | None = (
        None  # of a training job, as far as it has said anything: the step after which it went on …
    )
    step: int = 0  # … and how many are done …
    saved_step: int = 0  # … of which so many need not be done again …
    saves: int = 0  # … by so many checkpoints of this run


class TrainingView(BaseModel):
    """How far a training job is, or all those of a graph together."""

    steps: int
    step: int  # so many are done …
    saved: int  # … and so many of them need not be done again
    per_s: float | None = None  # lately
    runs: bool = False  # on some device, just now


class BandView(BaseModel):
    """The middle of what may be, and between what it lies; None = not to be expected at all."""

    low: float | None
    mid: float | None
    high: float | None


class LossView(BaseModel):
    """What a training job keeps of its speed beside another; 0 = another user's."""

    job: int
    task: Text
    kept: BandView


class SamplesView(BaseModel):
    """What an estimate rests on."""

    here: int  # of jobs of its kind where it is, beside the same neighbours
    elsewhere: int  # of its kind
    family: int  # of others that are called alike
    newest_s: float | None  # age; None: it is a guess


class ForecastView(BaseModel):
    """What a training job may expect. Times are seconds from now."""

    job: int
    task: Text
    runs: bool
    devices: list[Text]
    kind: Text  # of device: where it runs, or is most likely to start; "" = nowhere
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
    """What training jobs may expect."""

    share: float  # of what happens is to be within the bands
    forecasts: list[ForecastView]


class TaskView(BaseModel):
    """A task of a job."""

    name: Text
    kernel: Text
    reads: list[int]
    status: str  # waiting, running, done, failed
    runs: list[RunView]
    training: TrainingView | None = None


class JobView(BaseModel):
    """A job, in a line."""

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
    seconds: float  # of devices, so far
    error: ErrorView | None
    change: int  # grows with everything that happens to it
    training: TrainingView | None = None


class JobList(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobView]


class JobDetail(BaseModel):
    """A job with its tasks."""

    job: JobView
    tasks: list[TaskView]


class ResultView(BaseModel):
    """What a job that is done results in."""

    names: list[str]
    values: list[Value]


class ExplanationView(BaseModel):
    """What ran where and why it took so long, as text."""

    text: Text


class LogLine(BaseModel):
    """Something that happened to a job, or a line that one of its tasks wrote."""

    number: int  # of what happened; 0 for what was written
    at_s: float
    text: Text
    kind: Literal["event", "output", "mark"] = EVENT
    task: Text = ""  # who wrote it …
    rank: int = 0  # … and which of its workers


class Logs(BaseModel):
    """What happened to a job and what it wrote, in order."""

    lines: list[LogLine]
    next: str = ""  # give it as `after`, to read on
    more: bool = False  # whether there is more already …
    over: bool = False  # … and whether there never will be
    at_s: float = 0.0  # when it was looked for, seconds since 1970; 0 = not said, by older services


class DeviceView(BaseModel):
    """A device, and what runs there."""

    name: Text
    kind: Text
    slots: int
    running: list[Text]  # "job 17: align-0"
    up: bool = True  # whether it takes work


class DecisionsView(BaseModel):
    """How deciding went."""

    turns: int
    decisions: int
    refused: int
    fallbacks: dict[str, int]  # turns that the heuristic took, by reason
    p50_s: float | None
    p99_s: float | None


class UserView(BaseModel):
    """Somebody with jobs that are not over."""

    user: Text
    waiting: int
    running: int
    usage_s: float  # of devices, older ones counting less


class ClusterView(BaseModel):
    """The state of the cluster."""

    name: Text
    policy: str
    devices: list[DeviceView]
    waiting: int  # jobs, by their status
    running: int
    counts: dict[str, int]  # jobs that are over, by how they ended
    users: list[UserView]
    decisions: DecisionsView
    draining: bool


class TopologyFile(BaseModel):
    """The devices of the cluster and what they share, as a topology file has them."""

    toml: str


class ProfileFile(BaseModel):
    """What was learned of kernels, as the file of `symphony.runtime.profiles` has it."""

    format: str
    timings: list[dict[str, Any]]
    demands: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []


def optional(number: float) -> float | None:
    """JSON has no NaN."""
    return number if math.isfinite(number) else None
