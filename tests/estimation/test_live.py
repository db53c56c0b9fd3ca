"""The estimator of real runs: what others do, what kernels of ours ask of memory, and what they take alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.estimation.live import LIVE, MAX_TRACKED_KERNELS, MAX_WEIGHED, SURE_WINDOWS, LiveEstimator, RunReading
from symphony.estimation.runs import PastRun
from symphony.lowering.family import workload as family_workload
from symphony.problem import topologies
from symphony.problem.arrays import topology_arrays
from symphony.problem.topology import Hop, Resource, Topology
from symphony.runtime.background_load import UNREAD_LOAD, BackgroundLoad
from symphony.runtime.memory_counter import MemoryCounter
from symphony.runtime.profiles import Profiles
from symphony.simulator.scenarios import Disturbances, draw
from symphony.telemetry.memory import MemoryEvents
from tests.runtime.machines import machine
from tests.telemetry.simulated import SimulatedSource

LENGTH_S, SLICE_S = 0.1, 0.004
NINETY = 1.645  # deviations to each side, of a normal
MEMORY = 1  # the row, in machine()


@dataclass
class Machine:
    """Windows of 100 ms, one after another, and runs that tests write."""

    topology: Topology = field(default_factory=machine)
    runs: list[PastRun] = field(default_factory=list)
    profiles: Profiles = field(default_factory=Profiles)
    now_s: float = 0.0
    least: bool = False

    def __post_init__(self) -> None:
        self.estimator = LiveEstimator(self.topology, self.profiles, met=self.met, least=self.least)

    def met(self, since_s: float) -> Iterator[PastRun]:
        return (ran for ran in self.runs if ran.ended_s > since_s and ran.began_s < self.now_s)

    def window(self, share: float, std: float = 0.01, row: str = "memory") -> None:
        self.now_s += LENGTH_S
        self.estimator.traffic({row: (share, std)}, self.now_s - LENGTH_S, self.now_s)

    def runs_of(self, kernel: str, seconds: float, **more: float) -> None:
        self.runs.append(PastRun(kernel, "small", 0, self.now_s, self.now_s + seconds, **more))

    def load(self) -> tuple[float, float]:
        return self.at(self.now_s)[MEMORY]

    def at(self, now_s: float) -> dict[int, tuple[float, float]]:
        mean, deviation = self.estimator.believed(now_s)
        return {int(row): (float(mean[row]), float(deviation[row])) for row in np.flatnonzero(self.estimator.told)}

    def counted(self, kernel: str) -> tuple[float, float]:
        share, precision = self.profiles.demand(kernel, "small").counted
        return share, 1 / math.sqrt(precision)


def test_where_nothing_runs_all_traffic_is_others() -> None:
    here = Machine()
    assert here.at(0.0) == {}
    for _ in range(20):
        here.window(0.3)
    mean, deviation = here.load()
    assert mean == pytest.approx(0.3, abs=0.02) and 0.005 < deviation < 0.05


def test_kernels_that_come_and_go_are_told_from_others() -> None:
    here = Machine()
    for k in range(60):
        if k % 4 == 0:
            here.runs_of("streams", 2 * LENGTH_S)
        here.window(0.2 + (0.4 if k % 4 < 2 else 0.0))
    assert here.load()[0] == pytest.approx(0.2, abs=0.03)
    share, std = here.counted("streams")
    assert share == pytest.approx(0.4, abs=0.03) and std < 0.05


def test_a_kernel_that_always_runs_cannot_be_told_from_others() -> None:
    here = Machine()
    here.runs_of("streams", 100.0)
    for _ in range(60):
        here.window(0.5)
    mean, deviation = here.load()
    assert 0.0 < mean < 0.5 and deviation > 0.08
    share, std = here.counted("streams")
    assert mean + share == pytest.approx(0.5, abs=0.05) and std > 0.08


def test_a_run_that_had_half_a_processor_caused_half_the_traffic() -> None:
    here = Machine()
    for k in range(60):
        if k % 4 == 0:
            here.runs_of("streams", 2 * LENGTH_S, active=0.5)
        here.window(0.2 if k % 4 < 2 else 0.0)
    assert here.counted("streams")[0] == pytest.approx(0.4, abs=0.05)


def test_others_who_begin_are_soon_seen() -> None:
    here = Machine()
    for _ in range(50):
        here.window(0.02)
    before = here.load()[0]
    for _ in range(3):
        here.window(0.6)
    assert before < 0.05 and here.load()[0] == pytest.approx(0.6, abs=0.05)


def test_what_was_counted_long_ago_is_less_sure() -> None:
    here = Machine()
    for _ in range(20):
        here.window(0.3)
    mean, fresh = here.load()
    later, unsure = here.at(here.now_s + 2.0)[MEMORY]
    assert 0.8 * mean < later <= mean and unsure > 2 * fresh
    assert here.at(here.now_s + 1e6)[MEMORY] == pytest.approx(UNREAD_LOAD, abs=0.01)


def test_a_full_memory_tells_the_least_that_is_asked_for() -> None:
    here = Machine()
    for k in range(60):
        if k % 4 == 0:
            here.runs_of("streams", 2 * LENGTH_S)
        here.window(0.7 if k % 4 < 2 else 0.0)
    here.runs_of("streams", 10.0)
    here.runs_of("streams", 10.0)
    for _ in range(50):
        here.window(1.0)  # not 1.4: both are slowed
    assert here.counted("streams")[0] == pytest.approx(0.7, abs=0.05) and here.load()[0] < 0.1


def test_more_than_the_capacity_is_what_the_capacity_is_then() -> None:
    here = Machine()
    for _ in range(30):
        here.window(0.5)
    for _ in range(SURE_WINDOWS):
        here.window(2.0)
    for _ in range(30):
        here.window(1.0)
    assert here.load()[0] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1, 1e9])
def test_nonsense_changes_no_belief_but_how_sure_it_is(wrong: float) -> None:
    here = Machine()
    for _ in range(20):
        here.window(0.3)
    before = here.load()
    here.window(0.3, row="elsewhere")
    here.estimator.traffic({"memory": (0.9, 0.01)}, here.now_s, here.now_s)
    assert here.at(here.now_s - LENGTH_S)[MEMORY] == pytest.approx(before, rel=1e-6)
    here.window(wrong)
    here.window(0.3, std=math.nan)
    mean, deviation = here.at(here.now_s - 3 * LENGTH_S)[MEMORY]
    assert mean == pytest.approx(before[0], rel=1e-6) and deviation > before[1]


def test_kernels_that_do_not_run_any_more_make_room() -> None:
    here = Machine()
    for k in range(MAX_TRACKED_KERNELS + 8):
        here.runs_of(f"k{k}", LENGTH_S)
        here.window(0.2)
        here.window(0.0)
    [machine] = here.estimator._machines.values()
    assert len(machine.mean) == len(machine.cov) == 2 + MAX_TRACKED_KERNELS  # and two flows
    assert here.counted("k0")[0] == pytest.approx(0.2, abs=0.1)  # in its profile, it stays


def test_what_an_earlier_run_counted_is_where_the_next_begins() -> None:
    first = Machine()
    for k in range(60):
        if k % 4 == 0:
            first.runs_of("streams", 2 * LENGTH_S)
        first.window(0.4 if k % 4 < 2 else 0.0)
    second = Machine(profiles=first.profiles)
    second.runs_of("streams", 1.0)
    for _ in range(5):
        second.window(0.6)
    assert second.load()[0] == pytest.approx(0.2, abs=0.06)


def test_sockets_have_others_of_their_own_and_kernels_are_the_same_on_both() -> None:
    topology = machine()
    device = replace(topology.devices[0], name="here/cpu-1", socket="s1", route=(Hop("cpu/compute"), Hop("far")))
    topology = replace(
        topology,
        resources=(*topology.resources, Resource("far", "memory", 1e10, "here")),
        devices=(*topology.devices, device),
    )
    here = Machine(topology)
    for k in range(60):
        if k % 2 == 0:
            here.runs.append(PastRun("streams", "small", k // 2 % 2, here.now_s, here.now_s + LENGTH_S))
        here.now_s += LENGTH_S
        on = [0.3 if k % 2 == 0 and k // 2 % 2 == socket else 0.0 for socket in (0, 1)]
        used = {"memory": (0.1 + on[0], 0.01), "far": (0.5 + on[1], 0.01)}
        here.estimator.traffic(used, here.now_s - LENGTH_S, here.now_s)
    loads = here.at(here.now_s)
    assert [loads[row][0] for row in (1, 2)] == pytest.approx([0.1, 0.5], abs=0.03)
    assert here.counted("streams")[0] == pytest.approx(0.3, abs=0.03)


def test_others_of_a_machine_have_what_was_counted_of_its_memory() -> None:
    here = Machine()
    others = BackgroundLoad(here.topology, profiles=here.profiles)
    here.estimator = others.estimator
    assert others.by_row(0.0) == {} and others.believed(0.0)[1][MEMORY] == UNREAD_LOAD[1]
    for _ in range(20):
        here.window(0.3)
    assert others.by_row(here.now_s) == {"memory": pytest.approx(here.load(), rel=1e-6)}
    assert others.believed(here.now_s)[0][MEMORY] == pytest.approx(0.3, abs=0.02)


# --- Against the truth ---------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """A minute of kernels that come and go on four slots, beside the tenants that the simulator draws."""

    seed: int
    kernels: int = 3
    windows: int = 600
    rough: float = 0.1  # by which part traffic wanders, from slice to slice or window to window
    phase: int = 0  # slices for which a run goes on as it does, up or down by 40%; 0 = runs are even

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.here = Machine(machine(slots=4))
        self.asks = np.where(rng.random(self.kernels) < 0.3, 0.0, rng.uniform(0.02, 0.3, self.kernels))
        self.ends_s = self.windows * LENGTH_S
        for _ in range(4):
            at_s = rng.uniform(0, 2)
            while at_s < self.ends_s:
                took_s, kernel = rng.exponential(1.0) + 0.05, rng.integers(self.kernels)
                self.here.runs.append(PastRun(str(kernel), "small", 0, at_s, at_s + took_s))
                at_s += took_s + (rng.exponential(1.0) if rng.random() < 0.5 else 0.0)
        spec = Disturbances(background=0.6, phase_s=8.0, busy_share=0.5, tenants="machine")
        workload = family_workload("layered?jobs=1&tasks=2", topologies.topology("machine"), 0)
        phases = draw(topologies.topology("machine"), workload, self.seed, spec).phases
        began_s = np.cumsum([phase.gap_s for phase in phases])
        slices = (np.arange(round(self.ends_s / SLICE_S)) + 0.5) * SLICE_S
        loads = np.array([phase.load.get("memory", 0.0) for phase in phases])
        self.others = loads[np.searchsorted(began_s, slices, side="right") - 1]
        self.own = np.zeros(len(slices))
        for ran in self.here.runs:
            within = (ran.began_s < slices) & (slices < ran.ended_s)
            level = np.ones(within.sum())
            if self.phase:
                levels = np.maximum(1 + 0.4 * rng.standard_normal(len(level) // self.phase + 1), 0.0)
                level = np.repeat(levels, self.phase)[: len(level)]
            self.own[within] += self.asks[int(ran.kernel)] * level
        self.rng = rng

    def per_window(self, slices: np.ndarray) -> np.ndarray:
        return slices.reshape(self.windows, -1).mean(axis=1)

    def check(self, believed: list[tuple[float, float]]) -> tuple[list[bool], list[bool]]:
        """Whether the truth is within the 90% intervals: of others, where the memory was not full; of kernels."""
        truth, total = self.per_window(self.others), self.per_window(self.others + self.own)
        inside = [abs(mean - truth[k]) <= NINETY * std for k, (mean, std) in enumerate(believed) if total[k] < 0.75]
        demands = [(self.here.profiles.demand(str(k), "small"), asks) for k, asks in enumerate(self.asks)]
        bands = [low <= asks <= high for x, asks in demands if x.counted[1] for low, high in [x.band]]
        return inside, bands


@pytest.mark.parametrize(
    ("rough", "phase", "least"), [(0.03, 0, 0.9), (0.2, 0, 0.9), (0.05, 75, 0.85), (0.05, 250, 0.8)]
)
def test_the_truth_is_within_nine_of_ten_intervals(rough: float, phase: int, least: float) -> None:
    """Where kernels go in phases of 0.3 and 1 s, it is not quite as often: windows are not as independent then."""
    inside, bands = [], []
    for seed in range(12):
        truth = Truth(seed, rough=rough, phase=phase)
        total = truth.per_window(truth.own + truth.others)
        here, believed = truth.here, []
        for share in total:
            wanders = share * (1 + truth.rough * truth.rng.standard_normal())
            here.window(max(min(wanders, 1.0) + 0.02 * truth.rng.standard_normal(), 0.0), std=0.02)
            believed.append(here.load())
        found = truth.check(believed)
        inside += found[0]
        bands += found[1]
    assert least <= np.mean(inside) <= 0.99
    assert np.mean(bands) >= (0.7 if phase else 0.85) and len(bands) == 36


def test_so_it_is_of_counters_that_take_turns() -> None:
    """Eight channels on four counters, as of AMD's data fabric: from readings to rows to beliefs."""
    inside, bands, misses = [], [], []
    counted = MemoryEvents(tuple(f"amd_df/{k}/" for k in range(8)))
    for seed in range(4):
        truth = Truth(seed, windows=400)
        use = np.minimum((truth.own + truth.others) * (1 + truth.rough * truth.rng.standard_normal(len(truth.own))), 1)
        channel = use[:, None] * 1e10 / 64 / 8 * SLICE_S * (1 + 0.1 * truth.rng.standard_normal((len(use), 8)))
        halves = (counted.names[:4], counted.names[4:])
        source = SimulatedSource(counted.names, np.maximum(channel, 0), halves, slice_s=SLICE_S, where="S0", first=seed)
        here, believed = truth.here, []

        def take(used: dict[str, tuple[float, float]], began_s: float, ended_s: float) -> None:
            here.now_s = len(believed) * LENGTH_S + 2 * LENGTH_S  # noqa: B023 (the first window is not told)
            here.estimator.traffic(used, here.now_s - LENGTH_S, here.now_s)  # noqa: B023
            believed.append(here.load())  # noqa: B023

        counting = MemoryCounter(here.topology, counted, take, source=lambda: source)  # type: ignore[arg-type]  # noqa: B023
        counting.set_busy(True)
        counting._thread.join()
        assert len(believed) == truth.windows - 1
        found = truth.check([(0.0, math.inf), *believed])
        inside += found[0]
        bands += found[1]
        misses += [std for _, std in believed]
    assert 0.85 <= np.mean(inside) <= 0.99
    assert np.mean(bands) >= 0.8
    assert np.median(misses) < 0.1  # it is not for want of saying anything


