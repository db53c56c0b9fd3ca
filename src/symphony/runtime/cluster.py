"""The cluster that users hold: submits graphs to the loop and returns their results."""

from __future__ import annotations

import atexit
import itertools
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from symphony.counterfactuals.outlook import Outlook, outlook_of
from symphony.counterfactuals.record import SHARE, Forecast, Record
from symphony.counterfactuals.snapshot import Snapshot, SnapshotJob
from symphony.engines.engine import Engine, Function, Stored
from symphony.engines.gangs import gang_engine
from symphony.engines.local import LocalEngine
from symphony.policies import named
from symphony.problem import topologies, units
from symphony.problem.defaults import LIVE_POLICY
from symphony.problem.errors import EngineError, InfeasibleError, InputError, SymphonyWarning
from symphony.problem.extras import needs_extra
from symphony.problem.runnable import check_graphs
from symphony.problem.topology import Device, Topology
from symphony.problem.workload import Kernel, Profile, Workload
from symphony.runtime.function_calls import FunctionCalls, check_options, work_submission
from symphony.runtime.graph import Graph, Submission, SubmittedTask, without_buffers
from symphony.runtime.jobs import DONE, RUNNING, ClusterJob, JobLimits, JobState, Retried, TaskRun, size_of
from symphony.runtime.kernels import RunnableKernel, code_of, digest
from symphony.runtime.live_workload import CPU, LiveWorkload, Shapes, task_graph
from symphony.runtime.loop import Loop
from symphony.runtime.player import Player
from symphony.runtime.profiles import Profiles, default_path
from symphony.runtime.scheduler import Scheduler, Statistics
from symphony.runtime.snapshots import KernelTable, TaskSketch, sketches
from symphony.scheduling.policy import Policy
from symphony.training_jobs.job_forecast import JobForecast
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders
from symphony.training_jobs.live.forecasts import ClusterSnapshot, forecasts
from symphony.training_jobs.live.rounds import ROUND_S, RoundLearner
from symphony.training_jobs.live.speed_beliefs import SpeedBeliefs

RECENT_S, MAX_RECENT = 600.0, 64  # jobs that tell how others will arrive: how long ago, and how many
MAX_CACHED_FUNCTIONS = 1_024  # kept by the engine; beyond that, functions of finished jobs are freed


