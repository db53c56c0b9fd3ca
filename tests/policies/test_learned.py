"""The learned policy, in situations made by hand, and held to the contract of policies."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import Batched, features
from symphony.policies.features import extract_features as slow_see
from symphony.policies.features import trained_parts
from symphony.policies.learned import (
    MASKED_SCORE,
    Learned,
    Network,
    Sizes,
    first_come,
    log_probabilities,
    with_objective,
)
from symphony.problem.workload import Job, Task, TaskGraph, Workload
from symphony.scheduling.guard import DUE, FIRST_ORDER, TICKS_PER_S
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import PLACE, PREEMPT, RECONFIGURE, WAIT, place, reconfigure
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Scenario
from tests.scheduling.by_hand import (
    CPU0,
    CPU1,
    FPGA,
    GB,
    GPU,
    KERNELS,
    Books,
    chain,
    cluster,
    decision,
    dot,
    pair,
    shared_books,
    whole_decision,
    work,
)

see = eqx.filter_jit(slow_see)  # op by op, JAX would compile every operation by itself
FINISH = 2  # where a pair's numbers say when it would finish
SMALL = Sizes(gangs=4, devices=3, preempts=2, configures=2, width=8, memory=8)


def silent(sizes: Sizes = SMALL) -> Learned:
    """A policy whose network says nothing: the heuristic alone."""
    network = Network(jax.random.key(0), sizes)
    last = lambda n: (n.score.layers[-1].weight, n.waiting.layers[-1].weight)  # noqa: E731
    return Learned(eqx.tree_at(last, network, replace_fn=jnp.zeros_like))


def test_a_network_that_says_nothing_places_where_a_gang_finishes_first() -> None:
    """5 GB at home: 4 s on a CPU where they lie, over 5 s elsewhere."""
    books = shared_books(work(chain(size=5 * GB)))
    policy = silent()
    shown = books.observe(policy=policy)
    assert int(jax.jit(trained_parts)(shown, jnp.asarray(0), shown.background).finish[:4].argmin()) == CPU0
    assert decision(policy, shown) == (PLACE, 0, CPU0)


def test_a_heuristic_that_is_less_sharp_says_the_same_in_a_lower_voice() -> None:
    books = shared_books(work(chain(size=5 * GB), dot("any", units=5.0), dot("any", units=1.0)))
    policy = silent()
    seen = see(books.observe(policy=policy), *SMALL.counts)
    soft = silent(replace(SMALL, sharpness=0.3)).network.prior(seen)
    np.testing.assert_allclose(soft, 0.3 * np.asarray(policy.network.prior(seen)), rtol=1e-5)
    assert float(soft.max() - soft.min()) > 0


def test_it_takes_the_job_with_the_shortest_way_to_go_first() -> None:
    books = shared_books(work(dot("any", units=5.0), dot("any", units=1.0), dot("any", units=3.0)))
    assert decision(silent(), books.observe(policy=silent()))[:2] == (PLACE, books.tasks)


def test_it_takes_the_highest_priority_first_whatever_the_length() -> None:
    books = shared_books(work(dot("any", units=1.0), dot("any", units=5.0), priorities=(0, 1)))
    assert decision(silent(), books.observe(policy=silent()))[:2] == (PLACE, books.tasks)


def test_a_gang_that_is_partly_placed_is_placed_on_and_never_waits() -> None:
    books = shared_books(work(pair(), dot("any")))
    assert books.decide(place(0, GPU))
    policy = eqx.tree_at(lambda p: p.network.idle, silent(), jnp.asarray(100.0))
    kind, gang, device = decision(policy, books.observe(policy=policy))
    assert (kind, gang) == (PLACE, 0) and device != GPU


def with_a_busy_gpu(*more: TaskGraph) -> Books:
    """Gang 0 is on the GPU for a second; gang 1 takes 4 s on a CPU or 1 s on the GPU. There is no FPGA."""
    books = shared_books(work(dot("any"), dot("any"), *more))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    return books


def test_however_much_it_wants_to_wait_it_does_so_only_for_as_long_as_that_may_gain() -> None:
    policy = insisting("idle")
    books = shared_books(work(dot("any"), dot("any")))
    assert decision(policy, books.observe(policy=policy))[0] == PLACE  # nothing is under way
    books = with_a_busy_gpu()
    action = whole_decision(policy, books.observe(policy=policy))
    assert int(action.kind) == WAIT and float(action.seconds) == pytest.approx(2.0)
    books.pass_time(3.0)  # as much as the GPU is faster
    assert decision(policy, books.observe(policy=policy))[:2] == (PLACE, 1)


def test_it_may_wait_for_as_long_as_it_takes_if_nobody_could_start() -> None:
    policy = insisting("idle")
    books = with_a_busy_gpu()
    for device in (CPU0, CPU1):
        books.fail(device)
    books.pass_time(100.0)
    action = whole_decision(policy, books.observe(policy=policy))
    assert int(action.kind) == WAIT and float(action.seconds) == float("inf")


def test_a_gang_that_would_be_first_in_a_queue_ahead_of_others_is_not_held() -> None:
    """Only the GPU is up. One gang runs there, another is in its queue; the policy wants to hold the third."""
    policy = insisting("idle")

    def after(order: int) -> Books:
        books = with_a_busy_gpu(dot("any", units=16.0))
        for device in (CPU0, CPU1):
            books.fail(device)
        assert books.decide(place(2, GPU, order))
        return books

    first, last = after(FIRST_ORDER), after(-1)
    assert decision(policy, first.observe(policy=policy))[0] == WAIT, "it would be behind"
    assert decision(policy, last.observe(policy=policy)) == (PLACE, 1, GPU)
    assert decision(first_come(policy), last.observe(policy=policy))[0] == WAIT, "without due times it would be behind"


def test_who_may_be_held_no_longer_is_looked_at_though_others_come_first() -> None:
    """Short jobs come first, and have a reason to wait for the GPU; the long one has none, and could start."""
    policy = insisting("idle")
    others = [dot("any", units=0.5)] * SMALL.gangs
    alone = with_a_busy_gpu(*others)
    assert decision(policy, alone.observe(policy=policy))[0] == WAIT
    books = with_a_busy_gpu(*others, dot("cpu only", units=50.0))
    seen = see(books.observe(policy=policy), *SMALL.counts)
    last = 2 + len(others)
    assert last in seen.gangs.number.tolist() and not bool(seen.may_wait)
    assert decision(policy, books.observe(policy=policy))[0] == PLACE


def test_who_is_overdue_goes_first_whatever_the_weights_prefer() -> None:
    """Weights that take the longest job first, 100 s on the FPGA. A job of 1 s beside them is far behind after 50."""
    policy = eqx.tree_at(lambda p: p.network.remaining, silent(), jnp.asarray(-100.0))
    books = shared_books(work(*[dot("any", units=200.0)] * 5, dot("any", units=2.0)))
    books.pass_time(1.0)
    assert decision(policy, books.observe(policy=policy))[1] < 5
    books.pass_time(49.0)
    assert decision(policy, books.observe(policy=policy))[:2] == (PLACE, 5)


def test_it_waits_if_there_is_nothing_to_place() -> None:
    books = shared_books(work(dot("any")), arrived=0)
    assert decision(silent(), books.observe(policy=silent()))[0] == WAIT


def test_devices_that_are_down_are_not_looked_at() -> None:
    books = shared_books(work(dot("any")))
    books.fail(FPGA)
    books.fail(GPU)
    policy = silent()
    seen = see(books.observe(policy=policy), 4, 4, 1, 1)
    looked_at = set(np.asarray(seen.device[0])[np.asarray(seen.allowed[0])].tolist())
    assert looked_at == {0, 1}


def test_of_many_devices_a_rough_look_keeps_those_that_hold_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 GB at home, where the gang is slowest but done first; without them the rough look would keep FPGA and GPU."""
    shown = shared_books(work(chain(size=5 * GB))).observe(policy=silent())
    everywhere = see(shown, 1, 4, 0, 0)
    monkeypatch.setattr(features, "MAX_DEVICES_PER_GANG", 2)
    close = eqx.filter_jit(lambda shown: slow_see(shown, 1, 2, 0, 0))(shown)
    assert close.device[0].tolist() == [CPU0, FPGA] and close.allowed.all()
    where = [everywhere.device[0].tolist().index(device) for device in (CPU0, FPGA)]
    np.testing.assert_allclose(close.pairs[0, :, FINISH], everywhere.pairs[0, where, FINISH], rtol=1e-6)


