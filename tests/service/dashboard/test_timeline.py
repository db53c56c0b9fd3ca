"""The timeline: bands of expected times against what happened, and devices that are other than their profiles."""

from __future__ import annotations

import math

from symphony.service.dashboard.timeline import DRIFT_RUNS, Run, coverage, drift


def run(seconds: float, *, device: str = "a", spread: float = 0.1, ended: str = "done") -> Run:
    return Run(1, 1, "t", [device], 0.0, 0.0, seconds, 1.0, spread, ended)


def test_coverage_counts_finished_runs_within_their_bands() -> None:
    runs = [run(math.exp(x)) for x in (0.0, 0.05, -0.1, 0.15, 0.3)]
    assert coverage([*runs, run(5.0, ended="broke"), run(9.0, spread=0.0)]) == (5, {50: 0.4, 90: 0.8})
    assert coverage([]) == (0, {50: 0.0, 90: 0.0})


def test_a_device_drifts_if_its_newest_runs_take_another_time() -> None:
    slow = [run(2.0, device="slow") for _ in range(DRIFT_RUNS)]  # the newest come first
    old = [run(1.0, device="slow") for _ in range(3 * DRIFT_RUNS)]
    fast = [run(0.5, device="fast")]
    assert drift([*slow, *old, *fast, run(1.1)]) == [
        ("slow", DRIFT_RUNS, 2.0, True),
        ("a", 1, 1.1, False),
        ("fast", 1, 0.5, True),
    ]
