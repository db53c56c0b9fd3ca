"""What others do with this machine's shared parts, as far as it can be told."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.estimation.live import RunReading
from symphony.estimation.tuning import FILTER_FACTORS, Tuning
from symphony.problem.topology import Device, DeviceKind, Hop, Resource
from symphony.runtime.background_load import BELIEF_CACHE_S, MAX_WINDOW_S, UNREAD_LOAD, BackgroundLoad, cpu_seconds
from symphony.runtime.profiles import Profiles
from tests.runtime.machines import machine
from tests.runtime.test_machine_monitor import gpus
from tests.waiting import wait_until

CPU = ("stat.user_us", "stat.nice_us", "stat.system_us")
COMPUTE, MEMORY = "cpu/compute", "memory"


def busy(cores: float) -> dict[str, float]:
    """What the kernel's files say where so many cores are busy, with users' work and its own."""
    return dict(zip(CPU, (0.7e6 * cores, 0.0, 0.3e6 * cores), strict=True))


class Machine:
    """Windows of 100 ms, one after another."""

    def __init__(self, topology: sy.Topology, **given: object) -> None:
        self.now_s, self.used_s = 100.0, 0.0
        self.late_s = 0.0  # time from the end of a window to when it is taken in
        self.more_s: dict[int, float] = {}  # CPU time of other processes of ours
        self.profiles = Profiles()
        used = lambda: {1: self.used_s, **self.more_s}  # noqa: E731
        given["clock"] = lambda: self.now_s + self.late_s
        self.others = BackgroundLoad(topology, used, profiles=self.profiles, **given)  # type: ignore[arg-type]
        self.window(busy(0.0))  # the first one tells nothing of processors: nobody knows what we had used before

    def window(self, rates: dict[str, float], ours: float = 0.0, where: str = "", seconds: float = 0.1) -> None:
        self.used_s += ours * seconds
        self.now_s += seconds
        self.others.window(where, self.now_s - seconds, self.now_s, rates)

    def load(self, row: str) -> tuple[float, float]:
        return self.others.by_row(self.now_s)[row]


def test_of_what_was_never_read_little_is_known() -> None:
    others = BackgroundLoad(machine())
    mean, deviation = others.believed(0.0)
    assert mean == pytest.approx([UNREAD_LOAD[0]] * 2, abs=0.02)
    assert deviation == pytest.approx([UNREAD_LOAD[1]] * 2, abs=0.02)
    assert others.by_row(0.0) == {}


def test_what_is_busy_and_not_ours_is_others() -> None:
    here = Machine(machine(slots=4))
    for _ in range(30):
        here.window(busy(3.0), ours=1.0)
    mean, deviation = here.load(COMPUTE)
    assert mean == pytest.approx(0.5, abs=0.02) and deviation < 0.2
    assert MEMORY not in here.others.by_row(here.now_s)  # nothing speaks of it
    assert here.others.believed(here.now_s)[1][1] > UNREAD_LOAD[1]  # though who computes may stream through it


def test_of_more_cpus_than_the_topology_has_cores_others_have_a_share() -> None:
    here = Machine(machine(slots=2), cpus=60)
    for _ in range(30):
        here.window(busy(31.0), ours=1.0)
    assert here.load(COMPUTE)[0] == pytest.approx(0.5, abs=0.02)


def test_our_own_work_is_not_taken_for_others() -> None:
    here = Machine(machine(slots=4))
    for _ in range(30):
        here.window(busy(3.0), ours=3.05)  # both are read in steps of 10 ms
    assert here.load(COMPUTE)[0] < 0.02


def test_windows_that_are_taken_in_late_are_not_blamed_on_anybody() -> None:
    """All processors are ours. What we used until a window is taken in is of more or less time than the window."""
    here, rng = Machine(machine(slots=4)), np.random.default_rng(0)
    for _ in range(100):
        late_s = float(rng.uniform(0, 0.09))
        here.used_s += 4.0 * (late_s - here.late_s)
        here.late_s = late_s
        here.window(busy(4.0), ours=4.0)
        assert here.others.estimator.contradicted() == []
    assert here.load(COMPUTE)[0] < 0.01


def test_a_tenant_that_comes_is_soon_seen() -> None:
    here = Machine(machine(slots=4))
    noise = np.random.default_rng(0).normal(0, 0.1, 100)
    for off in noise[:50]:
        here.window(busy(1.0 + max(off, -0.9)), ours=1.0)
    before = here.load(COMPUTE)[0]
    for off in noise[50:55]:
        here.window(busy(3.0 + off), ours=1.0)
    assert before < 0.05 and here.load(COMPUTE)[0] == pytest.approx(0.5, abs=0.1)


def test_what_was_read_long_ago_is_less_sure() -> None:
    here = Machine(machine(slots=4))
    for _ in range(30):
        here.window(busy(3.0), ours=1.0)
    mean, fresh = here.load(COMPUTE)
    here.now_s += 60.0
    later, wider = here.load(COMPUTE)
    assert 0 < later < mean and wider > 2 * fresh  # towards what is typical


@pytest.mark.parametrize("seconds", [0.0, 2 * MAX_WINDOW_S])
def test_a_window_that_was_cut_tells_nothing(seconds: float) -> None:
    here = Machine(machine())
    here.window(busy(2.0), seconds=seconds)
    assert here.others.by_row(here.now_s) == {}


def test_a_process_that_has_gone_takes_its_time_with_it() -> None:
    here = Machine(machine())
    here.used_s = 50.0
    here.window(busy(1.0))
    here.used_s = 3.0
    here.window(busy(1.0), ours=0.0)
    for _ in range(30):
        here.window(busy(1.0), ours=1.0)
    assert here.load(COMPUTE)[0] < 0.05


def test_what_we_used_before_the_first_window_is_not_in_it() -> None:
    used_s = {1: 0.0}
    ends_s = iter(np.arange(1, 50) * 0.1)
    others = BackgroundLoad(machine(slots=4), used_s.copy, clock=lambda: next(ends_s))
    used_s[1] = 40.0  # programs were compiled before the first kernel ran
    for number in range(5):
        used_s[1] += 0.1
        others.window("", number * 0.1, (number + 1) * 0.1, busy(3.0))
    assert others.by_row(0.5)[COMPUTE][0] == pytest.approx(0.5, abs=0.02)


def test_a_young_process_that_goes_does_not_make_ours_others() -> None:
    here = Machine(machine(slots=4))
    here.more_s[2] = 0.3
    for _ in range(30):
        here.window(busy(4.0), ours=4.0)
    del here.more_s[2]  # less than what the rest uses meanwhile
    here.window(busy(4.0), ours=4.0)
    assert here.load(COMPUTE)[0] < 0.01


def test_of_a_gpu_only_windows_tell_in_which_we_left_it_alone() -> None:
    on: set[int] = {1}
    here = Machine(gpus(), ran=lambda device, since_s: device in on)
    told = {"nvml.busy_us": 0.6e6, "nvml.pcie_transmit_bytes": 3e8, "nvml.pcie_receive_bytes": 1e8}
    for _ in range(20):
        for gpu in ("GPU-0", "GPU-1"):
            here.window(told, where=gpu)
    rows = here.others.by_row(here.now_s)
    assert set(rows) == {"here/big-1/compute", "here/big-1/link"}
    assert rows["here/big-1/compute"][0] == pytest.approx(0.6, abs=0.02)
    assert rows["here/big-1/link"][0] == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize(("event", "told"), [("nvml.busy_us", False), ("gpm.sm_busy_us", True)])
def test_what_nvml_says_by_itself_may_be_of_our_kernel_before(event: str, told: bool) -> None:
    here = Machine(gpus(), ran=lambda device, since_s: since_s <= 100.0)  # the last one left then
    while here.now_s < 100.6:
        here.window({event: 0.9e6}, where="GPU-0")
    assert bool(here.others.by_row(here.now_s)) is told
    while here.now_s < 102.0:
        here.window({event: 0.9e6}, where="GPU-0")
    assert here.load("here/big-0/compute")[0] == pytest.approx(0.9, abs=0.02)


def slowed(here: Machine, slow: float, windows: int, error: float = 0.05) -> None:
    """Runs on the first GPU, which fill it, and none of whose windows tell of others."""
    for _ in range(windows):
        ran(here, 1, slow, error, {2: 1.0})
        here.window(busy(0.0))


def ran(here: Machine, device: int, slow: float, error: float, own: dict[int, float]) -> None:
    """A run of a kernel of which it is known that it takes 0.1 s alone, give or take that error."""
    known = here.profiles.timing(f"k{error}", "any")
    if not known.runs:
        known.mean, known.cov = [math.log(0.1), math.log(1e-12)], [[error**2, 0.0], [0.0, 1e-4]]
        known.noise, known.weight, known.runs = 0.02**2 * 50, 50.0, 3
    here.others.estimator.ran(RunReading(device, f"k{error}", "any", 0.0, 0.1 * slow, own, here.now_s))
    here.others.estimator.weigh(here.now_s)


def test_run_times_tell_of_a_gpu_on_which_our_kernels_always_run() -> None:
    here = Machine(gpus(), ran=lambda device, since_s: True)
    slowed(here, 1.0, 5)
    before = here.load("here/big-0/compute")[0]
    slowed(here, 1.9, 5)
    during, deviation = here.load("here/big-0/compute")
    slowed(here, 1.0, 5)
    assert before < 0.1 and during == pytest.approx(0.9, abs=0.15) and deviation < 0.3
    assert here.load("here/big-0/compute")[0] < 0.15 and "here/big-1/compute" not in here.others.by_row(here.now_s)


def test_run_times_tell_which_of_two_processors_others_use() -> None:
    """The kernel's files have the sum of both."""
    kinds = (DeviceKind("socket", "cpu", slots=2),)
    rows = tuple(Resource(f"{side}/compute", "compute", 2, "here") for side in ("left", "right"))
    devices = [
        Device(side, "socket", "here", "rack", side, side, (Hop(f"{side}/compute"),)) for side in ("left", "right")
    ]
    here = Machine(sy.Topology("two sockets", kinds, rows, tuple(devices)))
    for _ in range(20):
        ran(here, 0, 2.0, 0.05, {0: 1.0})
        ran(here, 1, 1.0, 0.05, {1: 1.0})
        here.window(busy(4.0), ours=2.0)
    assert here.load("left/compute")[0] == pytest.approx(1.0, abs=0.15) and here.load("right/compute")[0] < 0.15


