"""Deciding late: who comes next, and beside whom."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from symphony.policies import LateBinding, named
from symphony.policies.learned import first_come
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import PLACE, WAIT, place
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Scenario
from tests.policies.small_networks import small_policy
from tests.runtime.machines import machine
from tests.scheduling.by_hand import FPGA, GPU, decision, dot, shared_books, whole_decision, work

SIZES = {"gangs": 8, "devices": 2}
HERE: Topology = machine(slots=2)
BYTES = HERE.resources[1].capacity


def kernel(name: str, seconds: float, share: float = 0.0) -> Kernel:
    return Kernel(name, {"small": Profile(seconds, demand={"compute": 1.0, "memory": share * BYTES})})


KERNELS = (kernel("stream", 0.1, 0.75), kernel("compute", 0.1, 0.01), kernel("long", 0.5), kernel("short", 0.1))
KERNELS += (kernel("longer", 0.11), kernel("shorter", 0.09))


def alike(name: str, *kernels: str) -> TaskGraph:
    """Tasks that wait for nobody, and one that ends the graph."""
    tasks = [Task(f"{kind}-{number}", kind) for number, kind in enumerate(kernels)]
    last = Task("last", "short")
    return TaskGraph(name, (*tasks, last), tuple(Edge(task.name, last.name) for task in tasks))


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, int], RunRecord]:
    """Workloads by a policy that places at once, first in, first out; the same deciding late; and by due times."""
    paired = alike("paired", *["stream"] * 4, *["compute"] * 4)
    mixed = [alike(name, *["stream"] * 4, *[name] * 4) for name in ("longer", "shorter")]
    jobs = [alike("long", *["long"] * 8), alike("short", *["short"] * 8)]
    works = {
        "contended": Workload("contended", KERNELS, (paired, paired), (Job(0, 0.0), Job(1, 100.0))),
        "unlike": Workload("unlike", KERNELS, tuple(mixed), (Job(0, 0.0), Job(1, 100.0))),
        "two jobs": Workload("two jobs", KERNELS, tuple(jobs), (Job(0, 0.0), Job(1, 0.05))),
    }
    calm = replace(CALM, latency_s=0.0)
    small = small_policy(**SIZES)
    policies = (first_come(small), LateBinding(small), small)
    return {
        (name, late): simulate(
            [Scenario(HERE, work, 0, (), (), (1.0,), calm, job_slots=2)], OneOf(policies, jnp.asarray(late))
        )[0]
        for name, work in works.items()
        for late in range(3)
    }


def test_kernels_that_contend_are_not_put_side_by_side(runs) -> None:
    early, late = ([job.completion_s for job in runs["contended", k].jobs] for k in (0, 1))
    assert late == pytest.approx([0.5, 0.5], rel=1e-3)  # four pairs of a stream and a compute, then the last
    assert np.min(early) > 0.5


def test_those_who_would_contend_later_run_while_others_are_there_to_run_beside(runs) -> None:
    """Whoever takes longer: what harms nobody is not used up first, beside its like."""
    early, late = ({job.job: job.completion_s for job in runs["unlike", k].jobs} for k in (0, 1))
    assert late[0] < 0.6 and late[1] < 0.55
    assert min(early.values()) > 0.55


def test_a_short_job_does_not_wait_behind_all_of_a_long_one(runs) -> None:
    early, late, due = ({job.job: job.completion_s for job in runs["two jobs", k].jobs} for k in range(3))
    assert late[1] < 1.1 and due[1] < 1.5 and early[1] > 2.0
    assert not any(runs["two jobs", k].refused for k in range(3))


def test_it_has_a_name() -> None:
    assert isinstance(named("symphony-late"), LateBinding) and named("symphony-late").name == "symphony-late"


@pytest.mark.parametrize("name", ["symphony", "symphony-late", "look-ahead", "planner"])
def test_whoever_mistypes_a_name_is_told_of_it(name: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{name}'"):
        named(name[:3] + name[4:])


def test_it_keeps_a_gang_back_for_no_longer_than_that_may_gain() -> None:
    """4 s on a CPU now; on the GPU 1 s, once what is there is done, which is late."""
    books = shared_books(work(dot("any"), dot("any")))
    books.fail(FPGA)
    assert books.decide(place(0, GPU))
    books.start(0)
    late = LateBinding(small_policy(**SIZES))
    action = whole_decision(late, books.observe(policy=late))
    assert int(action.kind) == WAIT and float(action.seconds) == pytest.approx(2.0)
    books.core = replace(books.core, lane_estimate=books.core.lane_estimate + 100)  # now it is said to take far longer
    assert decision(late, books.observe(policy=late))[0] == PLACE
