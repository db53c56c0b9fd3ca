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
    """2 GB at home, on another machine: 2 s to the GPU or the FPGA, where the gang takes 1 s; 4 s where they lie.

    dmda counts a transfer twice: the gang cannot start before, and transfers are to be avoided.
    """
    books = shared_books(work(chain(size=2 * GB)))
    assert decision(Dm(), books.observe())[2] == GPU
    assert decision(Dmda(), books.observe())[2] == CPU0  # 2 + 1 + 2 on the GPU
    assert decision(Dmda(beta=0.4), books.observe())[2] == GPU  # 2 + 1 + 0.8
    assert decision(Dmda(beta=0.0), books.observe())[2] == GPU


def test_dmda_lets_the_queue_hide_transfers_and_adds_them_all_the_same() -> None:
    """Behind 2 s of queue, 1.5 GB are there before the gang could start: it would end after 3 s. dmda counts 4.5 and
    takes a CPU for 4; with transfers of half the weight, it takes the GPU, where without overlap it would count 5.25.
    """
    books = shared_books(work(chain(size=1.5 * GB), dot("any"), dot("any"), dot("any"), dot("any")))
    for slot in (1, 2):
        assert books.decide(place(slot * books.tasks, GPU))
    books.fail(FPGA)
    assert decision(Dmda(), books.observe())[1:] == (0, CPU0)
    assert decision(Dmda(beta=0.5), books.observe())[1:] == (0, GPU)
    assert decision(Dm(), books.observe())[1:] == (0, GPU)


def test_transfers_within_a_machine_are_expected_to_share_their_links_with_all_others() -> None:
    """GPU and FPGA of one machine: two memories besides none of a CPU, so one other, in two directions."""
    edges = (Edge("a", "b", 1 * GB),)
    books = Books(work(TaskGraph("pair", tuple(Task(name, "any") for name in "ab"), edges)))
    assert books.decide(place(0, GPU))
    books.start(0)
    books.finish(0)
    # 2 GB/s of the FPGA's link between the two, 1 GB/s to the other machine.
    assert transfers_s(books.observe(), jnp.asarray(1)).tolist()[:4] == [1.0, 1.0, 0.0, 2 * 0.5]


def test_what_a_queue_does_not_hide_of_a_transfer_is_part_of_the_queue() -> None:
    """The first gang waits 0.5 s for its input at the idle GPU, and takes 1 s; the next one expects 1.5 s of queue."""
    policy = Dmda()
    books = Books(work(chain(size=0.5 * GB), dot("any"), dot("any")))
    books.fail(FPGA)
    state, action = eqx.filter_jit(policy.decide)(jax.random.key(0), policy.init(books.t), books.observe())
    assert (int(action.gang), int(action.device)) == (0, GPU) and float(state[0]) == 0.5
    assert books.decide(action)
    exposed_s = jax.jit(starpu._exposed_s)
    assert exposed_s(books.observe(), state).tolist()[:4] == [0.0, 0.0, 0.5, 0.0]
    books.start(0)
    assert not exposed_s(books.observe(), state).any()


def test_data_on_its_way_counts_as_being_there() -> None:
    """Two tasks read the same 4 GB. Once one waits for them at the GPU, they cost the other nothing there."""
    edges = (Edge("a", "b", 4 * GB), Edge("a", "c", 4 * GB))
    books = Books(work(TaskGraph("fan", tuple(Task(name, "any") for name in "abc"), edges)))
    assert books.decide(place(0, CPU0))
    books.start(0)
    books.finish(0)
    assert transfers_s(books.observe(), jnp.asarray(2)).tolist()[:4] == [0.0, 0.0, 4.0, 4.0]
    assert books.decide(place(1, GPU))
    assert transfers_s(books.observe(), jnp.asarray(2)).tolist()[:4] == [0.0, 0.0, 0.0, 4.0]


def fork(first: float, second: float) -> TaskGraph:
    """Two tasks with tails of these lengths."""
    units = {"a": 1.0, "b": 1.0, "c": first, "d": second}
    tasks = tuple(Task(name, "gpu only", units=count) for name, count in units.items())
    return TaskGraph("fork", tasks, (Edge("a", "c"), Edge("b", "d")))


def test_dmdas_sorts_queues_by_priority_and_rank() -> None:
    """All want the GPU, and are placed at once; the next to start is that of the longest tail, in the urgent job."""
    graphs = (fork(1.0, 2.0), replace(fork(3.0, 9.0), name="other"))
    kernels = (Kernel("gpu only", {"gpu": Profile(1.0)}),)
    books = Books(Workload("forks", kernels, graphs, (Job(0, 0.0, priority=1), Job(1, 0.0))))
    policy = Dmdas()
    state = policy.init(books.t)
    step = eqx.filter_jit(policy.decide)
    heads = []
    for _ in range(4):
        state, action = step(jax.random.key(0), state, books.observe())
        assert (int(action.kind), int(action.device)) == (PLACE, GPU)
        assert books.decide(action)
        heads.append(int(books.core.head[GPU]))
    assert heads == [0, 1, 1, 1]
    order = []
    for _ in range(4):
        order.append(int(books.core.head[GPU]))
        books.start(order[-1])
        books.finish(order[-1])
    assert order == [1, 0, books.tasks + 1, books.tasks]


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
