"""How sharing slows work down."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.contention import exchange, kernels
from benchmarks.contention import pairs as benchmark
from symphony.simulator.contention import LOAD_UNIT, MAX_LOAD, Bottleneck, ContentionModel, Serial, to_load
from symphony.testing import check_contention_model
from tests.data import data

MODELS = [Bottleneck(), Serial()]


def test_loads_are_rounded_to_the_nearest_unit_ties_to_even() -> None:
    fractions = jnp.asarray([0.0, 0.5, 1.0, 0.4 * LOAD_UNIT, 0.5 * LOAD_UNIT, 1.5 * LOAD_UNIT, 0.6 * LOAD_UNIT])
    assert to_load(fractions).tolist() == [0, 2**15, 2**16, 0, 0, 2, 1]
    assert to_load(fractions).dtype == jnp.int32


def test_absurd_demands_are_cut() -> None:
    assert to_load(jnp.asarray([100.0, jnp.inf])).tolist() == [2**20, 2**20]
    assert MAX_LOAD == 16.0


@pytest.mark.parametrize("model", MODELS)
def test_shares_fall_only_beyond_capacity(model: ContentionModel) -> None:
    share = model.share(jnp.asarray([0.0, 0.5, 1.0, 1.6, 4.0]))
    assert share.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.625, 0.25])


def test_the_scarcest_row_sets_the_pace_or_waits_add_up() -> None:
    shares = jnp.asarray([[1.0, 0.5, 0.8], [0.25, 1.0, 1.0]])
    used = jnp.asarray([[True, True, True], [False, True, True]])
    assert Bottleneck().compose(shares, used).tolist() == pytest.approx([0.5, 1.0])
    assert Serial().compose(shares, used).tolist() == pytest.approx([0.4, 1.0])


@pytest.mark.parametrize("model", MODELS)
def test_who_uses_no_row_is_not_slowed(model: ContentionModel) -> None:
    assert float(model.compose(jnp.asarray([0.1, 0.2]), jnp.asarray([False, False]))) == 1.0


def test_a_model_of_ones_own_must_say_both() -> None:
    class Half(ContentionModel):
        def share(self, load):
            return load

    with pytest.raises(TypeError):
        Half()  # type: ignore[abstract]


@pytest.mark.parametrize("model", MODELS)
def test_models_keep_the_public_contract(model: ContentionModel) -> None:
    check_contention_model(model)


@pytest.mark.parametrize("model", MODELS)
def test_two_workers_on_one_device_are_slowed_alike_whatever_they_demand(model: ContentionModel) -> None:
    """A limit of the protocol, which measured pairs do not respect: docs/decisions/0010-contention-fit.md."""
    rng = np.random.default_rng(0)
    demand = rng.uniform(0, 1, (100, 2, 4)) * (rng.random((100, 2, 4)) < 0.6)  # of pairs of workers, on four rows
    shares = model.share(jnp.asarray(demand.sum(axis=1)))
    both = [model.compose(shares, jnp.asarray(demand[:, worker] > 0)) for worker in range(2)]
    assert np.allclose(both[0], both[1])
    assert (np.asarray(both[0]) < 0.9).any()


# ------------------------------------------------------------------------- what was fitted to measurements

KEPT = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "contention.json").read_text(encoding="utf-8")
)


def made_pairs(overlap: float, seed: int = 0) -> tuple[benchmark.Pairs, np.ndarray]:
    """All pairs of 12 jobs on each GPU that share by slices, with their log weights."""
    rng = np.random.default_rng(seed)
    jobs = tuple((gpu, f"m{i // 3}", str(i % 3)) for gpu in benchmark.GPUS for i in range(12))
    weight = rng.normal(0, 0.6, len(jobs))
    a, b = np.array([(i, j) for i in range(36) for j in range(i, 36) if jobs[i][0] == jobs[j][0]]).T
    beside = np.stack([weight[b] - weight[a], weight[a] - weight[b]], axis=1)
    gpu = np.eye(3)[[benchmark.GPUS.index(job[0]) for job in jobs]]
    features = np.column_stack([gpu, rng.normal(size=len(jobs))])
    return benchmark.Pairs(jobs, a, b, -np.log1p(overlap * np.exp(beside)), features), weight


def test_a_fit_finds_what_made_the_pairs() -> None:
    pairs, weight = made_pairs(0.7)
    form = next(form for form in benchmark.FORMS if form.name == "slices: a weight")
    got = benchmark.fit(form, pairs, np.ones(len(pairs.a)))
    assert np.exp(got.common) == pytest.approx([0.7] * 3, rel=0.01)
    for gpu in range(3):
        mine = pairs.gpu == gpu
        found, true = got.jobs[mine, 0], weight[mine]
        assert found - found.mean() == pytest.approx(true - true.mean(), abs=0.02)


def test_a_fit_does_not_look_at_what_is_held_out() -> None:
    pairs, _ = made_pairs(0.7)
    used = np.where(np.arange(len(pairs.a)) % 4, 1.0, 0.0)
    wrong = pairs.log_rate - 3.0 * (1 - used)[:, None]
    spoilt = benchmark.Pairs(pairs.jobs, pairs.a, pairs.b, wrong, pairs.features)
    hidden = used == 0
    for name in ("table look-up, else means", *(form.name for form in benchmark.FORMS)):
        predict = benchmark.predictors()[name]
        assert np.array_equal(predict(pairs, used)[hidden], predict(spoilt, used)[hidden]), name


def test_held_out_models_meet_no_pair_but_their_probes() -> None:
    pairs, _ = made_pairs(0.7)
    met = []

    def spy(pairs: benchmark.Pairs, weight: np.ndarray) -> np.ndarray:
        met.append(weight)
        return np.zeros_like(pairs.log_rate)

    held = benchmark.hold_out_models(pairs, spy, 2, 0)
    for weight, model in zip(met, np.unique(pairs.model), strict=True):
        mine = (pairs.model[pairs.a] == model) | (pairs.model[pairs.b] == model)
        assert (weight[~mine] == 1).all()
        assert weight[mine].sum() == 2 * (pairs.model == model).sum()
    assert len(held.error) == sum(int((weight == 0).sum()) for weight in met)


def test_the_parameters_that_are_kept_are_those_that_the_fit_gives() -> None:
    data("gavel", "colocated_pairs.csv")
    got, kept = benchmark.parameters(benchmark.read_pairs()), KEPT["pairs"]["parameters"]
    assert got["overlap"] == pytest.approx(kept["overlap"], rel=0.02)
    assert got["exponent"] == pytest.approx(kept["exponent"], rel=0.02)
    assert got["jobs"].keys() == kept["jobs"].keys()
    for job, numbers in got["jobs"].items():
        assert numbers == pytest.approx(kept["jobs"][job], rel=0.05, abs=0.02), job


def test_slices_know_more_of_a_new_model_than_equal_rates_could() -> None:
    """Why the decision asks for a model that sees a worker's own load: with three probes of each job of a model that it
    has not met, it errs less than one that knows the answer but slows both jobs alike. Not so on the V100."""
    data("gavel", "colocated_pairs.csv")
    pairs = benchmark.read_pairs()
    predict = benchmark.predictors()["slices: sensitivity, pressure"]
    held = benchmark.hold_out_models(pairs, predict, 3, 0)
    alike = benchmark.Held(pairs.a, pairs.gpu[pairs.a], benchmark.equal_rates(pairs), pairs.log_rate)
    slices, equal = (
        {gpu: benchmark.of_gpu(one, g).error.mean() for g, gpu in enumerate(benchmark.GPUS)} for one in (held, alike)
    )
    assert slices["p100"] < 0.6 * equal["p100"]
    assert slices["k80"] < 0.6 * equal["k80"]
    assert slices["v100"] > equal["v100"]


def test_demands_of_the_genomics_kernels_reproduce_the_published_speeds() -> None:
    """As their table says: 0.06 root mean square."""
    demand = kernels.shipped()
    speed = kernels.RULES[2].speed(demand[kernels.FIRST] + demand[kernels.SECOND])
    assert np.sqrt(((speed - kernels.SPEED) ** 2).mean()) < 0.0605
    load = jnp.asarray(demand[kernels.FIRST] + demand[kernels.SECOND])
    assert np.allclose(Bottleneck().compose(Bottleneck().share(load), load > 0), speed, rtol=1e-5)


def test_a_step_of_several_workers_takes_what_the_rules_say() -> None:
    """Two workers on each of two machines, exchange as long as compute: the link is loaded by 2 * 1 / 2, just full."""
    one = np.ones(1)
    steps = exchange.Steps(one.astype(str), one.astype(int), one.astype(str), 4 * one, 2 * one, 2 * one, one, one)
    assert exchange._simulated(steps, one, one) == pytest.approx([2.0])
    assert exchange._simulated(steps, 3 * one, one) == pytest.approx([1 + 3 * 1.5])
    assert exchange._simulated(steps._replace(machines=one), 3 * one, one) == pytest.approx([4.0])
