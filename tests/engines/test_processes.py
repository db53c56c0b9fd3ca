"""Trees of processes, with real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from symphony.engines import processes
from symphony.engines.local import LocalEngine
from tests.engines.daemon import daemon
from tests.engines.test_local import Driver
from tests.runtime.machines import machine
from tests.waiting import has_ended, wait_until


@pytest.fixture
def driver() -> Iterator[Driver]:
    engine = LocalEngine(machine(others=1))
    yield Driver(engine)
    engine.close()


def test_a_daemon_lives_as_long_as_its_job_and_no_longer(driver: Driver, tmp_path: Path) -> None:
    mine = {"user": "ann", "device": 1}
    [event] = driver.run(driver.work(daemon, str(tmp_path / "pid"), job=1, **mine))
    pid = driver.value(event)
    driver.run(driver.work(os.getpid, job=1, **mine))
    assert not has_ended(pid)  # the job has not ended
    driver.run(driver.work(os.getpid, job=2, **mine))
    wait_until(lambda: has_ended(pid))


def test_a_daemon_ends_with_work_that_is_cancelled_or_dies(driver: Driver, tmp_path: Path) -> None:
    def start_and_stay(start, path, end):
        import os
        import time

        start(path)
        if end:
            os._exit(1)
        time.sleep(3600)

    for number, end in enumerate((True, False)):
        path = tmp_path / f"pid{number}"
        work = driver.work(start_and_stay, daemon, str(path), end, user="ann", job=number, device=1)
        driver.engine.dispatch([work])
        wait_until(lambda path=path: driver.engine.poll(0.01) or path.exists())
        if not end:
            driver.engine.cancel(work.number)
            driver.ends(work)
        wait_until(lambda path=path: driver.engine.poll(0.01) or has_ended(int(path.read_text())))


def test_a_daemon_ends_though_the_fork_server_was_killed(driver: Driver, tmp_path: Path) -> None:
    pid = driver.value(driver.run(driver.work(daemon, str(tmp_path / "pid"), user="ann", job=1, device=1))[0])
    [server] = driver.engine.processes()
    os.kill(server, 9)
    driver.run(driver.work(os.getpid, user="ann", job=1, device=1))
    assert not has_ended(pid)
    driver.engine.close()
    wait_until(lambda: has_ended(pid))


def test_a_daemon_does_not_outlive_an_engine_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from symphony.engines.local import LocalEngine\n"
        "from tests.engines.test_local import Driver\n"
        "from tests.engines.daemon import daemon\n"
        "from tests.runtime.machines import machine\n"
        "import cloudpickle, tests.engines.test_processes\n"
        "cloudpickle.register_pickle_by_value(tests.engines.test_processes)\n"
        "driver = Driver(LocalEngine(machine(slots=1)))\n"
        "print(driver.value(driver.run(driver.work(daemon, sys.argv[1]))[0]), flush=True)\n"
        "while True: driver.engine.poll(1)\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, str(script), str(tmp_path / "pid")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        assert not has_ended(pid)
        engine.kill()
    wait_until(lambda: has_ended(pid))


def test_the_processes_of_an_engine_that_has_ended_are_found_by_their_environment(tmp_path: Path) -> None:
    mark = {processes.ENGINE_VARIABLE: str(tmp_path)}
    others = [subprocess.Popen(["sleep", "3600"], env=env) for env in ({**os.environ, **mark}, dict(os.environ))]
    try:
        assert processes.end_marked(str(tmp_path))
        assert others[0].wait() and others[1].poll() is None
    finally:
        for one in others:
            one.kill()
            one.wait()


def test_workers_are_the_first_to_be_killed_where_memory_runs_out(driver: Driver) -> None:
    path = Path("/proc/self/oom_score_adj")
    [event] = driver.run(driver.work(path.read_text))
    assert int(driver.value(event)) == processes.FIRST_TO_KILL > int(path.read_text())


def test_a_tree_of_processes_that_keeps_forking_is_ended(tmp_path: Path) -> None:
    # Each process starts the next and ends: by the time that one is killed, there is another. At most 3,000.
    script = (
        "import os, time\n"
        "for _ in range(3000):\n"
        "    time.sleep(0.001)\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time, os\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "import processes\n"
            "processes.adopt_orphans()\n"
            f"subprocess.Popen([sys.executable, '-c', {script!r}])\n"
            "time.sleep(0.3)\n"
            "print(len(processes.tree(os.getpid())) > 0, processes.end_tree(os.getpid()))\n"
            "print(processes.tree(os.getpid()))\n",
            str(Path(processes.__file__).parent),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = owner.communicate()
    assert output.split("\n")[:2] == ["True True", "[]"]


def test_usage_counts_memory_and_threads_of_a_tree() -> None:
    code = "import threading, time; x = b'x' * 50_000_000; threading.Thread(target=time.sleep, args=(3600,)).start()"
    child = subprocess.Popen([sys.executable, "-c", code + "; print(1, flush=True)"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        used = processes.usage([child.pid, *processes.tree(child.pid)])
        assert 50e6 < used.memory < 150e6 and used.processes == 2 and used.cpu_s >= 0
        assert child.pid in processes.tree(os.getpid())
    finally:
        child.kill()
        child.wait()
    assert processes.usage([child.pid]) == processes.ProcessUsage()


@pytest.mark.parametrize("without", [False, True])
def test_some_descendants_can_be_left_alone(without: bool) -> None:
    child = subprocess.Popen(["sleep", "3600"])
    try:
        time.sleep(0)
        inside = processes.tree(os.getpid(), without=[child.pid] if without else ())
        assert (child.pid in inside) is not without
    finally:
        child.kill()
        child.wait()
