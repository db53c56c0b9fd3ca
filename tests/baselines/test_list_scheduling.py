"""PEFT and CPOP: tables and schedules of published graphs, and what they decide online."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.baselines import Cpop, Heft, Peft
from symphony.baselines.list_scheduling import CriticalPaths
from symphony.problem.arrays import topology_arrays, workload_arrays
from symphony.problem.workload import Workload
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import GangRecord, RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import draw
from tests.baselines.examples import (
    ARABNEJAD,
    ARABNEJAD_COST,
    ARABNEJAD_RANK,
    RATE,
    TOPCUOGLU,
    TOPCUOGLU_BOTH,
    TOPCUOGLU_CRITICAL,
    TOPCUOGLU_RANK,
    graph,
    processors,
)
from tests.scheduling.by_hand import CPU0, CPU1, GB, Books, chain, decision, shared_books, work

P1, P2, P3 = range(3)


def arrays(workload: Workload):
    topology = processors(3)
    return (
        jax.device_put(topology_arrays(topology)),
        jax.device_put(workload_arrays(topology, workload)),
    )


@cache
def peft_table() -> tuple[np.ndarray, np.ndarray]:
    cost, rank = jax.jit(Peft().prepare)(*arrays(ARABNEJAD))
    return np.asarray(cost[0, :10, :3]), np.asarray(rank[0, :10])


@cache
def cpop_paths() -> CriticalPaths:
    return jax.jit(Cpop().prepare)(*arrays(TOPCUOGLU))


def planned(workload: Workload, rank: np.ndarray, choose: Callable[[int, np.ndarray], int]) -> float:
    """Makespan of a graph planned beforehand, as in the papers: highest rank of what is ready first, inserted into the
    earliest gap that is long enough; transfers between processors take their time and do not disturb each other."""
    edges = workload.graphs[0].gang_edges
    costs = [[kernel.implementations[f"p{p + 1}"].fixed_s for p in range(3)] for kernel in workload.kernels]
    busy: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in range(3)]
    end: dict[int, tuple[float, int]] = {}
    while len(end) < len(costs):
        inputs = {task: [(s, size / RATE) for s, t, size in edges if t == task] for task in range(len(costs))}
        ready = [task for task in inputs if task not in end and all(s in end for s, _ in inputs[task])]
        task = max(ready, key=lambda task: rank[task])
        finish = []
        for p in range(3):
            there = max([0.0, *(end[s][0] + (0 if end[s][1] == p else away) for s, away in inputs[task])])
            taken = [*busy[p], (float("inf"), 0.0)]
            gaps = [(max(a[1], there), b[0]) for a, b in pairwise(taken)]
            finish.append(next(at + costs[task][p] for at, until in gaps if at + costs[task][p] <= until))
        p = choose(task, np.asarray(finish))
        busy[p] = sorted([*busy[p], (finish[p] - costs[task][p], finish[p])])
        end[task] = (finish[p], p)
    return max(finish for finish, _ in end.values())


# -------------------------------------------------------------------- PEFT


def test_the_optimistic_cost_table_is_that_of_the_paper() -> None:
    cost, rank = peft_table()
    np.testing.assert_allclose(cost, ARABNEJAD_COST, rtol=1e-5)
    np.testing.assert_allclose(rank, ARABNEJAD_RANK, atol=0.05)


def test_planned_beforehand_it_gives_the_schedule_of_the_paper() -> None:
    cost, rank = peft_table()
    assert planned(ARABNEJAD, rank, lambda task, finish: int((finish + cost[task]).argmin())) == pytest.approx(122)
    heft = np.asarray(arrays(ARABNEJAD)[1].rank[0])
    assert planned(ARABNEJAD, heft, lambda task, finish: int(finish.argmin())) == pytest.approx(133)


def test_it_gives_up_a_little_now_for_what_comes() -> None:
    """The first task ends first on the first processor; all that follows wants the second, ten away."""
    foresight = graph([(4, 5, 9), (30, 2, 30), (30, 2, 30)], {(1, 2): 10, (1, 3): 10})
    books = Books(foresight, processors(3))
    assert decision(Heft(), books.observe())[2] == P1
    assert decision(Peft(), books.observe(policy=Peft()))[2] == P2


# -------------------------------------------------------------------- CPOP


def test_ranks_are_those_of_the_paper() -> None:
    np.testing.assert_allclose(arrays(TOPCUOGLU)[1].rank[0, :10], TOPCUOGLU_RANK, atol=2e-3)
    np.testing.assert_allclose(cpop_paths().priority[0, :10], TOPCUOGLU_BOTH, atol=2e-3)


def test_the_critical_path_is_that_of_the_paper_and_goes_to_the_second_processor() -> None:
    assert (np.flatnonzero(cpop_paths().critical[0]) + 1).tolist() == TOPCUOGLU_CRITICAL
    assert int(cpop_paths().kind[0]) == P2  # 16 + 19 + 12 + 7 = 54, against 66 and 63


def test_planned_beforehand_they_give_the_schedules_of_the_paper() -> None:
    rank = np.asarray(arrays(TOPCUOGLU)[1].rank[0])
    assert planned(TOPCUOGLU, rank, lambda task, finish: int(finish.argmin())) == pytest.approx(80)
    paths = jax.tree.map(np.asarray, cpop_paths())
    kind, critical = int(paths.kind[0]), paths.critical[0]
    makespan = planned(TOPCUOGLU, paths.priority[0], lambda task, ends: kind if critical[task] else int(ends.argmin()))
    assert makespan == pytest.approx(86)


class Undisturbed(ContentionModel):
    """Links as in the papers: every transfer has one of its own."""

    def share(self, load):
        return jnp.ones_like(load)

    def compose(self, shares, used):
        return jnp.ones(used.shape[:-1])


def test_online_heft_begins_as_in_the_paper() -> None:
    """The same up to task 5. Ours fetches inputs one after the other, so task 6, behind task 4 at the second processor,
    would end there at 9 + 9 + 14 + 16 = 48: it takes the third."""
    (run,) = simulate([draw(processors(3), TOPCUOGLU, 0)], Heft(), contention=Undisturbed())
    begun = {1: (P3, 0, 9), 2: (P1, 27, 40), 3: (P3, 9, 28), 4: (P2, 18, 26), 5: (P3, 28, 38), 6: (P3, 38, 47)}
    assert {task: told(run, task) for task in begun} == {task: pytest.approx(at) for task, at in begun.items()}


def told(run: RunRecord, task: int) -> tuple[float, float, float]:
    """Where a task ran, and from when to when."""
    stay: GangRecord = next(stay for stay in run.gangs if stay.gang == task - 1)
    return stay.devices[0], stay.start_s, stay.finish_s


def test_the_critical_path_of_a_job_stays_on_one_device_and_other_jobs_have_others() -> None:
    """CPUs alone can run these chains, all of which are critical: each job has a CPU of its own."""
    books = shared_books(work(chain("cpu only", "cpu only", GB), chain("cpu only", "cpu only", GB)))
    assert decision(Cpop(), books.observe(policy=Cpop())) == (0, 0, CPU0)
    books.fail(CPU0)
    assert decision(Cpop(), books.observe(policy=Cpop()))[2] == CPU1  # its own is down
    books = shared_books(work(chain("any", "any", GB), chain("cpu only", "cpu only", GB), priorities=(0, 5)))
    assert decision(Cpop(), books.observe(policy=Cpop())) == (0, books.tasks, CPU1)
