"""Beliefs about real training jobs: what is told of those who say nothing, what is learned, and what is kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symphony as sy
from symphony.runtime.kernels import KernelFunction, KernelOptions
from symphony.training_jobs.live import speed_beliefs
from symphony.training_jobs.live.speed_beliefs import BeliefTables, JobKind, RoundObservation, SpeedBeliefs
from symphony.training_jobs.options import MAX_MODEL_SIZE, MAX_STEPS, Training

GPUS = sy.topology("gpu24")
V100, P100, K80 = (
    next(n for n, kind in enumerate(GPUS.kinds) if kind.name == name) for name in ("v100", "p100", "k80")
)


def kernel(name: str, *, workers: int = 1, **told: Any) -> KernelFunction:
    training = Training(1000, **told)
    return KernelFunction(lambda: None, "gpu", name, KernelOptions(workers=workers, training=training))


def kind(name: str, **told: Any) -> JobKind:
    return JobKind.of(kernel(name, kind=name, **told))


def seen(job: int, of: JobKind, step_s: float, device: int = V100, near: tuple[JobKind, ...] = ()) -> RoundObservation:
    return RoundObservation(job, of, device, near, False, 360.0, 360.0 / step_s)


def step_s(tables: BeliefTables, of: JobKind, device: int) -> float:
    return float(tables.believed.mean.unit_s[tables.kinds.index(of), device, 0])


def test_a_job_that_says_what_it_is_is_guessed_and_one_that_does_not_may_be_anything() -> None:
    told, silent = kernel("a", kind="ResNet-50", batch=64), kernel("b")
    s = SpeedBeliefs(GPUS)
    beliefs = s.beliefs_about([told, silent], 4, 8)
    assert beliefs.unit_std[0, V100, 0] < 1 and beliefs.unit_std[1, V100, 0] > 3
    assert s.step_s(told, V100) < s.step_s(told, P100) < s.step_s(told, K80)
    larger = kernel("a", kind="ResNet-50", batch=128)
    assert s.step_s(larger, V100) > 1.5 * s.step_s(told, V100)
    described = kernel("c", operations=24.6e9, parameters=25.6e6, batch=64)
    assert s.beliefs_about([described], 1, 8).unit_std[0, V100, 0] < 1


def test_a_step_is_one_of_the_whole_gang_and_servers_do_none() -> None:
    s = SpeedBeliefs(GPUS)
    one, four = (s.step_s(kernel("a", kind="ResNet-50", workers=n), V100) for n in (1, 4))
    assert one < four < 2 * one  # each takes a batch of its own; what they exchange comes on top
    assert s.step_s(kernel("a", kind="ResNet-50", workers=5, servers=1), V100) == pytest.approx(four)


def test_kernels_that_are_no_training_jobs_are_as_profiles_say() -> None:
    plain = KernelFunction(lambda: None, "gpu", "plain", KernelOptions())
    told = SpeedBeliefs(GPUS).beliefs_about([plain, kernel("a")], 4, 8)
    assert told.mean.unit_s.shape == (4, 8, 2) and not told.mean.unit_s[0].any() and told.mean.unit_s[1, :3].all()
    assert (told.mean.beside[0] == 1).all() and told.mean.beside[1, 1, V100] < 1


def test_gangs_never_share_and_cores_are_nobodys_but_ones_own() -> None:
    told = SpeedBeliefs(GPUS).beliefs_about([kernel("a"), kernel("b", workers=2)], 2, 8)
    assert told.mean.beside[0, 1, V100] == told.mean.beside[1, 0, V100] == 0
    on_cpus = SpeedBeliefs(sy.topology("machine"))
    cpu = next(n for n, one in enumerate(on_cpus.topology.kinds) if one.type == "cpu")
    told = on_cpus.beliefs_about([kernel("a")], 1, 8)
    assert told.mean.beside[0, 0, cpu] == 1
    # Planners are cautious of doubtful neighbours: on a CPU, all but one core would stay idle.
    assert (
        told.beside_std[0, 0, cpu] == 0
        and SpeedBeliefs(GPUS).beliefs_about([kernel("a")], 1, 8).beside_std[0, 0, V100] > 0
    )


def test_what_was_seen_is_told_and_the_scale_of_the_unknown_is_known_everywhere() -> None:
    s, a = SpeedBeliefs(GPUS), kind("a")
    guess = s.learn([], 1000.0, [a])
    found = s.learn([seen(job, a, 50.0) for job in range(3)], 2000.0, [a])
    assert not s.learner.log  # hundreds of times the guess, and nothing was rejected
    assert step_s(found, a, V100) == pytest.approx(50.0, rel=0.05)
    ratio = step_s(guess, a, K80) / step_s(guess, a, V100)
    assert step_s(found, a, K80) == pytest.approx(50.0 * ratio, rel=0.3)
    s.adopt(found)
    assert s.step_s(kernel("x", kind="a"), V100) == pytest.approx(50.0, rel=0.05)
    assert s.step_s(kernel("x", kind="b"), V100) != pytest.approx(50.0, rel=0.5)  # nobody has asked for it yet


def test_neighbours_are_told_apart() -> None:
    s, a, b = SpeedBeliefs(GPUS), kind("a", operations=1e10), kind("b", operations=1e10)
    alone = [seen(job, a, 1.0) for job in range(3)]
    beside = [seen(job, a, 4.0, near=(b,)) for job in range(3, 6)]
    s.learn(alone, 1000.0, [a, b])
    found = s.learn(beside, 2000.0, [a, b])
    at = {one: number for number, one in enumerate(found.kinds)}
    assert found.believed.mean.beside[at[a], at[b], V100] == pytest.approx(0.25, rel=0.15)
    assert step_s(found, a, V100) == pytest.approx(1.0, rel=0.1)


def test_what_beliefs_rest_on_is_kept_in_a_file(tmp_path: Path) -> None:
    path, a = tmp_path / "p" / "speeds.json", kind("a")
    first = SpeedBeliefs(GPUS, path)
    first.save()
    assert not path.exists()  # there has been no training job
    first.learn([seen(job, a, 50.0) for job in range(3)], 2000.0, [a])
    first.save()
    assert step_s(SpeedBeliefs(GPUS, path).learn([], 2001.0, [a]), a, V100) == pytest.approx(50.0, rel=0.05)
    elsewhere = SpeedBeliefs(sy.topology("machine"), path)  # it has other kinds of GPU
    assert elsewhere.learn([], 2001.0, [a]).kinds == (a,)


def test_who_tells_the_largest_numbers_has_times_all_the_same() -> None:
    s, a = SpeedBeliefs(GPUS), kind("a")
    large = JobKind.of(kernel("x", workers=8, batch=MAX_STEPS, parameters=MAX_MODEL_SIZE, operations=MAX_MODEL_SIZE))
    found = s.learn([seen(1, a, 50.0)], 1000.0, [a, large])
    assert step_s(found, a, V100) == pytest.approx(50.0, rel=0.1)  # others are learned of, too
    told = s.beliefs_about(
        [kernel("x", workers=8, batch=MAX_STEPS, parameters=MAX_MODEL_SIZE, operations=MAX_MODEL_SIZE)],
        1,
        len(GPUS.kinds),
    )
    assert np.isfinite(told.mean.unit_s * MAX_STEPS).all()


def test_what_cannot_be_kept_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    s, a = SpeedBeliefs(GPUS, tmp_path / "file" / "speeds.json"), kind("a")
    s.learn([seen(1, a, 50.0)], 1000.0, [a])
    s.save()
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"format": 9}', '{"format": 1, "kinds": [["a"]], "samples": []}',
        '{"format": 1, "kinds": [], "samples": [[1, 0, "v100", [], false, 1.0, 2.0]]}',
        '{"format": 1, "kinds": [["a", 0, 0, 0, 1, 0]], "samples": [[1, 0, "v100", [], false, NaN, 2.0]]}',
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_put_aside(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "speeds.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING, "symphony.runtime"):
        assert not SpeedBeliefs(GPUS, path).learner.beliefs.store.samples
    assert "cannot be read" in caplog.text


def test_kinds_of_which_nothing_was_heard_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_beliefs, "MAX_JOB_KINDS", 8)
    s = SpeedBeliefs(GPUS)
    kinds = [kind(f"k{number}") for number in range(12)]
    for number, one in enumerate(kinds):
        s.learn([seen(number, one, 2.0 + number)], 1000.0 + number, [one])
    assert len(s.kinds) <= 8 and kinds[0] not in s.kinds
    found = s.learn([], 2000.0, kinds[-2:])
    for number in (10, 11):  # numbers have changed, and samples with them
        assert step_s(found, kinds[number], V100) == pytest.approx(2.0 + number, rel=0.1)
    assert np.isfinite(found.believed.mean.unit_s).all()


def test_neighbours_are_the_same_when_numbers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_beliefs, "MAX_JOB_KINDS", 4)
    s = SpeedBeliefs(GPUS)
    old, a, b = kind("old"), kind("a"), kind("b")
    s.learn([seen(1, old, 2.0)], 1000.0, [old])
    s.learn([seen(2, a, 2.0), seen(3, b, 2.0), seen(4, a, 8.0, near=(b,))], 1001.0, [a, b])
    s.learn([], 1002.0, [kind("new"), kind("newer")])
    assert [s.kinds[0], s.kinds[1]] == [a, b]
    assert [(one.kernel, one.neighbours) for one in s.learner.beliefs.store.samples] == [(0, ()), (1, ()), (0, (1,))]


def test_nothing_is_forgotten_of_those_who_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_beliefs, "MAX_JOB_KINDS", 8)
    s = SpeedBeliefs(GPUS)
    kinds, heard = [kind(f"k{number}") for number in range(10)], s.learner.beliefs.store.samples
    for count in (6, 10):
        reports = [seen(number, one, 2.0 + number) for number, one in enumerate(kinds[:count])]
        s.learn(reports, 1000.0 + count, kinds[:count])
        if count == 6:
            s.learn([], 1008.0, kinds[:3])  # there is room for the others yet
            assert len(heard) == 6
    assert len(heard) == 16
