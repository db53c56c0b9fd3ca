"""Runs to learn from, steps that improve, and whole trainings."""

from __future__ import annotations

import threading
from dataclasses import replace
from inspect import signature
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.train_seeds import train_seeds
from symphony.learning import budget
from symphony.learning import train as training
from symphony.learning.beliefs import NONE, slopes
from symphony.learning.returns import GROUP, advantages
from symphony.learning.rollouts import roll_out, weighted_cost
from symphony.learning.train import RoundSize, ScenarioDistribution, TrainingRound, draw, train
from symphony.learning.update import Method, learn, loss, optimiser, rate, replay, training_batch
from symphony.policies import Learned, Network, Sizes
from symphony.policies.features import graph_tables
from symphony.problem.errors import InputError
from symphony.problem.objective import MEAN_ONLY, ObjectiveWeights
from symphony.scheduling.clock import Amount
from symphony.simulator.contention import Bottleneck
from symphony.simulator.rollout import begin, begin_batch, run_steps
from symphony.simulator.scenarios import Disturbances, pick, stack
from tests.learning.test_device_sharding import on_devices
from tests.scheduling.by_hand import chain, cluster, dot, work

SIZES = Sizes(gangs=4, devices=3, width=8, memory=8)
METHOD = Method(unroll=8, pieces=4, epochs=1)
RIVALS = ("eft-belief",)  # each of the others would be a program more


def small(topology, seed):
    """A handful of jobs that come at once."""
    units = 1.0 + seed % 3
    return work(chain(), dot("any", units=units), chain("cpu only"), dot("any"), dot("cpu only"))


ROUGH = Disturbances(window_s=0.3, phase_s=0.6, background=1.5, burst=1.2)
COURSE = ScenarioDistribution(cluster(), (small,), (0.5, 1.0), 24, ROUGH)
WHAT = {"topology": cluster(), "workload": small, "disturbances": ROUGH}
WHOLE = {"rounds": 3, "size": RoundSize(pool=2, scenarios=2, group=2, validation=2, every=1), "seed": 6}
WHOLE |= {"sizes": SIZES, "method": METHOD, "rivals": RIVALS}
WHOLE |= {"telemetry_gradient": "sampled"}  # what is true of a training is true with and without it


def noting(compile_round, what):
    """`_compile_round` whose programs note something about the batch of each round in a list."""
    met = []

    def compile_noted(call):
        run = compile_round(call)

        def noted(state, batch, *others):
            met.append(what(batch))
            return run(state, batch, *others)

        return noted

    return compile_noted, met


@pytest.fixture(scope="module")
def rolled():
    """Two scenarios, twice each: the batch, the network, the decisions, and the worlds at the end."""
    scenarios = [COURSE.scenario(number) for number in (0, 1)]
    batch = stack([s for s in scenarios for _ in range(2)])
    network = Network(jax.random.key(0), SIZES)
    keys = jax.random.split(jax.random.key(8), 4)  # one run makes more than eight decisions
    run = eqx.filter_jit(
        lambda net, objective: roll_out(batch, Learned(net, draws=True), keys, Bottleneck(), objective, 16, 400)
    )

    def under(*weights):
        """The same runs, each with its own weights of objectives."""
        return run(network, jnp.asarray(weights))

    decisions, worlds = under(*[MEAN_ONLY] * 4)
    return batch, network, decisions, worlds, under


def test_runs_end_and_cost_the_time_that_jobs_were_in_the_system(rolled) -> None:
    _, _, decisions, worlds, _ = rolled
    assert worlds.core.jobs_done.tolist() == [5, 5, 5, 5] and not worlds.core.refused.any()
    assert decisions.count.tolist() == worlds.core.decisions.tolist()
    np.testing.assert_allclose(decisions.total, worlds.completion_sum.total, rtol=1e-4)
    np.testing.assert_allclose(decisions.stay_s, decisions.total / 5, rtol=1e-4)


def test_costs_follow_the_weights_of_objectives(rolled) -> None:
    """All jobs are there from the start. Random weights of the network do not see the objective, so runs are equal."""
    _, _, decisions, worlds, under = rolled
    makespan, both = ObjectiveWeights(makespan=1.0), ObjectiveWeights(mean=0.5, makespan=0.5)
    other, _ = under(makespan, both, ObjectiveWeights(fairness=1.0), ObjectiveWeights(tail=1.0))
    np.testing.assert_array_equal(other.made.action, decisions.made.action)
    np.testing.assert_array_equal(other.made.features.objective[0, 0], makespan)
    np.testing.assert_allclose(other.total[0], 5 * worlds.now.total[0], rtol=1e-4)
    np.testing.assert_allclose(other.total[1], decisions.total[1] / 2 + 5 * worlds.now.total[1] / 2, rtol=1e-4)
    assert (jnp.diff(other.cost, axis=1)[:, :3] >= 0).all() and (other.total > 0).all()


