"""The Ray engine on real nodes: its actors, its values, its calls."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symphony as sy
from symphony.engines.engine import DIED, TIMEOUT, Failed, Finished, Pickled, Stopped

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")

import ray

from symphony.engines.ray import RayEngine, machines
from tests.engines.ray.driving import Driver, Input
from tests.engines.ray.kernels import double, exists, quick, sleep_until, where
from tests.runtime.machines import machine

M1, M2 = 0, 1  # devices: two slots on machine m1, one on m2


@pytest.fixture(scope="module")
def driver(nodes: Any) -> Iterator[Driver]:
    engine = RayEngine(nodes.address)
    yield Driver(engine)
    engine.close()


# --- the contract


@pytest.mark.parametrize("device", [M1, M2], ids=["two slots", "one slot"])
def test_it_keeps_the_contract_of_engines(driver: Driver, device: int) -> None:
    sy.testing.check_engine(driver.engine, device)
    assert driver.engine.poll(0) == []


def test_every_slot_is_an_actor_that_is_called_as_its_device_and_runs_on_its_machine(driver: Driver) -> None:
    names = [f"{device.name}/0" for device in driver.engine.inventory().devices]
    assert names == ["m1/cpu-2-0/0", "m2/cpu-1-0/0"]
    there = machines.machines()
    for device, name in ((M1, "m1"), (M2, "m2")):
        found, process, loaded, threads, folder = driver.value(driver.run(driver.work(where, device=device))[0])
        assert found == there[name].node and process != os.getpid()
        assert loaded == [] and threads == "1" and folder == os.getcwd()
    named = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    assert any(name.startswith("m1/cpu-2-0/1") for name in named)


def test_a_device_that_is_no_cpu_takes_the_resource_that_is_called_as_its_type(driver: Driver) -> None:
    here = machine(others=1)
    [only] = [replace(device, machine="m1", name="m1/big") for device in here.devices if device.kind == "big"]
    with closing(RayEngine(topology=replace(here, devices=(only,)))) as engine:
        other = Driver(engine)
        [event] = other.run(other.work(where, device=0))
        assert other.value(event)[0] == machines.machines()["m1"].node
        with pytest.raises(sy.EngineError, match="no device could be started"), pytest.MonkeyPatch.context() as patch:
            patch.setattr("symphony.engines.ray.slots.ACTOR_START_TIMEOUT_S", 1.0)
            RayEngine(topology=replace(here, devices=(only,)))  # there is one of it, and it is taken


# --- values


def test_large_values_stay_in_the_store_and_outlive_the_actor_that_made_them(driver: Driver) -> None:
    array = np.arange(200_000.0)
    work = driver.work(double, array)
    assert work.arguments.at.head is None and work.arguments.size > array.nbytes
    made, died = driver.run(work, driver.work(quick, "", 0, "die"))
    assert isinstance(made.value.at.ref, ray.ObjectRef) and made.value.at.head is None
    assert isinstance(died, Failed)
    there = driver.work(double, Input(), device=M1, inputs=(made.value,))
    np.testing.assert_array_equal(driver.value(driver.run(there)[0]), 4 * array)
    driver.engine.free(made.value)
    assert made.value.at.ref is None


def test_results_can_be_written_to_and_arguments_cannot(driver: Driver) -> None:
    """A result is a copy; an argument is the store's own memory, which others read."""

    def write(array):
        array[0] = 1.0

    array = np.zeros(100_000)
    result = driver.value(driver.run(driver.work(double, array))[0])
    result[0] = 1.0
    [event] = driver.run(driver.work(write, array))
    assert isinstance(event, Failed) and "read-only" in event.message


def test_a_function_that_made_small_values_may_make_a_large_one(driver: Driver) -> None:
    def zeros(size):
        import numpy

        return numpy.zeros(size)

    driver.teach(zeros, 1)
    work = [driver.work(zeros, size) for size in (1, 50_000, 2)]
    assert [driver.value(event).size for event in driver.run(*work)] == [1, 50_000, 2]