def test_run_times_of_a_kernel_that_is_hardly_known_tell_little() -> None:
    known, unknown = Machine(gpus()), Machine(gpus())
    slowed(known, 1.9, 3)
    slowed(unknown, 1.9, 3, error=1.0)
    assert unknown.load("here/big-0/compute")[0] < 0.3 * known.load("here/big-0/compute")[0]


def test_a_figure_without_bounds_leaves_the_belief_as_it_was() -> None:
    here = Machine(gpus())
    for rate in (0.5e6, 0.5e6, float("inf")):
        here.window({"gpm.sm_busy_us": rate}, where="GPU-0")
    assert here.load("here/big-0/compute")[0] == pytest.approx(0.5, abs=0.02)


def test_a_policy_may_have_tuned_the_filter() -> None:
    plain, tuned = (Machine(machine(slots=4), tuning=t) for t in (None, Tuning(jnp.full(FILTER_FACTORS, 1.0))))
    for here in (plain, tuned):
        for _ in range(20):
            here.window(busy(3.0), ours=1.0)
    assert plain.load(COMPUTE)[1] != tuned.load(COMPUTE)[1]


def test_what_was_said_is_said_again_for_a_moment() -> None:
    here = Machine(machine(slots=4))
    here.window(busy(3.0))
    first = here.others.believed(here.now_s)
    assert here.others.believed(here.now_s + BELIEF_CACHE_S / 2) is first
    assert here.others.believed(here.now_s + 2 * BELIEF_CACHE_S) is not first


def test_processes_have_used_so_much() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            wait_until(lambda: cpu_seconds([child.pid])[child.pid] >= 0.2)
        finally:
            child.kill()  # else a failure would wait for it for ever
    assert cpu_seconds([child.pid]) == {}
    assert cpu_seconds([os.getpid(), child.pid])[os.getpid()] > 0.0