def test_the_tail_counts_long_delays_most(rolled) -> None:
    """A job that has been here for 8 s, and one that has just come, of the same graph; another second of both."""
    batch, *_ = rolled
    s = pick(batch, 0)
    isolated = np.asarray(s.workload.isolated)
    policy = Learned(Network(jax.random.key(0), SIZES))
    core = jax.jit(lambda: begin(s, policy, jax.random.key(0)).world.core)()
    times = Amount(jnp.zeros_like(core.job).at[1].set(8), jnp.zeros(core.job.shape))
    core = replace(core, job=core.job.at[:2].set(jnp.arange(2)), arrived=times, now=Amount.of(jnp.asarray(9.0)))
    here = core.job >= 0
    cost_of = jax.jit(lambda weights: weighted_cost(weights, s, core, here, jnp.asarray(1.0)))
    cost = {
        name: float(cost_of(np.asarray(ObjectiveWeights(**{name: 1.0}), np.float32)))
        for name in ObjectiveWeights._fields
    }
    alone = float(isolated[core.graph[0]])
    typical = float(isolated.mean())
    assert cost["mean"] == pytest.approx(2.0) and cost["makespan"] == pytest.approx(5.0)
    assert cost["fairness"] == pytest.approx(2 * typical / alone)
    assert cost["tail"] == pytest.approx(typical * (8.5 + 0.5) / alone**2)


@pytest.mark.slow
def test_asking_the_policy_only_in_every_few_steps_changes_nothing(rolled) -> None:
    batch, network, decisions, worlds, _ = rolled
    policy, keys = Learned(network, draws=True), jax.random.split(jax.random.key(1), 4)
    carry, _, over = run_steps(batch, begin_batch(batch, policy, keys), policy, Bottleneck(), 400, False)
    assert over.all()
    assert carry.world.core.decisions.tolist() == decisions.count.tolist()
    np.testing.assert_allclose(carry.world.completion_sum.total, worlds.completion_sum.total, rtol=1e-5)


def test_decisions_are_kept_in_order_with_what_the_run_had_cost(rolled) -> None:
    _, _, decisions, *_ = rolled
    for run in range(4):
        count = int(decisions.count[run])
        time, cost = np.asarray(decisions.time[run, :count]), np.asarray(decisions.cost[run, :count])
        assert (np.diff(time) >= 0).all() and (np.diff(cost) >= 0).all()
        assert cost[0] == 0.0 and cost[-1] <= float(decisions.total[run])


def told(batch):
    """What is told of the graphs of each run."""
    return jax.vmap(lambda w: graph_tables(batch.topology, w))(batch.workload)


