"""The closed loop in the simulator: jobs report speeds, the posterior is updated, the policy plans; round after round.

The compiled simulator runs from window to window. In between, jobs that ran through the last round in one place beside
the same neighbours report their progress, and the policy's beliefs are updated. Any policy can run in this loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.program_cache import keep_programs
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
    """A run and the state of the learner at its end."""

    run: RunRecord
    log: list[LogEntry]
    samples: int
    rejected: Counter[str]  # reports, by reason
    beliefs: Beliefs
    errors: list[tuple[float, float]] = field(default_factory=list)  # time, RMS error of the round


def round_reports(
    before: JobSnapshot, after: JobSnapshot, topology: Topology, lane_device: np.ndarray
) -> list[SpeedReport]:
    """Reports of jobs that ran through the round on the same devices beside the same neighbours, without set-up."""
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
    """Run a scenario with hidden true speeds from start to end.

    `learns` False: the initial beliefs stay. `noise`: deviation of the log of a report. `spoil` replaces each report,
    for tests of bad ones. `watch` is called at the end of each window with the observable state and the beliefs; the
    run ends when it returns False.
    """
    keep_programs()
    if scenario.truth is None or scenario.believed is None:
        raise InputError("the scenario has no true speeds apart from the believed ones", hint="use measured_jobs.drawn")
    arrays = jax.device_put(scenario_arrays(scenario))
    beliefs = Beliefs(described, seed=scenario.seed, half_life_s=half_life_s)
    loop = _Loop(scenario, arrays, beliefs, noise, spoil)
    key = jax.random.fold_in(jax.random.key(scenario.seed), 1)
    believed = loop.padded(beliefs.start()) if learns else arrays.believed
    carry = windowed_run.start(arrays, policy, key)
    s, carry = windowed_run.with_beliefs(arrays, carry, policy, believed)
    logs = []
    seen = windowed_run.snapshot(s, carry)
    while not bool(seen.over):
        window, reached = jnp.asarray(int(seen.windows) + 1, jnp.int32), False
        while not reached:
            carry, log, at_window = windowed_run.run_to_window(s, carry, policy, Bottleneck(), window)
            logs.append(jax.tree.map(np.asarray, log))
            reached = bool(at_window)
        before, seen = seen, jax.tree.map(np.asarray, windowed_run.snapshot(s, carry))
        if learns and not bool(seen.over):
            believed = loop.learn(before, seen, believed)
            s, carry = windowed_run.with_beliefs(s, carry, policy, believed)
        if watch is not None and not watch(seen, beliefs):
            break
    done = windowed_run.run_record(scenario, carry, logs, name or policy.name)
    store, learner = beliefs.store, loop.learner
    return ClosedLoopRun(done, learner.log, len(store.samples), store.reasons, beliefs, learner.errors)


class _Loop:
    """What happens between two windows."""

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

    def padded(self, believed: BeliefArrays) -> BeliefArrays:
        """Padded to the size of the scenario's arrays, on the device."""
        n, _, y = self.shape

        def grown(x: np.ndarray, *shape: int) -> jax.Array:
            return jax.device_put(np.pad(x, [(0, to - size) for to, size in zip(shape, x.shape, strict=True)]))

        mean = believed.mean
        return BeliefArrays(
            type(mean)(grown(mean.unit_s, n, y, 2), grown(mean.beside, n, n, y), jnp.asarray(mean.crowding)),
            grown(believed.unit_std, n, y, 2),
            grown(believed.beside_std, n, n, y),
        )

    def learn(self, before: JobSnapshot, after: JobSnapshot, believed: BeliefArrays) -> BeliefArrays:
        """Learn from the reports of a round; returns the new beliefs."""
        placed = {int(after.job[g]) for g in np.asarray(after.holds) if g >= 0}
        made = [
            report._replace(units=report.units * float(np.exp(self.rng.normal(0, self.noise))))
            for report in round_reports(before, after, self.topology, self.lane_device)
        ]
        made = [bad for report in made for bad in self.spoil(report)] if self.spoil else made
        present = np.unique(np.asarray(after.kernel)[np.asarray(after.job) >= 0])
        small = self._cut(believed)
        new = self.learner.learn(made, now_s=float(after.now_s), placed=placed, kernels=present, before=small)
        return believed if new is small else self.padded(new)

    def _cut(self, believed: BeliefArrays) -> BeliefArrays:
        """Without padding, on the host."""
        n, y = self.learner.beliefs.described.unit_s.shape[:2]
        mean = believed.mean
        return BeliefArrays(
            type(mean)(np.asarray(mean.unit_s)[:n, :y], np.asarray(mean.beside)[:n, :n, :y], mean.crowding),
            np.asarray(believed.unit_std)[:n, :y],
            np.asarray(believed.beside_std)[:n, :n, :y],
        )