def test_a_full_store_is_an_error_of_the_system(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value: Any) -> Any:
        raise ray.exceptions.OutOfDiskError("no room")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(OSError, match="object store is full"):
        driver.engine.put(Pickled(b"x" * 100_000))


# --- calls


def test_quick_kernels_go_in_one_call_and_others_alone(driver: Driver) -> None:
    driver.teach(quick)
    work = [driver.work(quick, "", number) for number in range(20)]
    driver.engine.dispatch(work)
    [slot] = driver.engine._by_device[M2]
    assert [len(call.work) for call in slot.calls] == [16, 4] and not slot.waiting
    assert [driver.value(event) for event in driver.ends(*work)] == list(range(20))
    unknown = [driver.work(lambda: time.sleep(0.01)) for _ in range(3)]
    driver.engine.dispatch(unknown)
    assert [len(call.work) for call in slot.calls] == [1] and len(slot.waiting) == 2
    driver.ends(*unknown)


@pytest.mark.parametrize("together", [16, 1])
@pytest.mark.parametrize("what", ["die", "hang"])
def test_one_of_several_that_dies_or_hangs_fails_alone(
    driver: Driver, what: str, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.engine, "_together", together)
    driver.teach(quick)
    work = [driver.work(quick, str(tmp_path), n, what if n == 2 else "") for n in range(9)]
    if what == "hang":
        work[2] = replace(work[2], timeout_s=1.0)
    events = driver.run(*work)
    assert [n for n, event in enumerate(events) if not isinstance(event, Finished)] == [2]
    assert isinstance(events[2], Failed) and events[2].why == (DIED if what == "die" else TIMEOUT)
    assert [driver.value(event) for event in events[:2] + events[3:]] == [0, 1, 3, 4, 5, 6, 7, 8]