# --- Times of runs -------------------------------------------------------------------------------------------------


def timed(kernels: str, slow: dict[str, float], runs: int = 160, noise: float = 0.03, seed: int = 0) -> Machine:
    """Kernels in turn on one accelerator, 0.2 s each; from the 40th run on, some are slower."""
    here, rng = Machine(machine(others=1)), np.random.default_rng(seed)
    for number in range(runs):
        kernel = kernels[number % len(kernels)]
        seconds = 0.2 * (slow[kernel] if number >= 40 else 1.0) * math.exp(noise * rng.normal())
        timing, here.now_s = here.profiles.timing(kernel, "big"), here.now_s + seconds
        if timing.warm < 3:
            timing.learn(0.0, seconds)
        else:
            here.estimator.ran(RunReading(1, kernel, "big", 0.0, seconds, {2: 1.0}, here.now_s))
            here.estimator.weigh(here.now_s)
    return here


@pytest.mark.parametrize(("runs", "load", "error"), [(60, 0.8, 0.08), (160, 0.65, 0.16)])
def test_a_tenant_that_doubles_run_times_is_believed_and_stays_believed(runs: int, load: float, error: float) -> None:
    """Of one kernel alone it is the hardest: what is not known of others hides in its time, little by little."""
    for kernels in ("a", "abc"):
        found = [timed(kernels, dict.fromkeys("abc", 2.0), runs, seed=seed) for seed in range(3)]
        assert load < np.mean([here.at(here.now_s)[2][0] for here in found]) < 1.1
        for kernel in kernels:
            alone_s = [here.profiles.timing(kernel, "big").seconds(0.0) for here in found]
            assert np.mean(alone_s) == pytest.approx(0.2, rel=error)


