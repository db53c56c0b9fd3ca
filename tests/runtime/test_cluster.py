"""Graphs of real kernels on real processes: what users get, and what they are told when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import symphony as sy
from symphony.runtime.profiles import kernel_name
from tests.runtime.machines import machine
from tests.waiting import SECONDS, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    profiles = tmp_path_factory.mktemp("profiles") / "profiles.json"
    with sy.local(machine(others=1), profiles=profiles) as found:
        yield found


@sy.kernel
def add(*values):
    return sum(values)


@sy.kernel
def make(size, fill=1.0):
    import numpy as np

    return np.full(size, fill)


@sy.kernel
def total(parts):
    return float(sum(part.sum() for part in (parts.values() if isinstance(parts, dict) else parts)))


@sy.kernel
def fail(text):
    raise LookupError(text)


@sy.kernel
def sleep(path="", seconds=3600.0):
    import pathlib
    import time

    if path:
        pathlib.Path(path).write_text("")
    time.sleep(seconds)
    return "slept"


@sy.kernel
def process():
    import os

    return os.getpid()


def one(kernel, *args, **kwargs):
    """A graph of one task."""
    graph = sy.graph(kernel.name)
    graph.task(kernel, *args, **kwargs)
    return graph


def still_well(cluster: sy.Cluster) -> bool:
    return cluster.submit(one(add, 20, 22)).result(SECONDS) == 42


# -------------------------------------------------------------------- results


def test_a_job_results_in_what_its_last_task_returned(cluster: sy.Cluster) -> None:
    graph = sy.graph("sum")
    graph.task(add, graph.task(add, 1, 2), graph.task(add, 3, 4), 5)
    job = cluster.submit(graph)
    assert job.result(SECONDS) == 15
    assert job.status == "done" and job.wait(0) and job.name == "sum"


def test_several_last_tasks_make_a_tuple_and_named_outputs_a_dict(cluster: sy.Cluster) -> None:
    graph = sy.graph("two")
    first, second = graph.task(add, 1), graph.task(add, 2)
    assert cluster.submit(graph).result(SECONDS) == (1, 2)
    third = graph.task(add, first, second)
    graph.output("both", third)
    graph.output("first", first)
    assert cluster.submit(graph).result(SECONDS) == {"both": 3, "first": 1}


def test_functions_of_jobs_that_are_over_are_forgotten_when_there_are_many(
    cluster: sy.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony.runtime.cluster.MAX_CACHED_FUNCTIONS", 2)

    def numbered(number):
        @sy.kernel(name=f"number-{number}")
        def kernel():
            return number

        return kernel

    kernels = [numbered(number) for number in range(6)]
    for _ in range(2):  # those that were forgotten are sent again
        assert [cluster.submit(one(kernel)).result(SECONDS) for kernel in kernels] == list(range(6))
    assert len(cluster._functions) <= 4


@pytest.mark.parametrize("wrap", [list, tuple, lambda parts: dict(enumerate(parts))], ids=["list", "tuple", "dict"])
def test_handles_may_be_within_containers(cluster: sy.Cluster, wrap) -> None:
    graph = sy.graph("containers")
    graph.task(total, wrap([graph.task(make, 10, fill) for fill in (1.0, 2.0)]))
    assert cluster.submit(graph).result(SECONDS) == 30.0


def test_large_arrays_come_back_as_they_were(cluster: sy.Cluster) -> None:
    given = np.random.default_rng(0).random((512, 257))
    graph = sy.graph("large")
    same = graph.task(add, given)
    graph.task(add, same, same)
    answer = cluster.submit(graph).result(SECONDS)
    np.testing.assert_array_equal(answer, given * 2)
    answer[0, 0] = 7.0  # it is the caller's own


def test_a_kernel_that_writes_to_its_argument_does_not_change_it_for_others(cluster: sy.Cluster) -> None:
    @sy.kernel
    def spoil(array):
        array[:] = -1.0
        return float(array.sum())

    graph = sy.graph("spoil")
    array = graph.task(make, 100_000)
    graph.output("spoilt", graph.task(spoil, array))
    graph.output("sum", graph.task(total, [array]))
    assert cluster.submit(graph).result(SECONDS) == {"spoilt": -100_000.0, "sum": 100_000.0}


def test_functions_of_a_script_need_no_module(tmp_path: Path) -> None:
    """And no `if __name__ == "__main__"`: scripts and notebooks have neither."""
    script = """
        import symphony as sy
        from tests.runtime.machines import machine

        offset = 40

        @sy.kernel
        def shifted(number):
            return number + offset

        graph = sy.graph("script")
        graph.task(shifted, graph.task(shifted, 2))
        with sy.local(machine(slots=1), profiles="profiles.json") as cluster:
            print(cluster.submit(graph).result(60))
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    root = Path(__file__).parents[2]
    known = os.pathsep.join([str(root / "src"), str(root)])
    run = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": known, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert run.stdout.split() == ["82"], run.stderr
    assert json.loads((tmp_path / "profiles.json").read_text())["timings"][0]["runs"] == 2