def test_calls_before_one_that_hangs_are_told_of(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many quick calls, the answer to one in the middle is waited for; here, that never comes."""
    monkeypatch.setattr(driver.engine, "_together", 1)
    driver.teach(quick)
    work = [driver.work(quick, "", number, "hang" if number == 2 else "") for number in range(9)]
    driver.engine.dispatch(work)
    [slot] = driver.engine._by_device[M2]
    assert slot.near and slot.awaited is slot.calls[4]
    assert [driver.value(event) for event in driver.ends(*work[:2])] == [0, 1]
    driver.engine.cancel(work[2].number)
    events = driver.ends(*work)
    assert isinstance(events[2], Stopped)
    assert [driver.value(event) for event in events[3:]] == [3, 4, 5, 6, 7, 8]


def test_a_quick_kernel_that_hangs_can_be_cancelled(driver: Driver, tmp_path: Path) -> None:
    driver.teach(quick)
    work = [driver.work(quick, str(tmp_path), number, "hang" if number == 1 else "") for number in range(3)]
    driver.engine.dispatch(work)
    driver.until(lambda: any(mark.name.startswith("1-") for mark in tmp_path.iterdir()))
    driver.engine.cancel(work[1].number)
    events = driver.ends(*work)
    assert [type(event) for event in events] == [Finished, Stopped, Finished]


def test_a_death_is_told_of_with_its_signal(driver: Driver) -> None:
    def crash():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGSEGV)

    crashed, after = driver.run(driver.work(crash), driver.work(double, 4))
    assert (crashed.why, crashed.signal) == (DIED, signal.SIGSEGV) and "SIGSEGV" in crashed.message
    assert driver.value(after) == 8
    [exited] = driver.run(driver.work(os._exit, 3))  # leaves no word, as what is killed for want of memory
    assert (exited.why, exited.signal) == (DIED, signal.SIGKILL) and "ended unexpectedly" in exited.message


# --- gangs


def test_the_workers_of_a_gang_start_when_all_of_them_can(driver: Driver, tmp_path: Path) -> None:
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    before = driver.work(sleep_until, str(gate), str(mark))
    gang = [driver.work(exists, str(gate), device=M1, gang=5), driver.work(exists, str(gate), device=M2, gang=5)]
    driver.engine.dispatch([before])
    driver.until(mark.exists)
    driver.engine.dispatch(gang)
    other = driver.run(driver.work(exists, str(gate), device=M1))  # the second slot of m1 is nobody's
    assert driver.value(other[0]) is False and not any(one.number in driver.ended for one in gang)
    gate.touch()
    assert [driver.value(event) for event in driver.ends(*gang)] == [True, True]


def test_a_gang_does_not_wait_for_a_worker_that_is_cancelled(driver: Driver, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    before = driver.work(sleep_until, str(gate))
    gang = [driver.work(double, 1, device=M1, gang=0), driver.work(double, 2, device=M2, gang=0)]
    driver.engine.dispatch([before, *gang])
    driver.engine.cancel(gang[1].number)
    first, second = driver.ends(*gang)
    assert driver.value(first) == 2 and isinstance(second, Stopped)
    gate.touch()
    driver.ends(before)


def test_a_gang_that_no_device_has_room_for_is_refused(driver: Driver) -> None:
    with pytest.raises(sy.InfeasibleError, match="2 workers on m2/cpu-1-0, which has 1 slots"):
        driver.engine.dispatch([driver.work(double, 1, gang=0), driver.work(double, 2, gang=0)])
    assert driver.value(driver.run(driver.work(double, 1))[0]) == 2  # nothing was left behind


def test_everything_ends_once_and_as_it_should_whatever_dies_beside_it(driver: Driver) -> None:
    chance, count = random.Random(7), 24
    driver.teach(quick, device=M1)
    driver.teach(quick, device=M2)
    kinds = chance.choices(["", "", "", "", "", "", "die", "hang"], k=count)
    work = [
        driver.work(quick, "", n, what, device=chance.choice([M1, M2]), timeout_s=0.3 if what == "hang" else 60.0)
        for n, what in enumerate(kinds)
    ]
    cancelled = set(chance.sample(range(count), 5))
    driver.engine.dispatch(work[: count // 2])
    for number in sorted(cancelled):
        driver.engine.cancel(work[number].number)  # those of the second half are nobody's yet
    driver.engine.dispatch(work[count // 2 :])
    for number, (event, what) in enumerate(zip(driver.ends(*work), kinds, strict=True)):
        if isinstance(event, Stopped):
            assert number in cancelled and number < count // 2
        elif what:
            assert isinstance(event, Failed) and event.why == (DIED if what == "die" else TIMEOUT)
        else:
            assert driver.value(event) == number
    assert not driver.engine._where and not driver.engine._gangs and not driver.engine._alone
    assert all(slot.load == 0 for slot in driver.engine._slots)


def test_an_actor_that_answers_what_is_wrong_is_replaced_and_its_work_has_failed(driver: Driver) -> None:
    def change(answer):
        import gc

        [slot] = [one for one in gc.get_objects() if type(one).__name__ == "SlotActor" and hasattr(one, "_kernels")]
        type(slot)._run = lambda self, message, objects: answer
        return os.getpid()

    for answer in ((b"garbage of some length", []), ("no bytes", []), (b"", [])):
        before = driver.value(driver.run(driver.work(change, answer, device=M2))[0])
        [failed] = driver.run(driver.work(os.getpid, device=M2))
        assert isinstance(failed, Failed) and failed.why == DIED and "malformed" in failed.message, failed
        assert driver.value(driver.run(driver.work(os.getpid, device=M2))[0]) != before


def test_an_actor_runs_the_work_of_one_user(driver: Driver) -> None:
    work = [driver.work(os.getpid, user=user, device=M2) for user in ("ann", "ann", "bob", "ann")]
    pids = [driver.value(event) for event in driver.run(*work)]
    assert pids[0] == pids[1] and len(set(pids)) == 3
