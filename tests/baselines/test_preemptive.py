"""SRTF, LAS and Tiresias: who makes room for whom."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import jax.numpy as jnp
import pytest

from symphony.baselines.preemptive import Las, Srtf
from symphony.problem.errors import LimitError
from symphony.scheduling.policy import PLACE, PREEMPT, WAIT, place
from symphony.testing import check_policy
from tests.baselines.training import chosen, contract, finishes, jobs, preempted, rough, run
from tests.scheduling.by_hand import CPU0, CPU1, GPU, Books, decision, dot, pair, shared_books, work


@pytest.mark.parametrize("name", ["srtf", "las", "tiresias"])
def test_it_keeps_the_contract(name: str) -> None:
    contract(name)


def test_all_policies_for_training_jobs_answer_in_the_form_that_is_asked_for() -> None:
    """Which one is chosen is known at run time only, so all are traced, and all must answer alike."""
    check_policy(chosen("srtf"), [rough()])


# -------------------------------------------------------------------- shortest remaining time first


def best_preemptive_sum(each: list[tuple[int, int]]) -> float:
    """The least sum of finish times on one machine, over all ways to give out whole seconds."""
    from functools import cache

    @cache
    def least(now: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        able = [n for n, seconds in enumerate(left) if seconds and each[n][0] <= now]
        if not able:
            return least(now + 1, left)
        options = []
        for n in able:
            after = tuple(seconds - (k == n) for k, seconds in enumerate(left))
            options.append((now + 1.0 if not after[n] else 0.0) + least(now + 1, after))
        return min(options)

    return least(0, tuple(seconds for _, seconds in each))


@pytest.mark.parametrize(
    "each",
    [
        [(0, 6), (1, 2), (2, 1)],
        [(0, 5), (1, 4), (1, 3), (5, 1)],
        [(0, 3), (4, 2), (5, 2)],
        [(0, 7), (1, 5), (2, 3), (3, 1)],
    ],
)
def test_srtf_is_optimal_on_one_device(each: list[tuple[int, int]]) -> None:
    record = run("srtf", jobs(*((float(arrival), float(seconds), 1) for arrival, seconds in each)))
    assert sum(finishes(record)) == pytest.approx(best_preemptive_sum(each), rel=1e-5)
    assert record.refused == 0


def test_srtf_by_hand() -> None:
    """6 s at 0, 2 s at 1, 1 s at 2: the first runs 1 s, the second 2 s, the third 1 s, the first its last 5 s."""
    record = run("srtf", jobs((0, 6, 1), (1, 2, 1), (2, 1, 1)))
    assert finishes(record) == pytest.approx([9, 3, 4], rel=1e-5)


def test_a_gang_that_may_not_be_preempted_never_is() -> None:
    record = run("srtf", jobs((0, 6, 1), (1, 2, 1), preemptible=False))
    assert finishes(record) == pytest.approx([6, 8], rel=1e-5)
    assert {stay.outcome for stay in record.gangs} == {"finished"}


def test_only_as_many_make_room_as_are_needed_and_the_longest_first() -> None:
    """Four run; a pair of 1 s needs two devices: those of the two that have longest to go."""
    record = run("srtf", jobs((0, 10, 1), (0, 20, 1), (0, 30, 1), (0, 40, 1), (1, 1, 2), kernel="four"))
    assert preempted(record) == {2, 3}
    assert finishes(record) == pytest.approx([10, 20, 31, 41, 2], rel=1e-5)


def test_a_gang_for_which_no_room_can_be_made_lets_others_pass() -> None:
    """The pair has less to go than one that runs, but needs a second device, whose holder is shorter still."""
    record = run("srtf", jobs((0, 3, 1), (0, 9, 1), (1, 4, 2), (1, 5, 1), kernel="two"))
    first = min(stay.start_s for stay in record.gangs if stay.job == 2)
    assert first == pytest.approx(3, rel=1e-5)
    assert preempted(record) <= {1, 3}
    assert max(finishes(record)) < 17


def test_a_gang_goes_to_one_kind_and_one_machine_if_it_can() -> None:
    books = shared_books(work(pair(), dot("any")))
    assert decision(Srtf(), books.observe(units_left=[1.0]))[:2] == (PLACE, 0)
    assert books.decide(place(0, CPU0))
    # Not the GPU, which is faster: the slowest sets the pace.
    assert decision(Srtf(), books.observe()) == (PLACE, 0, CPU1)
    books = shared_books(work(dot("any"), pair()))
    assert books.decide(place(0, CPU1))
    assert decision(Srtf(), books.observe())[2] in (CPU0, GPU)  # CPU1 has somebody in its queue


def test_priority_beats_length() -> None:
    workload = jobs((0, 2, 1), (1, 9, 1))
    workload = replace(workload, jobs=(workload.jobs[0], replace(workload.jobs[1], priority=1), *workload.jobs[2:]))
    assert finishes(run("srtf", workload)) == pytest.approx([11, 10], rel=1e-5)


# -------------------------------------------------------------------- least attained service


def test_las_takes_turns_by_service() -> None:
    """Windows of 1 s, no slack: a newcomer catches up, then both alternate; both end within a second or two."""
    record = run("las", jobs((0, 6, 1), (2, 6, 1)), window_s=1.0)
    ends = sorted(finishes(record))
    assert ends[1] == pytest.approx(12, rel=1e-5)
    assert ends[0] == pytest.approx(11, abs=1.01)
    stays = [stay for stay in record.gangs if stay.job == 1]
    assert stays[0].start_s == pytest.approx(2, rel=1e-5)  # nothing attained: it runs at once
    assert 4 <= stays[0].finish_s <= 5.001  # until it has had more than the first had by then


def test_las_counts_devices_times_seconds() -> None:
    """The pair attains two a second: when a second single comes, the pair makes room though it began last."""
    record = run("las", jobs((0, 9, 1), (1, 9, 2), (6, 1, 1), kernel="three"))
    assert preempted(record) == {1}


def test_slack_keeps_las_from_thrashing() -> None:
    calm = run("las, slack", jobs((0, 6, 1), (2, 6, 1)), window_s=1.0)
    restless = run("las", jobs((0, 6, 1), (2, 6, 1)), window_s=1.0)
    assert len(calm.gangs) < len(restless.gangs)


def test_las_says_when_its_books_are_too_small() -> None:
    with pytest.raises(LimitError, match="3 job slots") as caught:
        decision(Las(jobs=2), Books(work(dot("any"), dot("any"), dot("any"))).observe())
    assert "jobs=3" in caught.value.hint


# -------------------------------------------------------------------- tiresias


def test_with_one_queue_tiresias_is_first_come_first_served() -> None:
    each = ((0.0, 5.0, 1), (1.0, 1.0, 1), (2.0, 2.0, 1))
    record = run("tiresias, 1 queue", jobs(*each), window_s=1.0)
    assert finishes(record) == pytest.approx([5, 6, 8], rel=1e-5)


def test_with_many_queues_tiresias_is_las() -> None:
    each = ((0.0, 6.0, 1), (2.0, 6.0, 1), (3.0, 2.0, 1))
    fine = run("tiresias, fine", jobs(*each), window_s=1.0)
    las = run("las", jobs(*each), window_s=1.0)
    assert finishes(fine) == pytest.approx(finishes(las), abs=2.01)


def test_a_job_past_a_threshold_makes_room_for_one_that_is_not() -> None:
    """A threshold of 4: the first has attained 5 when the second comes. The third finds the second not past it."""
    record = run("tiresias", jobs((0, 9, 1), (5, 3, 1), (6, 3, 1)))
    assert finishes(record) == pytest.approx([15, 8, 11], rel=1e-5)


def test_the_starved_are_promoted() -> None:
    """Past the threshold after 4 s, then newcomers of 3 s each without end: unless promoted, it waits for them all."""
    stream = [(5.0, 3.0, 1), *((7.5 + 3 * n, 3.0, 1) for n in range(7))]
    never = run("tiresias", jobs((0.0, 7.0, 1), *stream), window_s=1.0)
    assert never.jobs[0].finish_s == pytest.approx(31, rel=1e-5)  # last of all
    soon = run("tiresias, promoting", jobs((0.0, 7.0, 1), *stream), window_s=1.0)
    # Stopped at 5 after a stay of 5 s, it is promoted at 15 and goes before those who came later.
    assert soon.jobs[0].finish_s == pytest.approx(19, abs=0.01)


def test_with_nothing_to_gain_nobody_is_preempted() -> None:
    books = shared_books(work(pair(preemptible=True), pair(preemptible=True), pair(preemptible=True)))
    tasks = books.tasks
    for slot in range(2):
        for device in (CPU0, CPU1):
            assert books.decide(place(slot * tasks, device))
        books.start(slot * tasks)
    left = jnp.asarray([8.0, 8.0, 8.0]).tolist()
    assert decision(Srtf(), books.observe(units_left=left))[0] == WAIT
    kind, gang, _ = decision(Srtf(), books.observe(units_left=[8.0, 9.0, 1.0]))
    assert (kind, gang) == (PREEMPT, tasks)


def test_all_orders_of_arrival_of_equal_jobs_take_as_long() -> None:
    each = [(0.0, 2.0, 1), (0.0, 3.0, 1), (0.0, 4.0, 1)]
    totals = {round(sum(finishes(run("srtf", jobs(*order)))), 3) for order in permutations(each)}
    assert totals == {2 + 5 + 9}