def test_many_jobs_at_once_each_get_their_own(cluster: sy.Cluster) -> None:
    jobs = []
    for number in range(40):  # more than the core has slots for
        graph = sy.graph(f"job-{number}")
        graph.task(add, graph.task(add, number), graph.task(add, number))
        jobs.append(cluster.submit(graph))
    assert [job.result(SECONDS) for job in jobs] == [2 * number for number in range(40)]


def test_jobs_may_be_submitted_by_several_threads(cluster: sy.Cluster) -> None:
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        answers[number] = cluster.submit(one(add, number, 1)).result(SECONDS)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert answers == {number: number + 1 for number in range(8)}


def test_results_can_be_read_after_the_cluster_is_closed(tmp_path: Path) -> None:
    with sy.local(machine(others=1), profiles=tmp_path / "p.json") as cluster:
        job = cluster.submit(one(make, 100_000, 2.0))
    assert job.result(0).sum() == 200_000.0
    with pytest.raises(sy.EngineError, match="closed"):
        cluster.submit(one(add, 1))
    cluster.close()  # once more does nothing


def test_a_cluster_that_nobody_closed_ends_quietly_with_its_program(tmp_path: Path) -> None:
    program = "import symphony as sy\ncluster = sy.local(profiles='p.json')\nprint(cluster.topology.name)\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_leaving_by_an_exception_does_not_wait_for_jobs(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sy.local(machine(others=1), profiles=tmp_path / "p.json") as cluster:
        job = cluster.submit(one(sleep))
        1 / 0  # noqa: B018
    with pytest.raises(sy.EngineError, match="closed"):
        job.result(0)


# -------------------------------------------------------------------- implementations and profiles


def test_every_implementation_is_tried_before_one_is_preferred(cluster: sy.Cluster) -> None:
    @sy.kernel(device="cpu")
    def where():
        import time

        time.sleep(0.2)  # far more than a busy machine takes for nothing
        return "cpu"

    @where.implementation(device="big")
    def where_big():
        return "big"

    graph = sy.graph("both")
    for _ in range(6):
        graph.task(where)
    first = cluster.submit(graph).result(SECONDS)
    assert {"cpu", "big"} <= set(first)
    # Nobody else is there: the fast one is free whenever one is wanted, and is known to be the faster by far.
    for _ in range(3):
        assert cluster.submit(one(where)).result(SECONDS) == "big"
    key = where.key
    assert cluster.profiles[key, "small"].seconds(0) > cluster.profiles[key, "big"].seconds(0)
    assert any(row.kernel == kernel_name(key) and row.runs for row in cluster.profiles.rows)
    assert "where on big" in str(cluster.profiles)


def test_while_something_runs_the_machine_tells_what_others_do(cluster: sy.Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"

    @sy.kernel
    def waits(path):
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.01)

    graph = sy.graph("waits")
    graph.task(waits, str(go))
    job = cluster.submit(graph)
    wait_until(lambda: "cpu/compute" in cluster.others)
    go.touch()
    job.result(SECONDS)
    load, deviation = cluster.others["cpu/compute"]
    assert load >= 0.0 and 0.0 < deviation <= 1.0


