"""The closed loop: collect what jobs report, learn from it, place, round after round, as it would be in service.

A run goes from window to window in the compiled simulator; in between, here: speeds of those who ran through the last
round in one place beside the same neighbours are reported, beliefs are conditioned on them, and what policies are told
changes. Any policy can be run so, given the same reports: the heuristics as well.

Policies that learn on these beliefs are trained in `placer_training.py`, on the ensemble's members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.speeds import BeliefArrays
from symphony.problem.topology import Topology
from symphony.scheduling.policy import Policy
from symphony.scheduling.state import RUNNING
from symphony.simulator import windowed_run
from symphony.simulator.contention import Bottleneck
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario, ScenarioArrays, scenario_arrays
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs.belief_learner import BeliefLearner, LogEntry
from symphony.training_jobs.beliefs import JOB_LOG_STD, Beliefs, JobDescriptions
from symphony.training_jobs.speed_samples import SpeedReport


@dataclass
class ClosedLoopRun:
    """A run, and what was learned in it."""

    run: RunRecord
    log: list[LogEntry]
    samples: int
    aside: Counter[str]
    beliefs: Beliefs
    errors: list[tuple[float, float]] = field(default_factory=list)  # time, root mean square of a round's errors


def round_reports(
    before: JobSnapshot, after: JobSnapshot, topology: Topology, lane_device: np.ndarray
) -> list[SpeedReport]:
    """Of those who ran through the round in one place, beside the same neighbours and out of set-up."""
    kinds = {kind.name: index for index, kind in enumerate(topology.kinds)}
    began, ended = float(before.now_s), float(after.now_s)
    holds, was = np.asarray(after.holds), np.asarray(before.holds)
    calm = (holds == was) & (np.asarray(after.since_s) <= began) & ~np.asarray(after.setup) & ~np.asarray(before.setup)
    unchanged = np.ones(len(topology.devices), bool)
    np.logical_and.at(unchanged, lane_device, calm)
    made = []
    for gang in np.unique(holds[holds >= 0]):
        lanes = np.flatnonzero(holds == gang)
        devices = lane_device[lanes]
        same = int(before.job[gang]) == int(after.job[gang]) and int(after.status[gang]) == RUNNING
        if not same or not unchanged[devices].all():
            continue
        others = [int(after.kernel[g]) for g in holds[np.isin(lane_device, devices)] if g >= 0 and g != gang]
        here = [topology.devices[d] for d in devices]
        made.append(
            SpeedReport(
                job=int(after.job[gang]),
                kernel=int(after.kernel[gang]),
                kind=kinds[here[0].kind],
                neighbours=tuple(sorted(others)),
                spread=len({device.machine for device in here}) > 1,
                began_s=began,
                ended_s=ended,
                units=float(before.units_left[gang] - after.units_left[gang]),
            )
        )
    return made


def run(
    scenario: Scenario,
    policy: Policy,
    described: JobDescriptions,
    *,
    learns: bool = True,
    half_life_s: float = 86_400.0,
    noise: float = JOB_LOG_STD,
    name: str = "",
    spoil: Callable[[SpeedReport], list[SpeedReport]] | None = None,
    watch: Callable[[JobSnapshot, Beliefs], bool] | None = None,
) -> ClosedLoopRun:
    """Run a scenario with a hidden truth from end to end.

    `learns` False: what is told at first stays. `noise`: of a round's report, beside what jobs differ by. `spoil` makes
    other reports of each, for tests of what bad ones do. `watch` is shown what is known at the end of each window, and
    the beliefs that stand then; where it answers False, the run ends there.
    """
    if scenario.truth is None or scenario.believed is None:
        raise InputError("the scenario has no truth apart from what is told", hint="draw it with measured_jobs.drawn")
    arrays = jax.device_put(scenario_arrays(scenario))
    beliefs = Beliefs(described, seed=scenario.seed, half_life_s=half_life_s)
    loop = _Loop(scenario, arrays, beliefs, noise, spoil)
    key = jax.random.fold_in(jax.random.key(scenario.seed), 1)
    told = loop.padded(beliefs.start()) if learns else arrays.believed
    carry = windowed_run.start(arrays, policy, key)
    s, carry = windowed_run.with_beliefs(arrays, carry, policy, told)
    logs = []
    seen = windowed_run.snapshot(s, carry)
    while not bool(seen.over):
        window, there = jnp.asarray(int(seen.windows) + 1, jnp.int32), False
        while not there:
            carry, log, reached = windowed_run.run_to_window(s, carry, policy, Bottleneck(), window)
            logs.append(jax.tree.map(np.asarray, log))
            there = bool(reached)
        before, seen = seen, jax.tree.map(np.asarray, windowed_run.snapshot(s, carry))
        if learns and not bool(seen.over):
            told = loop.learn(before, seen, told)
            s, carry = windowed_run.with_beliefs(s, carry, policy, told)
        if watch is not None and not watch(seen, beliefs):
            break
    done = windowed_run.run_record(scenario, carry, logs, name or policy.name)
    store, learner = beliefs.store, loop.learner
    return ClosedLoopRun(done, learner.log, len(store.samples), store.reasons, beliefs, learner.errors)


class _Loop:
    """What goes on between two windows."""

    def __init__(
        self,
        scenario: Scenario,
        arrays: ScenarioArrays,
        beliefs: Beliefs,
        noise: float,
        spoil: Callable[[SpeedReport], list[SpeedReport]] | None,
    ) -> None:
        self.topology, self.learner, self.noise, self.spoil = scenario.topology, BeliefLearner(beliefs), noise, spoil
        self.lane_device = np.asarray(arrays.topology.lane_device)
        self.shape = np.asarray(arrays.truth.beside).shape if arrays.truth is not None else ()
        self.rng = np.random.default_rng([scenario.seed, 5])

    def padded(self, told: BeliefArrays) -> BeliefArrays:
        """The same, of the size that the scenario's arrays have."""
        n, _, y = self.shape

        def grown(x: np.ndarray, *shape: int) -> jax.Array:
            return jax.device_put(np.pad(x, [(0, to - size) for to, size in zip(shape, x.shape, strict=True)]))

        mean = told.mean
        return BeliefArrays(
            type(mean)(grown(mean.unit_s, n, y, 2), grown(mean.beside, n, n, y), jnp.asarray(mean.crowding)),
            grown(told.unit_std, n, y, 2),
            grown(told.beside_std, n, n, y),
        )

    def learn(self, before: JobSnapshot, after: JobSnapshot, told: BeliefArrays) -> BeliefArrays:
        """Take the reports of a round, refit if it is time, and say what is believed now."""
        placed = {int(after.job[g]) for g in np.asarray(after.holds) if g >= 0}
        made = [
            report._replace(units=report.units * float(np.exp(self.rng.normal(0, self.noise))))
            for report in round_reports(before, after, self.topology, self.lane_device)
        ]
        made = [bad for report in made for bad in self.spoil(report)] if self.spoil else made
        present = np.unique(np.asarray(after.kernel)[np.asarray(after.job) >= 0])
        small = self._cut(told)
        new = self.learner.learn(made, now_s=float(after.now_s), placed=placed, kernels=present, told=small)
        return told if new is small else self.padded(new)

    def _cut(self, told: BeliefArrays) -> BeliefArrays:
        """Without padding, on the host."""
        n, y = self.learner.beliefs.described.unit_s.shape[:2]
        mean = told.mean
        return BeliefArrays(
            type(mean)(np.asarray(mean.unit_s)[:n, :y], np.asarray(mean.beside)[:n, :n, :y], mean.crowding),
            np.asarray(told.unit_std)[:n, :y],
            np.asarray(told.beside_std)[:n, :n, :y],
        )
