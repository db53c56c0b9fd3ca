"""The fast simulator against the obvious one: equal decisions give equal times, over random scenarios.

The fast one runs in 64 bits here, with coarse size buckets so that one compiled program serves most scenarios.
"""

from contextlib import contextmanager

import jax
import numpy as np
import pytest

from symphony.problem import limits
from symphony.simulator.next_event import EVENTS
from symphony.simulator.run import record, run_traces
from symphony.simulator.scenarios import stack
from tests.simulator.chaos import Chaos
from tests.simulator.reference import Reference
from tests.simulator.strategies import random_scenario

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@contextmanager
def double_precision_and_coarse_buckets():
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(limits, "bucket", lambda n: 4 if n <= 4 else 16 if n <= 16 else 64 if n <= 64 else 256)
        yield


def replay(scenario, policy):
    """Run the fast simulator, and give its decisions to the reference."""
    (trace,), _ = run_traces(stack([scenario]), [scenario], policy)
    decisions = []
    for row in np.flatnonzero(trace.log.decision[0] >= 0):
        kind, job, gang, device, kernel, accepted = (int(column[row]) for column in trace.log.decision)
        action = (
            ("place", job, gang, device),
            ("preempt", job, gang),
            ("reconfigure", device, kernel),
            ("wait",),
        )[kind]
        decisions.append((trace.before_s[row], action, bool(accepted)))
    script = iter(decisions)
    reference = Reference(scenario)
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


@pytest.mark.parametrize("block", range(4))
def test_fast_and_obvious_simulators_agree(block):
    with double_precision_and_coarse_buckets():
        for seed in range(block * 10, block * 10 + 10):
            scenario = random_scenario(seed)
            try:
                compare(scenario, *replay(scenario, Chaos()))
            except AssertionError as error:
                raise AssertionError(f"scenario seed {seed}: {error}") from error
