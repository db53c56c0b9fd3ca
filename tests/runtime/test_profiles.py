"""Times of kernels, learned from runs."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest

import symphony as sy
from symphony.estimation.kernels import AVERAGED_RUNS, MIN_NOISE_STD, Timing
from symphony.estimation.runs import PastRun
from symphony.runtime.profiles import MAX_CODES_PER_KERNEL, Profiles

SIZES = (1e3, 1e5, 1e6, 1e7)


def truth(size: float) -> float:
    """Half a millisecond, and 2 ns for each byte."""
    return 5e-4 + 2e-9 * size


def learned(runs: int, noise: float = 0.1, seed: int = 0) -> Timing:
    rng, timing = np.random.default_rng(seed), Timing()
    for _ in range(runs):
        size = float(rng.choice(SIZES))
        timing.learn(size, truth(size) * math.exp(noise * rng.normal()))
    return timing


def test_before_the_first_run_nearly_anything_is_possible() -> None:
    assert Timing().runs == 0 and Timing().spread(1e6) > 2.0


def test_one_run_tells_what_an_input_of_its_size_takes() -> None:
    timing = Timing()
    timing.learn(1e6, 0.25)
    assert timing.seconds(1e6) == pytest.approx(0.25, rel=0.05)
    assert timing.spread(1e6) < Timing().spread(1e6)


def test_the_fixed_part_and_the_slope_are_told_apart() -> None:
    timing = learned(40)
    for size in (0.0, 1e4, 3e6, 1e8):  # also where nothing ran
        assert timing.seconds(size) == pytest.approx(truth(size), rel=0.25)


def test_the_spread_says_how_far_off_the_next_run_may_be() -> None:
    """Over many learners, a 90% interval of the next run holds it in about nine of ten cases."""
    hits = []
    for seed in range(200):
        timing, rng = learned(12, noise=0.2, seed=seed), np.random.default_rng(1000 + seed)
        size = float(rng.choice(SIZES))
        seen = math.log(truth(size)) + 0.2 * rng.normal()
        hits.append(abs(seen - math.log(timing.seconds(size))) < 1.645 * timing.spread(size))
    assert 0.85 < np.mean(hits) < 0.99


def test_a_wild_run_changes_little() -> None:
    timing = learned(30)
    before = timing.seconds(1e6)
    timing.learn(1e6, before * 1e4)
    timing.learn(1e6, before / 1e4)
    assert timing.seconds(1e6) == pytest.approx(before, rel=0.1)


def test_what_has_changed_for_good_is_learned_anew() -> None:
    timing = learned(30)
    for _ in range(60):
        timing.learn(1e6, 100 * truth(1e6))
    assert timing.seconds(1e6) == pytest.approx(100 * truth(1e6), rel=0.2)


@pytest.mark.parametrize("how", ["shared", "cold"])
def test_runs_in_company_and_first_runs_tell_less(how: str) -> None:
    plain, less = learned(5), learned(5)
    plain.learn(1e6, 2 * truth(1e6))
    less.learn(1e6, 2 * truth(1e6), **{how: True})
    assert abs(less.seconds(1e6) / truth(1e6) - 1) < abs(plain.seconds(1e6) / truth(1e6) - 1)


def test_after_a_first_run_that_compiled_the_next_one_is_news() -> None:
    timing = Timing()
    timing.learn(0.0, 3.0, cold=True)
    timing.learn(0.0, 0.004)
    assert timing.seconds(0.0) < 0.01 and (timing.runs, timing.warm) == (2, 1)


def test_what_a_run_holds_a_slot_for_is_a_mean_of_the_last_ones_without_the_wild() -> None:
    timing = Timing()
    assert timing.around_s == 0.0
    for seconds in (5.0, *[1e-3] * AVERAGED_RUNS, 3e-3):
        timing.learn_around(seconds)
    assert len(timing.around) == AVERAGED_RUNS and timing.around_s == pytest.approx(1.1e-3)
    timing.learn_around(60.0)  # somebody compiled
    assert timing.around_s < 2e-3


def test_runs_that_were_sent_ahead_hold_a_slot_for_as_long_as_they_do_and_as_often_as_they_are() -> None:
    timing = Timing()
    for number in range(10 * AVERAGED_RUNS):
        timing.learn_around(1e-4 if number % 4 else 8e-3, ahead=number % 4 > 0)
    assert timing.ahead == pytest.approx(0.75, abs=0.05)
    assert timing.around_s == pytest.approx(0.25 * 8e-3 + 0.75 * 1e-4, rel=0.15)  # not cut as if it were wild


def test_times_too_short_to_measure_do_no_harm() -> None:
    timing = Timing()
    for _ in range(50):
        timing.learn(0.0, 0.0)
    assert 0 < timing.seconds(0.0) < 1e-5 and timing.noise_std >= MIN_NOISE_STD
    assert np.linalg.eigvalsh(timing.cov).min() > 0


def test_other_code_makes_what_was_learned_less_sure() -> None:
    timing = learned(20)
    timing.digest = "before"
    sure = timing.spread(1e6)
    timing.doubt("before")
    assert timing.spread(1e6) == sure
    timing.doubt("after")
    assert timing.spread(1e6) > sure + 0.5 and timing.seconds(1e6) == pytest.approx(truth(1e6), rel=0.2)


def test_profiles_are_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profiles.json"
    profiles = Profiles(path)
    profiles.timing("align", "v100").learn(1e6, 0.1)
    profiles.timing("align", "never run")
    profiles.save()
    again = Profiles(path)
    assert list(again) == [("align", "v100")] and again["align", "v100"] == profiles["align", "v100"]
    assert again.tried("align", "v100", warm=True) and not again.tried("align", "never run")
    profiles.timing("align", "once").learn(1e6, 0.1, cold=True)
    assert profiles.tried("align", "once") and not profiles.tried("align", "once", warm=True)
    for _ in range(2):
        profiles.timing("align", "once").learn(1e6, 0.1, cold=True)
    assert profiles.tried("align", "once", warm=True)  # there are none but first runs
    assert str(again).startswith("align on v100: ") and [row.runs for row in again.rows] == [1]
    assert [file.name for file in path.parent.iterdir()] == ["profiles.json"]


def test_scripts_do_not_share_the_profiles_of_a_name() -> None:
    profiles = Profiles()
    for _ in range(5):
        profiles.timing("__main__.work@00000001", "small").learn(0.0, 0.6)
    profiles.doubt("__main__.work@00000002", "small", "other")
    assert not profiles.tried("__main__.work@00000002", "small")
    assert [row.kernel for row in profiles.rows] == ["__main__.work"]
    profiles.timing("__main__.work@00000002", "small").learn(0.0, 0.009)
    assert profiles.timing("__main__.work@00000001", "small").fixed_s == pytest.approx(0.6, rel=0.1)
    assert profiles.timing("__main__.work@00000002", "small").fixed_s == pytest.approx(0.009, rel=0.2)
    assert [row.kernel for row in profiles.rows] == ["__main__.work@00000001", "__main__.work@00000002"]


@pytest.mark.parametrize(
    ("name", "digest", "kept"),
    [
        ("__main__.work", "same", True),
        ("__main__.work", "other", False),
        ("ann:__main__.work", "other", False),
        ("tool.work", "other", True),
    ],
)
def test_profiles_of_older_versions_have_no_code_and_are_still_used(name: str, digest: str, kept: bool) -> None:
    """By a script only if its code is the same; by a module in any case, less certain if it has changed."""
    old = Profiles()
    old.timing(name, "small").learn(0.0, 0.6)
    old.timing(name, "small").digest = "same"
    profiles = Profiles.of(json.loads(json.dumps(old.content())))
    profiles.doubt(f"{name}@0123abcd", "small", digest)
    found = profiles.timing(f"{name}@0123abcd", "small")
    assert found.runs == kept and (found == old.timing(name, "small")) == (digest == "same")


def test_the_oldest_profiles_of_changed_code_are_dropped() -> None:
    profiles = Profiles()
    for code in range(3 * MAX_CODES_PER_KERNEL):
        profiles.doubt(f"__main__.work@{code:08x}", "small", str(code))
        profiles.timing(f"__main__.work@{code:08x}", "small").learn(0.0, 1.0)
    assert len(profiles) == MAX_CODES_PER_KERNEL
    assert ("__main__.work@0000002f", "small") in profiles


def test_a_home_folder_that_is_none_holds_no_profiles(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Profiles(tmp_path / "home" / "profiles.json").rows


def test_without_a_file_nothing_is_kept() -> None:
    profiles = Profiles()
    profiles.timing("align", "v100").learn(1e6, 0.1)
    profiles.save()
    assert len(profiles) == 1 and str(Profiles()) == "nothing has run yet"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": "symphony.profiles/0"}',
        '{"format": "symphony.profiles/1", "timings": [{"kernel": "a"}]}',
        '{"format": "symphony.profiles/1", "timings": [{"kernel": "a", "device": "b", "mean": [NaN, 0]}]}',
        '{"format": "symphony.profiles/1", "timings": [{"kernel": "a", "device": "b", "cov": [[1]]}]}',
    ],
)
def test_a_file_that_is_no_profile_is_warned_of_and_passed_over(content: str, tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(content)
    with pytest.warns(sy.SymphonyWarning, match="learned again"):
        assert len(Profiles(path)) == 0


def test_a_folder_that_cannot_be_written_to_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    profiles = Profiles()
    profiles.path = tmp_path / "file" / "profiles.json"
    with pytest.warns(sy.SymphonyWarning, match="could not be saved"):
        profiles.save()


def test_numbers_survive_the_file_exactly(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    profiles = Profiles(path)
    profiles.timing("a", "b").learn(12345.0, 0.1234567890123)
    profiles.save()
    entry = json.loads(path.read_text())["timings"][0]
    assert entry["mean"] == profiles["a", "b"].mean


def test_what_the_machine_told_is_kept_and_shown(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path / "p.json")
    for pcie in (1e9, 3e9):
        ran = PastRun("k", "gpu", 0, 0.0, 1.0)
        profiles.learn(ran, 10.0, 1.0, seen={"pcie": pcie, "gpu busy": 0.5})
    profiles.save()
    again = Profiles(tmp_path / "p.json")
    assert again.content() == profiles.content() and again.seen("k", "gpu")["pcie"].mean == 2e9
    assert str(again).endswith("meanwhile: pcie 2 GB/s, gpu busy 50%")
