"""StarPU's schedulers, in situations made by hand."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp

from symphony.baselines import Dm, Dmda, Dmdas, Heteroprio, starpu
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.policy import PLACE, WAIT, place
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GB, GPU, Books, chain, decision, dot, shared_books, work

transfers_s = jax.jit(starpu.transfers_s)  # as a whole: every operation by itself would be a program


def test_dm_ignores_transfers_and_dmda_does_not() -> None:
    """5 GB at home: 5 s to the GPU or the FPGA, where the gang takes 1 s; 4 s where they lie."""
    books = shared_books(work(chain(size=5 * GB)))
    assert decision(Dm(), books.observe())[2] == GPU
    assert decision(Dmda(), books.observe())[2] == CPU0
    assert decision(Dmda(beta=0.5), books.observe())[2] == GPU  # 1 + 0.5 * 5 = 3.5
    assert decision(Dmda(beta=0.0), books.observe())[2] == GPU


def test_dmda_adds_transfers_even_if_the_queue_hides_them() -> None:
    """Behind 2 s of queue, 2 GB are there before the gang could start: an estimate of the end would be 3 s. dmda counts
    2 + 1 + 2 = 5, and takes a CPU for 4."""
    books = shared_books(work(chain(size=2 * GB), dot("any"), dot("any"), dot("any"), dot("any")))
    for slot in (1, 2):
        assert books.decide(place(slot * books.tasks, GPU))
    books.fail(FPGA)
    assert decision(Dmda(), books.observe())[1:] == (0, CPU0)
    assert decision(Dm(), books.observe())[1:] == (0, GPU)


def test_data_on_its_way_counts_as_being_there() -> None:
    """Two tasks read the same 4 GB. Once one waits for them at the GPU, they cost the other nothing there."""
    edges = (Edge("a", "b", 4 * GB), Edge("a", "c", 4 * GB))
    books = Books(work(TaskGraph("fan", tuple(Task(name, "any") for name in "abc"), edges)))
    assert books.decide(place(0, CPU0))
    books.start(0)
    books.finish(0)
    before = transfers_s(books.observe(), jnp.asarray(2)).tolist()
    assert before[:4] == [0.0, 0.0, 4.0, 4.0]
    assert books.decide(place(1, GPU))
    assert transfers_s(books.observe(), jnp.asarray(2)).tolist()[:4] == [0.0, 0.0, 0.0, 4.0]
    # dmdas keeps back what it has assigned: that counts as well.
    kept = jnp.full(books.core.status.shape, -1).at[1].set(FPGA)
    assert transfers_s(books.observe(), jnp.asarray(2), kept).tolist()[:4] == [0.0, 0.0, 4.0, 0.0]


def fork(first: float, second: float) -> TaskGraph:
    """Two tasks with tails of these lengths."""
    units = {"a": 1.0, "b": 1.0, "c": first, "d": second}
    tasks = tuple(Task(name, "gpu only", units=count) for name, count in units.items())
    return TaskGraph("fork", tasks, (Edge("a", "c"), Edge("b", "d")))


def test_dmdas_sorts_by_rank_what_waits_for_a_device() -> None:
    """All want the GPU. Two are in its queue; the longest tail of the others is next, when one of them has left."""
    graphs = (fork(1.0, 2.0), replace(fork(3.0, 9.0), name="other"))
    books = Books(Workload("forks", (Kernel("gpu only", {"gpu": Profile(1.0)}),), graphs, (Job(0, 0.0), Job(1, 0.0))))
    policy = Dmdas()
    state = policy.init(books.t)
    step = eqx.filter_jit(policy.decide)

    def decide() -> tuple[int, int, int]:
        nonlocal state
        state, action = step(jax.random.key(0), state, books.observe())
        return int(action.kind), int(action.gang), int(action.device)

    order = []
    for _ in range(2):
        kind, gang, device = decide()
        assert (kind, device) == (PLACE, GPU)
        assert books.decide(place(gang, device))
        order.append(gang)
    assert order == [books.tasks + 1, books.tasks]  # tails of 9 and 3
    assert decide()[0] == WAIT  # two wait there: the others are kept back, assigned
    assert (state[:8] == GPU).sum() == 2
    books.start(order[0])
    assert decide()[:2] == (PLACE, 1)  # a tail of 2 before one of 1


def test_dmdas_assigns_when_gangs_become_ready_and_counts_what_it_keeps_back() -> None:
    """14 gangs at once. A GPU takes 1 s, an FPGA 0.5 s, in two contexts, and as much to set up; a CPU takes 4 s."""
    books = Books(work(*[dot("any")] * 14))
    policy = Dmdas()
    step = eqx.filter_jit(policy.decide)
    state, _ = step(jax.random.key(0), policy.init(books.t), books.observe())
    assigned = [int((state[:14] == device).sum()) for device in (CPU0, CPU1, GPU, FPGA)]
    assert assigned == [0, 0, 2, 11]  # three go to the GPU, of which the first is being placed; the last ends at 3.5 s
    books.fail(GPU)
    state, _ = step(jax.random.key(0), state, books.observe())
    assert int((state[:14] == GPU).sum()) == 0  # what was kept for it is assigned anew


def types(*cpu_s: float) -> Books:
    """Kernels that take a GPU 1 s, and a CPU, of which there are two with two slots each, so long; a job of each."""
    kernels = tuple(Kernel(f"k{n}", {"cpu": Profile(cpu), "gpu": Profile(1.0)}) for n, cpu in enumerate(cpu_s))
    graphs = tuple(replace(dot(kernel.name), name=kernel.name) for kernel in kernels)
    return Books(Workload("types", kernels, graphs, tuple(Job(n, 0.0) for n in range(len(graphs)))))


def test_heteroprio_gives_gpus_what_they_accelerate_most_and_cpus_what_least() -> None:
    books = types(5.0, 4.0, 20.0, 2.0, 15.0)
    assert decision(Heteroprio(), books.observe(policy=Heteroprio())) == (PLACE, 2, GPU)
    assert books.decide(place(2, GPU))
    kind, gang, device = decision(Heteroprio(), books.observe(policy=Heteroprio()))
    assert (kind, gang) == (PLACE, 3) and device in (CPU0, CPU1)


def test_heteroprio_leaves_a_gang_to_the_fast_kind_until_that_has_enough_to_do() -> None:
    """A CPU is 20 times slower at what is left than the GPU, for which little else is ready."""
    books = types(20.0, 20.0, 20.0, 20.0, 20.0)
    assert books.decide(place(0, GPU))
    assert decision(Heteroprio(), books.observe(policy=Heteroprio()))[0] == WAIT
    books.start(0)
    assert decision(Heteroprio(), books.observe(policy=Heteroprio())) == (PLACE, 1, GPU)  # one may wait there
