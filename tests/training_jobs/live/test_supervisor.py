"""Training jobs, by the core and real processes: killed, stopped, and gone on with."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.estimation.runs import PastRun
from symphony.runtime.cluster import Cluster
from symphony.training_jobs.live import supervisor as training_supervisor
from tests.runtime.machines import machine
from tests.runtime.test_loop import StopsForPriority, nothing_left
from tests.waiting import SECONDS, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    """A CPU with one slot; what is urgent goes first."""
    folder = tmp_path_factory.mktemp("runs")
    options: dict[str, Any] = {"policy": StopsForPriority(), "profiles": folder / "p.json", "policy_timeout_s": SECONDS}
    with sy.local(machine(slots=1), checkpoints=folder / "saved", **options) as found:
        yield found
    assert not list((folder / "saved").iterdir())


@sy.training(steps=1000, every_s=600.0)
def train(job, notes, last):
    """Waits at step 20 to be killed or stopped, unless it has gone on; saves when it is asked, and every ten steps."""
    import os
    import pathlib
    import time

    gone = job.restore() or []
    pathlib.Path(notes, f"{job.began}-{os.getpid()}").touch()
    for step in job.steps():
        gone.append(step)
        if step == 20 and not job.began:
            pathlib.Path(notes, "waits").touch()
            while not job.save_now:
                time.sleep(0.002)
            job.save(gone)
            time.sleep(60)
        if job.save_now or step % 10 == 0:
            job.save(gone)
        if step == last:
            return job.began, gone == list(range(1, last + 1))


@sy.kernel
def urgent():
    return "at once"


def one(kernel: Any, *args: Any) -> sy.graph:
    graph = sy.graph(kernel.name)
    graph.task(kernel, *args)
    return graph


def no_folder(cluster: Cluster) -> None:
    root = cluster._checkpoints._root
    assert root is not None
    wait_until(lambda: not list(root.iterdir()))


def test_a_run_that_is_killed_goes_on_from_what_it_saved(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(one(train, str(tmp_path), 25))
    wait_until((tmp_path / "waits").exists)
    run = job._state.runs[0]
    wait_until(lambda: run.progress is not None and run.progress.step >= 10)
    assert run.progress is not None and run.progress.saved == 10 and run.progress.saves == 1
    [before] = tmp_path.glob("0-*")
    os.kill(int(before.name[2:]), signal.SIGKILL)
    assert job.result(SECONDS) == (10, True)
    told = job.explain()
    assert "returned after 25 of 1000 steps" in told and "saved 2 times, lost once; resumed from step 10" in told
    no_folder(cluster)
    nothing_left(cluster)


def test_what_is_preempted_saves_first_and_goes_on_from_there(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(one(train, str(tmp_path), 25))
    wait_until((tmp_path / "waits").exists)
    assert cluster.submit(one(urgent), priority=5).result(SECONDS) == "at once"
    assert job.result(SECONDS) == (20, True)  # not from step 10, which it had saved unasked
    assert "stopped once; resumed from step 20" in job.explain() and not cluster.statistics.fallbacks
    nothing_left(cluster)


@sy.training(steps=3, restore_s=0.1)
def often(job, notes):
    """Waits in every step to be stopped."""
    import pathlib
    import time

    for step in job.steps():
        pathlib.Path(notes, str(step)).touch()
        while step < 3 and not job.save_now:
            time.sleep(0.002)
        job.save(step)
        while step < 3:
            time.sleep(1)
    return job.began


def test_what_was_preempted_and_went_on_may_be_preempted_again(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(one(often, str(tmp_path)))
    for step in (1, 2):
        wait_until((tmp_path / str(step)).exists)
        assert cluster.submit(one(urgent), priority=5).result(SECONDS) == "at once"
    assert job.result(SECONDS) == 2
    nothing_left(cluster)


@sy.training(steps=5)
def finishes_instead(job, notes):
    import pathlib
    import time

    pathlib.Path(notes, "runs").touch()
    while not job.save_now:
        time.sleep(0.002)
    return "done before it was stopped"


@sy.training(steps=5, retries=0)
def deaf(job, notes):
    import pathlib
    import time

    again = pathlib.Path(notes, "runs").exists()
    pathlib.Path(notes, "again" if again else "runs").touch()
    while not pathlib.Path(notes, "go").exists():
        time.sleep(0.01)
    return "from the beginning"


@pytest.mark.parametrize(("kernel", "value"), [(finishes_instead, "done before"), (deaf, "from the beginning")])
def test_what_ends_or_does_not_answer_is_waited_for_no_longer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Any, value: str
) -> None:
    monkeypatch.setattr(training_supervisor, "SAVE_GRACE_S", 0.3 if kernel is deaf else 60.0)
    job = cluster.submit(one(kernel, str(tmp_path)))
    wait_until((tmp_path / "runs").exists)
    assert cluster.submit(one(urgent), priority=5).result(SECONDS) == "at once"
    if kernel is deaf:  # what would have it begin anew for ever is refused from now on
        wait_until((tmp_path / "again").exists)
        later, fallbacks = cluster.submit(one(urgent), priority=5), cluster.statistics.fallbacks
        wait_until(lambda: fallbacks["refused"])
        (tmp_path / "go").touch()
        assert later.result(SECONDS) == "at once"
        assert len(job._state.runs[0].attempts) == 2
        fallbacks.clear()  # other tests see to it that there are none
    assert job.result(SECONDS).startswith(value)
    nothing_left(cluster)


def test_a_job_that_is_cancelled_while_it_trains_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(one(train, str(tmp_path), 25))
    wait_until((tmp_path / "waits").exists)
    job.cancel()
    with pytest.raises(sy.JobCancelledError):
        job.result(SECONDS)
    no_folder(cluster)
    nothing_left(cluster)


@sy.training(steps=100, retries=1)
def dies_often(job, notes, helps):
    """Is killed three times; with `helps`, after it has saved something."""
    import os
    import pathlib
    import signal

    runs = pathlib.Path(notes)
    (runs / str(len(list(runs.iterdir())))).touch()
    for step in job.steps():
        if helps and step == job.began + 10:
            job.save("something")
        if step == job.began + 11 and len(list(runs.iterdir())) < 4:
            os.kill(os.getpid(), signal.SIGKILL)
    return job.began


def test_runs_that_are_lost_count_until_one_has_saved(cluster: Cluster, tmp_path: Path) -> None:
    saves, does_not = tmp_path / "saves", tmp_path / "does not"
    saves.mkdir()
    does_not.mkdir()
    assert cluster.submit(one(dies_often, str(saves), True)).result(SECONDS) == 30
    with pytest.raises(sy.WorkerDiedError, match=r"\(2 times\)"):
        cluster.submit(one(dies_often, str(does_not), False)).result(SECONDS)


def test_a_training_job_is_never_taken_for_short_and_sent_ahead(cluster: Cluster, tmp_path: Path) -> None:
    ran = PastRun(often.key, "small", 0, 0.0, 1e-4, math.nan)  # when it was a kernel like others
    for _ in range(5):
        cluster._profiles.learn(ran, 1.0, 1e-4)
    job = cluster.submit(one(often, str(tmp_path)))
    wait_until((tmp_path / "1").exists)
    job.cancel()
    nothing_left(cluster)
    assert cluster._loop._ahead._seconds(job._state.runs[0], 0) == math.inf


def test_a_training_function_can_be_called_and_run_here() -> None:
    @sy.training(steps=4, workers=2, servers=1)
    def add(job, start):
        assert job.restore() is None and not job.is_server
        return start + sum(job.steps())

    assert add(5) == 15 and one(add, 5).run() == 15
    assert add.options.preemptible and add.options.training.steps == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": True}, "steps is True"),
        ({"steps": 5, "workers": 2, "servers": 2}, "2 of 2 workers are parameter servers"),
        ({"steps": 5, "parameters": math.nan}, "parameters is nan"),
        ({"steps": 5, "operations": 1e19}, r"operations is 1e\+19"),
        ({"steps": 5, "checkpoint_s": -1.0}, "checkpoint_s is -1.0"),
        ({"steps": 5, "restore_s": math.inf}, "restore_s is inf"),
        ({"steps": 5, "every_s": 0}, "every_s is 0"),
        ({"steps": 5, "every_s": math.nan}, "every_s is nan"),
    ],
)
def test_what_makes_no_sense_is_refused(options: Any, said: str) -> None:
    with pytest.raises(sy.WorkloadError, match=said) as refused:

        @sy.training(**options)
        def train(job):
            """Never."""

    assert refused.value.hint
