"""What kernels ask of memory, learned from how much slower they are beside others."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from symphony.runtime.demand import ALONE, Company, Demand, Load, Ran
from symphony.runtime.profiles import Profiles
from tests.runtime.machines import machine

ASKS = {"stream": 0.75, "half": 0.4, "compute": 0.03}  # the truth: shares of the bandwidth
TAKES = {"stream": 0.2, "half": 0.1, "compute": 0.3}  # seconds, alone


def ran(kernel: str, began_s: float = 0.0, ended_s: float = 1.0, device: int = 0) -> Ran:
    return Ran(kernel, "cpu", device, began_s, ended_s)


def learned(pairs: list[tuple[str, str]], runs: int, noise: float = 0.1, seed: int = 0) -> Profiles:
    """Runs of pairs on two cores, as the simulator's rule has them; times differ from run to run."""
    rng, profiles = np.random.default_rng(seed), Profiles()
    for number in rng.integers(len(pairs), size=runs):
        for kernel, other in (pairs[number], pairs[number][::-1]):
            slow = max(1.0, ASKS[kernel] + ASKS.get(other, 0.0))
            seconds = TAKES[kernel] * slow * math.exp(noise * rng.normal())
            company = [(ran(other), 1.0)] if other else []
            if kernel:
                profiles.learn(ran(kernel), 0.0, seconds, company=company)
    return profiles


ALL = [(a, b) for a in ASKS for b in ASKS]


def test_before_a_kernel_ran_beside_another_nobody_knows_and_schedulers_are_told_nothing() -> None:
    assert Demand().share < Demand().std and Demand().told == 0.0
    assert Demand().slower(ALONE) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_shares_and_times_alone_are_told_apart(seed: int) -> None:
    profiles = learned(ALL, 300, noise=0.05, seed=seed)
    for kernel, truth in ASKS.items():
        asks = profiles.demand(kernel, "cpu")
        assert asks.share == pytest.approx(truth, abs=0.15) and asks.std < 0.2
        assert asks.told == (asks.share if kernel != "compute" else 0.0)
        assert profiles.timing(kernel, "cpu").seconds(0.0) == pytest.approx(TAKES[kernel], rel=0.15)


def test_what_is_learned_predicts_how_slow_pairs_are() -> None:
    profiles = learned(ALL, 200)
    both, _ = profiles.demand("stream", "cpu").slower(Load(1.0, same=1.0))
    beside, _ = profiles.demand("stream", "cpu").slower(Load(1.0, mean=profiles.demand("compute", "cpu").share))
    assert math.exp(both) == pytest.approx(1.5, rel=0.1) and math.exp(beside) == pytest.approx(1.0, rel=0.05)


def test_what_only_ever_ran_beside_its_like_is_not_accused() -> None:
    """It may just take that long."""
    assert learned([("stream", "stream")], 60).demand("stream", "cpu").told == 0.0


def test_wild_runs_do_not_make_a_demand() -> None:
    profiles = learned([("compute", "compute"), ("compute", "half")], 60)
    for _ in range(3):
        profiles.learn(ran("compute"), 0.0, 100.0, company=[(ran("compute"), 1.0)])
    assert profiles.demand("compute", "cpu").share < 0.2


def test_time_without_the_processor_is_not_blamed_on_memory() -> None:
    """Somebody else has half of the processor whenever the kernel has company."""
    profiles = Profiles()
    for number in range(80):
        company = [(ran("compute"), 1.0)] if number % 2 else []
        profiles.learn(ran("compute"), 0.0, 0.3 * (1 + number % 2), busy_s=0.3, company=company)
    assert profiles.demand("compute", "cpu").share < 0.1


def test_first_runs_and_short_ones_tell_nothing_of_memory() -> None:
    profiles = Profiles()
    profiles.learn(ran("compute"), 0.0, 5.0, cold=True, company=[(ran("compute"), 1.0)])
    profiles.learn(ran("compute"), 0.0, 1e-5, company=[(ran("compute"), 1.0)])
    assert profiles.demand("compute", "cpu").runs == 0


def test_beliefs_about_demand_are_kept_with_the_times() -> None:
    profiles = learned(ALL, 30)
    again = Profiles.of(json.loads(json.dumps(profiles.content())))
    assert again.demand("stream", "cpu") == profiles.demand("stream", "cpu")
    assert again.rows == profiles.rows and "of the memory" in str(again)
    broken = profiles.content()
    broken["demands"][0]["weights"] = [1.0]
    with pytest.raises(ValueError, match="another shape"):
        Profiles.of(broken)


def test_company_is_who_ran_at_the_same_time_on_the_same_memory() -> None:
    company = Company(machine(slots=2, others=1))  # the other device has no memory in common
    company.of(ran("before", 0.0, 1.0), [])
    company.of(ran("overlaps", 0.5, 1.5), [])
    company.of(ran("elsewhere", 1.0, 2.0, device=1), [])
    still = [Ran("still", "cpu", 0, 1.75, math.inf, math.nan)]
    found = company.of(ran("mine", 1.0, 2.0), still)
    assert {one.kernel: share for one, share in found} == {"overlaps": 0.5, "still": 0.25}


def test_company_that_waits_for_its_processor_is_none() -> None:
    idle = Ran("stream", "cpu", 0, 0.0, 1.0, active=0.25)
    assert ran("stream").beside(idle) == 0.25
    half, _ = learned(ALL, 200).demand("stream", "cpu").slower(Load(0.5, same=1.0))
    assert math.exp(half) == pytest.approx(1.25, rel=0.1)


def test_who_had_a_device_for_itself() -> None:
    met = Company(machine(others=2))  # device 1 has no memory that others share
    assert met.alone(ran("a", 0.0, 1.0, 1), [ran("b", 0.5, math.inf, 2)])
    assert not met.alone(ran("a", 0.0, 1.0, 1), [ran("b", 0.5, math.inf, 1)])
    met.of(ran("a", 0.0, 1.0, 1), [])
    assert not met.alone(ran("b", 0.5, 2.0, 1), []) and met.alone(ran("b", 1.0, 2.0, 1), [])
