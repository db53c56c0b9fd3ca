"""The fast simulator against the obvious one: equal decisions give equal times, over random scenarios.

The fast one runs in 64 bits here, with coarse size buckets, so that three compiled programs serve all scenarios: two
sizes under the usual rules, and one under another model of contention with hidden speeds. Run
`python -m tests.simulator.fuzz` for fresh ones.
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import count, islice
from math import prod

import jax
import numpy as np
import pytest

from symphony.problem import limits
from symphony.scheduling.indexing import MAX_DENSE_UPDATES
from symphony.simulator.contention import Serial
from symphony.simulator.next_event import EVENTS
from symphony.simulator.run import record, run_traces
from symphony.simulator.scenarios import stack
from tests.simulator.chaos import Chaos, more, order_of
from tests.simulator.reference import Reference, bottleneck
from tests.simulator.strategies import SIZES, random_scenario

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
COARSE = 24  # what is larger is padded to the next bucket of 112, 448, …
# Slots of all devices and resource rows within or beyond COARSE, and job slots: a compiled program for each.
MIDDLE, LARGE, ONE_SLOT = (False, True, 3), (True, True, 3), (False, True, 1)
EACH = 24  # scenarios for each program


@contextmanager
def double_precision_and_coarse_buckets(least=COARSE):
    def coarse(n):
        return max(least, COARSE if n <= COARSE else 112 if n <= 112 else 448 * -(-n // 448))

    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(limits, "bucket", coarse)
        yield


def program_of(scenario):
    """Which compiled program serves a scenario under coarse buckets."""
    topology = scenario.topology
    lanes = sum(topology.kind_of[device.kind].slots for device in topology.devices)
    return lanes > COARSE, len(topology.resources) + 1 > COARSE, scenario.job_slots


def actions(trace, order_of=order_of):
    """What was decided in a run of the fast simulator: time, action in the reference's form, whether accepted."""
    decided = []
    for row in np.flatnonzero(trace.log.decision[0] >= 0):
        kind, job, gang, device, kernel, accepted = (int(column[row]) for column in trace.log.decision[:-1])
        seconds = float(trace.log.decision[-1][row])
        action = (
            ("place", job, gang, device, order_of(job, gang)),
            ("preempt", job, gang),
            ("reconfigure", device, kernel),
            ("wait", seconds),
        )[kind]
        decided.append((trace.before_s[row], action, bool(accepted)))
    return decided


def replay(scenario, policy, contention=None, compose=bottleneck):
    """Run the fast simulator, and give its decisions to the reference."""
    batch = stack([scenario])
    # These two are lengths of unrolled loops, for which the coarse buckets are too coarse.
    batch = replace(batch, workload=replace(batch.workload, max_workers=SIZES["large"].workers, fan=4))
    (trace,), _ = run_traces(batch, [scenario], policy, contention=contention)
    decisions = actions(trace)
    script = iter(decisions)
    reference = Reference(scenario, compose, more)
    reference.run(lambda world: next(script, (0, ("wait",), True))[1])
    return trace, decisions, reference