@pytest.mark.skipif(not Path("/proc/pressure").is_dir(), reason="this system tells no pressure")
def test_what_the_machine_tells_while_a_kernel_runs_is_kept_with_its_times(cluster: sy.Cluster, tmp_path: Path) -> None:
    @sy.kernel
    def long(running, go):
        import pathlib
        import time

        pathlib.Path(running).touch()
        while not pathlib.Path(go).exists():
            time.sleep(0.01)

    job = cluster.submit(one(long, str(tmp_path / "running"), str(tmp_path / "go")))
    wait_until((tmp_path / "running").exists)
    began_s = time.monotonic()
    wait_until(lambda: cluster._loop.observer.monitor.during(0, began_s, time.monotonic()))
    (tmp_path / "go").touch()
    job.result(SECONDS)
    seen = cluster.profiles.seen(long.key, "small")
    assert 0.0 <= seen["cpu pressure"].mean <= 1.0 and seen["memory pressure"].runs == 1


def test_a_kernel_is_a_function_that_can_be_called() -> None:
    assert add(1, 2) == 3 and "add" in repr(add)
    with pytest.raises(sy.WorkloadError, match="two implementations for 'cpu'"):
        add.implementation(device="cpu")(lambda: None)


def test_a_device_that_does_not_come_up_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # JAX finds no GPU
    found = machine(others=1)
    found = replace(found, kinds=(found.kinds[0], replace(found.kinds[1], type="gpu")))
    with pytest.warns(sy.SymphonyWarning, match="here/big-0 is left out: JAX finds no gpu"):
        cluster = sy.local(found, profiles=tmp_path / "p.json")
    with cluster:
        assert len(cluster.topology.devices) == 1 and still_well(cluster)


# -------------------------------------------------------------------- what goes wrong


def test_a_kernel_that_raises_fails_its_job_with_its_traceback(cluster: sy.Cluster) -> None:
    graph = sy.graph("bad")
    graph.task(add, graph.task(fail, "no such read"))
    with pytest.raises(sy.KernelError) as caught:
        cluster.submit(graph).result(SECONDS)
    error = caught.value
    assert "'fail' raised LookupError: no such read" in error.message and "task 'fail-0'" in error.where
    assert "raise LookupError(text)" in error.traceback and error.traceback.strip() in str(error)
    assert isinstance(error.__cause__, LookupError)
    assert still_well(cluster)


def test_other_jobs_go_on_while_one_fails(cluster: sy.Cluster) -> None:
    bad, good = sy.graph("bad"), sy.graph("good")
    for number in range(8):
        bad.task(fail, str(number))
        good.task(add, number)
    bad_job, good_job = cluster.submit(bad), cluster.submit(good)
    assert good_job.result(SECONDS) == tuple(range(8))
    with pytest.raises(sy.KernelError):
        bad_job.result(SECONDS)
    assert bad_job.status == "failed"
    assert still_well(cluster)


def test_what_a_kernel_returns_must_be_sendable(cluster: sy.Cluster) -> None:
    @sy.kernel
    def lazily():
        return (number for number in range(3))

    with pytest.raises(sy.KernelError, match="a value that cannot be sent: TypeError: cannot pickle 'generator'"):
        cluster.submit(one(lazily)).result(SECONDS)
    assert still_well(cluster)


