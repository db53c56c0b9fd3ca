"""The scheduler of a running cluster, told of events by hand: the same core as the simulator's, and who decides."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony import policies
from symphony.runtime import programs
from symphony.runtime import turn as happened
from symphony.runtime.graph import Graph, submission
from symphony.runtime.kernels import KernelFunction, KernelOptions
from symphony.runtime.live_workload import Shapes
from symphony.runtime.profiles import Profiles
from symphony.runtime.scheduler import HEURISTIC, Scheduler, Statistics
from symphony.runtime.turn import SchedulerEvent, TurnCommands
from symphony.scheduling.policy import choose
from symphony.scheduling.state import DONE, QUEUED, READY, RUNNING
from symphony.training_jobs.live.speed_beliefs import JobKind
from symphony.training_jobs.options import Training
from tests.runtime.machines import machine

SHAPES = Shapes(jobs=2, tasks=4, edges=4, kernels=2)  # small ones, shared by all tests: programs are compiled once
LARGER = Shapes(jobs=2, tasks=8, edges=8, kernels=2)


@sy.kernel
def anywhere(*_: Any) -> None:
    pass


@anywhere.implementation(device="big")
def _there(*_: Any) -> None:
    pass


class Told:
    """A scheduler, and what it answered last."""

    def __init__(self, policy: sy.Policy = HEURISTIC, timeout_s: float = 30.0, shapes: Shapes = SHAPES) -> None:
        self.profiles = Profiles()
        self.profiles.timing(anywhere.key, "small").learn(0.0, 1.0)
        self.profiles.timing(anywhere.key, "big").learn(0.0, 0.4)
        self.scheduler = Scheduler(machine(others=1), self.profiles, policy, timeout_s=timeout_s, shapes=shapes)

    def __call__(self, *events: SchedulerEvent, now_s: float = 0.0) -> TurnCommands:
        return self.scheduler.turn(list(events), now_s)

    def arrives(self, graph: Graph) -> SchedulerEvent:
        sent, workload = submission(graph), self.scheduler.workload
        sizes = [call.arguments.size for call in sent.calls]
        return SchedulerEvent(happened.ARRIVED, graph=workload.add(sent, sizes))

    @property
    def core(self) -> Any:
        return self.scheduler.core

    def status(self, count: int = 4) -> list[int]:
        return self.core.status[:count].tolist()


def started(answer: TurnCommands) -> list[tuple[int, int]]:
    """Gangs and their devices."""
    return [(gang, devices[0]) for gang, devices in answer.started]


def diamond() -> Graph:
    graph = sy.graph("diamond")
    top = graph.task(anywhere)
    graph.task(anywhere, graph.task(anywhere, top), graph.task(anywhere, top))
    return graph


def four() -> Graph:
    graph = sy.graph("four")
    for _ in range(4):
        graph.task(anywhere)
    return graph


# -------------------------------------------------------------------- turns


def test_a_job_goes_through_the_core_event_by_event() -> None:
    told = Told()
    first = told(told.arrives(diamond()))
    assert started(first) == [(0, 1)] and first.decisions == 1  # the big one is the faster
    assert first.jobs == [0, -1]
    both = told(SchedulerEvent(happened.FINISHED, 0), now_s=0.4)
    assert [gang for gang, _ in started(both)] == [1, 2] and both.decisions == 2
    assert {device for _, device in started(both)} == {0, 1}  # 0.8 s behind one another there, 1 s here
    assert started(told(SchedulerEvent(happened.FINISHED, 1))) == []
    assert started(told(SchedulerEvent(happened.FINISHED, 2))) == [(3, 1)]
    last = told(SchedulerEvent(happened.FINISHED, 3))
    assert last.jobs == [-1, -1] and not last.stuck


@pytest.mark.parametrize(("load", "device"), [(0.0, 1), (0.5, 1), (4.0, 0)])
def test_what_others_do_counts(load: float, device: int) -> None:
    """A device that is more than twice as fast is not the first if somebody else loads it."""
    told = Told()
    rows = [row.name for row in told.scheduler.workload.topology.resources]
    mean = np.where([name.startswith("here/big-0/compute") for name in rows], load, 0.0)
    answer = told.scheduler.turn([told.arrives(diamond())], 0.0, (mean, np.full(len(rows), 0.1)))
    assert started(answer) == [(0, device)]


def test_several_events_of_one_turn_are_as_good_as_several_turns() -> None:
    one, many = Told(), Told()
    one(one.arrives(four()))
    many(many.arrives(four()))
    begun = [
        gang
        for gang, _ in started(
            one(SchedulerEvent(happened.FINISHED, 0), SchedulerEvent(happened.FINISHED, 1), now_s=1.0)
        )
    ]
    again = [gang for who in (0, 1) for gang, _ in started(many(SchedulerEvent(happened.FINISHED, who), now_s=1.0))]
    assert begun == again
    jax.tree.map(np.testing.assert_array_equal, one.core, many.core)


def test_news_of_what_has_not_started_is_given_back() -> None:
    told = Told()
    told(told.arrives(four()))
    queued = [gang for gang, _ in told.scheduler.queued()]
    assert queued and told.status()[queued[0]] == QUEUED
    answer = told(SchedulerEvent(happened.FINISHED, queued[0]))
    assert answer.early == [0] and told.status()[queued[0]] == QUEUED


def test_what_started_and_finished_within_a_turn_is_told_of() -> None:
    """An engine was ahead of the core: the second waited behind the first there, and both are over."""
    told = Told()
    told(told.arrives(four()))
    (after, device), *_ = told.scheduler.queued()
    before = next(gang for gang in range(4) if told.status()[gang] == RUNNING and told.core.device[gang, 0] == device)
    answer = told(SchedulerEvent(happened.FINISHED, before), SchedulerEvent(happened.FINISHED, after), now_s=2.0)
    assert (after, device) in started(answer) and not answer.early
    assert told.status()[before] == told.status()[after] == DONE


def test_a_dropped_job_leaves_when_what_ran_has_stopped() -> None:
    told = Told()
    begun = started(told(told.arrives(four())))
    assert told(SchedulerEvent(happened.DROPPED, 0)).jobs == [0, -1]
    answer = told(*(SchedulerEvent(happened.STOPPED, gang) for gang, _ in begun))
    assert answer.jobs == [-1, -1] and started(answer) == []
    assert told.core.lanes_free.tolist()[:2] == [2, 1]


def test_what_stopped_is_placed_again_and_not_on_a_device_that_is_down() -> None:
    told = Told()
    assert started(told(told.arrives(diamond()))) == [(0, 1)]
    answer = told(SchedulerEvent(happened.STOPPED, 0), SchedulerEvent(happened.FAILED, 1))
    assert started(answer) == [(0, 0)]
    told(SchedulerEvent(happened.REPAIRED, 1))
    assert [device for _, device in started(told(SchedulerEvent(happened.FINISHED, 0)))].count(1) == 1


def test_books_and_core_grow_with_what_they_hold() -> None:
    told = Told()
    told(told.arrives(diamond()))
    before = told.core
    told.scheduler.grow(LARGER)
    after = told.core
    assert after.status.shape == (16,) and after.status[:4].tolist() == before.status[:4].tolist()
    assert after.lane_holds.tolist() == before.lane_holds.tolist()  # of the first job: its gangs keep their numbers
    graph = sy.graph("wide")
    for _ in range(8):
        graph.task(anywhere)
    answer = told(told.arrives(graph))
    assert {gang // 8 for gang, _ in started(answer)} == {1}
    told(SchedulerEvent(happened.FINISHED, 0))
    assert told.core.status[1:3].tolist() in (
        [RUNNING, QUEUED],
        [QUEUED, RUNNING],
        [QUEUED, QUEUED],
        [RUNNING, RUNNING],
    )


def test_gangs_of_later_jobs_are_renumbered_when_the_core_grows() -> None:
    told = Told()
    told(told.arrives(diamond()), told.arrives(diamond()))
    holds = sorted(told.core.lane_holds.tolist())
    assert holds[-1] == 4
    told.scheduler.grow(LARGER)
    assert sorted(told.core.lane_holds.tolist())[-1] == 8
    assert started(told(SchedulerEvent(happened.FINISHED, 8)))


def test_nothing_is_compiled_after_the_first_turn() -> None:
    told = Told(sy.baselines.EftStatic())
    count = len(programs._compiled)
    program = told.scheduler._any._turn
    told(told.arrives(diamond()))
    told(SchedulerEvent(happened.FINISHED, 0))
    told(told.arrives(four()), now_s=3.0)
    assert len(programs._compiled) == count  # a compiled program refuses other shapes
    other = Told(sy.baselines.EftStatic()).scheduler._any
    assert other._turn is program  # another cluster of the same shape has the same program


def test_the_heuristic_needs_no_program() -> None:
    count = len(programs._compiled)
    told = Told(shapes=Shapes(jobs=3, tasks=5, edges=5, kernels=3))
    assert started(told(told.arrives(diamond()))) == [(0, 1)]
    told.scheduler.grow(Shapes(jobs=3, tasks=50, edges=5, kernels=3))
    assert started(told(SchedulerEvent(happened.FINISHED, 0), now_s=0.4)) and len(programs._compiled) == count


# -------------------------------------------------------------------- policies that fail


class Does(sy.Policy):
    """Places the first gang on a device that does not exist (0), or nothing, for ever (1). One program for both."""

    which: jax.Array

    def __init__(self, which: int) -> None:
        self.which = jnp.asarray(which)

    def init(self, topology: Any) -> None:
        return None

    def decide(self, key: Any, state: Any, observation: sy.Observation) -> Any:
        return state, choose(self.which == 0, sy.place(0, 99), sy.wait())


class Raises(sy.Policy):
    """Does not even compile."""

    def init(self, topology: Any) -> None:
        return None

    def decide(self, key: Any, state: Any, observation: sy.Observation) -> Any:
        raise RuntimeError("no idea")


class Slow(sy.Policy):
    """Decides as the shortest queue does, after a while."""

    def init(self, topology: Any) -> Any:
        return jnp.asarray(0)

    def decide(self, key: Any, state: Any, observation: sy.Observation) -> Any:
        def pause(count: Any) -> Any:
            time.sleep(0.3)
            return np.asarray(count) + 1

        state = jax.pure_callback(pause, jax.ShapeDtypeStruct((), state.dtype), state)
        return state, sy.best_feasible(observation, -observation.queue_s)


@pytest.mark.parametrize(
    ("policy", "reason", "timeout_s"),
    [(Does(0), "refused", 30.0), (Does(1), "stuck", 30.0), (Raises(), "raised", 30.0), (Slow(), "late", 0.05)],
    ids=["nonsense", "waits", "raises", "slow"],
)
def test_the_heuristic_stands_in_for_a_policy_that_fails(
    policy: sy.Policy, reason: str, timeout_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(policy, timeout_s)
    assert started(told(told.arrives(diamond()))) == [(0, 1)]
    assert told.scheduler.statistics.fallbacks[reason] >= 1
    assert told.scheduler.statistics.refused == 0  # what was refused did not happen
    assert f"policy {policy.name}" in caplog.text and "the heuristic decides" in caplog.text
    assert len(started(told(SchedulerEvent(happened.FINISHED, 0)))) == 2
    told.scheduler.close()


def test_a_policy_that_is_in_time_decides_and_keeps_its_state() -> None:
    told = Told(Slow(), 30.0)
    told(told.arrives(diamond()))
    told(SchedulerEvent(happened.FINISHED, 0))
    assert not told.scheduler.statistics.fallbacks
    assert int(told.scheduler._states[True]) == told.scheduler.statistics.decisions == 3
    told.scheduler.close()


def test_policies_that_cheat_are_refused() -> None:
    with pytest.raises(sy.PolicyError, match="which real machines do not show"):
        Scheduler(machine(), Profiles(), sy.baselines.EftExact(), timeout_s=1.0, shapes=SHAPES)


def test_ready_gangs_wait_for_the_device_that_they_may_run_on() -> None:
    told = Told()
    event = told.arrives(diamond())
    told.scheduler.workload.w.runs_on[event.graph, 0] = 1  # to be tried on the first kind alone
    told.scheduler.workload.version += 1
    assert started(told(event)) == [(0, 0)]
    told(SchedulerEvent(happened.STOPPED, 0), SchedulerEvent(happened.FAILED, 0))
    assert told.status()[0] == READY
    told.scheduler.allow(0, 0b11)
    assert started(told(SchedulerEvent(happened.FAILED, 0))) == [(0, 1)]


# ------------------------------------------------------------ training jobs


def trained(kind: str, steps: int) -> KernelFunction:
    options = KernelOptions(
        preemptible=True, training=Training(steps, kind, operations=1e9, checkpoint_s=0.1, restore_s=0.1)
    )
    kernel = KernelFunction(lambda *_: None, "cpu", kind, options)
    kernel.implementation("big")(lambda *_: None)
    return kernel


def believe(told: Told, seconds: dict[str, tuple[float, float]]) -> None:
    """Seconds of a step on the small and on the big one."""
    speeds = told.scheduler.workload.speeds
    guessed = speeds.learn([], 0.0, sorted(JobKind.of(kernel) for kernel in told.scheduler.workload.kernels))
    for number, kind in enumerate(guessed.kinds):
        guessed.believed.mean.unit_s[number] = np.repeat(np.asarray(seconds[kind.name])[:, None], 2, axis=1)
    speeds.adopt(guessed)
    told.scheduler.workload.refresh_beliefs()


def test_at_the_end_of_a_round_training_jobs_go_where_they_are_believed_to_be_faster() -> None:
    told = Told(policies.named(policies.PLANNER), shapes=Shapes(jobs=2, tasks=1, edges=1, kernels=2))
    for kind in ("a", "b"):
        graph = sy.graph(kind)
        graph.task(trained(kind, 10_000))
        told(told.arrives(graph))
    assert told.status(2) == [RUNNING, RUNNING]
    slower = int(told.core.device[1, 0] == 0)  # one that is on the small one: it is to have the big one
    assert told.core.device[slower, 0] == 0
    names = ("a", "b")
    believe(told, {names[slower]: (10.0, 1.0), names[1 - slower]: (1.0, 10.0)})
    assert not told(now_s=300.0).saved  # nobody is moved in the middle of a round
    answer = told(SchedulerEvent(happened.ROUND), now_s=360.0)
    assert slower in answer.saved
    told.scheduler.workload.steps_left(slower, 0, 4_000)
    told(*(SchedulerEvent(happened.STOPPED, gang) for gang in answer.saved), now_s=361.0)
    assert told.status(2) == [RUNNING, RUNNING]
    assert told.core.device[slower, 0] == 1 and told.core.device[1 - slower, 0] == 0
    lane = told.core.lane[slower, 0]
    assert told.core.lane_estimate[lane] == pytest.approx(4_000.0)  # what is left of it, at a second each
    assert not told.scheduler.statistics.fallbacks


def test_jobs_that_have_little_left_go_first() -> None:
    """Steps that are done count: who has fewer left is done sooner, and waits for nobody."""
    told = Told(policies.named(policies.PLANNER), shapes=Shapes(jobs=2, tasks=1, edges=1, kernels=2))
    for kind, steps in (("a", 1_000), ("b", 2_000)):
        graph = sy.graph(kind)
        kernel = trained(kind, steps)
        kernel._implementations.pop("cpu")  # both want the big one
        graph.task(kernel)
        told(told.arrives(graph))
    believe(told, {"a": (1.0, 1.0), "b": (1.0, 1.0)})
    assert told.status(2) == [RUNNING, READY]
    told.scheduler.workload.steps_left(1, 0, 100)
    answer = told(SchedulerEvent(happened.ROUND), now_s=360.0)
    assert 0 in answer.saved
    told(SchedulerEvent(happened.STOPPED, 0), now_s=361.0)
    assert told.status(2) == [READY, RUNNING]


def test_statistics_are_a_sentence() -> None:
    found = Statistics(turns=3, decisions=2, fallbacks=Counter({"late": 1}))
    assert str(found) == "3 turns, 2 decisions, 0 refused; turns of the heuristic: late: 1"
    found.latency_s.extend([8.01e-7, 8.01e-7])
    assert "a turn takes 801 ns (p50), 801 ns (p99)" in repr(found) and "deque" not in repr(found)