def test_chances_add_up_to_one_and_devices_that_are_alike_do_not_count_twice() -> None:
    one = jnp.asarray([[0.0, MASKED_SCORE, MASKED_SCORE]])
    alike = jnp.zeros((1, 3))
    waits = jnp.asarray(0.0)
    for scores in (one, alike):
        told = log_probabilities(scores, jnp.full(2, MASKED_SCORE), waits)
        np.testing.assert_allclose(float(jnp.exp(told).sum()), 1.0, rtol=1e-6)
        np.testing.assert_allclose(float(jnp.exp(told[-1])), 0.5, rtol=1e-6)


def test_chances_of_asides_are_weighed_against_gangs() -> None:
    told = jnp.exp(log_probabilities(jnp.zeros((2, 3)), jnp.zeros(1), jnp.asarray(MASKED_SCORE)))
    np.testing.assert_allclose(told, [*[1 / 9] * 6, 1 / 3, 0.0], atol=1e-6)


def insisting(part: str) -> Learned:
    """A policy that does everything rather than place."""
    return eqx.tree_at(lambda p: getattr(p.network, part), silent(), jnp.asarray(100.0))


def test_it_may_preempt_what_runs_to_make_room_for_what_is_ready() -> None:
    books = shared_books(work(pair(preemptible=True, checkpoint_s=1.0), dot("cpu only")), arrived=1)
    policy = insisting("apart")
    for device in (GPU, CPU0):
        assert books.decide(place(0, device))
    books.start(0)
    books.fail(CPU1)
    books.core = replace(books.core, lanes_free=jnp.zeros_like(books.core.lanes_free))  # others have the other slots
    books.pass_time(1.5)
    assert decision(policy, books.observe(policy=policy))[0] == WAIT  # nobody is ready
    books.arrive()
    assert decision(policy, books.observe(policy=policy))[:2] == (PREEMPT, 0)


