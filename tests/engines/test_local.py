"""The local engine, with real processes."""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symphony as sy
from symphony.engines import fork_server, local, messages, worker
from symphony.engines.engine import DIED, DeviceDown, Failed, Finished, Function, Output, Pickled, Stopped, Work
from symphony.engines.local import LocalEngine
from symphony.problem.topology import DeviceKind
from tests.runtime.machines import machine
from tests.waiting import SECONDS, has_ended, wait_until


class Driver:
    """An engine, and work for it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.number = engine, 0

    def work(self, function: Callable[..., Any], *args: Any, **options: Any) -> Work:
        code = Pickled(*worker.pickled(function, lambda _: None))
        sent = Function("f", hashlib.sha256(code.head).hexdigest(), self.engine.put(code))
        self.number += 1
        arguments = self.engine.put(Pickled(*worker.pickled((args, {}))))
        return Work(self.number, options.pop("device", 0), sent, arguments, **options)

    def run(self, *work: Work) -> list[Any]:
        self.engine.dispatch(work)
        return self.ends(*work)

    def ends(self, *work: Work) -> list[Any]:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + SECONDS
        while len(found) < len(work):
            assert time.monotonic() < deadline
            found |= {event.number: event for event in self.engine.poll(0.1) if not isinstance(event, DeviceDown)}
        return [found[one.number] for one in work]

    def value(self, event: Any) -> Any:
        assert isinstance(event, Finished), event
        stored = self.engine.get(event.value)
        return worker.unpickled(stored.head, stored.buffers)

    def files(self) -> list[str]:
        return sorted(set(os.listdir(self.engine._folder)) - {"owner"})


@pytest.fixture
def driver() -> Iterator[Driver]:
    engine = LocalEngine(machine(others=1))
    yield Driver(engine)
    engine.close()


def test_what_a_kernel_writes_is_kept_where_it_is_told(driver: Driver, tmp_path: Path) -> None:
    def talk(text, folder):
        import pathlib
        import sys

        sys.stdout.writelines(["a ", "line\n"])
        print(text, "\udcff", file=sys.stderr)
        print("half", end="", flush=True)
        assert pathlib.Path(folder).read_text().endswith(" half")
        print("", "of a line", end="")
        raise LookupError(text)

    told = [Output(str(tmp_path / str(number) / "talk"), "a") for number in range(2)]
    files = [tmp_path / str(number) / "talk" / f"{number}.0" for number in range(2)]
    work = [driver.work(talk, f"in {n}", str(files[n]), output=told[n], rank=n) for n in range(2)]
    assert [event.type for event in driver.run(*work)] == ["LookupError"] * 2
    for number, file in enumerate(files):
        _, *lines = file.read_text().splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == ["a line", f"in {number} \\udcff", "half of a line"]
    [event] = driver.run(driver.work(lambda: __import__("sys").stdout is __import__("sys").__stdout__))
    assert driver.value(event)  # and nothing of it is left


@pytest.mark.parametrize("device", [0, 1], ids=["two slots", "one slot"])
def test_it_keeps_the_contract_of_engines(driver: Driver, device: int) -> None:
    sy.testing.check_engine(driver.engine, device)
    assert driver.engine.poll(0) == []


def test_it_keeps_the_contract_where_processes_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError("not in this container")

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    engine = LocalEngine(machine())
    try:
        sy.testing.check_engine(engine)
    finally:
        engine.close()


def test_a_death_is_noticed_though_a_grandchild_holds_the_pipe_which_ends_with_it(driver: Driver) -> None:
    def fork_and_die(path):
        import os
        import pathlib
        import signal
        import time

        if not os.fork():
            pathlib.Path(path).write_text(str(os.getpid()))
            time.sleep(3600)
        while not (os.path.exists(path) and os.path.getsize(path)):
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pid")
        [died] = driver.run(driver.work(fork_and_die, str(path)))
        assert isinstance(died, Failed) and died.signal == signal.SIGKILL
        wait_until(lambda: has_ended(int(path.read_text())))


def test_every_slot_is_a_process_of_its_own_on_a_cpu_of_its_own(driver: Driver) -> None:
    def who():
        import os
        import time

        time.sleep(0.05)  # so that no slot does it twice
        return os.getpid(), sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]

    work = [driver.work(who), driver.work(who), driver.work(who, device=1)]
    found = [driver.value(event) for event in driver.run(*work)]
    assert len({pid for pid, _, _ in found} | {os.getpid()}) == 4
    assert all(len(cpus) == 1 and threads == "1" for _, cpus, threads in found)
    if len(os.sched_getaffinity(0)) > 1:
        assert found[0][1] != found[1][1]


def test_workers_do_not_load_jax_unless_a_kernel_does(driver: Driver) -> None:
    def loaded():
        import sys

        return "jax" in sys.modules, "symphony" in sys.modules

    assert driver.value(driver.run(driver.work(loaded))[0]) == (False, False)


def test_a_death_is_told_of_with_its_signal_and_the_next_process_goes_on(driver: Driver) -> None:
    def die():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGABRT)

    first, second = driver.work(die, device=1), driver.work(os.getpid, device=1)
    died, after = driver.run(first, second)  # the second waits behind the first, and is sent to the new process
    assert isinstance(died, Failed) and (died.why, died.signal) == (DIED, signal.SIGABRT)
    assert "SIGABRT" in died.message
    assert driver.value(after) != os.getpid()


def test_an_exit_is_a_death_without_a_signal(driver: Driver) -> None:
    [died] = driver.run(driver.work(os._exit, 5, device=1))
    assert isinstance(died, Failed) and (died.why, died.signal) == (DIED, 0)
    assert "exit code 5" in died.message


def test_an_idle_process_that_is_killed_is_replaced_without_a_word(driver: Driver) -> None:
    before = driver.value(driver.run(driver.work(os.getpid, device=1))[0])
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    after = before
    while after == before and time.monotonic() < deadline:
        event = driver.run(driver.work(os.getpid, device=1))[0]
        if isinstance(event, Finished):
            after = driver.value(event)
    assert after != before


def test_large_values_are_files_that_go_when_they_are_freed(driver: Driver) -> None:
    work = driver.work(lambda x: x + 1, np.zeros(100_000))
    assert driver.files() == [work.arguments.at[1]]
    [event] = driver.run(work)
    assert len(driver.files()) == 2
    value = driver.value(event)
    driver.engine.free(work.arguments)
    driver.engine.free(event.value)
    driver.engine.free(event.value)  # twice does no harm
    assert driver.files() == []
    assert value.sum() == 100_000


def test_many_small_inputs_make_no_large_message(driver: Driver) -> None:
    made = tuple(driver.engine.put(Pickled(*worker.pickled(b"x" * 5_000))) for _ in range(40))
    work = replace(driver.work(lambda: os.listdir(os.environ["SYMPHONY_ENGINE"])), inputs=made)
    slim = driver.engine._joined_if_large(work)
    assert sum(len(value.at[0] or b"") for value in slim) == 0 and len({value.at[1] for value in slim}) == 1
    back = [driver.engine.get(value) for value in slim]
    assert all(worker.unpickled(value.head, []) == b"x" * 5_000 for value in back)
    for _ in range(2):
        [event] = driver.run(work)
        assert len(driver.value(event)) == 2 and driver.files() == []  # beside "owner", and only meanwhile


def test_many_small_inputs_are_read_where_no_file_can_be_written(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, flags: int) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(worker, "private", full)
    made = tuple(driver.engine.put(Pickled(*worker.pickled(b"x" * 5_000))) for _ in range(40))
    assert driver.value(driver.run(replace(driver.work(lambda: 3), inputs=made))[0]) == 3


def test_what_fits_into_no_file_leaves_none(driver: Driver) -> None:
    def large():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        return bytearray(4 << 20)

    [event] = driver.run(driver.work(large))
    assert isinstance(event, Failed) and event.type == "OSError" and driver.files() == []


def test_what_a_killed_process_was_writing_is_removed(driver: Driver) -> None:
    def dies_while_writing():
        import os
        import signal
        import threading

        def watch():
            folder = os.environ["SYMPHONY_ENGINE"]
            while not any(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder) if name.startswith("w")):
                pass
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch).start()
        return bytearray(400 << 20)

    [event] = driver.run(driver.work(dies_while_writing))
    assert isinstance(event, Failed) and event.signal == signal.SIGKILL and driver.files() == []


def _wait_for(path: str, began: str = "") -> None:
    if began:
        Path(began).touch()
    while not os.path.exists(path):
        time.sleep(0.002)


def _touch(path: str) -> None:
    Path(path).touch()


def test_work_is_not_queued_behind_work_that_is_late(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two slots: the second of two short pieces would share the first one's slot or wait for the late one."""
    monkeypatch.setattr(local, "LATE_S", 0.0)
    late = driver.work(_wait_for, str(tmp_path / "go"))
    driver.engine.dispatch([late])
    wait_until(lambda: any(slot.since < time.monotonic() for slot in driver.engine._slots))
    short = [driver.work(os.getpid) for _ in range(2)]
    first, second = driver.run(*short)
    assert driver.value(first) == driver.value(second)
    (tmp_path / "go").touch()
    assert isinstance(driver.ends(late)[0], Finished)


