"""Limits of jobs, with real processes: memory, processes, CPU time, time, disk, cores."""

from __future__ import annotations

import math
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symphony.engines import cgroups
from symphony.engines.cgroups import open_cgroups
from symphony.engines.containment import Allowance, Containment, enforcement, read_limits
from symphony.engines.engine import LIMIT, Failed, Finished, Output, Pickled
from symphony.engines.local import LocalEngine
from symphony.engines.worker import pickled
from symphony.problem.errors import EngineError, InputError
from tests.engines.test_local import Driver
from tests.runtime.machines import machine
from tests.waiting import has_ended, wait_until

MB = 1_000_000.0


@contextmanager
def driven(containment: Containment | None, slots: int = 2) -> Iterator[Driver]:
    engine = LocalEngine(machine(slots=slots), containment)
    try:
        yield Driver(engine)
    finally:
        engine.close()


@pytest.fixture(params=["cgroups", "none"])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the cgroups of this machine, if it has any, and without."""
    if request.param == "none":
        monkeypatch.setattr("symphony.engines.local.open_cgroups", lambda: (None, "none in this test"))
    elif open_and_close() is None:
        pytest.skip("no cgroups are delegated here")
    return request.param


def open_and_close() -> frozenset[str] | None:
    found, _ = open_cgroups()
    if found is None:
        return None
    found.close()
    return found.controllers


def hold(megabytes: int) -> None:
    import time

    held = [b"x" * 1_000_000 for _ in range(megabytes)]
    time.sleep(3600)
    del held


def limit(event: Any) -> str:
    assert isinstance(event, Failed) and event.why == LIMIT, event
    return event.message


# --- limits


def test_memory_that_a_kernel_asked_for_is_all_that_it_gets() -> None:
    with driven(None) as driver:
        [event] = driver.run(driver.work(hold, 200, memory=100 * MB))
        assert "more than the 100 MB the kernel asked for" in limit(event) and "@sy.kernel(memory=" in event.hint
        [event] = driver.run(driver.work(len, "abc", memory=100 * MB))
        assert driver.value(event) == 3


def test_memory_of_child_processes_counts() -> None:
    def fork(hold):
        import os
        import time

        if os.fork() == 0:
            os.setsid()
            hold(200)
        time.sleep(3600)

    with driven(None) as driver:
        assert "memory" in limit(driver.run(driver.work(fork, hold, memory=100 * MB))[0])


def test_the_memory_of_a_job_and_of_a_user_is_limited(groups: str) -> None:
    policy = Containment(Allowance(memory=150 * MB), Allowance(memory=250 * MB), {"bob": Allowance(memory=100 * MB)})
    with driven(policy) as driver:
        assert "150 MB a job may use" in limit(driver.run(driver.work(hold, 200, user="ann", job=1))[0])
        assert "100 MB all jobs of bob may use" in limit(driver.run(driver.work(hold, 90, user="bob", job=2))[0])
        [event] = driver.run(driver.work(len, "abc", user="ann", job=3))
        assert driver.value(event) == 3


def test_a_fork_bomb_is_bounded_and_ends(groups: str, tmp_path: Path) -> None:
    def bomb(folder):
        import os
        import pathlib
        import time

        for _ in range(200):  # were there no bound
            if os.fork() == 0:
                os.setsid()
                pathlib.Path(folder, str(os.getpid())).touch()
                time.sleep(3600)
            time.sleep(0.005)
        time.sleep(3600)

    with driven(Containment(Allowance(processes=30))) as driver:
        work = driver.work(bomb, str(tmp_path), user="ann", job=1)
        text = limit(driver.run(work)[0])
        assert text.startswith("processes:") and "30" in text
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert 0 < len(pids) < 200
        wait_until(lambda: driver.engine.poll(0.01) or all(map(has_ended, pids)))


def test_the_time_and_the_cpu_time_of_a_job_are_limited(groups: str) -> None:
    def spin():
        while True:
            pass

    with driven(Containment(Allowance(time=0.5))) as driver:
        assert "time: it used" in limit(driver.run(driver.work(time.sleep, 3600, user="ann", job=1))[0])
    with driven(Containment(Allowance(cpu_time=0.5))) as driver:
        sleeps = driver.work(time.sleep, 2.0, user="ann", job=1)
        assert isinstance(driver.run(sleeps)[0], Finished)
        assert "cpu_time: it used" in limit(driver.run(driver.work(spin, user="ann", job=2))[0])


def test_cpu_time_of_processes_that_have_ended_counts() -> None:
    def spin_and_die(seconds):
        import os
        import time

        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        time.sleep(0.5)  # long enough to be measured
        os._exit(1)

    with driven(Containment(Allowance(cpu_time=1.0)), slots=1) as driver:
        ends = []
        for _ in range(8):  # each is below the limit
            ends += driver.run(driver.work(spin_and_die, 0.45, user="ann", job=1))
            if ends[-1].why == LIMIT:
                break
        assert "cpu_time" in limit(ends[-1]) and 1 < len(ends) < 8


def test_files_of_a_job_are_limited_and_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony.engines.containment.DISK_MEASURE_S", 0.1)

    def fill(megabytes, stay):
        import tempfile
        import time

        with tempfile.NamedTemporaryFile(delete=False) as file:
            for _ in range(megabytes):
                file.write(b"x" * 1_000_000)
        if stay:
            time.sleep(3600)
        return file.name

    def many(fill):
        for _ in range(20):
            name = fill(4, False)
        fill(1, True)
        return name

    with driven(Containment(Allowance(disk=20 * MB))) as driver:
        [event] = driver.run(driver.work(fill, 40, True, user="ann", job=1))
        assert isinstance(event, Failed) and "File too large" in event.message  # one file, refused by the system
        assert "disk: it used" in limit(driver.run(driver.work(many, fill, user="ann", job=2))[0])
        name = driver.value(driver.run(driver.work(fill, 4, False, user="ann", job=3))[0])
        assert os.path.exists(name)
        driver.engine.release("ann", 3)
        assert not os.path.exists(name)


def test_a_job_that_leaves_too_much_behind_loses_its_idle_process(tmp_path: Path) -> None:
    def leave(go):
        import os
        import time

        pid = os.fork()
        if pid == 0:
            os.setsid()
            while not os.path.exists(go):
                time.sleep(0.01)
            held = [b"x" * 1_000_000 for _ in range(200)]
            time.sleep(3600)
            del held
        return pid

    with driven(Containment(Allowance(memory=150 * MB)), slots=1) as driver:
        pid = driver.value(driver.run(driver.work(leave, str(tmp_path / "go"), user="ann", job=1))[0])
        assert not has_ended(pid)
        (tmp_path / "go").touch()
        wait_until(lambda: driver.engine.poll(0.01) or has_ended(pid))


# --- cores


def _where(path: str) -> tuple[str, int, str]:
    import os
    import time

    time.sleep(0.05)
    return os.environ["OMP_NUM_THREADS"], len(os.sched_getaffinity(0)), str(os.getpid())


def test_work_for_several_cores_holds_as_many_slots(tmp_path: Path) -> None:
    def alone(path, cores):
        import os
        import time

        name = os.path.join(path, str(os.getpid()))
        os.mkdir(name)
        time.sleep(0.05)
        held = len(os.listdir(path))
        os.rmdir(name)
        return held, os.environ["OMP_NUM_THREADS"]

    with driven(None, slots=3) as driver:
        work = [driver.work(alone, str(tmp_path), n, cores=n) for n in (1, 3, 1, 1, 2, 2, 1, 3, 1)]
        results = [driver.value(event) for event in driver.run(*work)]
        assert [threads for _, threads in results] == [str(one.cores) for one in work]
        assert all(held == 1 for (held, _), one in zip(results, work, strict=True) if one.cores == 3)
        assert all(held <= 2 for (held, _), one in zip(results, work, strict=True) if one.cores == 2)
        assert not driver.engine._lent and all(not slot.work for slot in driver.engine._slots)


def test_work_for_several_cores_is_pinned_to_as_many() -> None:
    allowed = len(os.sched_getaffinity(0))
    with driven(None, slots=2) as driver:
        threads, cpus, _ = driver.value(driver.run(driver.work(_where, "", cores=2))[0])
        assert threads == "2" and cpus == min(allowed, 2)
        threads, cpus, _ = driver.value(driver.run(driver.work(_where, ""))[0])
        assert threads == "1" and cpus == 1


def test_work_for_several_cores_can_be_cancelled_and_times_out_from_its_start() -> None:
    with driven(None, slots=2) as driver:
        first = [driver.work(time.sleep, 1.0) for _ in range(2)]
        waits = driver.work(time.sleep, 0.0, cores=2, timeout_s=0.9)
        cancelled = driver.work(time.sleep, 0.0, cores=2)
        last = driver.work(time.sleep, 0.0)
        driver.engine.dispatch([*first, waits, cancelled, last])
        driver.engine.cancel(cancelled.number)
        ends = driver.ends(*first, waits, cancelled, last)
        assert [type(end).__name__ for end in ends] == ["Finished"] * 3 + ["Stopped", "Finished"]
        [event] = driver.run(driver.work(time.sleep, 3600, cores=2, timeout_s=0.2))
        assert event.why == "timeout"
        assert isinstance(driver.run(driver.work(os.getpid))[0], Finished)


def test_a_death_of_work_for_several_cores_frees_its_slots() -> None:
    with driven(None, slots=2) as driver:
        work = [driver.work(os._exit, 3, cores=2), driver.work(os.getpid), driver.work(os.getpid)]
        ends = driver.run(*work)
        assert ends[0].why == "died" and all(isinstance(end, Finished) for end in ends[1:])


# --- users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_jobs_run_as_the_user_of_their_name(tmp_path: Path, groups: str) -> None:
    def who(array, path):
        import os

        import numpy as np

        print("printed by", os.getuid())
        try:
            open(path).close()
            read = True
        except PermissionError:
            read = False
        return os.getresuid(), os.getgroups(), os.environ["USER"], read, np.asarray(array) + 1

    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    nobody = pwd.getpwnam("nobody")
    with driven(Containment(own_accounts=True)) as driver:
        output = Output(str(state / "7" / "who"), "a")
        work = driver.work(who, np.zeros(100_000), str(secret), user="nobody", job=7, output=output)
        uids, found_groups, name, read, array = driver.value(driver.run(work)[0])
        assert uids == (nobody.pw_uid,) * 3 and name == "nobody" and not read and array.sum() == 100_000
        assert set(found_groups) == set(os.getgrouplist("nobody", nobody.pw_gid))
        assert "printed by" in (state / "7" / "who" / "0.0").read_text()
        assert {os.stat(os.path.join(driver.engine._folder, name)).st_mode & 0o777 for name in driver.files()} == {
            0o600
        }
        text = limit(driver.run(driver.work(os.getuid, user="there-is-no-such-user", job=8))[0])
        assert "no user 'there-is-no-such-user'" in text
        assert driver.value(driver.run(driver.work(os.getuid, user="root", job=9))[0]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_list_nor_read_values(groups: str) -> None:
    def look(folder, name):
        import os

        found = []
        for action in (lambda: os.listdir(folder), lambda: os.open(os.path.join(folder, name), os.O_RDONLY)):
            try:
                action()
                found.append("allowed")
            except PermissionError:
                found.append("refused")
        return found

    with driven(Containment(own_accounts=True)) as driver:
        value = driver.engine.put(Pickled(b"x" * 100_000))
        work = driver.work(look, driver.engine._folder, value.at[1], user="nobody", job=1)
        assert driver.value(driver.run(work)[0]) == ["refused", "refused"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_links_of_a_job_do_not_give_it_files_of_the_engine(tmp_path: Path) -> None:
    """A job swaps its value for a link to a file of root, which is given to it with its inputs; and plants links with
    the names of values to come, through which root would write.
    """

    def swap(value, target):
        import os

        folder = os.environ["SYMPHONY_ENGINE"]
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if f"{folder}/w" in line)
        os.unlink(path)
        os.symlink(target, path)

    def plant(folder, target):
        import os

        for number in range(100):
            os.symlink(target, f"{folder}/e{number}")

    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    with driven(Containment(own_accounts=True)) as driver:
        [made] = driver.run(driver.work(np.zeros, 100_000, user="nobody", job=1))
        for kernel, extra in ((swap, (str(secret),)), (len, ())):
            work = driver.work(kernel, user="nobody", job=1)
            arguments = driver.engine.put(
                Pickled(*pickled(((made, *extra), {}), lambda one: 0 if one is made else None))
            )
            [event] = driver.run(replace(work, arguments=arguments, inputs=(made.value,)))
        assert isinstance(event, Failed)  # what it reads is no value any more
        with pytest.raises(EngineError, match="cannot be read"):
            driver.engine.get(made.value)
        assert isinstance(
            driver.run(driver.work(plant, driver.engine._folder, str(secret), user="nobody", job=2))[0], Finished
        )
        driver.engine.put(Pickled(b"x" * 100_000))
    assert secret.read_text() == "secret" and secret.stat().st_uid == 0


def test_only_root_can_run_jobs_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Exception, match="only root"):
        LocalEngine(machine(), Containment(own_accounts=True))


# --- the file of the administrator


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(
        '[job]\nmemory = "8 GB"\ntime = "2 h"\nprocesses = 9\n[user]\ndisk = "1 TB"\n[users.ann]\ncores = 2'
    )
    policy = read_limits(path)
    assert policy.job == Allowance(memory=8e9, time=7200.0, processes=9)
    assert policy.of_user("bob") == Allowance(disk=1e12) and policy.of_user("ann") == Allowance(cores=2)
    assert policy.limits == {"memory", "time", "processes", "disk", "cores"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[jobs]", "did you mean job"),
        ("[job]\nmemmory = 1", "did you mean memory"),
        ('[job]\nmemory = "8 XB"', "not a quantity in bytes"),
        ("[job]\nmemory = 0", "above 0"),
        ("[user]\ntime = 3", "'time' is not a limit"),
        ("job = 3", "not a table"),
        ("[job", "not TOML"),
        ("[users]\nann = 3", "not a table"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_limits(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_limits(tmp_path / "missing.toml")


def test_it_is_said_who_enforces_what() -> None:
    policy = Containment(Allowance(memory=1e9, cores=2))
    tree = cgroups.CgroupTree(Path("/nowhere"), frozenset({"memory"}))
    assert "memory of jobs: bounded by cgroups" in enforcement(policy, tree, "")
    without = enforcement(policy, None, "why not")
    assert any("memory of jobs: measured" in line for line in without) and "why not" in without
    assert any("cores of jobs: not enforced" in line for line in without)
    assert math.isinf(Allowance().memory) and not Allowance()