def compare(scenario, trace, decisions, reference):
    """Everything that either recorded, side by side."""
    log = trace.log
    assert reference.stalled == bool(trace.carry.world.stalled)
    assert [decision[1:] for decision in reference.decisions] == [decision[1:] for decision in decisions]
    np.testing.assert_allclose([d[0] for d in decisions], [d[0] for d in reference.decisions], **CLOSE)

    rows = np.flatnonzero(log.event[0] >= 0)
    kinds = [EVENTS[kind] for kind in log.event[0][rows]]
    assert kinds == [event[1] for event in reference.events]
    np.testing.assert_allclose(trace.after_s[rows], [event[0] for event in reference.events], **CLOSE)
    readings = log.reading[rows][[kind == "window" for kind in kinds]]
    np.testing.assert_allclose(log.held[rows], reference.held, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(readings, [sum(reading) for reading in reference.readings], rtol=1e-8, atol=1e-9)

    run = record(scenario, trace, "policy", 0.0)
    for ours, theirs in zip(run.jobs, sorted(reference.jobs, key=lambda job: job.job), strict=True):
        assert (ours.job, ours.graph) == (theirs.job, theirs.graph)
        np.testing.assert_allclose([ours.finish_s, ours.isolated_s], [theirs.finish_s, theirs.isolated_s], **CLOSE)
    order = sorted(run.gangs, key=lambda stay: (stay.start_s, stay.job, stay.gang))
    expected = sorted(reference.stays, key=lambda stay: (stay.start_s, stay.job, stay.gang))
    for ours, theirs in zip(order, expected, strict=True):
        for field in ("job", "gang", "devices", "outcome"):
            assert getattr(ours, field) == getattr(theirs, field)
        for field in ("ready_s", "placed_s", "start_s", "finish_s", "isolated_s", "setup_s"):
            np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), err_msg=field, **CLOSE)
    for kind, value in reference.utilisation.items():
        np.testing.assert_allclose(run.utilisation[kind], value, rtol=1e-7, atol=1e-9)
    assert run.refused == reference.refused
    # What is added is removed again, to the last bit.
    assert (np.asarray(trace.carry.world.load)[: len(scenario.topology.resources)] == reference.own_load()).all()


def served_by(program, truth=False):
    """Random scenarios that share a compiled program."""
    drawn = (random_scenario(seed, truth=truth) for seed in count())
    return (scenario for scenario in drawn if program_of(scenario) == program)


@cache
def replayed(program, *models, truth=False):
    """Scenarios of one compiled program, each with what both simulators made of it."""
    with double_precision_and_coarse_buckets():
        drawn = islice(served_by(program, truth), EACH)
        return [(scenario, *replay(scenario, Chaos(reorders=True), *models)) for scenario in drawn]


def check(runs):
    for scenario, *both in runs:
        try:
            compare(scenario, *both)
        except AssertionError as error:
            raise AssertionError(f"scenario seed {scenario.seed}: {error}") from error


@pytest.mark.slow
def test_they_agree_where_arrays_are_too_long_for_masks():
    """Beyond certain lengths elements are gathered and scattered, one at a time, instead of masked, all at once."""
    with double_precision_and_coarse_buckets(least=320):
        runs = [(scenario, *replay(scenario, Chaos(reorders=True))) for scenario in islice(served_by(LARGE), 4)]
    core = runs[0][1].carry.world.core
    assert min(core.up.size, core.lane_holds.size) > 256 and core.device.size > MAX_DENSE_UPDATES
    check(runs)


@pytest.mark.slow
def test_they_agree_under_another_model_of_contention_where_speeds_are_not_what_profiles_say():
    """A hidden truth: other speeds alone, packed and spread, other demands, and pairs that interfere on a device."""
    runs = replayed(ONE_SLOT, Serial(), prod, truth=True)
    check(runs)
    stays = [(a, b) for *_, reference in runs for a in reference.stays for b in reference.stays]
    assert any(set(a.devices) & set(b.devices) and a.start_s < b.start_s < a.finish_s for a, b in stays)


def test_fast_and_obvious_simulators_agree():
    """And everything that can happen has happened. One test: in two, two processes would compile the same programs."""
    runs = [run for program in (MIDDLE, LARGE) for run in replayed(program)]
    check(runs)
    references = [reference for *_, reference in runs]
    assert {event[1] for reference in references for event in reference.events} == set(EVENTS)
    stays = [(stay, reference) for reference in references for stay in reference.stays]
    assert {stay.outcome for stay, _ in stays} == {"finished", "preempted", "failed"}
    accepted = {(action[0], answer) for reference in references for _, action, answer in reference.decisions}
    assert accepted == {(kind, answer) for kind in ("place", "preempt", "reconfigure", "wait") for answer in (0, 1)}
    assert any(reference.scenario.disturbances.offer_at_windows for reference in references)
    workers = [[reference.topology.devices[d] for d in stay.devices] for stay, reference in stays]
    assert any(stay.setup_s > 0 and here[0].kind == "fpga" for (stay, _), here in zip(stays, workers, strict=True))
    assert any(len(here) > 1 and here[0].peers and len({d.peers for d in here}) == 1 for here in workers)