def test_work_that_was_sent_behind_a_long_one_runs_in_a_slot_that_is_idle(driver: Driver, tmp_path: Path) -> None:
    long, short = driver.work(_wait_for, str(tmp_path / "go")), [driver.work(os.getpid) for _ in range(9)]
    driver.engine.dispatch([long, *short])
    assert len({driver.value(event) for event in driver.ends(*short)}) == 1
    (tmp_path / "go").touch()
    assert isinstance(driver.ends(long)[0], Finished)


def test_work_that_waits_for_late_work_goes_to_a_slot_that_is_not_late(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "LATE_S", 3600.0)
    late = driver.work(_wait_for, str(tmp_path / "late"), str(tmp_path / "began"))
    other = driver.work(_wait_for, str(tmp_path / "other"))
    short = driver.work(os.getpid)
    driver.engine.dispatch([late, other, short])
    wait_until((tmp_path / "began").exists)
    [slot] = [slot for slot in driver.engine._slots if slot.work and slot.work[0] is late]
    assert list(slot.work) == [late, short] and slot.sent == 2
    driver.engine.poll(0)
    assert list(slot.work) == [late, short]  # neither is late
    slot.since -= 7200.0
    driver.engine.poll(0)
    assert list(slot.work) == [late] and slot.sent == 1
    (tmp_path / "other").touch()
    assert all(isinstance(event, Finished) for event in driver.ends(other, short))
    (tmp_path / "late").touch()
    assert isinstance(driver.ends(late)[0], Finished)


