"""Metrics of small runs, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from symphony.evaluation.metrics import LOSS_CLASSES, METRICS, finish_time_fairness, gang_slowdowns, metrics
from symphony.simulator.records import GangRecord, JobRecord, RunRecord
from tests.evaluation import synthetic


def job(number: int, completion_s: float, isolated_s: float = 1.0) -> JobRecord:
    return JobRecord(number, 0, 10.0, 10.0 + completion_s, isolated_s)


def stay(number: int, seconds: float, *, setup_s: float = 0.0, outcome: str = "finished") -> GangRecord:
    """A stay of gang 0 of a job, whose isolated time is 100 s."""
    return GangRecord(number, 0, (0,), 0.0, 0.0, 5.0, 5.0 + setup_s + seconds, 100.0, setup_s, outcome)


def run(jobs: Sequence[JobRecord] = (), gangs: Sequence[GangRecord] = (), **fields: object) -> RunRecord:
    given: dict[str, object] = dict(makespan_s=50.0, utilisation={}, decisions=300, events=900, refused=0, wall_s=2.0)
    return RunRecord("p", 0, tuple(jobs), tuple(gangs), **(given | fields))  # type: ignore[arg-type]


def test_completion_times_and_slow_downs() -> None:
    values = metrics(run([job(i, float(i + 1), isolated_s=0.5) for i in range(101)]))
    assert values["mean_completion_s"] == pytest.approx(51)
    assert [values[f"p{q}_completion_s"] for q in (50, 90, 99)] == pytest.approx([51, 91, 100])
    assert [values[f"{q}_slowdown"] for q in ("mean", "p50", "p90", "p99")] == pytest.approx([102, 102, 182, 200])
    assert values["makespan_s"] == 50
    assert values["decisions_per_s"] == 150


def test_classes_of_loss_are_disjoint_and_include_their_upper_ends() -> None:
    seconds = [99.9, 100, 100.5, 100.6, 110, 110.1, 120, 120.1, 300, 1000]
    values = metrics(run([job(0, 1)], [stay(i, s) for i, s in enumerate(seconds)]))
    assert [values[name] for name in LOSS_CLASSES] == pytest.approx([0.3, 0.2, 0.2, 0.3])


def test_set_up_is_no_loss_to_contention() -> None:
    assert metrics(run([job(0, 1)], [stay(0, 100, setup_s=40)]))["isolated_share"] == 1


def test_an_interrupted_gang_counts_once_with_its_stays_added_up() -> None:
    resumed_at_full_speed = [stay(0, 60, outcome="preempted"), stay(0, 40)]
    lost_half = [stay(1, 50, outcome="failed"), stay(1, 100)]
    never_came_back = [stay(2, 70, outcome="preempted")]
    r = run([job(0, 1)], [*resumed_at_full_speed, *lost_half, *never_came_back])
    assert gang_slowdowns(r) == pytest.approx([1.0, 1.5])
    values = metrics(r)
    assert (values["isolated_share"], values["worse_share"]) == (0.5, 0.5)
    assert (values["preemptions"], values["failures"]) == (2, 1)


def test_fairness_is_the_slow_down_over_how_often_the_cluster_was_asked_for() -> None:
    def stayed(number: int, arrival_s: float, finish_s: float, isolated_s: float) -> JobRecord:
        return JobRecord(number, 0, arrival_s, finish_s, isolated_s)

    def on(number: int, *devices: int) -> GangRecord:
        return GangRecord(number, 0, devices, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0)

    # Two devices. From 0 to 10 one wants both; from 10 to 20 another one beside it: 1.5 times as many as there are.
    jobs = [stayed(0, 0.0, 20.0, 10.0), stayed(1, 10.0, 30.0, 20.0)]
    r = run(jobs, [on(0, 0, 1), on(1, 0)], devices=2)
    assert finish_time_fairness(r) == pytest.approx([2.0 / 1.25, 1.0 / 1.25])
    values = metrics(r)
    assert (values["max_unfairness"], values["unfair_share"], values["max_slowdown"]) == pytest.approx((1.6, 0.5, 2.0))
    assert "max_unfairness" not in metrics(run(jobs))  # how many devices there are is not known
    assert metrics(run(jobs, stalled=True, devices=2))["max_unfairness"] == math.inf


def test_a_stalled_run_never_completes() -> None:
    values = metrics(run([job(0, 1)], stalled=True))
    assert all(values[name] == math.inf for name in METRICS if "completion" in name or "slowdown" in name)
    assert values["makespan_s"] == math.inf
    assert METRICS["makespan_s"].show(math.inf) == "never"


def test_what_cannot_be_known_is_nan() -> None:
    values = metrics(run([job(0, 1)], wall_s=0.0))
    assert math.isnan(values["decisions_per_s"])
    assert all(math.isnan(values[name]) for name in LOSS_CLASSES)


def test_every_value_has_an_entry_in_the_registry_in_its_order() -> None:
    values = metrics(synthetic.run("p", synthetic.scenario(0, jobs=5), 0.5))
    assert list(values) == [name for name in METRICS if name in values]
    assert {"utilisation.compute", "utilisation.memory", "utilisation.switch"} <= set(values)
    assert "utilisation.nic" not in values  # the run had no such rows
    for metric in METRICS.values():
        assert metric.title and metric.definition.endswith(".")


def test_shown_with_units() -> None:
    assert METRICS["mean_completion_s"].show(0.25) == "250 ms"
    assert METRICS["worse_share"].show(0.256) == "25.6%"
    assert METRICS["p99_slowdown"].show(1234.5) == "1,234.50"
    assert METRICS["decisions_per_s"].show(12345.6) == "12,346"
