"""What holds after every run, by name. (`world.py` has what holds at any moment.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from symphony.engines.worker import unpickled
from symphony.runtime.jobs import CANCELLED, DONE, FAILED
from symphony.service import views
from symphony.service.journal import read_events
from symphony.service.running import MAX_DEATHS
from symphony.service.state import ACCEPTED, ENDED, FINISHED, LOST, State
from tests.whole_system.clients import Wanted
from tests.whole_system.faults import Broken
from tests.whole_system.world import World

# Kinds of faults that may end a job, by the error that it ends with.
CAUSES = {
    "WorkerDiedError": ("killed", "crash", "inputs_lost", "values_lost", "garbage"),
    "KernelTimeoutError": ("hang",),
    "InfeasibleError": ("device",),
    "EngineError": ("store_full",),
}


def every_job_ends_with_a_reason(world: World) -> Iterator[str]:
    for one in world.wanted:
        job = world.record(one)
        if one.refused:
            continue
        if job is None or job.status not in (DONE, FAILED, CANCELLED):
            yield f"{one.name} is {'nowhere' if job is None else job.status}"
        elif job.status != DONE and (job.error is None or not job.error["kind"] or not job.error["message"]):
            yield f"{one.name} is {job.status}, and does not say why"


def no_job_ends_without_a_cause(world: World) -> Iterator[str]:
    for one in world.wanted:
        job = world.record(one)
        if one.refused:
            continue
        assert job is not None
        kind = "" if job.error is None else job.error["kind"]
        meant = {
            DONE: one.result is not None,
            CANCELLED: one.cancelled,
            FAILED: may_fail(kind, one, world),
        }
        if not meant[job.status]:
            yield f"{one.name} is {job.status}: {job.error}"


def may_fail(kind: str, one: Wanted, world: World) -> bool:
    """Whether a job may end with an error of this kind."""
    if kind == "KernelError":
        return one.result is None or world.faults.flaky > 0.0
    if kind == "KernelTimeoutError" and "time_limit_s" in one.options:
        return True
    if kind == "JobError":
        return may_be_quarantined(world) or any(world._is_vain(before) for before in one.after)
    return any(getattr(world.faults, cause) for cause in CAUSES.get(kind, ()))


def may_be_quarantined(world: World) -> bool:
    """Only if something is damaged, or the service has died often enough."""
    faults = world.faults
    dies = faults.kill > 0.0 or faults.death > 0.0 or faults.taken > 0.0
    return world.damaged > 0 or (dies and world.starts > MAX_DEATHS)


def results_are_right(world: World) -> Iterator[str]:
    assert world.service is not None
    for one in world.wanted:
        job = world.record(one)
        if job is not None and job.status == DONE:
            found = [world.service.blobs.found(value) for value in views.outcome(world.service, job).values]
            values = [unpickled(value.head, value.buffers) for value in found]
            if (values[0] if len(values) == 1 else tuple(values)) != one.result:
                yield one.name


def each_thing_is_journalled_once(world: World) -> Iterator[str]:
    assert world.service is not None
    events = Counter((event.kind, event.job, event.task) for event in read_events(world.service.database))
    for (kind, job, task), count in events.items():
        if count > 1 and kind in (ACCEPTED, FINISHED, ENDED):
            yield f"job {job} {kind} {count} times (task {task})"


def the_state_is_the_replay_of_the_journal(world: World) -> Iterator[str]:
    assert world.service is not None
    live, replayed = world.service.state, State()
    for event in read_events(world.service.database):
        replayed.apply(event)
    for name in ("jobs", "open", "users", "keys", "events", "last_job"):
        if getattr(live, name) != getattr(replayed, name):
            yield f"{name}: {getattr(live, name)} instead of {getattr(replayed, name)}"


def retries_are_counted_once(world: World) -> Iterator[str]:
    """Through restarts, too."""
    assert world.service is not None
    counted: dict[tuple[int, int], int] = {}
    for event in read_events(world.service.database):
        if event.kind != LOST:
            continue
        data = next(read_events(world.service.database, event.job, event.id - 1)).data  # which a replay leaves out
        before, retry = counted.get((event.job, event.task), 0), data["retry"]
        if not before < retry <= data["retries"]:
            yield f"job {event.job}, task {event.task}: retry {retry} of {data['retries']} after {before}"
        counted[event.job, event.task] = retry


def queues_end_empty(world: World) -> Iterator[str]:
    assert world.service is not None
    running, loop = world.service.running, world.service.cluster._loop
    kept = {
        "queue": running.queue.under_way,
        "admitted by the service": running.admitted,
        "cached_graphs": running.cached_graphs,
        "large": running._large,
        "backlog": loop._backlog,
        "attempts": loop._attempts,
        "early": loop._early,
        "trials": loop._trials,
        "events": loop._events,
        "requests": loop.requests,
        "delayed": [run for run in loop._delayed if not run.job.over.is_set()],
        "chosen": running._chosen,
        "to cancel": running._to_cancel,
        "retried": running._retried,
        "dependents": running._dependents,
        "admitted by the loop": loop._admitted,
        "on devices": [runs for runs in loop.occupancy.on if runs],
    }
    yield from (f"{name}: {what}" for name, what in kept.items() if what)


def the_core_ends_empty(world: World) -> Iterator[str]:
    assert world.service is not None
    scheduler = world.service.cluster._scheduler
    core, topology = scheduler.core, scheduler.workload.topology
    slots = [topology.kind_of[device.kind].slots for device in topology.devices]
    if len(scheduler.workload.free) != scheduler.workload.shapes.jobs:
        yield f"rows of the live workload are taken: {scheduler.workload.free} are free"
    if core.lanes_free[: len(slots)].tolist() != slots or (core.lane_holds >= 0).any():
        yield f"lanes are taken: {core.lanes_free[: len(slots)].tolist()} of {slots} are free"
    if (core.job >= 0).any() or core.queued.any() or core.leaving.any():
        yield "it has jobs, or gangs in queues"


def no_value_is_left_behind(world: World) -> Iterator[str]:
    assert world.service is not None and world.engine is not None
    functions = {function.code.at for function in world.service.cluster._functions.values()}
    left = set(world.engine.values) - functions
    if left:
        yield f"the engine keeps {len(left)} values that nobody will read"


ALL: tuple[Callable[[World], Iterator[str]], ...] = (
    every_job_ends_with_a_reason,
    no_job_ends_without_a_cause,
    results_are_right,
    each_thing_is_journalled_once,
    retries_are_counted_once,
    the_state_is_the_replay_of_the_journal,
    queues_end_empty,
    the_core_ends_empty,
    no_value_is_left_behind,
)


def check(world: World) -> None:
    """Raise the first that does not hold."""
    for holds in ALL:
        for text in holds(world):
            raise Broken(holds.__name__.replace("_", " "), text)