def test_a_kernel_that_became_slower_is_told_from_a_tenant_by_another_kernel() -> None:
    for seed in range(4):
        here = timed("ab", {"a": 2.0, "b": 1.0}, seed=seed)
        times = [here.profiles.timing(kernel, "big").seconds(0.0) for kernel in "ab"]
        assert times == [pytest.approx(0.4, rel=0.1), pytest.approx(0.2, rel=0.05)]
        assert here.at(here.now_s)[2][0] < 0.1


def test_a_kernel_that_became_faster_is_learned() -> None:
    here = timed("ab", {"a": 0.5, "b": 1.0})
    assert here.profiles.timing("a", "big").seconds(0.0) == pytest.approx(0.1, rel=0.1)
    assert here.at(here.now_s)[2][0] < 0.1


def test_many_kernels_are_weighed_in_updates_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of an update grows with the cube of the number of kernels in it."""
    here, sizes, weigh = Machine(machine(others=1)), [], LiveEstimator._weigh

    def counted(self: LiveEstimator, group: int, runs: Sequence[RunReading]) -> None:
        sizes.append(len({(run.device, run.kernel) for run in runs}))
        weigh(self, group, runs)

    monkeypatch.setattr(LiveEstimator, "_weigh", counted)
    kernels = [f"kernel {number}" for number in range(2 * MAX_WEIGHED + 1)]
    for kernel in kernels:
        here.profiles.timing(kernel, "big").learn(0.0, 0.2)
        assert here.estimator.ran(RunReading(1, kernel, "big", 0.0, 0.4, {2: 1.0}, 1.0))
    assert len(here.estimator.weigh(math.inf)) == sum(sizes) == len(kernels)
    assert max(sizes) == MAX_WEIGHED


def test_runs_that_lost_time_in_a_memory_say_nothing_of_processors() -> None:
    """A tenant of the memory comes while runs wait to be weighed together."""
    here = Machine(machine(slots=4))
    timing = here.profiles.timing("k", "small")
    for _ in range(20):
        timing.learn(0.0, 0.2)
    for slow in [1.0, 1.0, 2.5, 2.5, 2.5] * 3:
        here.now_s += 0.2 * slow
        own = {1: 0.3} if slow > 1 else {0: 0.25}  # the rows of the memory and of the processors
        here.estimator.ran(RunReading(0, "k", "small", 0.0, 0.2 * slow, own, here.now_s))
    here.estimator.weigh(math.inf)
    mean, _ = here.estimator.believed(here.now_s)
    assert mean[0] + 0.25 < 1 and mean[1] > 1.5
    assert timing.seconds(0.0) == pytest.approx(0.2, rel=0.1)


def test_wild_runs_are_nobodys_fault() -> None:
    here = timed("a", {"a": 1.0}, 60)
    before = here.profiles.timing("a", "big").seconds(0.0)
    for number in range(12):
        here.now_s += 0.2
        seconds = 20.0 if number % 4 == 0 else 0.2
        here.estimator.ran(RunReading(1, "a", "big", 0.0, seconds, {2: 1.0}, here.now_s))
        here.estimator.weigh(here.now_s)
    assert here.profiles.timing("a", "big").seconds(0.0) == pytest.approx(before, rel=0.05)
    assert here.at(here.now_s)[2][0] < 0.1


# --- Bad input -----------------------------------------------------------------------------------------------------

anything = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("rtwo"), anything, anything), min_size=1, max_size=12))
def test_nothing_makes_it_crash_or_lie(news: list[tuple[str, float, float]]) -> None:
    """Whatever readings come, beliefs are finite, not negative, and never certain."""
    here = Machine(machine(others=1))
    row = {name: number for number, name in enumerate(("cpu", "memory", "compute", "link"))}
    here.runs_of("k", math.inf)
    for what, one, two in news:
        here.now_s += LENGTH_S
        if what == "r":
            at = np.array([row["cpu"], row["compute"], row["link"]])
            here.estimator.rows(at, np.array([one, two, one]), np.array([two, 0.0, 0.0]), at < 1, here.now_s)
        elif what == "t":
            here.window(one, two)
        else:
            own = {2: 1.0, 3: 0.5} if what == "w" else {2: two}
            here.estimator.ran(RunReading(1, "k", "big", 10.0, one, own, here.now_s))
            here.estimator.weigh(math.inf)
        mean, deviation = here.estimator.believed(here.now_s)
        assert np.isfinite(mean).all() and (mean >= 0).all()
        assert np.isfinite(deviation).all() and (deviation > 0.001).all()
        assert np.isfinite([*here.profiles.timing("k", "big").mean]).all()


def play(here: Machine, windows: int, **use: float) -> None:
    """Windows of the accelerator's compute and link, of which nothing is ours."""
    at = np.array([{"compute": 2, "link": 3}[name] for name in use])
    for _ in range(windows):
        here.now_s += LENGTH_S
        here.estimator.rows(at, np.array([*use.values()]), np.zeros(len(at)), at < 0, here.now_s)