class Cluster(FunctionCalls[ClusterJob]):
    """Runs graphs on the devices of an engine. A policy decides where and when."""

    def __init__(
        self,
        engine: Engine,
        *,
        policy: Policy | str = LIVE_POLICY,
        profiles: str | Path | None = None,
        policy_timeout_s: float = 1.0,
        checkpoints: CheckpointFolders | None = None,
        round_s: float = ROUND_S,
        at_once: int = Shapes.jobs,
        threads: bool = True,
    ) -> None:
        """`round_s`: seconds between two plans for training jobs. `at_once`: jobs that the policy considers.

        Without `threads`, the caller must call `step`; tests use this to control the order of events.
        """
        if not units.is_number(policy_timeout_s) or policy_timeout_s == 0:
            raise InputError(f"policy_timeout_s is {policy_timeout_s!r}", hint="write seconds above 0")
        if profiles is not None and Path(profiles).is_dir():
            raise InputError("it is a folder", where=str(profiles), hint="name a file for the profiles")
        self._engine = engine
        chosen = named(policy) if isinstance(policy, str) else policy
        self._profiles = Profiles(default_path() if profiles is None else Path(profiles))
        topology, kept = engine.inventory(), self._profiles.path
        speeds = SpeedBeliefs(topology, None if kept is None else kept.with_name(f"{kept.stem}-training.json"))
        self._rounds = RoundLearner(speeds, round_s, threads=threads)
        shapes = Shapes(jobs=at_once)
        self._scheduler = Scheduler(
            topology, self._profiles, chosen, timeout_s=policy_timeout_s, shapes=shapes, speeds=speeds
        )
        self._functions: dict[tuple[RunnableKernel, str], Function] = {}
        self._numbers = itertools.count(1)
        self._open: list[JobState] = []
        self._at_once = at_once
        self._arrived: deque[tuple[float, list[TaskSketch]]] = deque(maxlen=MAX_RECENT)  # the last jobs, as they came
        self.record = Record()  # of forecasts against what happened
        self._player = Player()
        self._closed = False
        self._lock = threading.Lock()
        self._checkpoints = checkpoints or CheckpointFolders()
        functions = self._functions
        self._loop = Loop(
            gang_engine(engine),
            self._scheduler,
            lambda k, device: functions[k, device],
            self._checkpoints,
            self._rounds,
        )
        self._thread = threading.Thread(target=self._loop.run, name="symphony-loop", daemon=True) if threads else None
        if self._thread is not None:
            self._thread.start()
            atexit.register(self.close, wait=False)  # before the engine closes: the loop still uses it

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(wait=kind is None)

    def __repr__(self) -> str:
        return f"<cluster {self.topology.name!r} with {len(self.topology.devices)} devices>"

    @property
    def topology(self) -> Topology:
        return self._engine.inventory()

    @property
    def down(self) -> list[str]:
        """Names of the devices that are unavailable now."""
        return [self.topology.devices[device].name for device in sorted(self._loop.down)]

    def used_s(self) -> dict[int, float]:
        """Device-seconds of running attempts, by job number."""
        return self._loop.used_s()

    def running(self) -> list[TaskRun]:
        """The tasks that run now, by the engine's last report."""
        return self._loop.running()

    @property
    def profiles(self) -> Profiles:
        """Run times and demands of kernels, learned from their runs."""
        return self._profiles

    @property
    def statistics(self) -> Statistics:
        """Turns, decisions, their latency, and how often the heuristic replaced the policy."""
        return self._scheduler.statistics

    @property
    def others(self) -> dict[str, tuple[float, float]]:
        """Load by other processes on each row that has a source: mean and standard deviation, as shares of capacity.

        Counters are read only while kernels run; between runs the standard deviation grows.
        """
        return self._loop.observer.loads_by_row()

    def readings(self, since_s: float) -> dict[str, float]:
        """Raw readings since a time of `time.monotonic`: use of each row by all together, as a share of capacity."""
        return self._loop.observer.background.estimator.readings(since_s)

    def row_shares(self) -> Iterator[tuple[TaskRun, Device, dict[str, float]]]:
        """What runs now, each on a device, with its expected shares of the capacity of the rows there."""
        workload, topology = self._scheduler.workload, self.topology
        rows = {row.name: row for row in topology.resources}
        for number, run in self._loop.occupancy.begun():
            device = topology.devices[number]
            demand, route = workload.demand(run.kernel, device.kind), [rows[hop.resource] for hop in device.route]
            yield run, device, {x.name: demand[x.kind] / x.capacity for x in route if demand.get(x.kind)}

    @property
    def closed(self) -> bool:
        """True once the cluster was closed or its engine has failed: it accepts no more jobs."""
        return self._closed or self._loop.closing

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Set a function that the loop's thread calls if the engine or the scheduler fails."""
        self._loop.failed = callback

    def submit(
        self,
        work: Graph | Callable[..., Any],
        /,
        *args: Any,
        priority: int = 0,
        time_limit_s: float = math.inf,
        **kwargs: Any,
    ) -> ClusterJob:
        """Run a graph, or a function with these arguments.

        Raises if it cannot be pickled or no device can run it; later errors are the job's. A function that is not a
        kernel runs on a CPU. `time_limit_s`: from the start of its first task; then the job fails.
        """
        check_options(priority, time_limit_s)
        sent = work_submission(work, args, kwargs)
        job = self.start(sent, next(self._numbers), priority, limits=JobLimits(time_limit_s))
        return ClusterJob(job, self.cancel)

    def start(
        self,
        sent: Submission,
        number: int,
        priority: int,
        on_end: Callable[[JobState], None] | None = None,
        retried: Mapping[int, Retried] | None = None,
        limits: JobLimits | None = None,
    ) -> JobState:
        """Run a graph that is already serialised. The loop's thread calls `on_end` when the job has finished.

        `retried`: tasks that failed before the service restarted, and run again.
        """
        self.check(sent)
        with self._lock:
            if self.closed:
                raise EngineError("the cluster is closed", hint="submit within its `with` block, or make a new one")
            for kernel in {call.kernel for call in sent.calls}:
                self._send(kernel)
            arguments = self._put(sent)
            job = JobState(number, without_buffers(sent), arguments, priority, retried, limits)
            job.on_end = on_end
            self._arrived.append((job.submitted_s, sketches(job, {}, job.submitted_s)))
            self._open = [one for one in self._open if not one.over.is_set()]
            self._open.append(job)
            self._forget_functions()
            self._loop.post(lambda: self._loop.submit(job))
        return job

    def cancel(self, job: JobState) -> None:
        """Cancel a job. No-op if it has finished."""
        self._loop.post(lambda: self._loop.cancel(job))

    def prioritise(self, priorities: Mapping[int, int]) -> None:
        """Change the priorities of jobs, by their numbers; queued work is placed again in the new order."""
        self._loop.post(lambda: self._loop.prioritise(priorities))

    def save_training(self) -> None:
        """Ask all running training jobs to write a checkpoint."""
        self._loop.post(self._loop.saving.ask_all)

    def step(self) -> None:
        """One cycle of the loop, for clusters without a loop thread."""
        self._loop.step(3600.0)

    def attempt(self, number: int) -> TaskRun | None:
        """The task that an attempt runs. Only from the loop's thread."""
        return self._loop.attempt(number)

    def workload(self, jobs: Sequence[ClusterJob], *, held: bool = True) -> Workload:
        """Finished jobs of this cluster as a workload for the simulator, with the profiles learned so far.

        Times are those for which a slot is occupied: by the kernel, by reading and storing values, and by the runtime's
        own handling. Decisions are not included: the simulator charges those separately (`latency_s`). Jobs arrive when
        they were admitted. Without `held`, times are the kernels' only, and jobs arrive when they were submitted.
        """
        states = [job._state for job in jobs]
        if not states or not all(state.over.is_set() for state in states):
            raise InputError("there are no jobs, or some have not finished", hint="wait for them: job.wait()")
        first = min(state.submitted_s for state in states)
        sizes = [[size_of(run) for run in state.runs] for state in states]
        arrivals = [x.submitted_s - first + (x.admitting_s if held else 0.0) for x in states]
        submitted = list(zip([state.graph for state in states], sizes, arrivals, strict=True))
        handling_s = self.statistics.mean_handling_s if held else None
        return self._scheduler.workload.simulator_workload(submitted, handling_s)

    def close(self, wait: bool = True) -> None:
        """Close the cluster, with `wait` after all jobs have finished. Learned profiles are saved."""
        self.stop(wait)
        self._engine.close()
        self._checkpoints.close()

    def stop(self, wait: bool = True) -> None:
        """As `close`, but keep the engine, so that its values can still be read."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if wait:
            for job in self._open:
                job.over.wait()

        def end() -> None:
            self._loop.closing = True

        self._loop.post(end)
        if self._thread is not None:
            self._thread.join()
        else:
            self._loop.run()
        self._scheduler.close()
        self._player.close()
        self._profiles.save()

    def forecasts(self, share: float = 0.8, timeout_s: float = 60.0) -> list[JobForecast]:
        """Forecasts of all admitted training jobs: speed, start and end, with bands that hold with probability `share`.

        Forecasts assume that the planner decides (`policy="planner"`). The start of a job whose inputs are not ready is
        unknown.
        """
        found: Future[ClusterSnapshot] = Future()
        self._loop.post(lambda: found.set_result(self._loop.rounds.now(self._loop.down)))
        if self.closed:
            raise EngineError("the cluster is closed", hint="ask while jobs run")
        if self._thread is None:
            self.step()
        return self._rounds.ask(partial(forecasts, self._rounds.speeds, found.result(timeout_s), share)).result(
            timeout_s
        )

    @property
    def policy(self) -> Policy:
        return self._scheduler.policy

    def jobs_now(self, timeout_s: float = 60.0) -> list[tuple[JobState, list[TaskSketch]]]:
        """Jobs that have not ended, with their unfinished tasks."""
        found: Future[list[tuple[JobState, list[TaskSketch]]]] = Future()
        self._loop.post(lambda: found.set_result(self._loop.jobs_now()))
        if self.closed:
            raise EngineError("the cluster is closed", hint="ask while jobs run")
        if self._thread is None:
            self.step()
        return found.result(timeout_s)

    def kernel_table(self) -> KernelTable:
        """For `snapshot`s: what is believed of kernels at present."""
        workload = LiveWorkload(self.topology, self._profiles, Shapes(1, 1, 1, 1), self._rounds.speeds)
        return KernelTable(workload, self.statistics.mean_handling_s)

    def snapshot(
        self,
        table: KernelTable,
        jobs: Sequence[SnapshotJob],
        slots: int,
        recent: Sequence[SnapshotJob] = (),
    ) -> Snapshot:
        """These jobs, and the cluster as it is now."""
        return Snapshot(self.topology, table.beliefs, jobs, slots, self.others, self._loop.down, recent)

    def when(self, job: ClusterJob, share: float = SHARE) -> Outlook:
        """When a job starts and ends, with bands that hold with probability `share`."""
        found = self.outlooks(share).get(job.id)
        if found is None:
            raise InputError(f"job {job.id} has ended", hint="job.explain() says how it went")
        return found

    def outlooks(self, share: float = SHARE) -> dict[int, Outlook]:
        """When each job that has not ended starts and ends, by the number of the job.

        Forecasts are compared with what happens (`record`); bands are calibrated from that.
        """
        from symphony.counterfactuals.futures import Stage  # imports JAX

        asked_s, table, present = time.monotonic(), self.kernel_table(), self.jobs_now()
        jobs = [
            SnapshotJob(
                one.number,
                table.tasks(tasks),
                name=one.graph.name,
                priority=one.priority,
                started=one.status == RUNNING,
            )
            for one, tasks in present
        ]
        came = [(asked_s - at_s, tasks) for at_s, tasks in list(self._arrived) if asked_s - at_s < RECENT_S]
        recent = [SnapshotJob(0, table.tasks(tasks), arrives_s=-ago_s) for ago_s, tasks in came]
        stage = Stage(self.snapshot(table, jobs, self._at_once, recent), seed=len(self.record.scored))
        played = self._player.call(Stage.play, stage, None, self.policy)
        age_s, found = time.monotonic() - asked_s, {}
        for number, (state, _) in enumerate(present):
            if not state.over.is_set():
                found[state.number], made = outlook_of(
                    self.record, played, number, jobs[number], time.time(), share, age_s
                )
                state.when_over(partial(self._settle, state, made, asked_s + age_s))
        return found

    def _settle(self, job: JobState, made: Sequence[Forecast], asked_s: float) -> None:
        """Compare forecasts of a job that has ended with what happened."""
        if job.status == DONE:
            began = [one.began_s for run in job.runs for one in run.attempts if math.isfinite(one.began_s)]
            self.record.settle(made, min(began, default=asked_s) - asked_s, job.ended_s - asked_s)

    def save(self) -> None:
        """Save the learned profiles and speeds."""
        self._profiles.save()
        self._rounds.ask(self._rounds.speeds.save)

    def _put(self, graph: Submission) -> list[Stored]:
        """Store the arguments of all tasks in the engine, or none."""
        kept: list[Stored] = []
        try:
            for call in graph.calls:
                kept.append(self._engine.put(call.arguments))
        except OSError as error:
            for value in kept:
                self._engine.free(value)
            size = units.show(float(sum(call.arguments.size for call in graph.calls)), "bytes")
            raise EngineError(
                f"there is no room for its {size} of arguments: {error.strerror}",
                where=f"graph {graph.name!r}",
                hint="submit less at once, or pass paths and read files in the kernels",
            ) from error
        return kept

    def check(self, graph: Submission) -> None:
        """Raise if no device can run one of the tasks."""
        first: dict[RunnableKernel, SubmittedTask] = {}
        for call in graph.calls:
            first.setdefault(call.kernel, call)
        self._check_folder(first, graph.name)
        for kernel in first:
            self._check_cores(kernel, graph.name)
        kernels = {kernel: f"{kernel.name}" for kernel in first}
        once = {name: self._placeable(kernel, name) for kernel, name in kernels.items()}
        # One task of each kernel: all others need the same devices.
        some = Submission(graph.name, tuple(replace(call, reads=()) for call in first.values()), (), ())
        check_graphs(self.topology, once.values(), [task_graph(some, kernels, [1.0] * len(some.calls))])

    def _placeable(self, kernel: RunnableKernel, name: str) -> Kernel:
        """A kernel with the memory that it needs on each device kind."""
        kinds = self.topology.kinds
        main = {word for kind in kinds if kind.type == CPU for word in (kind.name, kind.type)}
        memory = kernel.options.memory
        return Kernel(
            name, {device: Profile(1.0, memory=memory if device in main else 0.0) for device in kernel.implementations}
        )

    def _check_cores(self, kernel: RunnableKernel, graph: str) -> None:
        """Raise if no CPU has as many slots as a kernel asks for cores."""
        cores, where = kernel.options.cores, f"graph {graph!r}: kernel {kernel.name!r}"
        if cores == 1:
            return
        if not self._engine.several_cores:
            raise InfeasibleError(
                f"it asks for {cores} cores, and this engine gives one to each kernel",
                where=where,
                hint="leave cores out, or use sy.local() or symphony serve without --ray",
            )
        present = [kind for kind in self.topology.kinds if self.topology.kind_counts[kind.name]]
        able = [kind for kind in present if {kind.name, kind.type} & kernel.implementations.keys()]
        if able and all(kind.type == CPU and kind.slots < cores for kind in able):
            most = max(kind.slots for kind in able)
            raise InfeasibleError(
                f"it asks for {cores} cores, and the largest device of {self.topology.name!r} has {most}",
                where=where,
                hint=f"write cores={most} or less",
            )

    def _check_folder(self, kernels: Iterable[RunnableKernel], name: str) -> None:
        """Raise if a training job could not be resumed on another machine."""
        trains = any(kernel.options.training is not None for kernel in kernels)
        if trains and len(self.topology.machines) > 1 and not self._checkpoints.shared:
            raise InfeasibleError(
                "a training job needs a folder for its checkpoints that all machines reach",
                where=f"graph {name!r}",
                hint="name one: sy.ray(…, checkpoints=DIR), or symphony serve --checkpoints DIR",
            )

    def _send(self, kernel: RunnableKernel) -> None:
        """Store the implementations of a kernel in the engine, once."""
        for device in kernel.implementations:
            if (kernel, device) not in self._functions:
                code = code_of(kernel, device)
                self._functions[kernel, device] = Function(kernel.name, digest(code), self._engine.put(code))
                self._loop.post(partial(self._doubt, kernel, device, digest(code)))

    def _forget_functions(self) -> None:
        if len(self._functions) > MAX_CACHED_FUNCTIONS:
            used = {call.kernel for job in self._open for call in job.graph.calls}
            for kernel, device in [key for key in self._functions if key[0] not in used]:
                self._engine.free(self._functions.pop((kernel, device)).code)

    def _doubt(self, kernel: RunnableKernel, device: str, digest: str) -> None:
        """Widen a profile that was learned from other code."""
        for kind in self.topology.kinds:
            if device in (kind.name, kind.type):
                self._profiles.doubt(kernel.key, kind.name, digest)


def local(
    topology: Topology | str | Path | None = None,
    *,
    policy: Policy | str = LIVE_POLICY,
    profiles: str | Path | None = None,
    policy_timeout_s: float = 1.0,
    checkpoints: str | Path | None = None,
    round_s: float = ROUND_S,
) -> Cluster:
    """This machine as a cluster: one process for each slot of each device.

    `topology`: a topology or the path of its file; by default the machine is discovered. `profiles`: the file that
    keeps learned run times. `checkpoints`: the folder for checkpoints of training jobs, which a policy that plans
    (`policy="planner"`) may move every `round_s` seconds.
    """
    return _cluster(LocalEngine(_described(topology)), policy, profiles, policy_timeout_s, checkpoints, round_s)


def ray(
    address: str | None = None,
    topology: Topology | str | Path | None = None,
    *,
    policy: Policy | str = LIVE_POLICY,
    profiles: str | Path | None = None,
    policy_timeout_s: float = 1.0,
    checkpoints: str | Path | None = None,
    round_s: float = ROUND_S,
) -> Cluster:
    """A Ray cluster as a cluster: one actor for each slot of each device that Ray knows of.

    Without an address, the connection of this process or RAY_ADDRESS is used; if there is neither, Ray is started on
    this machine. With several machines, training jobs need a `checkpoints` folder that all machines reach.
    """
    return _cluster(ray_engine(address, _described(topology)), policy, profiles, policy_timeout_s, checkpoints, round_s)


def _described(topology: Topology | str | Path | None) -> Topology | None:
    if isinstance(topology, str | Path):
        return topologies.topology(topology)
    if topology is not None and not isinstance(topology, Topology):
        raise InputError(f"the topology is {topology!r}", hint="give a topology, or the path of its file, or nothing")
    return topology


def ray_engine(address: str | None, topology: Topology | None) -> Any:
    with needs_extra("ray", "the Ray engine", EngineError):
        from symphony.engines.ray import RayEngine
    return RayEngine(address, topology)


def _cluster(
    engine: Any,
    policy: Policy | str,
    profiles: str | Path | None,
    policy_timeout_s: float,
    checkpoints: str | Path | None,
    round_s: float,
) -> Cluster:
    """A cluster that owns its engine. Notes of the engine become warnings."""
    for note in engine.notes:
        warnings.warn(SymphonyWarning(note), stacklevel=3)
    try:
        return Cluster(
            engine,
            policy=policy,
            profiles=profiles,
            policy_timeout_s=policy_timeout_s,
            checkpoints=CheckpointFolders(None if checkpoints is None else Path(checkpoints)),
            round_s=round_s,
        )
    except BaseException:
        engine.close()
        raise
