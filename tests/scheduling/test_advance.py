"""How events and decisions change the books, worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.problem.workload import Edge, Task, TaskGraph
from symphony.scheduling import advance
from symphony.scheduling.policy import PLACE, PREEMPT, RECONFIGURE, Action, place, preempt, reconfigure, wait
from symphony.scheduling.state import (
    ABSENT,
    DONE,
    FREE,
    PLACING,
    QUEUED,
    READY,
    RECONFIGURING,
    RUNNING,
    SAVED,
    SAVING,
    UNCONFIGURED,
    WAITING,
)
from tests.scheduling.by_hand import CPU0, CPU1, FPGA, GPU, MIB, Books, chain, dot, pair, shared_books, work

FPGA_LANES = (5, 6)  # slots in the order of devices: two of each CPU, one of the GPU, two of the FPGA
ANY, CPU_ONLY, TRAIN = range(3)


def action(kind: int, gang: int = 0, device: int = 0, kernel: int = 0) -> Action:
    return Action(*(jnp.asarray(x, jnp.int32) for x in (kind, gang, device, kernel)))


def running(books: Books, gang: int, *devices: int) -> None:
    """Place and start a gang without inputs."""
    for device in devices:
        assert books.decide(place(gang, device))
    books.start(gang)


def unchanged_but_for(before: object, after: object, *fields: str) -> None:
    """Every other field is as it was."""
    for name, value in vars(before).items():
        if name not in fields:
            jax.tree.map(np.testing.assert_array_equal, value, getattr(after, name))


# -------------------------------------------------------------------- jobs


def test_arrival_takes_the_first_free_slot() -> None:
    books = Books(work(dot("any"), chain(), pair(), priorities=(0, 3, 0), homes=(0, 1, 0)), arrived=0)
    assert books.core.job.tolist() == [-1, -1, -1]
    books.arrive()
    books.arrive()
    assert books.core.job.tolist() == [0, 1, -1]
    assert books.core.priority.tolist() == [0, 3, 0]
    assert books.core.home.tolist()[:2] == [CPU0, GPU]  # the first device of each machine
    assert books.core.unfinished.tolist()[:2] == [1, 2]
    assert books.status() == [READY, READY, WAITING, ABSENT]
    assert books.core.status.reshape(3, -1)[0].tolist() == [READY, ABSENT]  # padding of a shorter graph
    assert int(books.core.jobs_seen) == 2


def test_a_job_whose_last_gang_is_done_frees_its_slot() -> None:
    books = Books(work(dot("any"), dot("any")))
    running(books, 0, GPU)
    books.finish(0)
    assert books.core.job.tolist() == [-1, 1]
    assert books.status() == [ABSENT, READY]
    assert int(books.core.jobs_done) == 1


def test_children_are_ready_when_their_last_parent_is_done() -> None:
    tasks = tuple(Task(name, "any") for name in "abc")
    books = Books(work(TaskGraph("join", tasks, (Edge("a", "c"), Edge("b", "c")))))
    assert books.core.waiting_for.tolist()[:3] == [0, 0, 2]
    running(books, 0, GPU)
    books.finish(0)
    assert books.status() == [DONE, READY, WAITING]
    running(books, 1, CPU0)
    books.finish(1)
    assert books.status() == [DONE, DONE, READY]


def test_a_gang_with_many_children_tells_all_of_them() -> None:
    """They are told a few at a time."""
    tasks = tuple(Task(f"t{i}", "any") for i in range(12))
    graph = TaskGraph("fan", tasks, tuple(Edge("t0", f"t{i}") for i in range(1, 12)))
    books = Books(work(graph))
    assert books.w.fan < 11
    running(books, 0, GPU)
    books.finish(0)
    assert books.status() == [DONE] + [READY] * 11


# -------------------------------------------------------------------- placing, queues, starting


def test_placing_counts_in_the_queue_of_each_device() -> None:
    books = shared_books(work(pair(), dot("any")))
    gang, lone = 0, books.tasks
    assert books.decide(place(gang, CPU0))
    assert books.status() == [PLACING, READY]
    assert books.decide(place(gang, GPU))
    assert books.decide(place(lone, GPU))
    assert books.status() == [QUEUED, QUEUED]
    assert books.core.head.tolist()[:4] == [gang, -1, gang, -1]
    assert books.core.queued.tolist()[:4] == [1, 0, 2, 0]
    assert books.core.queued_s.tolist()[:4] == [8.0, 0.0, 8 * 0.25 + 1.0, 0.0]
    assert books.core.sequence.tolist()[gang] == 0 and books.core.sequence.tolist()[lone] == 1
    assert books.core.device[gang].tolist() == [CPU0, GPU]


def test_starting_takes_slots_and_memory_and_leaves_the_queue() -> None:
    books = shared_books(work(dot("cpu only"), dot("any")))
    books.pass_time(2.5)
    running(books, 0, CPU1)
    assert books.status() == [RUNNING, READY]
    assert books.core.lane_holds.tolist()[:7] == [FREE, FREE, 0, FREE, FREE, FREE, FREE]
    assert books.core.lanes_free.tolist()[:4] == [2, 1, 1, 2]
    assert int(books.core.memory_free[CPU1]) == (64 - 40) * MIB / 1024
    assert books.core.queued.tolist()[:4] == [0, 0, 0, 0] and books.core.queued_s.tolist()[:4] == [0.0] * 4
    assert books.core.head.tolist()[:4] == [-1] * 4
    assert float(books.core.lane_since.total[2]) == 2.5 and float(books.core.lane_estimate[2]) == 2.0
    books.finish(0)
    assert books.core.lane_holds.tolist()[2] == FREE
    assert books.core.lanes_free.tolist()[:4] == [2, 2, 1, 2]
    assert int(books.core.memory_free[CPU1]) == 64 * MIB / 1024


def test_the_next_in_the_queue_becomes_its_head() -> None:
    books = shared_books(work(dot("any"), dot("cpu only"), dot("any")))
    for gang in (2, 0, 1):
        assert books.decide(place(gang, CPU0))
    assert (int(books.core.head[CPU0]), int(books.core.head_needs[CPU0])) == (2, 0)
    books.start(2)
    books.start(0)
    assert (int(books.core.head[CPU0]), int(books.core.head_needs[CPU0])) == (1, 40 * 1024)
    assert (int(books.core.queued[CPU0]), float(books.core.queued_s[CPU0])) == (1, 2.0)


# -------------------------------------------------------------------- reconfigurable devices


def test_a_fresh_context_is_configured_and_a_configured_one_is_reused() -> None:
    books = shared_books(work(dot("any"), dot("any"), dot("any")))
    assert books.decide(place(0, FPGA))
    assert books.start(0) == [0.5]
    assert books.core.lane_kernel.tolist()[5:7] == [ANY, UNCONFIGURED]
    assert bool(books.core.lane_setup[5])
    books.setup_ended(5)
    assert not bool(books.core.lane_setup[5])
    books.finish(0)
    assert books.decide(place(1, FPGA))
    assert books.start(1) == [0.0]
    assert books.core.lane_holds.tolist()[5:7] == [1, FREE]
    assert books.decide(place(2, FPGA))
    assert books.start(2) == [0.5]  # the configured one is taken


def test_a_context_can_be_configured_beforehand() -> None:
    books = shared_books(work(dot("any")))
    assert books.decide(reconfigure(FPGA, ANY))
    assert int(books.commands.reconfigure) == FPGA_LANES[0]
    assert books.core.lane_holds.tolist()[5:7] == [RECONFIGURING, FREE]
    assert int(books.core.lanes_free[FPGA]) == 1
    books.setup_ended(5)
    assert books.core.lane_holds.tolist()[5:7] == [FREE, FREE] and int(books.core.lanes_free[FPGA]) == 2
    assert books.decide(place(0, FPGA))
    assert books.start(0) == [0.0]


# -------------------------------------------------------------------- preemption


def test_preemption_saves_then_gives_back_and_restores() -> None:
    books = shared_books(work(pair(preemptible=True, checkpoint_s=1.0, restore_s=0.75)))
    running(books, 0, CPU0, GPU)
    lanes = books.core.lane[0].tolist()
    assert books.decide(preempt(0))
    assert int(books.commands.save) == 0
    assert books.status() == [SAVING]
    assert not books.decide(preempt(0))  # its slots are in set-up
    books.setup_ended(lanes[0])
    assert books.status() == [SAVING]
    books.setup_ended(lanes[1])
    assert books.status() == [SAVED]
    books.leave(0)
    assert books.status() == [READY]
    assert books.core.lanes_free.tolist()[:4] == [2, 2, 1, 2]
    assert books.core.device[0].tolist() == [-1, -1]
    assert books.decide(place(0, CPU1)) and books.decide(place(0, CPU0))
    assert books.start(0) == [0.75, 0.75]


# -------------------------------------------------------------------- data


def test_outputs_lie_with_the_first_worker_and_copies_are_remembered() -> None:
    graph = TaskGraph(
        "fan", tuple(Task(f"t{i}", "any") for i in range(7)), tuple(Edge("t0", f"t{i}", 1e9) for i in range(1, 7))
    )
    books = Books(work(graph))
    running(books, 0, CPU1)
    books.finish(0)
    assert books.core.copies[0].tolist() == [CPU0, -1, -1, -1]  # cpu1 works in the memory of cpu0
    books.copied(0, GPU)
    books.copied(0, FPGA)
    assert books.core.copies[0].tolist() == [CPU0, GPU, FPGA, -1]
    books.copied(0, GPU)  # it has one already
    assert books.core.copies[0].tolist() == [CPU0, GPU, FPGA, -1]
    # Memories beyond those of this cluster, for what follows: three copies beside the original, the oldest goes.
    books.copied(0, 4)
    books.copied(0, 5)
    assert sorted(books.core.copies[0].tolist()) == [CPU0, FPGA, 4, 5]
    assert int(books.core.copies[0, 0]) == CPU0
    before = books.core
    books.copied(-1, GPU)  # from the job's home: nobody's output
    unchanged_but_for(before, books.core)


def test_inputs_are_counted_down_and_start_anew_with_the_next_placement() -> None:
    books = shared_books(work(chain()))
    assert books.decide(place(0, GPU))
    assert int(books.core.inputs_left[0]) == 1
    books.fetched(0)
    assert int(books.core.inputs_left[0]) == 0
    books.fail(GPU)
    books.leave(0)
    assert int(books.core.inputs_left[0]) == 1


# -------------------------------------------------------------------- failures


def test_a_failure_sends_everything_on_the_device_back() -> None:
    books = shared_books(work(pair(), dot("any"), dot("any"), dot("any")))
    both, first, second, elsewhere = (k * books.tasks for k in range(4))
    running(books, both, CPU0, GPU)
    running(books, first, CPU0)
    assert books.decide(place(second, CPU0))
    running(books, elsewhere, CPU1)
    books.fail(CPU0)
    assert not bool(books.core.up[CPU0])
    assert np.flatnonzero(books.core.leaving).tolist() == [both, first, second]
    for gang in (both, first, second):
        books.leave(gang)
    assert books.status() == [READY, READY, READY, RUNNING]
    assert books.core.lanes_free.tolist()[:4] == [2, 1, 1, 2]
    assert (int(books.core.queued[CPU0]), int(books.core.head[CPU0])) == (0, -1)
    assert not books.decide(place(first, CPU0))
    books.repair(CPU0)
    assert books.decide(place(first, CPU0))


def test_a_failure_forgets_what_contexts_were_configured_for() -> None:
    books = shared_books(work(dot("any"), dot("any")))
    assert books.decide(reconfigure(FPGA, ANY))
    books.setup_ended(5)
    assert books.decide(reconfigure(FPGA, ANY))
    books.fail(FPGA)
    assert books.core.lane_kernel.tolist()[5:7] == [UNCONFIGURED] * 2
    assert books.core.lane_holds.tolist()[5:7] == [FREE] * 2
    assert not np.asarray(books.core.lane_setup).any()
    assert int(books.core.lanes_free[FPGA]) == 2


# -------------------------------------------------------------------- refusals


def test_what_is_refused_counts_and_waits_and_changes_nothing_else() -> None:
    books = shared_books(work(dot("cpu only"), chain(), pair()))
    lone, child, both = 0, books.tasks + 1, 2 * books.tasks
    running(books, lone, CPU0)
    refused = [
        place(lone, CPU1),  # it runs already
        place(child, GPU),  # it waits for its parent
        place(both, FPGA),  # no implementation
        place(both, 99),
        place(both, -1),
        place(999, CPU0),
        preempt(lone),  # not preemptible
        preempt(both),  # not running
        preempt(-1),
        reconfigure(GPU, ANY),  # not reconfigurable
        reconfigure(FPGA, CPU_ONLY),  # no implementation
        reconfigure(FPGA, 99),
        reconfigure(FPGA, -1),
        reconfigure(-1, ANY),
        action(4),
        action(-1),
    ]
    for number, asked in enumerate(refused, start=1):
        before = books.core
        assert not books.decide(asked), asked
        assert int(books.core.refused) == number
        assert bool(books.core.waited)
        unchanged_but_for(before, books.core, "refused", "decisions", "waited")
    assert int(books.core.decisions) == 1 + len(refused)


def test_full_and_failed_devices_are_not_configured() -> None:
    books = shared_books(work(dot("any"), dot("any")))
    running(books, 0, FPGA)
    assert books.decide(reconfigure(FPGA, ANY))
    assert not books.decide(reconfigure(FPGA, ANY))  # no free context
    books = shared_books(work(dot("any")))
    books.fail(FPGA)
    assert not books.decide(reconfigure(FPGA, ANY))


@pytest.mark.parametrize(
    "asked", [wait(), place(0, FPGA), place(0, CPU0), reconfigure(FPGA, ANY)], ids=["wait", "cannot", "twice", "other"]
)
def test_a_gang_partly_placed_goes_back_whole(asked: Action) -> None:
    books = shared_books(work(pair(), dot("any")))
    assert books.decide(place(0, CPU0))
    assert not books.decide(asked)
    assert np.flatnonzero(books.core.leaving).tolist() == [0]
    books.leave(0)
    assert books.status() == [READY, READY]
    assert (int(books.core.queued[CPU0]), float(books.core.queued_s[CPU0])) == (0, 0.0)
    assert int(books.core.head[CPU0]) == -1
    assert books.core.device[0].tolist() == [-1, -1]


def test_a_wait_is_accepted_and_ends_an_offer() -> None:
    books = shared_books(work(dot("any")))
    books.window([], [], offer=True)
    assert bool(books.core.offered)
    assert books.decide(wait())
    assert bool(books.core.waited) and not bool(books.core.offered)
    assert (int(books.core.decisions), int(books.core.refused)) == (1, 0)


@pytest.mark.parametrize(
    "asked",
    [action(PREEMPT, gang=0, device=-1, kernel=-1), action(RECONFIGURE, gang=-1, device=FPGA, kernel=ANY)],
    ids=["preempt", "reconfigure"],
)
def test_what_does_not_apply_to_an_action_is_ignored(asked: Action) -> None:
    books = shared_books(work(pair(preemptible=True)))
    running(books, 0, CPU0, GPU)
    assert books.decide(asked)


def test_a_placement_ignores_the_kernel() -> None:
    books = shared_books(work(dot("any")))
    assert books.decide(action(PLACE, gang=0, device=GPU, kernel=-7))


# -------------------------------------------------------------------- jobs that are given up


def test_a_gang_that_stopped_has_to_be_placed_again() -> None:
    books = shared_books(work(dot("any")))
    running(books, 0, GPU)
    books.stop(0)
    assert books.status() == [READY]
    assert books.core.lane_holds.tolist()[4] == FREE
    assert books.decide(place(0, CPU0))


def test_only_what_runs_can_stop() -> None:
    books = shared_books(work(dot("any")))
    assert books.decide(place(0, GPU))
    after = advance.gang_stopped(books.core, jnp.asarray(0), jnp.asarray(True))
    unchanged_but_for(books.core, after)


def test_what_waits_in_a_queue_may_be_placed_elsewhere() -> None:
    books = shared_books(work(dot("any"), dot("any")))
    running(books, 0, GPU)
    assert books.decide(place(1, GPU))
    books.recall(0)  # it runs: nothing happens
    books.recall(1)
    assert books.status() == [RUNNING, READY] and books.core.queued.tolist()[GPU] == 0
    assert books.decide(place(1, CPU0))


def test_a_dropped_job_keeps_what_runs_until_that_has_stopped() -> None:
    tasks = (Task("runs", "any"), Task("queued", "any"), Task("ready", "any"), Task("waits", "any"))
    graph = TaskGraph("g", tasks, (Edge("runs", "waits"),))
    books = Books(work(graph, dot("any")))
    running(books, 0, GPU)
    assert books.decide(place(1, GPU))
    books.drop(0)
    assert books.status()[:4] == [RUNNING, QUEUED, ABSENT, ABSENT]
    assert books.core.leaving.tolist()[:4] == [False, True, False, False]
    books.leave(1)
    assert books.status()[:4] == [RUNNING, ABSENT, ABSENT, ABSENT]
    assert books.core.queued.tolist()[GPU] == 0 and books.core.job.tolist() == [0, 1]
    books.stop(0)
    assert books.status() == [ABSENT] * 4 + [READY]
    assert books.core.job.tolist() == [-1, 1]
    assert books.core.lanes_free.tolist()[GPU] == 1 and int(books.core.jobs_done) == 1


def test_a_dropped_job_with_nothing_under_way_is_gone_at_once() -> None:
    books = Books(work(chain(), dot("any")))
    books.drop(0)
    assert books.core.job.tolist() == [-1, 1] and books.status() == [ABSENT, ABSENT, READY]
    books.drop(0)  # once more changes nothing
    assert int(books.core.jobs_done) == 1


def test_a_slot_is_as_good_as_new_after_a_dropped_job() -> None:
    books = Books(work(chain(), dot("any")), arrived=1)
    books.drop(0)
    books.arrive()
    assert books.core.job.tolist() == [1, -1] and not books.core.dropped.any()
    running(books, 0, GPU)
    books.finish(0)
    assert books.core.job.tolist() == [-1, -1]


def test_what_finishes_after_its_job_was_dropped_releases_nobody() -> None:
    books = Books(work(chain(size=0.0)))
    assert books.decide(place(0, GPU))
    books.fetched(0)
    books.start(0)
    books.drop(0)
    books.finish(0)
    assert books.status() == [ABSENT, ABSENT] and books.core.job.tolist() == [-1]


# -------------------------------------------------------------------- one step for all


def test_nothing_happens_where_it_is_not_to() -> None:
    """Every function serves scenarios that are at different points: `when` says for whom."""
    books = shared_books(work(pair(preemptible=True), dot("any")))
    running(books, 0, CPU0, FPGA - 1)
    no, zero, core, t, w = jnp.asarray(False), jnp.asarray(0), books.core, books.t, books.w
    f = books.facts(0)
    calls = {
        "job_arrived": lambda: advance.job_arrived(core, w, no),
        "job_dropped": lambda: advance.job_dropped(core, w, zero, no),
        "gang_stopped": lambda: advance.gang_stopped(core, zero, no),
        "gang_recalled": lambda: advance.gang_recalled(core, zero, no),
        "place_worker": lambda: advance.place_worker(core, t, w, zero, f, zero, no),
        "start_gang": lambda: advance.start_gang(core, t, w, zero, f, books.now, no)[0],
        "gang_leaves": lambda: advance.gang_leaves(core, t, w, zero, f, no),
        "inputs_there": lambda: advance.inputs_there(core, zero, zero, zero + 1, no),
        "copy_made": lambda: advance.copy_made(core, zero, zero, no),
        "gang_finished": lambda: advance.gang_finished(core, zero, no),
        "setup_ended": lambda: advance.setup_ended(core, t, zero, no),
        "device_failed": lambda: advance.device_failed(core, t, zero, no),
        "device_repaired": lambda: advance.device_repaired(core, zero, no),
        "window_ended": lambda: advance.window_ended(core, core.reading + 1, core.reading + 1, ~no, no),
        "apply": lambda: advance.apply(core, t, w, preempt(0), no)[0],
    }
    for name, call in calls.items():
        after = jax.jit(call)()
        for field, value in vars(core).items():
            jax.tree.map(
                lambda a, b, name=name, field=field: np.testing.assert_array_equal(a, b, err_msg=f"{name}: {field}"),
                value,
                getattr(after, field),
            )