def test_a_counter_that_goes_backwards_is_not_read_and_is_reported() -> None:
    here = Machine(machine(others=1))
    play(here, 10, compute=0.5, link=0.4)
    mean, before = here.at(here.now_s)[3]
    play(here, 2, compute=0.5, link=-0.4)
    after, deviation = here.at(here.now_s)[3]
    assert after == pytest.approx(mean, abs=0.05) and deviation > 2 * before
    assert here.estimator.contradicted() == ["here/big-0/link"]
    play(here, 60, compute=0.5, link=0.4)
    assert here.estimator.contradicted() == []  # it works again


def test_processors_whose_counter_went_backwards_once_are_believed_again() -> None:
    """Of those of several sockets, only the mean is read."""
    topology = machine()
    rows = (*topology.resources, Resource("far/compute", "compute", 2, "here"))
    device = replace(topology.devices[0], name="here/cpu-1", socket="s1", route=(Hop("far/compute"), Hop("memory")))
    here = Machine(replace(topology, resources=rows, devices=(*topology.devices, device)))
    at, nothing, together = np.array([0, 2]), np.zeros(2), np.ones(2, bool)

    def windows(count: int, use: float) -> None:
        for _ in range(count):
            here.now_s += LENGTH_S
            here.estimator.rows(at, np.full(2, use), nothing, together, here.now_s)

    windows(10, 0.3)
    before = here.at(here.now_s)
    windows(1, -0.3)
    assert here.estimator.contradicted() == ["cpu/compute", "far/compute"]
    windows(200, 0.3)
    assert here.estimator.contradicted() == []
    for row, (_, deviation) in here.at(here.now_s).items():
        assert deviation < 1.2 * before[row][1]


