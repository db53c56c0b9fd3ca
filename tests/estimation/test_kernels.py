"""What kernels ask of memory, learned from how much slower they are beside others."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from symphony.estimation.kernels import NO_LOAD, SHARE_LEVELS, Demand, Load, load_of
from symphony.estimation.runs import MAX_PAST_RUNS, CoRunners, PastRun
from symphony.runtime.profiles import Profiles
from tests.runtime.machines import machine

ASKS = {"stream": 0.75, "half": 0.4, "compute": 0.03}  # the truth: shares of the bandwidth
TAKES = {"stream": 0.2, "half": 0.1, "compute": 0.3}  # seconds, alone


def ran(kernel: str, began_s: float = 0.0, ended_s: float = 1.0, device: int = 0) -> PastRun:
    return PastRun(kernel, "cpu", device, began_s, ended_s)


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
    assert Demand().share < Demand().std and Demand().reported_share == 0.0
    assert Demand().slower(NO_LOAD) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_shares_and_times_alone_are_told_apart(seed: int) -> None:
    profiles = learned(ALL, 300, noise=0.05, seed=seed)
    for kernel, truth in ASKS.items():
        asks = profiles.demand(kernel, "cpu")
        assert asks.share == pytest.approx(truth, abs=0.15) and asks.std < 0.2
        assert asks.reported_share == (asks.share if kernel != "compute" else 0.0)
        assert profiles.timing(kernel, "cpu").seconds(0.0) == pytest.approx(TAKES[kernel], rel=0.15)


def test_what_is_learned_predicts_how_slow_pairs_are() -> None:
    profiles = learned(ALL, 200)
    both, _ = profiles.demand("stream", "cpu").slower(Load(1.0, same=1.0))
    beside, _ = profiles.demand("stream", "cpu").slower(Load(1.0, mean=profiles.demand("compute", "cpu").share))
    assert math.exp(both) == pytest.approx(1.5, rel=0.1) and math.exp(beside) == pytest.approx(1.0, rel=0.05)


def test_what_only_ever_ran_beside_its_like_is_not_accused() -> None:
    """It may just take that long."""
    assert learned([("stream", "stream")], 60).demand("stream", "cpu").reported_share == 0.0


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
    assert again.content() == profiles.content()
    assert again.rows == profiles.rows and "of the memory" in str(again)
    broken = profiles.content()
    broken["demands"][0]["weights"] = [1.0]
    with pytest.raises(ValueError, match="another shape"):
        Profiles.of(broken)


def test_company_is_who_ran_at_the_same_time_on_the_same_memory() -> None:
    company = CoRunners(machine(slots=2, others=1))  # the other device has no memory in common
    mine = ran("mine", 1.0, 2.0)
    earlier = ran("before", 0.0, 1.0), ran("overlaps", 0.5, 1.5), ran("elsewhere", 1.0, 2.0, device=1)
    for one in (*earlier, mine, ran("ended with it", 1.5, 2.0)):
        company.ended(one)
    still = [PastRun("still", "cpu", 0, 1.75, math.inf, math.nan)]
    found = company.of(mine, still)
    assert {one.kernel: share for one, share in found} == {"overlaps": 0.5, "ended with it": 0.5, "still": 0.25}


def test_company_that_waits_for_its_processor_is_none() -> None:
    idle = PastRun("stream", "cpu", 0, 0.0, 1.0, active=0.25)
    assert ran("stream").beside(idle) == 0.25
    half, _ = learned(ALL, 200).demand("stream", "cpu").slower(Load(0.5, same=1.0))
    assert math.exp(half) == pytest.approx(1.2, rel=0.05)  # 1 in half of the time, 1 / 1.5 in the other


def test_company_counts_when_it_is_there() -> None:
    """Two others that ask for 0.75 each: at the same time they slow what they meet, one after the other they do not."""
    known = {("half", "cpu"): sure(0.75)}
    at_once = [(ran("half", 0.0, 0.5), 0.5)] * 2
    in_turn = [(ran("half", 0.0, 0.5), 0.5), (ran("half", 0.5, 1.0), 0.5)]
    slower = [sure(0.25).slower(load_of(ran("mine"), company, known))[0] for company in (at_once, in_turn)]
    assert slower == [pytest.approx(math.log(1 / (0.5 + 0.5 / 1.75)), abs=0.05), pytest.approx(0.0, abs=0.05)]


def sure(share: float) -> Demand:
    """A belief without doubt."""
    weights = np.zeros(len(SHARE_LEVELS))
    weights[np.abs(SHARE_LEVELS - share).argmin()] = 1.0
    return Demand(weights)


# --- how sure it is


def worked(asks: dict[str, float], cores: int, seed: int, noise: float = 0.06) -> Profiles:
    """Cores of one memory, by the simulator's rule: kernels of 0.23 and 0.09 s, in jobs whose order is drawn."""
    rng, profiles, company = np.random.default_rng(seed), Profiles(), CoRunners(machine(slots=cores))
    takes, now = dict(zip(asks, (0.23, 0.09), strict=True)), 0.0
    for _ in range(max(192 // (4 * cores), 4)):
        waiting = [list(asks)[number] for number in rng.permutation([0, 1] * (2 * cores))]
        running: dict[int, tuple[str, float]] = {}  # by core: kernel, since when
        left: dict[int, float] = {}  # seconds alone
        while waiting or running:
            for core in sorted(set(range(cores)) - set(running))[: len(waiting)]:
                kernel = waiting.pop()
                running[core], left[core] = (kernel, now), takes[kernel] * math.exp(noise * rng.normal())
            load = max(1.0, sum(asks[kernel] for kernel, _ in running.values()))
            lasts = {core: left[core] * (load if asks[kernel] else 1.0) for core, (kernel, _) in running.items()}
            first = min(lasts, key=lasts.__getitem__)
            now += lasts[first]
            for core in running:
                left[core] *= 1 - lasts[first] / lasts[core]
            kernel, since = running.pop(first)
            ended = PastRun(kernel, "cpu", 0, since, now)
            still = [PastRun(name, "cpu", 0, began, math.inf, math.nan) for name, began in running.values()]
            company.ended(ended)
            profiles.learn(ended, 0.0, now - since, company=company.of(ended, still))
    return profiles


@pytest.mark.parametrize(
    ("cores", "truth"),
    [(2, 0.03), (2, 0.3), (2, 0.52), (2, 0.75), (16, 0.03), (16, 0.06), (16, 0.08), (16, 0.107), (16, 0.2)],
)
def test_the_truth_is_among_what_was_not_ruled_out(cores: int, truth: float) -> None:
    """Nothing is slowed below 0.5 on two cores, and below 0.08 or so on sixteen. The aim is nine of ten repetitions."""
    demands = [worked({"stream": truth, "compute": 0.0}, cores, seed).demand("stream", "cpu") for seed in range(12)]
    assert sum(asks.band[0] <= truth <= asks.band[1] for asks in demands) >= 10


def test_where_nothing_is_slowed_all_is_possible_that_would_not_be() -> None:
    asks = worked({"stream": 0.05, "compute": 0.0}, 16, 0).demand("stream", "cpu")
    assert asks.band[0] == 0.0 and 0.05 < asks.band[1] < 0.15 and asks.reported_share == 0.0


def test_small_shares_of_many_cores_are_learned() -> None:
    """A tenth each: eleven at a time are slowed a little, five are not."""
    profiles = worked({"stream": 0.107, "compute": 0.0}, 16, 0)
    assert profiles.demand("stream", "cpu").reported_share == pytest.approx(0.107, rel=0.15)
    assert profiles.demand("compute", "cpu").reported_share == 0.0


@pytest.mark.parametrize("cores", [4, 16])
def test_bands_hold_when_nobody_knows_what_either_of_two_kernels_asks_for(cores: int) -> None:
    """Truths are drawn: nothing, or anything from a 64th to all."""
    rng, inside = np.random.default_rng(5), []
    for seed in range(24):
        drawn = np.where(rng.random(2) < 0.5, 0.0, 2 ** rng.uniform(-6, 0, 2)).tolist()
        asks = dict(zip(("stream", "compute"), drawn, strict=True))
        found = [worked(asks, cores, seed).demand(kernel, "cpu").band for kernel in asks]
        inside += [least <= truth <= most for (least, most), truth in zip(found, drawn, strict=True)]
    assert np.mean(inside) >= 0.85


def test_traffic_that_was_counted_tells_a_share_without_any_company() -> None:
    for truth in (0.0, 0.03, 0.5, 1.0):
        asks = Demand(counted=(truth, 1 / 0.02**2))
        assert asks.share == pytest.approx(truth, abs=0.03) and asks.std < 0.04
        assert asks.band[0] <= truth <= asks.band[1]
        assert asks.reported_share == (0.0 if truth < 0.1 else asks.share)  # 0.03 may be nothing
    sharp = Demand(counted=(0.3, 1e9))
    assert sharp.share == pytest.approx(0.3, abs=0.02)  # between two levels


def test_times_and_traffic_are_both_reasons() -> None:
    by_times = learned(ALL, 60).demand("half", "cpu")
    both = Demand(**{**vars(by_times), "counted": (ASKS["half"], 1 / 0.1**2)})
    assert abs(both.share - ASKS["half"]) < abs(by_times.share - ASKS["half"]) + 0.05
    assert both.std < min(by_times.std, 0.1)


def test_where_there_is_more_traffic_than_is_counted_only_less_is_ruled_out() -> None:
    least = Demand(counted=(0.3, 1 / 0.02**2), least=True)
    assert least.band[0] == pytest.approx(0.3, abs=0.05) and least.band[1] == 1.0
    assert least.reported_share > 0.3


def test_of_other_code_what_was_counted_is_less_sure() -> None:
    asks = Demand(counted=(0.3, 1e4))
    asks.doubt()
    assert asks.counted[0] == 0.3 and 50 < asks.counted[1] < 100
    never = Demand()
    never.doubt()
    assert never.counted == Demand().counted


def test_what_was_counted_is_kept_and_shown() -> None:
    profiles = Profiles()
    profiles.learn(ran("stream"), 0.0, 0.2)
    assert "of the memory" not in str(profiles)
    profiles.counted("stream", "cpu", 0.3, 1e4, least=True)
    again = Profiles.of(json.loads(json.dumps(profiles.content())))
    assert again.content() == profiles.content()
    assert "of the memory" in str(again) and again.rows[0].counted
    for wrong in ([math.inf, 1.0], [0.3, -1.0], [0.3]):
        broken = profiles.content()
        broken["demands"][0]["counted"] = wrong
        with pytest.raises(ValueError):
            Profiles.of(broken)


def test_who_has_ended_since_is_remembered() -> None:
    company = CoRunners(machine())
    for k in range(4):
        company.ended(ran("stream", k, k + 0.5))
    assert [one.began_s for one in company.since(1.7)] == [3, 2]


def test_runs_that_are_reported_late_hide_no_others() -> None:
    """The end of one with a large value is reported after those of later ones."""
    company = CoRunners(machine(slots=2))
    for one in (ran("a", 0.0, 2.0), ran("b", 2.0, 3.0), ran("late", 0.0, 1.0)):
        company.ended(one)
    assert [one.kernel for one in company.since(1.5)] == ["b", "a"]
    assert [one.kernel for one, _ in company.of(ran("mine", 1.5, 3.0), [])] == ["b", "a"]


def test_of_short_kernels_all_that_ended_in_a_window_are_remembered() -> None:
    company = CoRunners(machine(slots=4))
    for k in range(20_000):
        company.ended(ran("short", 1e-5 * k, 1e-5 * (k + 1)))
    assert sum(one.beside(ran("window")) * 1e-5 for one in company.since(0.1)) == pytest.approx(0.1)
    assert len(company.since(0.0)) == MAX_PAST_RUNS
