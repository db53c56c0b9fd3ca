"""The loop under stress: processes are killed and jobs cancelled at random, and nothing is lost or left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.engines.engine import RAISED, DeviceDown, DeviceUp, Failed, Stopped
from symphony.runtime.cluster import Cluster
from symphony.scheduling.indexing import NO_INDEX
from symphony.scheduling.policy import choose
from symphony.scheduling.state import RUNNING
from tests.engines.by_hand import ByHand
from tests.runtime.machines import machine
from tests.simulator.scripted import Patient
from tests.waiting import SECONDS, wait_until
from tests.whole_system.virtual_time import Clock, keeping_time


@sy.kernel(retries=1000)
def step(number, *before):
    import time

    time.sleep((number % 3) * 0.002)
    return number + sum(before)


@sy.kernel
def bad(*_):
    raise ValueError("bad")


@sy.kernel
def sleep(seconds):
    import time

    time.sleep(seconds)


@sy.kernel
def wait_for(path):
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    with sy.local(machine(others=1), profiles=tmp_path_factory.mktemp("p") / "profiles.json") as found:
        yield found


def grown(seed: int) -> tuple[sy.graph, int]:
    """A random graph, and what it results in."""
    rng = random.Random(seed)
    graph, handles, values = sy.graph(f"random-{seed}"), [], []
    for number in range(rng.randrange(4, 20)):
        chosen = rng.sample(range(len(handles)), min(len(handles), rng.randrange(3)))
        handles.append(graph.task(step, number, *(handles[k] for k in chosen)))
        values.append(number + sum(values[k] for k in chosen))
    graph.output("last", handles[-1])
    return graph, values[-1]


def nothing_left(cluster: sy.Cluster) -> None:
    """Every lane, job slot, row and value is free again."""
    loop = cluster._loop
    wait_until(lambda: not (loop.busy or loop.requests or loop._events), "the loop does not come to rest")
    core = loop.scheduler.core
    slots = [cluster.topology.kind_of[device.kind].slots for device in cluster.topology.devices]
    assert (core.job < 0).all() and core.lanes_free[: len(slots)].tolist() == slots
    assert (core.lane_holds < 0).all() and not core.queued.any() and not core.leaving.any()
    assert len(loop.scheduler.workload.free) == loop.scheduler.workload.shapes.jobs
    assert not loop._early and not loop._attempts and not any(loop.occupancy.on) and not loop._trials
    engine = cluster._engine
    assert not engine._where and not any(slot.work for slot in engine._slots)
    assert {name for name in os.listdir(engine._folder)} == {"owner"}  # small functions need no file


def test_every_turn_is_told_what_others_do(cluster: sy.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, rows = cluster._loop, len(cluster.topology.resources)
    load, told, turn = (np.full(rows, 0.3), np.full(rows, 0.1)), [], loop.scheduler.turn

    def heard(events: Any, now_s: float, others: Any = None) -> Any:
        told.append(others)
        return turn(events, now_s, others)

    monkeypatch.setattr(loop.observer, "loads", lambda now_s: load)
    monkeypatch.setattr(loop.scheduler, "turn", heard)
    graph, _ = grown(0)
    cluster.submit(graph).result(SECONDS)
    nothing_left(cluster)
    assert told and all(others is load for others in told)


@pytest.mark.parametrize("seed", [0, 1])
def test_jobs_survive_killed_processes_and_the_end_of_others(cluster: sy.Cluster, seed: int) -> None:
    rng = random.Random(seed)
    jobs: list[tuple[sy.runtime.jobs.ClusterJob, int | None]] = []
    for number in range(30):
        graph, value = grown(100 * seed + number)
        fate = rng.random()
        if fate < 0.15:
            graph.task(bad)
        job = cluster.submit(graph)
        jobs.append((job, None if fate < 0.3 else value))
        if 0.15 <= fate < 0.3:
            time.sleep(rng.random() * 0.01)
            job.cancel()
        if rng.random() < 0.3:
            victim = rng.choice(cluster._engine._slots).worker
            if victim is not None and victim.pid:  # 0: it is being forked
                with contextlib.suppress(ProcessLookupError):  # it may have been killed before, and be gone by now
                    os.kill(victim.pid, signal.SIGKILL)
        time.sleep(rng.random() * 0.01)
    for job, value in jobs:
        if value is not None:
            assert job.result(SECONDS) == {"last": value}, f"seed {seed}: {job.explain()}"
        else:
            assert job.wait(SECONDS)
            assert job.status in ("failed", "cancelled", "done")
    nothing_left(cluster)


def test_a_device_that_goes_down_takes_nothing_with_it(tmp_path: Path) -> None:
    """What was to try it out, too, runs elsewhere; what only it could run fails, and says so."""

    @sy.kernel
    def either(number):
        return number

    @either.implementation(device="big")
    def either_big(number):
        return number

    @sy.kernel(device="big")
    def only(path):
        import pathlib
        import time

        pathlib.Path(path).write_text("")
        time.sleep(3600)

    with sy.local(machine(others=1), profiles=tmp_path / "p.json") as cluster:
        lonely = sy.graph("only")
        lonely.task(only, str(tmp_path / "running"))
        stuck = cluster.submit(lonely)
        wait_until((tmp_path / "running").exists)
        graph = sy.graph("either")
        for number in range(6):
            graph.task(either, number)
        job = cluster.submit(graph)  # one of them waits to be tried behind the other
        engine = cluster._engine
        cluster._loop.post(lambda: engine._give_up(1, "somebody pulled it out"))
        assert job.result(SECONDS) == tuple(range(6))
        with pytest.raises(sy.InfeasibleError, match="no device left"):
            stuck.result(SECONDS)
        nothing_left(cluster)


def test_the_core_grows_while_short_work_goes_through_it(cluster: sy.Cluster) -> None:
    """Gangs get other numbers then; news that was on its way must not be taken for that of others."""
    jobs = []
    for number in range(12):
        graph, value = grown(number)
        jobs.append((cluster.submit(graph), value))
        if number == 6:
            wide = sy.graph("wide")
            for k in range(70):  # more than there is room for at first
                wide.task(step, k)
            jobs.append((cluster.submit(wide), tuple(range(70))))
    for job, value in jobs:
        assert job.result(SECONDS) == (value if isinstance(value, tuple) else {"last": value})
    nothing_left(cluster)


def test_what_runs_can_be_read_while_a_task_begins(cluster: sy.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads read it at any time; here it is read in the midst of making an attempt."""
    loop, read = cluster._loop, []
    decided = loop.scheduler.decided

    def reading(gang: int) -> Any:
        read.append(cluster.used_s())
        assert all(run.attempts for run in cluster.running())
        assert all(run.attempts for _, run in loop.occupancy.begun())
        return decided(gang)

    monkeypatch.setattr(loop.scheduler, "decided", reading)
    assert cluster.submit(step, 1).result() == 1
    assert read