def test_it_may_not_preempt_what_has_not_run_for_as_long_as_that_costs_nor_while_a_device_is_open() -> None:
    policy = insisting("apart")
    books = shared_books(work(pair(preemptible=True, checkpoint_s=1.0, restore_s=0.5), dot("cpu only")))
    for device in (GPU, CPU0):
        assert books.decide(place(0, device))
    books.start(0)
    books.pass_time(1.25)  # not yet 1 + 0.5
    full = replace(books.core, lanes_free=jnp.zeros_like(books.core.lanes_free))
    open_, books.core = books.core, full
    assert decision(policy, books.observe(policy=policy))[0] != PREEMPT
    books.pass_time(0.5)
    assert decision(policy, books.observe(policy=policy))[0] == PREEMPT
    books.core = replace(open_, now=books.now)
    assert decision(policy, books.observe(policy=policy))[0] == PLACE  # there is no need to


def test_it_may_configure_a_slot_for_what_will_be_ready_and_then_leaves_it_alone() -> None:
    """The second task of the chain is fastest on the FPGA, and waits for the first."""
    books = shared_books(work(chain(), dot("any")), arrived=1)
    policy = insisting("apart")
    assert books.decide(place(0, CPU0))
    books.arrive()
    kind, gang, _ = decision(policy, books.observe(policy=policy))
    assert (kind, gang) == (PLACE, books.tasks)  # somebody could use the FPGA now
    assert books.decide(place(books.tasks, GPU))
    kind, _, device = decision(policy, books.observe(policy=policy))
    assert (kind, device) == (RECONFIGURE, FPGA)
    assert books.decide(reconfigure(FPGA, 0))
    assert decision(policy, books.observe(policy=policy))[0] == WAIT


def test_what_is_seen_does_not_depend_on_the_unit_of_time() -> None:
    """A workload on machines a thousand times slower looks the same."""
    books = shared_books(work(chain(size=0.0), dot("any", units=3.0), pair()))
    slow = shared_books(books.workload)
    times = {"time_fixed": 1000 * books.w.time_fixed, "time_work": 1000 * books.w.time_work}
    slow.w = replace(slow.w, **times, isolated=1000 * books.w.isolated, exchange=1000 * books.w.exchange)
    slow.t = replace(slow.t, kind_reconfigure=1000 * slow.t.kind_reconfigure)
    policy = silent()
    here, there = (see(x.observe(policy=policy), 4, 3, 2, 2) for x in (books, slow))
    due = [np.asarray(x.order, float)[x.gangs.there] - FIRST_ORDER for x in (here, there)]
    np.testing.assert_allclose(due[1], 1000 * due[0], rtol=2e-3)
    leaves = [jax.tree.leaves(replace(x, order=None)) for x in (here, there)]
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


def test_a_job_is_due_by_its_longest_path_or_by_its_work_on_all_slots_if_that_takes_longer() -> None:
    """Tasks of 2 s for the four slots of the CPUs: alone 2 s, eight of them 4 s; of 4, 1 and 0.5 s on 4, 1 and 2 slots
    six a second."""
    graphs = [TaskGraph("wide", tuple(Task(f"t{n}", kernel) for n in range(8))) for kernel in ("cpu only", "any")]
    books = Books(work(*graphs, dot("cpu only")))
    seen = see(books.observe(policy=silent()), 3 * books.tasks, 3, 2, 2)
    due_s = {
        int(gang) // books.tasks: (int(order) - FIRST_ORDER) / TICKS_PER_S / DUE
        for gang, order in zip(seen.gangs.number, seen.order, strict=True)
        if gang >= 0
    }
    assert due_s == pytest.approx({0: 4.0, 1: 8 / 6, 2: 2.0}, rel=1e-3)


@eqx.filter_jit
def said(policy: Learned, shown) -> jax.Array:
    """Scores of a decision."""
    return policy.consider(jax.random.key(0), policy.init(shown.topology), shown)[1].scores