def test_traffic_that_makes_no_sense_is_reported_and_widens() -> None:
    here = Machine()
    for _ in range(20):
        here.window(0.3)
    before = here.load()
    here.window(-0.3)
    mean, deviation = here.load()
    assert mean == pytest.approx(before[0], abs=0.02) and deviation > 5 * before[1]
    assert here.estimator.contradicted() == ["memory"]
    for _ in range(100):
        here.window(0.3)
    assert here.estimator.contradicted() == [] and here.load()[1] < 1.5 * before[1]


def test_one_wild_window_is_no_news_of_the_capacity() -> None:
    here = Machine()
    for traffic in [0.5] * 20 + [6.0] + [0.5] * 40:
        here.window(traffic)
    assert here.load()[0] == pytest.approx(0.5, abs=0.05)


def test_a_domain_that_vanishes_is_forgotten() -> None:
    here = Machine(machine(others=1))
    play(here, 10, compute=0.5, link=0.8)
    _, before = here.at(here.now_s)[3]
    play(here, 300, compute=0.5)
    mean, deviation = here.at(here.now_s)[3]
    assert mean < 0.2 and deviation > 2 * before


def test_readings_that_contradict_the_topology_widen_and_are_reported() -> None:
    """A link is busy, but nothing passes through the memory to which all copies over it go."""
    topology = machine(others=1)
    memory = replace(topology.resources[1], capacity=1e9)  # as much as the link's
    device = replace(topology.devices[1], route=(*topology.devices[1].route, Hop("memory")))
    resources = (topology.resources[0], memory, *topology.resources[2:])
    topology = replace(topology, resources=resources, devices=(topology.devices[0], device))
    fine, wrong = Machine(topology), Machine(topology)
    for here, passes in ((fine, 0.9), (wrong, 0.0)):
        for _ in range(40):
            here.now_s += LENGTH_S
            at, use = np.array([1, 3]), np.array([passes, 0.8])
            here.estimator.rows(at, use, np.zeros(2), at < 0, here.now_s)
    assert fine.estimator.contradicted() == [] and fine.at(fine.now_s)[3][0] == pytest.approx(0.8, abs=0.05)
    assert wrong.estimator.contradicted()
    for row, reading in ((1, 0.0), (3, 0.8)):  # whoever is right is within two deviations of what is believed
        mean, deviation = wrong.at(wrong.now_s)[row]
        assert abs(mean - reading) < 2 * deviation