def test_a_kernel_that_cannot_be_loaded_where_it_runs_says_what_is_missing(
    cluster: sy.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_here")
    exec("def helper():\n    return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    helper = module.helper

    @sy.kernel
    def uses():
        return helper()

    with pytest.raises(sy.KernelError, match="could not be read: ModuleNotFoundError: No module named 'only_here'"):
        cluster.submit(one(uses)).result(SECONDS)
    assert still_well(cluster)


def test_a_kernel_may_not_end_its_process(cluster: sy.Cluster) -> None:
    @sy.kernel
    def leave():
        raise SystemExit(3)

    with pytest.raises(sy.KernelError, match="raised SystemExit: 3"):
        cluster.submit(one(leave)).result(SECONDS)
    assert still_well(cluster)


def test_a_crash_is_the_fault_of_the_kernel_that_ran(cluster: sy.Cluster) -> None:
    @sy.kernel
    def crash():
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(sy.WorkerDiedError, match="ended by SIGSEGV") as caught:
        cluster.submit(one(crash)).result(SECONDS)
    assert caught.value.signal == signal.SIGSEGV
    assert still_well(cluster)


def test_a_kernel_whose_process_is_killed_is_run_again(cluster: sy.Cluster, tmp_path: Path) -> None:
    @sy.kernel
    def once_more(path):
        import os
        import pathlib
        import time

        before = pathlib.Path(path)
        if before.exists():
            return "again"
        before.with_suffix(".pid").write_text(str(os.getpid()))
        before.with_suffix(".pid").rename(before)
        time.sleep(3600)

    path = tmp_path / "here"
    job = cluster.submit(one(once_more, str(path)))
    wait_until(path.exists)
    os.kill(int(path.read_text()), signal.SIGKILL)
    assert job.result(SECONDS) == "again"
    assert "SIGKILL" in job.explain()


def test_a_kernel_that_is_killed_every_time_fails(cluster: sy.Cluster) -> None:
    @sy.kernel(retries=1)
    def too_much():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(sy.WorkerDiedError, match=r"SIGKILL \(2 times\)") as caught:
        cluster.submit(one(too_much)).result(SECONDS)
    assert "enough memory" in caught.value.hint
    assert still_well(cluster)


def test_a_kernel_that_hangs_is_stopped_after_its_timeout(cluster: sy.Cluster) -> None:
    @sy.kernel(timeout_s=0.1)
    def hang():
        while True:
            pass

    with pytest.raises(sy.KernelTimeoutError, match=r"more than 0\.1 s"):
        cluster.submit(one(hang)).result(SECONDS)
    assert still_well(cluster)


def test_a_job_can_be_cancelled_while_it_runs(cluster: sy.Cluster, tmp_path: Path) -> None:
    graph = sy.graph("long")
    first = graph.task(sleep, str(tmp_path / "running"))
    graph.task(add, first)
    job = cluster.submit(graph)
    wait_until((tmp_path / "running").exists)
    assert job.status == "running"
    told = job.explain()
    assert "add-0" in told and "waits for sleep-0" in told
    job.cancel()
    with pytest.raises(sy.JobCancelledError):
        job.result(SECONDS)
    assert job.status == "cancelled"
    job.cancel()  # once more does nothing
    assert still_well(cluster)


def test_a_job_waits_until_one_of_its_tasks_has_started(tmp_path: Path) -> None:
    with sy.local(machine(slots=1), profiles=tmp_path / "profiles.json") as cluster:
        first = cluster.submit(one(sleep, str(tmp_path / "running")))
        second = cluster.submit(one(sleep))
        wait_until((tmp_path / "running").exists)
        wait_until(lambda: second._state.slot >= 0)  # the core has it when it has one
        assert (first.status, second.status) == ("running", "waiting")
        assert "sleep-0  waits for a device" in second.explain()
        second.cancel()
        first.cancel()
        assert second.wait(SECONDS) and second.status == "cancelled"


def test_a_result_may_not_be_there_in_time(cluster: sy.Cluster, tmp_path: Path) -> None:
    job = cluster.submit(one(sleep, str(tmp_path / "running")))
    with pytest.raises(TimeoutError, match="it continues"):
        job.result(0.01)
    job.cancel()
    assert job.wait(SECONDS)


def test_cancelled_work_leaves_no_slot_behind(cluster: sy.Cluster, tmp_path: Path) -> None:
    """A leak of one job slot or lane for each cancelled job would end this soon."""
    for number in range(20):
        graph = sy.graph("short")
        for k in range(4):
            graph.task(sleep, str(tmp_path / f"{number}-{k}") if k == 0 else "")
        job = cluster.submit(graph)
        if number % 4 == 0:
            wait_until((tmp_path / f"{number}-0").exists)
        job.cancel()
        assert job.wait(SECONDS)
    assert still_well(cluster)


def test_an_argument_that_cannot_be_sent_is_named_at_once(cluster: sy.Cluster) -> None:
    with pytest.raises(sy.WorkloadError, match="argument 'parts' cannot be sent") as caught:
        cluster.submit(one(total, parts=threading.Lock()))
    assert "task 'total-0'" in caught.value.where


def test_a_kernel_that_cannot_be_sent_is_named_at_once(cluster: sy.Cluster) -> None:
    lock = threading.Lock()

    @sy.kernel
    def locked():
        return lock

    with pytest.raises(sy.WorkloadError, match="implementation for 'cpu' cannot be sent"):
        cluster.submit(one(locked))


def test_a_task_that_no_device_can_run_is_refused_at_once(cluster: sy.Cluster) -> None:
    @sy.kernel(device="tpu")
    def elsewhere():
        return None

    with pytest.raises(sy.InfeasibleError, match="implemented for tpu"):
        cluster.submit(one(elsewhere))
    assert still_well(cluster)


def test_arguments_that_there_is_no_room_for_are_refused_and_nothing_is_kept(
    cluster: sy.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = cluster._engine
    room, put = [2], engine.put

    def full(value):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        return put(value)

    graph = sy.graph("large")
    for _ in range(3):
        graph.task(total, [np.zeros(100_000)])
    cluster.submit(one(total, [np.zeros(3)])).result(SECONDS)  # its code has been sent
    before = set(os.listdir(engine._folder))
    monkeypatch.setattr(engine, "put", full)
    with pytest.raises(sy.EngineError, match=r"no room for its 2\.4 MB of arguments: No space left"):
        cluster.submit(graph)
    assert set(os.listdir(engine._folder)) == before


def test_a_graph_that_waits_for_itself_is_refused(cluster: sy.Cluster) -> None:
    graph = sy.graph("loop")
    parts: list = []
    first = graph.task(total, parts)
    parts.append(graph.task(add, first))  # changed after it was passed
    with pytest.raises(sy.CycleError, match="total-0, add-0"):
        cluster.submit(graph)


def test_a_larger_graph_makes_the_scheduler_grow_while_others_run(cluster: sy.Cluster, tmp_path: Path) -> None:
    long = cluster.submit(one(sleep, str(tmp_path / "running"), 0.5))
    wait_until((tmp_path / "running").exists)
    graph = sy.graph("large")
    parts = [graph.task(add, number) for number in range(80)]  # more than there is room for at first
    graph.task(add, *parts)
    assert cluster.submit(graph).result(SECONDS) == sum(range(80))
    assert long.result(SECONDS) == "slept"
    assert still_well(cluster)


# -------------------------------------------------------------------- what is told


def test_an_explanation_names_every_task_and_where_it_ran(cluster: sy.Cluster) -> None:
    graph = sy.graph("told")
    graph.task(add, graph.task(make, 10))
    job = cluster.submit(graph)
    job.result(SECONDS)
    lines = job.explain().splitlines()
    assert lines[0].startswith(f"job {job.id} ('told'): done after")
    assert [line.split()[0] for line in lines[1:]] == ["make-0", "add-0"]
    assert all("on here/" in line and "expected" in line for line in lines[1:])


def test_a_trace_shows_what_ran_where(cluster: sy.Cluster, tmp_path: Path) -> None:
    graph = sy.graph("traced")
    graph.task(total, [graph.task(make, 10) for _ in range(3)])
    job = cluster.submit(graph)
    job.result(SECONDS)
    job.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = {
        event["name"]: event for event in events if event["ph"] == "X" and event["cat"] not in ("waiting", "transfer")
    }
    assert sorted(spans) == ["make-0", "make-1", "make-2", "total-0"]
    ends = [spans[f"make-{k}"]["ts"] + spans[f"make-{k}"]["dur"] for k in range(3)]
    assert spans["total-0"]["ts"] >= max(ends)
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named <= {"here/cpu", "here/big-0", "waiting"} and named - {"waiting"}


def test_decisions_are_counted_and_timed(cluster: sy.Cluster) -> None:
    before = cluster.statistics.decisions
    cluster.submit(one(add, 1)).result(SECONDS)
    assert cluster.statistics.decisions > before
    assert 0 < cluster.statistics.latency_quantile(0.5) <= cluster.statistics.latency_quantile(0.99)


def test_jobs_that_ran_are_a_workload_of_the_simulator(cluster: sy.Cluster) -> None:
    graph = sy.graph("mapped")
    graph.task(total, [graph.task(make, 1_000), graph.task(make, 2_000)])
    jobs = [cluster.submit(graph) for _ in range(2)]
    assert all(job.result(SECONDS) == 3_000.0 for job in jobs)
    work = cluster.workload(jobs, held=False)
    assert len(work.jobs) == 2 and work.jobs[0].arrival_s == 0.0 < work.jobs[1].arrival_s
    let_in = cluster.workload(jobs).jobs
    assert all(later.arrival_s > job.arrival_s for later, job in zip(let_in, work.jobs, strict=True))
    first = work.graphs[0]
    assert [task.kernel for task in first.tasks] == ["make", "make", "total"] and len(first.edges) == 2
    assert first.tasks[2].size > 8 * 3_000  # bytes that it was given
    assert all(0 < job.completion_s < SECONDS for job in jobs)
    assert 0 < cluster.statistics.mean_handling_s < SECONDS
    held, alone = (cluster.workload(jobs, held=held).kernels for held in (True, False))
    for one_held, one_alone in zip(held, alone, strict=True):
        assert one_held.implementations["small"].fixed_s > one_alone.implementations["small"].fixed_s
    with pytest.raises(sy.InputError, match="have not finished"):
        cluster.workload([cluster.submit(one(sleep, seconds=0.2))])


def test_a_machine_is_described_by_a_file_as_everywhere_else() -> None:
    file = Path(__file__).parents[2] / "examples" / "two_cpus.toml"
    with sy.local(str(file)) as cluster:
        assert [device.name for device in cluster.topology.devices] == ["here/cpu-0", "here/cpu-1"]
    with pytest.raises(sy.InputError, match="unknown topology 'nonsense'"):
        sy.local("nonsense")


def test_cores_and_memory_are_held_refused_and_enforced(tmp_path: Path) -> None:
    topology = machine()
    topology = replace(topology, kinds=(replace(topology.kinds[0], memory=1e9), *topology.kinds[1:]))

    def alone(folder, name):
        """How many others run at the same time, and the number of threads."""
        import os
        import pathlib
        import time

        here = pathlib.Path(folder, name)
        here.touch()
        time.sleep(0.1)
        others = len(os.listdir(folder)) - 1
        here.unlink()
        return others, os.environ["OMP_NUM_THREADS"]

    def hold():
        import time

        held = [b"x" * 1_000_000 for _ in range(200)]
        time.sleep(3600)
        return len(held)

    threads = sy.kernel(cores=2, name="threads")(alone)
    large = sy.kernel(memory="600 MB", name="large")(alone)
    with sy.local(topology, profiles=tmp_path / "profiles.json") as cluster:
        for kernel, cores in ((threads, "2"), (large, "1")):
            folder = tmp_path / kernel.name
            folder.mkdir()
            graph = sy.graph("side by side")
            for number in range(4):
                graph.task(kernel, str(folder), str(number))
            assert cluster.submit(graph).result() == ((0, cores),) * 4  # two slots, but never two at once
        with pytest.raises(sy.KernelLimitError, match="100 MB the kernel asked for"):
            cluster.submit(one(sy.kernel(memory="100 MB")(hold))).result()
        with pytest.raises(sy.InfeasibleError, match="3 cores, and the largest device of 'test machine' has 2"):
            cluster.submit(one(sy.kernel(cores=3)(hold)))
        with pytest.raises(sy.InfeasibleError, match="needs 2 GB of memory"):
            cluster.submit(one(sy.kernel(memory="2 GB")(hold)))