def test_weights_of_objectives_reach_the_network_and_untrained_they_change_nothing() -> None:
    books = shared_books(work(chain(), dot("any", units=3.0)))
    policy = Learned(Network(jax.random.key(5), SMALL))
    shown = books.observe(policy=policy)
    tail = with_objective(policy, "tail")
    np.testing.assert_array_equal(said(policy, shown), said(tail, shown))
    trained = eqx.tree_at(lambda p: p.network.objective, tail, tail.network.objective.at[1].set(3.0))
    assert not np.allclose(said(trained, shown), said(tail, shown))
    np.testing.assert_array_equal(said(with_objective(trained, "mean"), shown), said(tail, shown))
    assert with_objective(Batched(policy, 4), "tail").learned.objective.tolist() == [0, 1, 0, 0]


def test_softened_the_best_stays_the_best_and_all_scores_shrink() -> None:
    books = shared_books(work(chain(), dot("any", units=2.0), dot("cpu only")))
    network = Network(jax.random.key(1), SMALL)
    network = eqx.tree_at(lambda n: n.queue, network, jnp.asarray(0.7))
    scores, softer = (
        np.asarray(said(Learned(n), books.observe(policy=Learned(n)))) for n in (network, network.scaled(0.6))
    )
    there = scores > MASKED_SCORE / 2
    assert there.sum() > 3
    np.testing.assert_allclose(softer[there], 0.6 * scores[there], rtol=1e-4, atol=1e-5)
    assert (softer[~there] == scores[~there]).all()


# In two programs: no part hides that another still matters.
@pytest.mark.parametrize("switches", [("topology", "graph", "prior"), ("deviation", "estimates")])
def test_every_part_can_be_switched_off_and_then_no_longer_matters(switches: tuple[str, ...]) -> None:
    books = shared_books(work(chain(), dot("any", units=2.0)))
    books.window([0.5, 0.2], [0.0, 0.0])

    def scores(network: Network) -> np.ndarray:
        policy = Learned(network)
        shown = books.observe(policy=policy)
        return np.asarray(said(policy, shown))

    parts = {
        "topology": (lambda n: n.topology.row.weight, ...),
        "graph": (lambda n: n.graph.node.weight, ...),
        "deviation": (lambda n: n.topology.row.weight, 2),  # what it makes of a row's deviation
        "prior": (lambda n: n.regret, ...),
        "estimates": (lambda n: n.pair.weight, FINISH),  # what it makes of when a pair would finish
    }
    on = Network(jax.random.key(1), SMALL)
    off = Network(jax.random.key(1), replace(SMALL, **dict.fromkeys(switches, False)))
    for switch in switches:
        part, where = parts[switch]
        changed_on, changed_off = (eqx.tree_at(part, n, part(n).at[where].add(5.0)) for n in (on, off))
        np.testing.assert_array_equal(scores(off), scores(changed_off))
        if switch != "deviation":  # without counters there is none to see
            assert (scores(on) != scores(changed_on)).any()


def test_on_heavy_tailed_work_the_strongest_wish_to_wait_costs_no_more_than_it_may_gain() -> None:
    """Forty jobs of 0.01 to 400 s on a CPU. No gang is held longer than the time by which its best device beats a CPU,
    and the mean completion time is about that of the same network without waiting."""
    rng = np.random.default_rng(0)
    units = np.exp(rng.uniform(np.log(0.0025), np.log(100.0), 40))
    graphs = tuple(dot("any", units=float(x), name=f"job {n}") for n, x in enumerate(units))
    jobs = tuple(Job(n, float(at)) for n, at in enumerate(np.sort(rng.uniform(0, 40, 40))))
    scenario = Scenario(cluster(), Workload("heavy", KERNELS, graphs, jobs), 0, (), (), (1.0,), CALM, job_slots=16)
    never = eqx.tree_at(lambda p: p.network.idle, silent(), jnp.asarray(-1e6))
    always = eqx.tree_at(lambda p: p.network.idle, silent(), jnp.asarray(1e6))
    (calm,), (eager,) = (
        simulate([scenario], OneOf((never, always), jnp.asarray(which, jnp.int32))) for which in (0, 1)
    )
    means = [np.mean([job.completion_s for job in run.jobs]) for run in (calm, eager)]
    assert len(eager.jobs) == len(jobs) and means[1] < 1.1 * means[0]
    assert eager.idle_ready_share > 0.1 and calm.idle_ready_share == 0  # it did wait
    most = {n: (4.0 - 0.5) * x for n, x in enumerate(units)}  # a CPU has a slot for whoever has waited so long
    assert all(stay.placed_s - stay.ready_s <= 1.001 * most[stay.job] for stay in eager.gangs)