def test_more_work_than_is_sent_at_once_runs_in_order(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_SENT", 2)
    work = [driver.work(time.monotonic, device=1) for _ in range(7)]
    ends = [driver.value(event) for event in driver.run(*work)]
    assert ends == sorted(ends)


def test_cancelled_work_that_was_sent_never_runs_and_the_rest_does(driver: Driver, tmp_path: Path) -> None:
    """The second function is new to the process: its code goes with the cancelled call, and again with the next."""
    running = driver.work(_wait_for, str(tmp_path / "go"), device=1)
    cancelled, next_one = (driver.work(_touch, str(tmp_path / name), device=1) for name in ("cancelled", "next"))
    driver.engine.dispatch([running, cancelled, next_one])
    driver.engine.cancel(cancelled.number)
    assert driver.ends(cancelled) == [Stopped(cancelled.number)]
    (tmp_path / "go").touch()
    assert [type(event) for event in driver.ends(running, next_one)] == [Finished, Finished]
    assert (tmp_path / "next").exists() and not (tmp_path / "cancelled").exists()


def test_a_kernel_that_takes_the_permits_of_others_is_killed(driver: Driver, tmp_path: Path) -> None:
    def take(path):
        import contextlib
        import os
        import time

        for descriptor in range(900, 910):
            with contextlib.suppress(OSError):
                if not os.get_blocking(descriptor):
                    os.read(descriptor, 1 << 12)
        open(path, "w").close()
        time.sleep(3600)

    bad, waits = driver.work(take, str(tmp_path / "taken"), device=1), driver.work(os.getpid, device=1)
    driver.engine.dispatch([bad, waits])
    wait_until((tmp_path / "taken").exists)
    driver.engine.cancel(waits.number)
    failed, stopped = driver.ends(bad, waits)
    assert stopped == Stopped(waits.number)
    assert isinstance(failed, Failed) and "permits" in failed.message


def test_a_device_that_cannot_be_started_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX finds no GPU here, or it would be in the tests' way: they hide it."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    topology = machine(others=1)
    gpu = DeviceKind("big", "gpu")
    engine = LocalEngine(replace(topology, kinds=(topology.kinds[0], gpu)))
    try:
        assert [device.name for device in engine.inventory().devices] == ["here/cpu"]
        assert "here/big-0 is left out: JAX finds no gpu" in engine.notes[0]
        sy.testing.check_engine(engine)
    finally:
        engine.close()


def test_a_device_whose_process_never_comes_up_again_goes_down(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(fork_server, "__file__", str(broken))
    [server] = {slot.server.pid for slot in driver.engine._slots}
    os.kill(server, signal.SIGKILL)
    first, second = driver.work(os._exit, 1, device=1), driver.work(os.getpid, device=1)
    driver.engine.dispatch([first, second])
    events: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while not any(isinstance(event, DeviceDown) for event in events):
        assert time.monotonic() < deadline
        events += driver.engine.poll(0.1)
    assert [type(event) for event in events] == [Failed, Stopped, DeviceDown]
    # A start that met the end of the old fork server counts as well.
    assert events[-1].device == 1 and re.search("ended [34] times in a row before", events[-1].why)
    third = driver.work(os.getpid, device=1)
    assert driver.run(third) == [Stopped(third.number)]
    assert isinstance(driver.run(driver.work(os.getpid))[0], Finished)  # the others go on


def test_no_device_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(fork_server, "__file__", str(broken))
    with pytest.raises(sy.EngineError, match="no device could be started"):
        LocalEngine(machine(slots=1))


def test_what_is_not_this_machine_is_refused() -> None:
    with pytest.raises(sy.TopologyError, match="machines"):
        LocalEngine(sy.topology("gpu24"))
    topology = machine()
    kinds = (replace(topology.kinds[0], reconfigure_s=1.0), topology.kinds[1])
    with pytest.raises(sy.TopologyError, match="configured"):
        LocalEngine(replace(topology, kinds=kinds))


def test_nothing_is_left_of_an_engine_that_is_closed(driver: Driver) -> None:
    [pid] = [driver.value(event) for event in driver.run(driver.work(os.getpid))]
    folder = Path(driver.engine._folder)
    driver.engine.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(sy.EngineError, match="closed"):
        driver.engine.poll(0)
    driver.engine.wake()  # does no harm


def test_workers_end_with_an_engine_that_is_killed_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    script = """
        import hashlib, os, sys, time
        from symphony.engines import worker
        from symphony.engines.engine import Function, Pickled, Work
        from symphony.engines.local import LocalEngine
        from tests.runtime.machines import machine

        def busy(path):
            import os, pathlib, time
            pathlib.Path(path + ".part").write_text(str(os.getpid()))
            os.rename(path + ".part", path)
            time.sleep(3600)

        engine = LocalEngine(machine(slots=1))
        code = Pickled(*worker.pickled(busy, lambda _: None))
        function = Function("busy", "busy", engine.put(code))
        engine.dispatch([Work(1, 0, function, engine.put(Pickled(*worker.pickled(((sys.argv[1],), {})))))])
        print(engine._folder, flush=True)
        while True:
            engine.poll(1)
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, str(path), str(tmp_path / "pid")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        wait_until((tmp_path / "pid").exists)
        parent.kill()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(pid))
    assert folder.exists()
    LocalEngine(machine(slots=1)).close()
    assert not folder.exists()


# --- processes that say what they should not


def _pipe_of(process: str = "self") -> list[int]:
    """The pipes that a process of the engine can write to, beyond the standard streams."""
    import os
    import stat

    found = []
    for name in os.listdir(f"/proc/{process}/fd"):
        try:
            with open(f"/proc/{process}/fdinfo/{name}") as file:
                writes = int(file.read().split("flags:")[1].split()[0], 8) & 3 == 1
            if int(name) > 2 and stat.S_ISFIFO(os.stat(f"/proc/{process}/fd/{name}").st_mode) and writes:
                found.append(int(name))
        except OSError:
            continue
    return found


def _write(data, pipe_of):
    """Write to what answers go through, and return as if nothing had been."""
    import os

    [pipe] = pipe_of()
    os.write(pipe, data)
    return "done"


WRONG = {
    "garbage": (b"\x00garbage" * 10, "it begins with"),
    "marshal": (len(marshal.dumps(("done",))).to_bytes(4, "little") + marshal.dumps(("done",)) * 4, "it begins with"),
    "a huge length": (struct.pack(messages.HEADER, b"sy", messages.DONE, 0, 2**32 - 1, 1), "4,294,967,295 bytes"),
    "an unknown kind": (struct.pack(messages.HEADER, b"sy", 77, 0, 0, 1), "it begins with"),
    "another attempt": (
        messages.done(10**9, 0.0, 0.0, False, (b"x", None, (), 1), 0.0),
        "1000000000, but runs 1",
    ),
    "never complete": (struct.pack(messages.HEADER, b"sy", messages.DONE, 0, 100_000, 1), "not complete after"),
    "ready again": (messages.ready(""), "twice that it is ready"),
    "a file of others": (
        messages.done(1, 0.0, 0.0, False, (None, "../x", ((0, 1),), 1), 0.0),
        "did not write",
    ),
    "no such file": (
        messages.done(1, 0.0, 0.0, False, (None, "w2-9", ((0, 1),), 1), 0.0),
        "cannot be read|not write",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_process_that_says_what_is_wrong_is_killed_and_its_work_has_failed(
    driver: Driver, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, text = WRONG[what]
    monkeypatch.setattr(local, "MAX_MESSAGE_S", 0.1)
    [pid] = [driver.value(event) for event in driver.run(driver.work(os.getpid, device=1))]
    driver.number = 0  # the next attempt is called 1
    bad, other = driver.work(_write, data, _pipe_of, device=1), driver.work(os.getpid, device=1)
    [failed, after] = driver.run(bad, other)
    assert isinstance(failed, Failed) and (failed.why, failed.signal) == (DIED, 0), failed
    assert re.search(f"malformed message: .*{text}", failed.message), failed.message
    assert has_ended(pid) and driver.value(after) not in (pid, os.getpid())
    assert isinstance(driver.run(driver.work(os.getpid))[0], Finished)


def test_who_answers_twice_is_killed_and_only_the_first_answer_counts(driver: Driver) -> None:
    def twice(data, pipe_of):
        import os

        os.write(pipe_of()[0], data)
        return "the second answer"

    first = worker.pickled("the first answer")[0]
    data = messages.done(1, 0.0, 1e9, False, (first, None, (), len(first)), -1.0)
    [answered] = driver.run(driver.work(twice, data, _pipe_of, device=1))
    assert driver.value(answered) == "the first answer"
    assert answered.seconds < SECONDS and np.isnan(answered.busy_s)  # no more than can be
    [after] = driver.run(driver.work(lambda: "next", device=1))
    while isinstance(after, Failed):  # it met the one that is being killed
        assert "malformed" in after.message
        [after] = driver.run(driver.work(lambda: "next", device=1))
    assert driver.value(after) == "next"
    assert driver.engine.poll(0) == []


def test_garbage_in_all_low_descriptors_hurts_nobody(driver: Driver) -> None:
    def litter():
        import contextlib
        import os

        for descriptor in range(3, 256):
            with contextlib.suppress(OSError):
                os.write(descriptor, b"\xff" * 1000)
        os.closerange(3, 256)
        return "done"

    [event] = driver.run(driver.work(litter, device=1))
    assert driver.value(event) == "done"
    assert driver.value(driver.run(driver.work(lambda: "next", device=1))[0]) == "next"


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_a_kernel_that_forks_is_answered_for_once_by_the_one_that_was_sent(
    driver: Driver, how: str, tmp_path: Path
) -> None:
    def fork(how, path):
        import os
        import sys

        child = os.fork()
        if not child:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            if how == "raises":
                raise LookupError("in the child")
            if how == "exits":
                sys.exit(3)
            return [b"of the child" * 10_000]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return [b"of the parent" * 10_000, code]

    work = [driver.work(fork, how, str(tmp_path / str(n)), device=1) for n in range(3)]
    codes = []
    for number, event in enumerate(driver.run(*work)):
        text, code = driver.value(event)
        assert text == b"of the parent" * 10_000 and (tmp_path / str(number)).exists()
        codes.append(code)
    assert codes == [{"returns": 0, "raises": 1, "exits": 3}[how]] * 3
    assert driver.engine.poll(0) == []


def test_a_value_whose_file_is_gone_or_cut_is_an_error_and_no_crash(driver: Driver) -> None:
    [event] = driver.run(driver.work(lambda: np.zeros(100_000), device=1))
    path = Path(driver.engine._folder, event.value.at[1])
    os.truncate(path, 10)
    with pytest.raises(sy.EngineError, match="cannot be read"):
        driver.engine.get(event.value)
    path.unlink()
    with pytest.raises(sy.EngineError, match="cannot be read"):
        driver.engine.get(event.value)
    os.mkfifo(path)  # nobody waits for one who writes
    with pytest.raises(sy.EngineError, match="cannot be read"):
        driver.engine.get(event.value)


def test_the_fork_server_is_replaced_and_processes_go_on(driver: Driver) -> None:
    [server] = driver.engine.processes()
    before = driver.value(driver.run(driver.work(os.getpid, device=1))[0])
    os.kill(server, signal.SIGKILL)
    assert driver.value(driver.run(driver.work(os.getpid, device=1))[0]) == before
    [died] = driver.run(driver.work(os._exit, 5, device=1))
    assert isinstance(died, Failed) and died.signal == signal.SIGKILL  # nobody knows how: it is not blamed
    after = driver.value(driver.run(driver.work(os.getpid, device=1))[0])
    assert after != before and [server] != list(driver.engine.processes())


# --- what one job leaves to the next


def _change() -> str:
    """Change all that the next job could find."""
    import os
    import pickle
    import signal
    import sys

    os.chdir("/")
    os.environ["LEFT_BEHIND"] = "yes"
    os.umask(0o77)
    sys.path.insert(0, "/left/behind")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pickle.dumps = lambda *args, **options: b"not a pickle"
    return "changed"


def _found() -> dict[str, Any]:
    import os
    import pickle
    import signal
    import sys

    mask = os.umask(0)
    os.umask(mask)
    return {
        "folder": os.getcwd(),
        "variable": os.environ.get("LEFT_BEHIND"),
        "mask": mask,
        "path": "/left/behind" in sys.path,
        "ignored": signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
        "patched": pickle.dumps.__module__ != "_pickle",
        "process": os.getpid(),
    }


def test_jobs_of_one_user_share_processes_but_not_what_one_has_changed(driver: Driver) -> None:
    [before] = [driver.value(event) for event in driver.run(driver.work(_found, device=1, job=1))]
    work = [driver.work(_change, device=1, job=1), driver.work(_found, device=1, job=1)]
    changed = driver.value(driver.run(*work)[1])
    assert (changed["folder"], changed["variable"], changed["ignored"]) == ("/", "yes", True)  # within a job, it stays
    after = driver.value(driver.run(driver.work(_found, device=1, job=2))[0])
    assert after == before | {"patched": True}  # the same process: modules are not put back


def test_a_job_of_a_service_has_processes_of_its_own(driver: Driver) -> None:
    mine = {"user": "ann", "device": 1}
    before = driver.value(driver.run(driver.work(_found, job=1, **mine))[0])
    work = [driver.work(_change, job=1, **mine), driver.work(_found, job=1, **mine)]
    [_, same] = driver.run(*work)
    assert driver.value(same)["process"] == before["process"]  # for tasks of one job, it is kept
    # Sent ahead, before the first job has ended: they wait for processes of their own.
    work = [
        driver.work(_change, job=1, **mine),
        driver.work(_found, job=2, **mine),
        driver.work(_found, job=2, user="bob", device=1),
    ]
    found = [driver.value(event) for event in driver.run(*work)[1:]]
    assert [one | {"process": 0} for one in found] == [before | {"process": 0}] * 2
    assert len({before["process"], *(one["process"] for one in found)}) == 3


def test_what_a_job_has_left_goes_when_it_is_released(driver: Driver) -> None:
    pid = driver.value(driver.run(driver.work(os.getpid, user="ann", job=1, device=1))[0])
    driver.engine.release("ann", 2)
    driver.engine.release("bob", 1)
    assert driver.value(driver.run(driver.work(os.getpid, user="ann", job=1, device=1))[0]) == pid
    driver.engine.release("ann", 1)
    deadline = time.monotonic() + SECONDS
    while not has_ended(pid):
        assert time.monotonic() < deadline
        driver.engine.poll(0.01)


def test_processes_draw_numbers_of_their_own(driver: Driver) -> None:
    def draw():
        import random

        import numpy as np

        return random.random(), np.random.rand()

    work = [driver.work(draw, user="ann", job=job, device=1) for job in range(3)]
    drawn = [driver.value(event) for event in driver.run(*work)]
    assert len({one for one, _ in drawn}) == len({one for _, one in drawn}) == 3


def test_a_first_call_is_cold_if_it_imports_something(driver: Driver) -> None:
    def imports(name):
        return __import__(name).__name__

    work = [driver.work(imports, name, device=1, user="ann", job=job) for name, job in (("os", 1), ("wave", 2))]
    assert [event.cold for event in driver.run(*work)] == [False, True]
    work = [driver.work(imports, name, device=1, user="ann", job=3) for name in ("os", "wave")]
    assert [event.cold for event in driver.run(*work)] == [False, False]  # only the first of its process


def test_spare_processes_are_kept_for_jobs_to_come_and_one_that_is_killed_is_not_used(driver: Driver) -> None:
    driver.run(driver.work(os.getpid, device=1, job=1), driver.work(os.getpid, device=1, job=2))
    assert not driver.engine._spare  # one's own jobs share processes
    for job in range(4):
        [event] = driver.run(driver.work(os.getpid, device=1, user="ann", job=job))
        assert isinstance(event, Finished)
    deadline = time.monotonic() + SECONDS
    while not driver.engine._spare or not all(one.ready for one in driver.engine._spare):
        assert time.monotonic() < deadline
        driver.engine.poll(0.01)
    assert len(driver.engine._spare) == 3  # as many as there are slots
    spare = [one.pid for one in driver.engine._spare]
    os.kill(spare[0], signal.SIGKILL)
    while spare[0] in [one.pid for one in driver.engine._spare]:
        assert time.monotonic() < deadline
        driver.engine.poll(0.01)
    work = [driver.work(os.getpid, device=1, user="ann", job=job) for job in range(10, 13)]
    pids = [driver.value(event) for event in driver.run(*work)]
    assert len(set(pids)) == 3 and spare[0] not in pids and set(pids) & set(spare)