def test_events_of_unknown_work_are_passed_over(cluster: sy.Cluster) -> None:
    cluster._loop.post(lambda: cluster._loop._on_event(Stopped(10**9)))
    graph, value = grown(7)
    assert cluster.submit(graph).result(SECONDS) == {"last": value}


def test_an_engine_that_fails_ends_all_jobs_with_an_error(tmp_path: Path) -> None:
    @sy.kernel
    def sleep():
        import time

        time.sleep(3600)

    with sy.local(machine(others=1), profiles=tmp_path / "p.json") as cluster:
        graph = sy.graph("sleep")
        graph.task(sleep)
        job = cluster.submit(graph)

        def broken() -> None:
            raise OSError("the disk is full")

        cluster._loop.post(broken)
        with pytest.raises(sy.EngineError, match="the disk is full"):
            job.result(SECONDS)
        with pytest.raises(sy.EngineError, match="closed"):
            cluster.submit(graph)


def test_what_was_down_may_come_up(cluster: sy.Cluster) -> None:
    cluster._loop.post(lambda: cluster._loop._on_event(DeviceDown(1, "for a test")))
    graph, value = grown(8)
    assert cluster.submit(graph).result(SECONDS) == {"last": value}
    cluster._loop.post(lambda: cluster._loop._on_event(DeviceUp(1)))
    graph, value = grown(9)
    assert cluster.submit(graph).result(SECONDS) == {"last": value}
    nothing_left(cluster)


def test_what_was_placed_elsewhere_while_a_device_was_away_goes_there_when_it_is_back(tmp_path: Path) -> None:
    @sy.kernel(device="accelerator")
    def holds(path, mark):
        import pathlib
        import time

        pathlib.Path(mark).write_text("")
        while not pathlib.Path(path).exists():
            time.sleep(0.005)

    @sy.kernel(device="accelerator")
    def waits():
        return "started"

    held, waiting = sy.graph("holds"), sy.graph("waits")
    held.task(holds, str(tmp_path / "gate"), str(tmp_path / "running"))
    waiting.task(waits)
    with sy.local(machine(others=2), profiles=tmp_path / "p.json") as cluster:
        loop = cluster._loop
        cluster._loop.post(lambda: loop._on_event(DeviceDown(2, "for a test")))
        first = cluster.submit(held)
        wait_until((tmp_path / "running").exists)
        second = cluster.submit(waiting)
        wait_until(loop.scheduler.queued)  # behind the first, on the device that is left
        cluster._loop.post(lambda: loop._on_event(DeviceUp(2)))
        try:
            assert second.result(SECONDS) == "started" and "here/big-1" in second.explain()
        finally:
            (tmp_path / "gate").touch()
        first.result(SECONDS)
        nothing_left(cluster)