def test_noise_about_our_own_load_is_not_taken_for_others() -> None:
    """Readings that are below our own part are news as well as those above it."""
    here, rng = Machine(machine(others=1)), np.random.default_rng(0)
    at, own = np.array([2]), np.array([0.3])
    for _ in range(100):
        here.now_s += LENGTH_S
        here.estimator.rows(at, own * (1 + 0.1 * rng.standard_normal(1)), own, at < 0, here.now_s)
    mean, deviation = here.at(here.now_s)[2]
    assert mean < 0.005 and deviation >= LIVE.floor


@pytest.mark.parametrize("seed", range(3))
def test_tenants_that_come_and_go_on_any_path_are_believed_and_no_counter_is_blamed(seed: int) -> None:
    topology, rng = topologies.topology("machine"), np.random.default_rng(seed)
    arrays, rows = topology_arrays(topology), len(topology.resources)
    event = arrays.flow_load[0, arrays.row_slot[:rows]]
    estimator, level = LiveEstimator(topology, Profiles()), np.zeros(event.shape[1])
    at, nothing, inside, blamed = np.arange(rows), np.zeros(rows), [], 0
    for window in range(1, 201):
        anew = rng.random(len(level)) < (0.01 if window > 1 else 1.0)
        level = np.where(anew, np.abs(rng.normal(0.5, 0.5, len(level))) * (rng.random(len(level)) < 0.3), level)
        load = event @ level
        use = load * np.maximum(1 + 0.1 * rng.standard_normal(rows), 0.0)
        estimator.rows(at, use, nothing, at < 0, window * LENGTH_S)
        mean, deviation = estimator.believed(window * LENGTH_S)
        inside += [np.abs(mean - load) <= 1.645 * deviation]
        blamed += bool(estimator.contradicted())
    assert np.mean(inside) > 0.9 and blamed <= 2


@pytest.mark.parametrize("wrong", [math.nan, -0.5, math.inf, 64.0])
def test_whatever_is_wrong_with_one_counter_the_others_are_believed(wrong: float) -> None:
    here, fine = Machine(machine(others=1)), Machine(machine(others=1))
    for one, link in ((here, wrong), (fine, 0.4)):
        play(one, 30, compute=0.5, link=0.4)
        play(one, 30, compute=0.5, link=link)
    (mean, deviation), (expected, usual) = here.at(here.now_s)[2], fine.at(fine.now_s)[2]
    assert mean == pytest.approx(expected, abs=0.05) and deviation < 2 * usual
    assert here.at(here.now_s)[3][1] > 0.5 and here.estimator.contradicted() == ["here/big-0/link"]