def test_replaying_decisions_says_what_was_said_when_they_were_made(rolled) -> None:
    """From the middle of a run as well: the memory before each decision is kept."""
    batch, network, decisions, *_ = rolled
    nodes = eqx.filter_jit(lambda n: jax.vmap(n.encode)(told(batch)))(network)
    for run, first in ((0, 0), (3, 2)):
        count = int(decisions.count[run])
        made = jax.tree.map(lambda x, r=run, f=first, c=count: x[r, f:c], decisions.made)
        said = eqx.filter_jit(replay)(network, batch.topology, network.factors, nodes[run], made)
        chance = jnp.take_along_axis(said.log_probs, made.action[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(chance, made.log_prob, atol=2e-5)
        np.testing.assert_allclose(said.value, made.value, atol=2e-5)


def test_the_first_step_follows_the_policy_gradient(rolled) -> None:
    """Before anything has changed, the slope of the loss is that of −mean(advantage · log-probability)."""
    batch, network, decisions, *_ = rolled
    every_run = eqx.filter_jit(told)(batch)
    graphs_of = jax.tree.map(lambda x: x[::2], every_run)  # two runs of each scenario
    judged = eqx.filter_jit(advantages)(decisions, every_run.scale, 2, baseline=GROUP)
    stretches = training_batch(decisions, judged.advantage, judged.target, 8, 2)
    bare = replace(METHOD, entropy=0.0, value=0.0)
    factors = network.factors
    slope = eqx.filter_jit(eqx.filter_grad(lambda n: loss(n, batch.topology, graphs_of, stretches, bare, factors)[0]))(
        network
    )

    def plain(network: Network) -> jax.Array:
        nodes = jax.vmap(network.encode)(jax.tree.map(lambda x: x[stretches.scenario], graphs_of))
        said = jax.vmap(lambda n, m: replay(network, batch.topology, factors, n, m))(nodes, stretches.made)
        chance = jnp.take_along_axis(said.log_probs, stretches.made.action[..., None], axis=-1)[..., 0]
        return -jnp.where(stretches.kept, chance * stretches.advantage, 0).sum() / stretches.kept.sum()

    expected = eqx.filter_jit(eqx.filter_grad(plain))(network)
    for one, other in zip(jax.tree.leaves(slope), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert sum(float(jnp.abs(x).sum()) for x in jax.tree.leaves(slope)) > 0
    # These runs were not asked how beliefs follow the filter, so the filter stays as it is.
    assert signature(train).parameters["telemetry_gradient"].default == NONE and slopes(NONE) is None
    assert decisions.made.jacobian is None and (np.asarray(slope.factors) == 0).all()


def test_the_rate_of_learning_falls_to_a_tenth_with_the_rounds() -> None:
    found = [float(rate(METHOD, number, 100)) / METHOD.rate for number in (0, 50, 100)]
    np.testing.assert_allclose(found, [1.0, 0.55, 0.1], rtol=1e-5)


def test_stretches_in_which_nothing_was_decided_take_no_step(rolled) -> None:
    """Four at a time: of eight stretches, none, four, or five are filled, wherever they lie."""
    batch, network, decisions, *_ = rolled
    every_run = eqx.filter_jit(told)(batch)
    graphs_of = jax.tree.map(lambda x: x[::2], every_run)
    judged = eqx.filter_jit(advantages)(decisions, every_run.scale, 2, baseline=GROUP)
    eight = training_batch(decisions, judged.advantage, judged.target, 8, 2)
    full = np.flatnonzero(np.asarray(eight.kept.any(axis=1)))[:5]
    state = optimiser(METHOD).init(eqx.filter(network, eqx.is_inexact_array))
    learns = eqx.filter_jit(learn)

    def after(which: list[int], filled: int, speed: float = 1e-3) -> tuple[int, list[np.ndarray]]:
        some = jax.tree.map(lambda x: x[jnp.asarray(which)], eight)
        kept = some.kept & jnp.asarray([at in full[:filled] for at in which])[:, None]
        args = (batch.topology, graphs_of, replace(some, kept=kept), jax.random.key(2), METHOD, jnp.asarray(speed))
        learned, left, figures = learns(network, state, *args)
        assert all(np.isfinite(x) for x in figures.values())
        return int(optax.tree.get(left, "count")), jax.tree.leaves(eqx.filter(learned, eqx.is_array))

    order = list(range(8))
    assert len(full) == 5 and after(order, 5)[0] == 2
    (one, first), (same, last) = after(order, 4), after(order[::-1], 4)
    assert one == same == 1
    before = jax.tree.leaves(eqx.filter(network, eqx.is_array))
    assert any((x != y).any() for x, y in zip(first, before, strict=True))
    for x, y in zip(first, last, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    for x, y, z in zip(after(order, 4, 5e-4)[1], first, before, strict=True):
        np.testing.assert_allclose(x - z, (y - z) / 2, atol=1e-6)  # half the rate, half the step
    none, untouched = after(order, 0)
    assert none == 0 and all((x == y).all() for x, y in zip(untouched, before, strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A short training, and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    policy, history = train(**WHAT, checkpoint=folder, look=keep_weights(folder / "weights"), **WHOLE)
    return WHOLE, folder, policy, history


def keep_weights(file):
    """What `train` calls with the weights at every look: the last ones stay."""
    return lambda _, network: eqx.tree_serialise_leaves(file, network)


def test_a_training_tells_of_every_round(whole) -> None:
    _, folder, _, history = whole
    assert [x.number for x in history] == [0, 1, 2]
    assert all(x.against is not None and x.against > 0 for x in history)
    assert history[-1].decisions >= 3 * 4 * 7  # seven gangs in each of four runs
    assert (folder / "best.policy").exists()


def test_the_loss_reaches_the_filter_when_asked_to(whole) -> None:
    """And not otherwise: test_the_first_step_follows_the_policy_gradient, and the next."""
    _, _, policy, _ = whole
    assert float(jnp.abs(policy.network.factors).max()) > 0


@pytest.mark.slow
def test_a_training_leaves_the_filter_alone_unless_asked(whole) -> None:
    settings, _, _, history = whole
    policy, told = train(**WHAT, **{**settings, "telemetry_gradient": NONE, "rounds": 1})
    assert (np.asarray(policy.network.factors) == 0).all()
    assert told[0].decisions == history[0].decisions and told[0].stay_s == pytest.approx(history[0].stay_s, rel=1e-3)


def test_a_training_that_was_cut_off_ends_with_the_same_numbers(whole, tmp_path: Path) -> None:
    settings, _, policy, history = whole

    class Killed(Exception):
        pass

    def kill(told) -> None:
        if told.number == 1:
            raise Killed

    with pytest.raises(Killed):
        train(**WHAT, checkpoint=tmp_path, tell=kill, **settings)
    again, later = train(**WHAT, checkpoint=tmp_path, **settings)
    assert [x.against for x in later] == [x.against for x in history]
    for one, other in zip(jax.tree.leaves(policy), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_checkpoint_of_other_settings_is_refused(whole) -> None:
    settings, folder, policy, _ = whole
    for other in ({"seed": 7}, {"start": policy}):
        with pytest.raises(InputError, match="other settings"):
            train(**WHAT, checkpoint=folder, **{**settings, **other})


# How good the weights are is not asked: that takes two programs more, which run on one device.
TWO = """
import jax, numpy
from tests.learning.test_train import WHAT, WHOLE, keep_weights, noting, train, training

training._mean_completion_s = lambda held, *_: numpy.ones(len(held))
training.compile_run = lambda *_: None
training._compile_round, met = noting(training._compile_round, lambda batch: len(batch.phases.sharding.device_set))
write = keep_weights("{file}")
def look(number, network):
    assert {len(x.devices()) for x in jax.tree.leaves(network) if isinstance(x, jax.Array)} == {1}
    write(number, network)
_, history = train(**WHAT, **WHOLE, look=look)
assert met == [2] * WHOLE["rounds"]
print(",".join(str(x.decisions) for x in history))
"""


@pytest.mark.slow
def test_two_devices_learn_what_one_learns(whole, tmp_path: Path) -> None:
    _, folder, policy, history = whole
    file = tmp_path / "two"
    told = on_devices(2, TWO.replace("{file}", str(file)))
    assert told.strip() == ",".join(str(x.decisions) for x in history)
    read = (eqx.tree_deserialise_leaves(x, policy.network) for x in (folder / "weights", file))
    begun, one, two = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(eqx.filter(z, eqx.is_inexact_array))])
        for z in (Network(jax.random.key(WHOLE["seed"]), SIZES), *read)
    )
    assert np.linalg.norm(two - one) < 0.05 * np.linalg.norm(one - begun)


def test_rounds_take_the_clusters_in_turn(whole, monkeypatch) -> None:
    settings, _, _, _ = whole
    rows = tuple(replace(x, capacity=x.capacity / 2) for x in cluster().resources)
    clusters = [cluster(), replace(cluster(), name="slower", resources=rows)]
    noted, met = noting(training._compile_round, lambda batch: float(np.asarray(batch.topology.capacity)[0]))
    monkeypatch.setattr(training, "_compile_round", noted)
    _, history = train(**{**WHAT, "topology": clusters}, **settings)
    assert met == [met[0], met[0] / 2, met[0]]
    assert all(x.against is not None for x in history)


@pytest.mark.parametrize("before, kept", [(0.5, True), (0.9, False)])
def test_what_is_trained_on_is_the_answer_unless_something_was_better(whole, monkeypatch, before, kept) -> None:
    settings, _, policy, _ = whole
    looks = iter([before, 0.8, 0.7, 0.6])
    monkeypatch.setattr(training, "compare_with_rivals", lambda *_: np.asarray([next(looks)]))
    again, history = train(**WHAT, start=policy, **settings)
    assert [x.against for x in history] == [0.8, 0.7, 0.6]
    same = [np.array_equal(x, y) for x, y in zip(jax.tree.leaves(policy), jax.tree.leaves(again), strict=True)]
    assert all(same) == kept


@pytest.mark.slow
def test_rounds_of_several_forms_have_a_program_each(whole) -> None:
    """In turn, one of them twice; the first round is that of a training by itself."""
    settings, _, _, alone = whole
    size = settings["size"]
    few = replace(COURSE, workloads=(lambda topology, seed: work(chain(), dot("any")),))
    many, other = (draw(course, size, METHOD, Bottleneck(), ("eft-belief",)) for course in (COURSE, few))
    _, history = train(**WHAT, **settings, drawn_before=[many, other, many])
    decisions = np.diff([0, *(x.decisions for x in history)])
    assert decisions[0] == alone[0].decisions and decisions[1] < decisions[0] / 2 < decisions[2]
    np.testing.assert_allclose(history[0].stay_s, alone[0].stay_s, rtol=1e-5)


@pytest.mark.slow
def test_trainings_side_by_side_go_as_each_would_by_itself(whole) -> None:
    settings, _, _, alone = whole
    size = settings["size"]
    asked = {"telemetry_gradient": settings["telemetry_gradient"]}
    drawn = draw(COURSE, size, METHOD, Bottleneck(), RIVALS)
    told: list[int] = []
    policies, both = train_seeds(
        drawn,
        (5, 6),
        rounds=2,
        size=size,
        sizes=SIZES,
        method=METHOD,
        **asked,
        tell=lambda history: told.append(len(history[0])),
    )
    assert told == [1, 2] and len(policies) == 2
    # The second round runs with what the first has learned.
    assert [x.decisions for x in both[0]] == [x.decisions for x in alone[:2]]
    np.testing.assert_allclose([x.stay_s for x in both[0]], [x.stay_s for x in alone[:2]], rtol=1e-3)
    np.testing.assert_allclose(both[0][0].entropy, alone[0].entropy, rtol=1e-3)
    assert both[0][0].stay_s != both[1][0].stay_s


class Clock:
    """Time passes only when a part of a training says so."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def after(self, seconds, result=None):
        """A function that takes so long, and returns the result."""

        def run(*_):
            self.now_s += seconds
            return result

        return run


def budgeted(monkeypatch, *, minutes, draw_s=10.0, compile_s=50.0, round_s=20.0, validate_s=5.0, rounds=100, **options):
    """A training of parts that take these times: the result, the history, the seconds it took, and its phases."""
    clock, phases = Clock(), []
    figures = {"decisions": 10.0, "stay_s": 1.0, "entropy": 1.0}
    monkeypatch.setattr(training, "_mean_completion_s", lambda held, *_: np.ones(len(held)))
    drawn = draw(COURSE, WHOLE["size"], METHOD, Bottleneck(), RIVALS)

    def run_round(state, *_):
        clock.now_s += round_s
        return jax.tree.map(lambda x: x + 1 if eqx.is_inexact_array(x) else x, state), figures

    compiling = options.pop("compiling", lambda: None)

    def compile_all(calls):
        compiling()
        clock.now_s += compile_s
        return [run_round for _ in calls]

    monkeypatch.setattr(training, "draw", clock.after(draw_s, drawn))
    monkeypatch.setattr(training, "_compiled", compile_all)
    monkeypatch.setattr(training, "compile_run", lambda *_: None)
    results = iter(options.pop("results", ()))

    def validate(*_):
        clock.now_s += validate_s
        return np.asarray([next(results, 1.0)])

    monkeypatch.setattr(training, "compare_with_rivals", validate)
    settings = {**WHOLE, "rounds": rounds, "size": replace(WHOLE["size"], every=4)}
    policy, history = train(**WHAT, **settings, minutes=minutes, clock=clock, phase=phases.append, **options)
    return policy, history, clock.now_s, phases


def test_a_training_ends_before_a_round_that_would_take_too_long(monkeypatch) -> None:
    """60 s of drawing and compiling, rounds of 20 s, a validation of 5 s after every fourth and at the end."""
    policy, history, took_s, phases = budgeted(monkeypatch, minutes=5)
    assert took_s == 60 + 11 * 20 + 3 * 5 == 295
    assert [x.number for x in history if x.against is not None] == [3, 7, 10]
    assert phases[:3] == ["drawing scenarios, running eft-belief", "compiling", "round 1"]
    begun = Network(jax.random.key(WHOLE["seed"]), SIZES)
    assert not eqx.tree_equal(policy.network, begun)


def test_time_that_is_over_before_the_first_round_leaves_the_weights(monkeypatch) -> None:
    start = Learned(Network(jax.random.key(1), SIZES))
    for minutes, took in ((0.1, 10), (0.9, 60)):
        policy, history, took_s, phases = budgeted(monkeypatch, minutes=minutes, start=start, validate_s=0.0)
        assert history == [] and took_s == took and phases[-1] == ("compiling" if took == 60 else phases[0])
        assert eqx.tree_equal(policy, start)


def test_a_compilation_that_takes_longer_than_the_time_is_left_behind(monkeypatch) -> None:
    start, over = Learned(Network(jax.random.key(1), SIZES)), threading.Event()
    try:
        options = {"compiling": lambda: over.wait(60), "start": start, "minutes": 10.01 / 60, "validate_s": 0.0}
        policy, history, took_s, phases = budgeted(monkeypatch, **options)
        assert not over.is_set() and history == [] and took_s == 10 and phases[-1] == "compiling"
        assert eqx.tree_equal(policy, start)
    finally:
        over.set()


def test_initial_weights_stay_if_no_others_are_better(monkeypatch) -> None:
    start = Learned(Network(jax.random.key(1), SIZES))
    for first, better in ((0.9, False), (1.1, True)):
        options = {"start": start, "results": [first], "rounds": 2}
        policy, history, _, _ = budgeted(monkeypatch, minutes=5, **options)
        assert [x.initial for x in history] == [first, first] and history[-1].against == 1.0
        assert eqx.tree_equal(policy, start) != better


def test_a_training_without_time_left_returns_what_its_checkpoint_holds(monkeypatch, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    first, history, _, _ = budgeted(monkeypatch, minutes=2, checkpoint=folder)
    assert len(history) == 2 and history[-1].against == 1.0
    again, same, took_s, _ = budgeted(monkeypatch, minutes=0.1, checkpoint=folder)
    assert same == history and took_s == 10 and eqx.tree_equal(again, first)


def test_the_compiler_options_are_those_of_this_xla(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    options = budget.compiler_options() if jax.default_backend() == "cpu" else {}
    assert "xla_backend_optimization_level" not in (options or {})
    monkeypatch.setattr(budget, "CPU_OPTIONS", {"xla_of_another_version": 1})
    assert budget.compiler_options() is None


def test_patience_ends_when_that_many_looks_were_no_better() -> None:
    def told(*against: float | None) -> list[TrainingRound]:
        return [TrainingRound(n, 1.0, 1, 1.0, 1.0, 1.0, x) for n, x in enumerate(against)]

    assert not training._out_of_patience(told(1.0, None, 1.1), None)
    assert not training._out_of_patience(told(1.0, None, 1.1), 2)
    assert training._out_of_patience(told(1.0, None, 1.1, 1.2), 2)
    assert not training._out_of_patience(told(1.0, 1.1, 0.9, 1.2), 2)
    assert not training._out_of_patience([], 1)


def test_a_curriculum_begins_with_little_load_and_ends_with_all() -> None:
    size = RoundSize(pool=100, easy=10)
    opened = [training._curriculum_pool_size(number, size) for number in range(12)]
    assert opened[0] == 25 and opened[5] == 62 and opened[10:] == [100, 100]
    assert opened == sorted(opened)
    assert training._curriculum_pool_size(0, RoundSize(pool=100)) == 100
    drawn = training.draw(COURSE, RoundSize(pool=6, validation=2), METHOD, Bottleneck(), RIVALS)
    loads = [COURSE.load(training.FIRST_POOL_SEED + int(number)) for number in drawn.order]
    assert loads == sorted(loads) and sorted(drawn.order.tolist()) == list(range(6))


def test_workloads_of_as_many_jobs_run_side_by_side() -> None:
    large = ["cholesky:12?jobs=1", "layered:150?graphs=1&jobs=1"]
    assert training.grouped_by_jobs(["eeg", large[0], "layered?ccr=1", small, large[1], "eeg?jobs=3"]) == [
        ("eeg", "layered?ccr=1", small),
        tuple(large),
        ("eeg?jobs=3",),
    ]


def test_loads_and_jobs_are_drawn_unless_the_spec_says_them() -> None:
    course = ScenarioDistribution(cluster(), ("layered?jobs=3", "fork-join"), (0.5, 1.0), 5)
    assert len(course.scenario(0).workload.jobs) == 3
    assert len(course.scenario(1).workload.jobs) == 5
