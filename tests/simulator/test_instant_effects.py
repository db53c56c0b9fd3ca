"""What gangs say of themselves between events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from symphony.problem.topologies import topology
from symphony.problem.workload import Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.scheduling.policy import Observation, Policy, best_feasible, choose, preempt
from symphony.scheduling.state import RUNNING
from symphony.simulator.run import run_traces
from symphony.simulator.scenarios import CALM, draw, stack


class Diary(Policy):
    """Writes down what the first gang says is left of it at every decision; preempts it at the third."""

    def init(self, topology: Any) -> Any:
        return jnp.full(8, -1.0), jnp.asarray(0)

    def decide(self, key: Any, state: Any, observation: Observation) -> Any:
        notes, count = state
        notes = notes.at[count].set(observation.units_left[0], mode="drop")
        stop = (count == 2) & (observation.core.status[0] == RUNNING)
        action = choose(stop, preempt(0), best_feasible(observation, -observation.queue_s))
        return (notes, count + 1), action


def test_a_gang_reports_whole_units_whatever_a_unit_takes() -> None:
    kernel = Kernel("train", {"gpu": Profile(fixed_s=1.0)})
    gang = Gang("g", ("a",), preemptible=True, checkpoint_s=1.0)
    graph = TaskGraph("g", (Task("a", "train", units=10.0),), gangs=(gang,))
    work = Workload("w", (kernel,), (graph,), (Job(0, 0.0),))
    calm = replace(CALM, window_s=3.0, offer_at_windows=True)
    # Units take twice as long as the profile says: 3 s are 1.5 units.
    scenario = replace(draw(topology("machine"), work, 0, calm), work_noise=(2.0,))
    trace = run_traces(stack([scenario]), [scenario], Diary())[0][0]
    notes = np.asarray(trace.carry.policy_state[0])
    # Before it starts; at 3 s; at 6 s, where it is preempted, and once more; saved at 7 s; again at 9, 12, 15 s.
    assert notes.tolist() == [10.0, 9.0, 7.0, 7.0, 7.0, 6.0, 5.0, 3.0]
