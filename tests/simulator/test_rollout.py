"""The fast simulator against the obvious one: equal decisions, equal times."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.baselines.earliest_finish import EftBelief
from symphony.simulator.next_event import EVENTS
from symphony.simulator.run import record, run_traces
from symphony.simulator.scenarios import stack
from tests.simulator.reference import Reference
from tests.simulator.strategies import random_scenario


def replay(scenario, policy):
    """Run the fast simulator, give its decisions to the reference, and compare everything that either recorded."""
    batch = stack([scenario])
    (trace,), _ = run_traces(batch, [scenario], policy)
    log = trace.log
    names = ("place", "preempt", "reconfigure", "wait")
    decisions = []
    for row in np.flatnonzero(log.decision[0] >= 0):
        kind, job, gang, device, kernel, accepted = (int(column[row]) for column in log.decision)
        action = {
            0: ("place", job, gang, device),
            1: ("preempt", job, gang),
            2: ("reconfigure", device, kernel),
        }
        decisions.append((trace.before_s[row], action.get(kind, ("wait",)), bool(accepted)))
    assert {names[k] for k in log.decision[0][log.decision[0] >= 0]} <= set(names)
    queue = iter(decisions)
    reference = Reference(scenario)
    reference.run(lambda world: next(queue)[1], max_events=100_000)
    return trace, decisions, reference


def compare(scenario, trace, decisions, reference):
    assert reference.stalled == bool(trace.carry.world.stalled)
    assert [d[1:] for d in reference.decisions] == [d[1:] for d in decisions]
    close = dict(rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose([d[0] for d in reference.decisions], [d[0] for d in decisions], **close)
    log = trace.log
    rows = np.flatnonzero(log.event[0] >= 0)
    kinds = [EVENTS[k] for k in log.event[0][rows]]
    assert kinds == [event[1] for event in reference.events]
    np.testing.assert_allclose(trace.after_s[rows], [event[0] for event in reference.events], **close)
    readings = log.reading[rows][[kind == "window" for kind in kinds]]
    np.testing.assert_allclose(
        readings, [sum(reading) for reading in reference.readings], rtol=1e-8, atol=1e-9
    )
    run = record(scenario, trace, "policy", 0.0)
    assert len(run.jobs) == len(reference.jobs)
    for ours, theirs in zip(run.jobs, sorted(reference.jobs, key=lambda j: j.job), strict=True):
        assert (ours.job, ours.graph) == (theirs.job, theirs.graph)
        np.testing.assert_allclose(
            [ours.finish_s, ours.isolated_s], [theirs.finish_s, theirs.isolated_s], **close
        )
    key = lambda s: (s.start_s, s.job, s.gang)  # noqa: E731
    for ours, theirs in zip(sorted(run.gangs, key=key), sorted(reference.stays, key=key), strict=True):
        assert (ours.job, ours.gang, ours.devices, ours.outcome) == (
            theirs.job, theirs.gang, theirs.devices, theirs.outcome,
        )  # fmt: skip
        fields = ("ready_s", "placed_s", "start_s", "finish_s", "isolated_s", "setup_s")
        for field in fields:
            np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), err_msg=field, **close)
    for kind, value in reference.utilisation.items():
        np.testing.assert_allclose(run.utilisation[kind], value, rtol=1e-7, atol=1e-9)
    assert run.refused == reference.refused


@pytest.mark.parametrize("seed", range(3))
def test_fast_and_obvious_simulators_agree(seed):
    from tests.simulator.chaos import Chaos

    with jax.enable_x64(True):
        scenario = random_scenario(seed)
        compare(scenario, *replay(scenario, Chaos()))
