"""Plots: lanes never overlap, names are taken as they are, and every figure can be drawn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.evaluation import plots
from symphony.evaluation.report import Report
from symphony.simulator.records import GangRecord
from tests.evaluation import synthetic

TIMES = st.tuples(st.integers(0, 30), st.integers(1, 10), st.sets(st.integers(0, 3), min_size=1))


@pytest.fixture(scope="module")
def report() -> Report:
    return synthetic.report(seeds=range(2), jobs=8)


def stay(number: int, start: float, length: float, devices: set[int]) -> GangRecord:
    return GangRecord(number, 0, tuple(sorted(devices)), start, start, start, start + length, length, 0.0)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(TIMES, max_size=25))
def test_lanes_hold_one_worker_at_a_time_and_are_as_few_as_can_be(
    drawn: list[tuple[int, int, set[int]]],
) -> None:
    stays = [stay(i, start, length, devices) for i, (start, length, devices) in enumerate(drawn)]
    bars = plots.lanes(stays)
    assert len(bars) == sum(len(s.devices) for s in stays)
    for device in range(4):
        here = [bar for bar in bars if bar.device == device]
        for lane in {bar.lane for bar in here}:
            times = sorted((b.stay.start_s, b.stay.finish_s) for b in here if b.lane == lane)
            assert all(end <= start for (_, end), (start, _) in pairwise(times))
        most = max((sum(s.start_s <= t < s.finish_s for s, _, _ in here) for t in range(41)), default=0)
        assert len({bar.lane for bar in here}) == most


def test_a_policy_has_the_same_colour_everywhere_and_its_own(report: Report) -> None:
    colour = plots.colours(report)
    assert len(set(colour.values())) == len(report.policies)
    (cdf,) = plots.slowdown_cdf(report).axes
    drawn = [line.get_color() for line in cdf.get_lines()]
    assert drawn == [colour[policy] for policy in report.ranking]
    legend = plots.utilisation(report).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [report.label(p) for p in report.ranking]


def test_the_cdf_ends_at_all_jobs(report: Report) -> None:
    (axes,) = plots.slowdown_cdf(report).axes
    slowest = max(job.slowdown for seed in report.seeds for job in report.run_of["fifo", seed].jobs)
    line = axes.get_lines()[report.ranking.index("fifo")]
    assert line.get_ydata()[-1] == 1.0
    assert line.get_xdata()[-1] == slowest


def test_the_stacked_bars_reach_the_whole(report: Report) -> None:
    (axes,) = plots.loss_classes(report).axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches[-len(report.policies) :]]
    assert ends == pytest.approx([1.0] * len(report.policies))


def test_the_gantt_shows_the_best_fair_policy_and_the_baseline(report: Report) -> None:
    upper, lower = plots.gantt(report).axes
    assert (upper.get_title(loc="left"), lower.get_title(loc="left")) == ("eft-belief", "fifo")
    (only,) = plots.gantt(report, seed=1, policies=["eft-exact"]).axes
    bars = sum(len(collection.get_paths()) for collection in only.collections[:-1])
    assert bars == sum(len(s.devices) for s in report.run_of["eft-exact", 1].gangs)


def test_a_huge_schedule_is_cut_and_says_so(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_GANTT_BARS", 20)
    monkeypatch.setattr(plots, "_GANTT_LANES", 3)
    axes = plots.gantt(report, policies=["fifo"]).axes[0]
    (subtitle,) = [text.get_text() for text in axes.texts]
    assert "the first 20 of" in subtitle and "3 of 9 lanes, evenly chosen" in subtitle


@pytest.mark.filterwarnings("error")
def test_names_that_matplotlib_would_read_as_its_own(tmp_path: Path) -> None:
    odd = synthetic.report(seeds=range(2), jobs=4, policies=(("$x$ \\frac", 0.3), ("_hidden", 0.9), ("a_b^{", 0.6)))
    paths = plots.save_all(odd, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    labels = [text.get_text() for text in plots.slowdown_cdf(odd).axes[0].get_legend().get_texts()]
    assert len(labels) == 3 and any("_hidden" in label for label in labels)


def test_one_policy_on_one_seed_can_be_drawn(tmp_path: Path) -> None:
    assert len(plots.save_all(synthetic.report(seeds=(1,), jobs=3, policies=(("only", 0.5),)), tmp_path)) == 5
