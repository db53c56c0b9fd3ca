"""Rounds: what counts as a report, what is done when one ends, and that nobody waits for who learns."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import Any

import jax
import pytest

import symphony as sy
from symphony import policies
from symphony.engines.engine import Stored
from symphony.engines.local import LocalEngine
from symphony.problem.errors import EngineError, InputError
from symphony.problem.topology import Topology
from symphony.runtime.cluster import Cluster
from symphony.runtime.graph import submission
from symphony.runtime.jobs import Attempt, JobState, TaskRun
from symphony.runtime.profiles import Profiles
from symphony.runtime.scheduler import Scheduler
from symphony.training_jobs.live.checkpoint_folders import CheckpointFolders
from symphony.training_jobs.live.progress import Progress
from symphony.training_jobs.live.rounds import JobPosition, RoundLearner, TrainingJobTracker
from symphony.training_jobs.live.speed_beliefs import JobKind, RoundObservation, SpeedBeliefs
from tests.runtime.machines import machine
from tests.waiting import SECONDS, wait_until

A, B = JobKind("a", 0, 0.0, 1e9, 1, 0), JobKind("b", 0, 0.0, 1e9, 1, 0)


class Recording(SpeedBeliefs):
    """Speeds, and what they were taught."""

    def __init__(self) -> None:
        super().__init__(sy.topology("gpu24"))
        self.taught: list[list[RoundObservation]] = []
        self.fails = False
        self.go_on = threading.Event()
        self.go_on.set()

    def learn(self, seen: Any, now_s: float, present: Any) -> Any:
        """Take a note of it."""
        self.taught.append(list(seen))
        assert self.go_on.wait(30.0)
        if self.fails:
            raise ValueError("no")
        return super().learn(seen, now_s, present)


def stand(step: float, at_s: float, **other: Any) -> JobPosition:
    usual = JobPosition(7, 1, A, 0, False, frozenset(), (), -math.inf, step, at_s)
    return usual._replace(**other)


@pytest.fixture
def rounds() -> RoundLearner:
    found = RoundLearner(Recording(), 360.0, threads=False)
    found.update([A], 0.0, lambda: None)
    return found


def taught(rounds: RoundLearner, *stands: JobPosition, now_s: float = 360.0) -> list[RoundObservation]:
    """What the end of a round has taught."""
    rounds.end(stands, [A], now_s, lambda: None)
    assert isinstance(rounds.speeds, Recording)
    return rounds.speeds.taught[-1]


def test_rounds_go_on_for_as_long_as_there_are_training_jobs() -> None:
    rounds, told = RoundLearner(Recording(), 360.0, threads=False), []
    rounds.update([], 10.0, lambda: told.append("believe"))
    assert rounds.due_s == math.inf and not told
    rounds.update([A], 10.0, lambda: told.append("believe"))
    assert rounds.due_s == 40.0 and told == ["believe"]  # what was kept of its kind counts at once
    rounds.update([A], 20.0, lambda: told.append("believe"))
    assert rounds.due_s == 40.0 and told == ["believe"]
    rounds.update([A, B], 30.0, lambda: told.append("believe"))
    assert told == ["believe"] * 2
    rounds.end([], [A, B], 371.0, lambda: told.append("ended"))
    assert rounds.due_s > 371.0 and told[2:] == ["ended"]
    rounds.update([], 380.0, lambda: None)
    assert rounds.due_s == math.inf


def test_rounds_are_short_until_a_new_kind_has_shown_something(rounds: RoundLearner) -> None:
    assert rounds.due_s == 30.0
    rounds.end([stand(10, 25.0)], [A], 30.0, lambda: None)
    assert rounds.due_s == 60.0
    rounds.end([stand(40, 55.0)], [A], 60.0, lambda: None)
    assert taught(rounds, stand(70, 85.0), now_s=90.0) and rounds.due_s == 450.0
    rounds.update([A, B], 200.0, lambda: None)
    assert rounds.due_s == 230.0  # somebody else has come
    for now_s in (230.0, 260.0, 290.0, 320.0):  # and says nothing
        rounds.end([], [A, B], now_s, lambda: None)
    assert rounds.due_s == 320.0 + 360.0


def test_who_ran_through_a_round_has_shown_its_speed(rounds: RoundLearner) -> None:
    assert taught(rounds, stand(10, 5.0)) == []
    assert taught(rounds, stand(730, 365.0), now_s=720.0) == [RoundObservation(7, A, 0, (), False, 360.0, 720)]
    near = stand(740, 725.0, near=frozenset({3}), neighbours=(B,), spread=True)
    assert taught(rounds, near, now_s=1080.0) == []  # somebody has come
    later = near._replace(step=840, at_s=1085.0)
    assert taught(rounds, later, now_s=1440.0) == [RoundObservation(7, A, 0, (B,), True, 360.0, 100)]


@pytest.mark.parametrize(
    "after",
    [
        stand(730, 365.0, attempt=2),  # it was stopped, and went on
        stand(730, 365.0, near=frozenset({3})),  # somebody has come
        stand(730, 365.0, since_s=100.0),  # somebody was there, and has left
        stand(730, 365.0, neighbours=None),  # who is beside it is no training job
        stand(10, 365.0),  # it did no step
    ],
)
def test_what_is_no_report(rounds: RoundLearner, after: JobPosition) -> None:
    taught(rounds, stand(10, 5.0))
    assert taught(rounds, after, now_s=720.0) == []


def test_steps_longer_than_a_round_are_measured_over_several(rounds: RoundLearner) -> None:
    taught(rounds, stand(1, 5.0))
    assert taught(rounds, stand(1, 5.0), now_s=720.0) == []
    assert taught(rounds, stand(2, 805.0), now_s=1080.0) == [RoundObservation(7, A, 0, (), False, 800.0, 1)]


def test_nobody_waits_for_who_learns(caplog: pytest.LogCaptureFixture) -> None:
    speeds = Recording()
    rounds, posted, done = RoundLearner(speeds, 360.0), [], []
    speeds.go_on.clear()
    rounds.done = posted.append
    rounds.end([], [A], 360.0, lambda: done.append(1))
    assert not done and not posted
    with caplog.at_level(logging.WARNING, "symphony.runtime"):
        rounds.end([], [A], 720.0, lambda: done.append(2))  # it is late: the round ends without it
    assert done == [2] and "not used" in caplog.text
    speeds.go_on.set()
    rounds.close()
    assert len(posted) == 1 and done == [2]
    posted[0]()
    assert done == [2, 1] and speeds._tables.kinds == (A,)
    with pytest.raises(EngineError, match="closed"):
        rounds.ask(lambda: None).result()


def test_what_cannot_be_learned_changes_nothing_and_the_round_ends(
    rounds: RoundLearner, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(rounds.speeds, Recording)
    before, done = rounds.speeds._tables, []
    rounds.speeds.fails = True
    rounds.end([], [A], 360.0, lambda: done.append(1))
    assert (
        done == [1] and rounds.speeds._tables is before and "learning the speeds of training jobs failed" in caplog.text
    )


def test_what_is_asked_takes_no_accelerator_and_fails_by_its_own_name() -> None:
    def wrong() -> None:
        raise RuntimeError("of its own")

    cpu = jax.devices("cpu")[0]
    for threads in (True, False):
        rounds = RoundLearner(Recording(), 360.0, threads=threads)
        assert rounds.ask(lambda: jax.config.jax_default_device).result() == cpu
        with pytest.raises(RuntimeError, match="of its own"):
            rounds.ask(wrong).result()
        rounds.close()


@sy.training(steps=1000, kind="a")
def trains(job, *after):
    """Never run."""


class Place:
    """Training jobs that somebody has placed, and who attends to them."""

    def __init__(self, topology: Topology, folder: Path, *, keep: bool = True) -> None:
        self.on: list[set[TaskRun]] = [set() for _ in topology.devices]
        self.rounds = RoundLearner(SpeedBeliefs(topology), 360.0, threads=False)
        self.numbers = iter(range(100))
        self.scheduler = Scheduler(topology, Profiles(), policies.named("eft-belief"), timeout_s=SECONDS)
        checkpoints, left_s = CheckpointFolders(folder, keep=keep), [-math.inf] * len(self.on)
        self.attendance = TrainingJobTracker(self.rounds, checkpoints, self.scheduler, self.on, left_s, lambda: None)

    def job(self, number: int, *graph: tuple[int, ...], kernel: Any = trains) -> list[TaskRun]:
        """Those of a graph; each reads those before it."""
        made = sy.graph("g")
        handles: list[Any] = []
        for reads in graph:
            handles.append(made.task(kernel, *(handles[k] for k in reads)))
        job = JobState(number, submission(made), [Stored("", 1)] * len(graph), 0)
        job.row = number
        self.attendance.admitted(job)
        return job.runs

    def runs(
        self,
        run: TaskRun,
        devices: tuple[int, ...],
        sent_s: float,
        marks: tuple[tuple[float, int], ...],
        saved: int = 0,
    ) -> None:
        run.number = next(self.numbers)
        run.progress = Progress("", 0, marks[-1][1], saved, marks=marks)
        run.attempts.append(Attempt(("x",), sent_s, 1.0, 1.0, progress=run.progress))
        for device in devices:
            self.on[device].add(run)

    def stand(self, run: TaskRun) -> JobPosition | None:
        return self.attendance._position(run)


def test_who_came_after_the_last_step_was_not_beside_it_all_the_time(tmp_path: Path) -> None:
    place = Place(machine(slots=2), tmp_path)
    [one], [other] = place.job(1, ()), place.job(2, ())
    place.runs(one, (0,), 0.0, ((90.0, 1),))
    place.runs(other, (0,), 200.0, ((350.0, 5),))
    first = place.stand(one)
    assert one.progress is not None and first is not None and first.since_s == 200.0 > first.at_s
    place.rounds.end([first], [first.kind], 360.0, lambda: None)
    later = first._replace(step=2, at_s=400.0)
    speeds = place.rounds.speeds
    place.rounds.end([later], [first.kind], 720.0, lambda: None)
    assert not speeds.learner.beliefs.store.samples  # it was alone for half of that step
    place.rounds.end([later._replace(step=4, at_s=800.0)], [first.kind], 1080.0, lambda: None)
    [sample] = speeds.learner.beliefs.store.samples
    assert math.exp(sample.log_s) == pytest.approx(200.0) and sample.neighbours == (0,)


def test_several_of_one_graph_are_heard_each_and_go_by_the_same_names_after_a_restart(tmp_path: Path) -> None:
    topology = machine(slots=2)
    place = Place(topology, tmp_path)
    both = place.job(7, (), ())
    for run in both:
        place.runs(run, (0,), 0.0, ((90.0, 1),))
    stands = [stand for run in both if (stand := place.stand(run)) is not None]
    place.rounds.end(stands, [stands[0].kind], 360.0, lambda: None)
    place.rounds.end([s._replace(step=9, at_s=400.0) for s in stands], [stands[0].kind], 720.0, lambda: None)
    store = place.rounds.speeds.learner.beliefs.store
    assert len(store.samples) == 2 and not store.reasons
    told = {one.now.job for one in place.attendance.now(frozenset()).jobs}
    assert {sample.job for sample in store.samples} == told and len(told) == 2
    again = Place(topology, tmp_path)
    again.job(7, (), ())
    assert {one.now.job for one in again.attendance.now(frozenset()).jobs} == told
    other = Place(topology, tmp_path, keep=False)  # whose numbers begin anew: its job 7 is another
    other.job(7, (), ())
    assert not {one.now.job for one in other.attendance.now(frozenset()).jobs} & told


def test_the_books_say_what_is_left_of_a_job_wherever_it_is(tmp_path: Path) -> None:
    place = Place(machine(slots=2), tmp_path)
    folder = CheckpointFolders(tmp_path, keep=True).folder(3, "trains-0")
    folder.mkdir(parents=True)
    (folder / "progress").write_text('{"saved": 400}')
    [run] = place.job(3, ())
    left = place.scheduler.workload.w.units
    assert left[3, 0] == 600  # of what was saved before a restart
    for step, saved in ((500, 450), (600, 580)):
        place.runs(run, (0,), 0.0, ((90.0, step),), saved)
        place.attendance.update(0.0)
        place.attendance.update(place.rounds.due_s)
        assert left[3, 0] == 1000 - step  # while it runs
        run.number = -1
        place.on[0].clear()
        place.attendance.stopped(run)
        assert left[3, 0] == 1000 - saved  # what it did since it saved has to be done again


def test_what_is_left_of_jobs_that_may_end_early_is_learned_from_those_that_have(tmp_path: Path) -> None:
    place = Place(machine(slots=2), tmp_path)
    early = sy.training(steps=10**9, kind="early", exact=False)(lambda job: None)
    left = place.scheduler.workload.w.units

    def runs_to(number: int, step: int, *, ends: bool) -> float:
        [run] = place.job(number, (), kernel=early)
        place.runs(run, (0,), 0.0, ((90.0, step),))
        if ends:
            run.value = Stored("", 1)
        place.attendance.update(0.0)
        place.attendance.update(place.rounds.due_s)
        place.on[0].clear()
        run.job.over.set()
        return float(left[number, 0])

    before = runs_to(1, 80_000, ends=False)  # by experience with training jobs: for as long again, about
    for number in range(2, 14):
        runs_to(number, 100_000, ends=True)
    after, older = runs_to(14, 80_000, ends=False), runs_to(15, 400_000, ends=False)
    assert 10_000 < after < 0.7 * before and older > 100_000


def test_a_gang_on_devices_of_two_kinds_tells_nothing_of_either(tmp_path: Path) -> None:
    place = Place(machine(slots=2, others=2), tmp_path)
    [one], [other] = place.job(1, ()), place.job(2, ())
    place.runs(one, (0, 1), 0.0, ((90.0, 1),))
    place.runs(other, (1, 2), 0.0, ((90.0, 1),))
    assert place.stand(one) is None and place.stand(other) is not None


def test_what_is_told_for_forecasts_is_who_is_there_and_what_has_come(tmp_path: Path) -> None:
    place = Place(machine(slots=2), tmp_path)
    [gone] = place.job(1, ())
    time.sleep(0.01)
    first, second = place.job(2, (), (0,))
    gone.job.over.set()  # it was cancelled
    time.sleep(0.05)
    now = place.attendance.now(frozenset())
    assert [(one.job, one.now.task) for one in now.jobs] == [(2, first.name), (2, second.name)]
    assert now.jobs[0].now.runs_on and not now.jobs[1].now.runs_on  # it cannot start: it reads what the first will make
    assert len(now.arrived) == 3 and now.arrived[2].now.runs_on
    assert now.for_s >= 0.01 and now.silent_s >= 0.05  # they came at once, and nobody since


@pytest.mark.parametrize("round_s", [0.0, -1.0, math.nan, math.inf, "6"])
def test_a_round_takes_some_time(round_s: Any) -> None:
    with pytest.raises(InputError, match="round_s"):
        RoundLearner(Recording(), round_s)


@sy.training(steps=100_000, kind="patient", device="big", checkpoint_s=0.1, restore_s=0.1)
def patient(job, go):
    """Ends when it has gone on from what it saved and a file is there, however long the others take."""
    import os
    import time

    begun = [*(job.restore() or []), job.began]
    for _ in job.steps():
        time.sleep(0.01)
        if job.save_now:
            job.save(begun)
        if job.began and os.path.exists(go):
            break
    return begun


@sy.training(steps=20, device="big")
def urgent(job):
    return list(job.steps())[-1]


def test_at_the_end_of_a_round_the_urgent_go_first_and_the_others_go_on_from_what_they_saved(tmp_path: Path) -> None:
    engine = LocalEngine(machine(slots=1, others=1))
    options: dict[str, Any] = {"profiles": tmp_path / "profiles.json", "policy_timeout_s": SECONDS}
    with Cluster(engine, policy="planner", round_s=0.5, **options) as cluster:
        first, second = sy.graph("patient"), sy.graph("urgent")
        first.task(patient, str(tmp_path / "go"))
        second.task(urgent)
        waits = cluster.submit(first)
        wait_until(lambda: (told := waits._state.runs[0].progress) is not None and told.step >= 10)
        goes = cluster.submit(second, priority=1)
        assert goes.result(SECONDS) == 20
        assert waits.status == "running"
        (tmp_path / "go").touch()
        begun = waits.result(SECONDS)
        assert len(begun) == 2 and begun[0] == 0 and begun[1] >= 10
        assert not cluster.statistics.fallbacks
        assert not any(timing.runs for timing in cluster.profiles.values())  # a whole run tells nothing of its steps
    assert (tmp_path / "profiles-training.json").exists()


@sy.training(steps=100_000, kind="sociable")
def sociable(job, folder, number):
    """Ends when three have been seen that run."""
    import time
    from pathlib import Path

    for _ in job.steps():
        Path(folder, str(number)).write_text(str(time.monotonic()))
        time.sleep(0.01)
        with_me = [float(path.read_text() or 0) for path in Path(folder).iterdir()]
        if sum(time.monotonic() - seen < 1.0 for seen in with_me) == 3:
            time.sleep(1.0)
            Path(folder, str(number)).write_text("inf")
            return True
    return False


def test_every_core_of_a_cpu_has_a_job(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    options: dict[str, Any] = {"profiles": tmp_path / "p.json", "policy_timeout_s": SECONDS}
    with Cluster(LocalEngine(machine(slots=3)), policy="planner", round_s=0.5, **options) as cluster:
        jobs = []
        for number in range(3):
            graph = sy.graph("sociable")
            graph.task(sociable, str(tmp_path / "seen"), number)
            jobs.append(cluster.submit(graph))
        assert all(job.result(SECONDS) for job in jobs)