class StopsForPriority(sy.Policy):
    """Stops whatever runs when something more urgent is there; else as the heuristic does."""

    def init(self, topology: Any) -> None:
        return None

    def decide(self, key: Any, state: Any, observation: sy.Observation) -> Any:
        core = observation.core
        tasks = observation.workload.kernel.shape[1]
        priority = jnp.repeat(core.priority, tasks)
        urgent = jnp.where(observation.candidates, priority, -NO_INDEX).max()
        less = (core.status == RUNNING) & (priority < urgent)
        stop = less.any() & ~(core.lane_setup & (core.lane_holds >= 0)).any()
        return state, choose(stop, sy.preempt(jnp.argmax(less)), sy.best_feasible(observation, -observation.queue_s))


def test_policies_are_told_the_time_since_the_cluster_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take it for the length of the run so far: that of the machine may be months."""
    really = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 1e6 + really())
    with sy.local(machine(slots=1), profiles=tmp_path / "p.json") as cluster:
        graph = sy.graph("g")
        graph.task(sy.kernel(lambda: 1, name="one"))
        assert cluster.submit(graph).result(SECONDS) == 1
        loop = cluster._loop
        nothing_left(cluster)
        assert loop.scheduler.core.lane_since.whole.max() < 1e6
    monkeypatch.undo()


def test_a_policy_may_stop_a_kernel_for_something_urgent(tmp_path: Path) -> None:
    @sy.kernel(preemptible=True)
    def long(path):
        import pathlib
        import time

        if pathlib.Path(path).exists():
            return "from the start"
        pathlib.Path(path).write_text("")
        time.sleep(3600)

    @sy.kernel
    def urgent():
        return "at once"

    options: dict[str, Any] = {"profiles": tmp_path / "p.json", "policy_timeout_s": SECONDS}
    with sy.local(machine(slots=1), policy=StopsForPriority(), **options) as cluster:
        graph = sy.graph("long")
        graph.task(long, str(tmp_path / "running"))
        first = cluster.submit(graph)
        wait_until((tmp_path / "running").exists)
        graph = sy.graph("urgent")
        graph.task(urgent)
        assert cluster.submit(graph, priority=5).result(SECONDS) == "at once"
        assert first.result(SECONDS) == "from the start"
        assert "stopped" in first.explain() and not cluster.statistics.fallbacks
        nothing_left(cluster)


@sy.kernel(preemptible=True)
def soft():
    """May be stopped."""


@sy.kernel
def after(value):
    """Reads something."""


@sy.kernel(device="accelerator")
def alone():
    """One at a time."""


def one(kernel: Any) -> sy.graph:
    graph = sy.graph(kernel.name)
    graph.task(kernel)
    return graph


def test_what_finishes_just_before_it_is_stopped_has_finished(tmp_path: Path) -> None:
    engine = ByHand(machine(slots=1))
    options: dict[str, Any] = {"profiles": tmp_path / "p.json", "policy_timeout_s": SECONDS}
    cluster = Cluster(engine, policy=StopsForPriority(), threads=False, **options)
    first = cluster.submit(one(soft))
    cluster.step()
    second = cluster.submit(one(soft), priority=5)
    cluster.step()
    assert engine.stopped == [0] and len(engine.sent) == 1
    engine.news = [engine.finished(0, "in time")]
    cluster.step()
    assert first.result(0.0) == "in time" and len(engine.sent) == 2
    engine.news = [engine.finished(1)]
    cluster.step()
    assert second.status == "done"
    cluster.close()


def test_what_starts_and_is_stopped_in_one_turn_is_told_to_stop(tmp_path: Path) -> None:
    engine = ByHand(machine(slots=1))
    options: dict[str, Any] = {"profiles": tmp_path / "p.json", "policy_timeout_s": SECONDS}
    cluster = Cluster(engine, policy=StopsForPriority(), threads=False, **options)
    urgent = sy.graph("urgent")
    urgent.task(after, urgent.task(soft))
    cluster.submit(urgent, priority=5)
    cluster.step()
    cluster.submit(one(soft))  # it waits; when the slot is free it starts, and is in the way of the urgent one's next
    cluster.step()
    engine.news = [engine.finished(0)]
    cluster.step()
    assert [work.number for work in engine.sent] == [0, 1] and engine.stopped == [1]
    engine.news = [Stopped(1)]
    cluster.step()
    assert engine.sent[2].function.name == "after"
    cluster.close(wait=False)


def test_what_starts_twice_in_one_turn_is_sent_to_where_it_started_last(tmp_path: Path) -> None:
    """A device becomes free, fails, and another is free by then."""
    engine = ByHand(machine(others=2))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
    for _ in range(3):
        cluster.submit(one(alone))
        cluster.step()
    first, second = engine.sent
    [(_, queued)] = cluster._loop.scheduler.queued()
    at, other = (first, second) if first.device == queued else (second, first)
    engine.news = [engine.finished(at.number), engine.finished(other.number), DeviceDown(queued, "for a test")]
    cluster.step()
    assert [work.device for work in engine.sent[2:]] == [other.device]
    cluster.close(wait=False)


@pytest.mark.parametrize("frees", ["before", "after"])
def test_an_abandoned_job_leaves_though_a_task_of_it_was_ahead_of_the_core(tmp_path: Path, frees: str) -> None:
    """The task has finished; the core starts it in the turn in which its job is dropped, or never."""
    engine = ByHand(machine(slots=1))
    cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)

    def end(number: int) -> None:
        engine.news.append(replace(engine.finished(number), seconds=1e-4))

    two = sy.graph("two")
    two.task(after, two.task(soft))
    cluster.submit(one(soft))
    cluster.step()
    end(0)  # so that the kernel is known to be short
    cluster.step()
    cluster.submit(one(soft))
    cluster.step()
    job = cluster.submit(two)
    cluster.step()
    assert [work.number for work in engine.sent] == [0, 1, 2]  # the last one is ahead of the core
    end(2)
    cluster.step()
    assert cluster._loop._early and job.status == "running"
    if frees == "before":
        end(1)
    job.cancel()
    cluster.step()
    if frees == "after":
        end(1)
        cluster.step()
    assert not cluster._loop.busy and not cluster._loop._early
    cluster.close(wait=False)


@sy.kernel
def until_there(path):
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.002)


@sy.kernel
def write(path):
    open(path, "w").close()


def test_a_job_ends_at_its_time_limit_which_counts_from_its_first_task(cluster: sy.Cluster, tmp_path: Path) -> None:
    gate, slots = tmp_path / "go", 2  # of CPUs
    holds = [cluster.submit(wait_for, str(gate)) for _ in range(slots)]
    wait_until(lambda: all(job.status == "running" for job in holds))
    waits = cluster.submit(step, 3, time_limit_s=0.2)
    time.sleep(0.3)
    assert waits.status == "waiting"
    gate.touch()
    assert waits.result(SECONDS) == 3 and [job.result(SECONDS) for job in holds] == [True] * slots
    graph = sy.graph("long")
    graph.task(step, graph.task(sleep, 3600.0))
    late = cluster.submit(graph, time_limit_s=0.2)
    with pytest.raises(sy.KernelTimeoutError, match=f"job {late.id} .*still running after 200 ms, its time limit"):
        late.result(SECONDS)
    assert late.status == "failed"
    wait_until(lambda: "killed, because the job had ended" in late.explain())
    with pytest.raises(sy.WorkloadError, match="time_limit_s is -1"):
        cluster.submit(step, 3, time_limit_s=-1)
    nothing_left(cluster)


@sy.kernel(retries=1, retry_on=OSError, retry_delay_s=5.0)
def anywhere():
    return 1


@anywhere.implementation(device="big")
def anywhere_on_big():
    return 1


def test_a_first_run_that_is_tried_again_may_go_elsewhere_if_its_devices_went_down(tmp_path: Path) -> None:
    engine, clock = ByHand(machine(others=1)), Clock()
    with keeping_time(clock):
        cluster = Cluster(engine, profiles=tmp_path / "p.json", threads=False)
        job = cluster.submit(one(anywhere))
        cluster.step()
        device, other = engine.sent[0].device, 1 - engine.sent[0].device
        engine.news.append(Failed(0, RAISED, "busy", 0.0, 1.0, type="OSError", classes=frozenset({"OSError"})))
        cluster.step()
        engine.news.append(DeviceDown(device, "for a test"))
        cluster.step()
        assert len(engine.sent) == 1 and job.status == "running"
        clock.now += 6.0
        cluster.step()
        assert [work.device for work in engine.sent] == [device, other]
        cluster.close(wait=False)


def test_a_wait_that_has_a_bound_ends_though_nothing_happens(tmp_path: Path) -> None:
    """The first job ends when the second has run, which the policy holds back for a while: only the clock ends that."""
    policy = Patient(sy.baselines.EftBelief(), 0.05)
    with sy.local(machine(), policy=policy, profiles=tmp_path / "profiles.json") as cluster:
        jobs = []
        for kernel in (until_there, write):
            graph = sy.graph(kernel.__name__)
            graph.task(kernel, str(tmp_path / "there"))
            jobs.append(cluster.submit(graph))
            while kernel is until_there and not cluster._loop._attempts:
                time.sleep(0.002)
        for job in jobs:
            job.result(SECONDS)
        assert not cluster._loop.scheduler.statistics.fallbacks
