"""The policy protocol: what a policy is shown, and what it may answer.

A policy is asked for one action whenever a decision is wanted (docs/concepts/simulation.md, "Decisions"). It is shown
an `Observation`: the scheduler's own books, profiles, and a belief about the load of every resource row. It is never
shown the true background load, the true amount of work, or raw counters. Policies that set `cheats` are shown the true
background as well, and are marked wherever results are printed.

    class ShortestQueue(sy.Policy):
        def init(self, topology):
            return None

        def decide(self, key, state, observation):
            return state, sy.best_feasible(observation, -observation.queue_s)

Both methods must be pure and traceable by JAX: they run inside the compiled simulator.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import PolicyError
from symphony.problem.speeds import BeliefArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import GangFacts, candidates, facts, fits, open_devices, per_gang, seconds_by_kind
from symphony.scheduling.indexing import NO_INDEX, first, first_min, take
from symphony.scheduling.state import RUNNING, Core
from symphony.telemetry.tuning import Tuning

PLACE, PREEMPT, RECONFIGURE, WAIT = range(4)


class Action(eqx.Module):
    """One decision. What does not apply to its kind is ignored."""

    kind: Array  # i32: PLACE, PREEMPT, RECONFIGURE or WAIT
    gang: Array  # i32: PLACE its next worker, or PREEMPT it
    device: Array  # i32: to PLACE on or RECONFIGURE
    kernel: Array  # i32: to RECONFIGURE to
    more: Array = eqx.field(default_factory=lambda: jnp.asarray(False))  # bool: the next one is decided with it
    seconds: Array = eqx.field(default_factory=lambda: jnp.asarray(jnp.inf, float))  # f: to WAIT, at most


def place(gang: ArrayLike, device: ArrayLike) -> Action:
    """Put the next worker of a gang on a device; wait if there is no gang (-1)."""
    return _action(jnp.where(jnp.asarray(gang) < 0, WAIT, PLACE), gang=gang, device=device)


def preempt(gang: ArrayLike) -> Action:
    """Checkpoint a running gang and take it off its devices."""
    return _action(PREEMPT, gang=gang)


def reconfigure(device: ArrayLike, kernel: ArrayLike) -> Action:
    """Configure a free slot of a reconfigurable device for a kernel."""
    return _action(RECONFIGURE, device=device, kernel=kernel)


def wait(seconds: ArrayLike = jnp.inf) -> Action:
    """Do nothing until the next event, or for at most so many seconds. A bound that is not above 0 is none."""
    return replace(_action(WAIT), seconds=jnp.asarray(seconds, float))


def _action(kind: ArrayLike, gang: ArrayLike = 0, device: ArrayLike = 0, kernel: ArrayLike = 0) -> Action:
    return Action(*(jnp.asarray(x, jnp.int32) for x in (kind, gang, device, kernel)))


def with_more(action: Action, more: ArrayLike) -> Action:
    """The same, saying whether the next decision was made along with it: then that is not charged for thinking."""
    return replace(action, more=jnp.asarray(more, bool))


def choose(condition: Array, a: Action, b: Action) -> Action:
    """`a` where the condition holds, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


class Observation(eqx.Module):
    """What a policy sees. Everything derived is computed only if a policy asks for it."""

    core: Core  # its `reading` is the belief's mean, not the truth
    topology: TopologyArrays
    workload: WorkloadArrays  # kernels and graphs; what would tell of jobs yet to arrive is None
    now: Amount
    own_load: Array  # f[R]: load that Symphony's own workers and transfers put on each row now
    background: Array  # f[R]: belief about what others load each row with, its mean …
    background_std: Array  # f[R]: … and its deviation
    true_background: Array | None  # f[R], for policies that cheat
    units_left: Array  # f[G]: whole units (iterations) that each gang has yet to do, as it reports them itself
    prepared: Any  # what the policy's own `prepare` answered
    background_slope: Array | None = None  # f[F, R, 2]: of the two, by the factors of `tuning`; in training only
    believed: BeliefArrays | None = None  # speeds of kernels as they are believed, where they differ from profiles

    @property
    def load_mean(self) -> Array:
        """Belief about the load of each row in the last window [R]. Its deviation is that of the background."""
        return self.background + self.core.own_reading

    @property
    def candidates(self) -> Array:
        """Gangs that may be placed now [G]."""
        return candidates(self.core, self.topology)

    def facts(self, gang: Array) -> GangFacts:
        """What the workload says of one gang."""
        return facts(self.core, self.workload, gang)

    def feasible(self, gang: Array) -> Array:
        """Devices that may take the next worker of a gang [D]."""
        return fits(self.core, self.topology, gang)

    def seconds(self, gang: Array) -> Array:
        """Isolated seconds of a gang on each device [D]; inf where it cannot run."""
        return take(seconds_by_kind(self.workload, self.facts(gang)), self.topology.device_kind)

    @property
    def running_s(self) -> Array:
        """Isolated seconds left of what runs on each device, by its profile [D]."""
        core = self.core
        left = jnp.maximum(core.lane_estimate - self.now.minus(core.lane_since), 0)
        left = jnp.where(core.lane_holds >= 0, left, 0)
        return by_device(left, self.topology)

    @property
    def queue_s(self) -> Array:
        """Isolated seconds of work ahead of a newcomer on each device [D]; 0 if it could start at once."""
        idle = (self.core.lanes_free > 0) & (self.core.queued == 0)
        backlog = (self.core.queued_s + self.running_s) / jnp.maximum(self.topology.slots, 1)
        return jnp.where(idle, 0, backlog)

    def per_gang(self, table: ArrayLike) -> Array:
        """A column of the workload's graphs [A, T], for the gangs in the system [G]."""
        return per_gang(self.core, jnp.asarray(table))


def by_device(lanes: Array, t: TopologyArrays) -> Array:
    """Sum over the lanes of each device; masked for small clusters, where that is faster than a scatter."""
    devices = t.device_kind.shape[0]
    if devices * lanes.shape[0] > 2**16:
        return jax.ops.segment_sum(lanes, t.lane_device, devices, indices_are_sorted=True)
    here = t.lane_device[None, :] == jnp.arange(devices)[:, None]
    return jnp.where(here & t.lane_exists, lanes, 0).sum(axis=1)


class Policy(eqx.Module):
    """Decides. Subclass it, give `init` and `decide`, and run `sy.testing.check_policy` on it."""

    cheats: ClassVar[bool] = False  # wants `Observation.true_background`

    @property
    def tuning(self) -> Tuning | None:
        """Its say in how readings become beliefs; None leaves that as it is."""
        return None

    @property
    def name(self) -> str:
        """What tables call it."""
        return type(self).__name__

    @abstractmethod
    def init(self, topology: TopologyArrays) -> Any:
        """State before the first decision of a run: a pytree of arrays, or None."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        """What can be worked out of graphs and profiles before the first decision: a pytree of arrays, or None.

        Called once for each run; `workload` tells nothing of the jobs to come. `decide` finds it in
        `observation.prepared`.
        """
        return None

    @abstractmethod
    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """One action, and the state for the next call."""


def check_instance(policy: object, name: str = "") -> None:
    """Refuse what is no policy, and classes where an instance is wanted."""
    if isinstance(policy, Policy):
        return
    called = f"policy {name!r}" if name else "the policy"
    if isinstance(policy, type) and issubclass(policy, Policy):
        raise PolicyError(f"{called} is the class {policy.__name__}", hint=f"pass an instance: {policy.__name__}()")
    raise PolicyError(f"{called} is {type(policy).__name__}, no sy.Policy", hint="subclass sy.Policy")


def pick_gang(observation: Observation, score: Array | None = None, among: Array | None = None) -> Array:
    """The candidate to place next: highest priority, then highest score, then oldest job, then lowest number; or -1.

    `among` [G]: look at these candidates only.
    """
    core = observation.core
    tasks = observation.workload.kernel.shape[1]
    allowed = observation.candidates if among is None else observation.candidates & among
    priority = jnp.repeat(core.priority, tasks)
    allowed &= priority == jnp.where(allowed, priority, -NO_INDEX).max()
    if score is not None:
        allowed &= score == jnp.where(allowed, score, -jnp.inf).max()
    least, gang = first_min(jnp.where(allowed, jnp.repeat(core.job, tasks), NO_INDEX))
    return jnp.where(least < NO_INDEX, gang, -1)


def best_device(observation: Observation, gang: Array, score: Array) -> Array:
    """The feasible device with the highest score for the gang's next worker; ties go to the lowest number."""
    allowed = observation.feasible(gang)
    best = first_min(jnp.where(allowed & ~jnp.isnan(score), -score, jnp.inf))[1]
    # Where every score is -inf or NaN, a feasible device all the same.
    return jnp.where(take(allowed, best), best, first(allowed))


def best_feasible(observation: Observation, device_score: Array, gang_score: Array | None = None) -> Action:
    """Place the best candidate gang (oldest first by default) on its best feasible device."""
    gang = pick_gang(observation, gang_score)
    return place(gang, best_device(observation, gang, device_score))


def idle_devices(observation: Observation) -> Array:
    """Devices with a free slot and an empty queue [D]."""
    return open_devices(observation.core)


def movable(observation: Observation) -> Array:
    """Running gangs that may be preempted now [G]."""
    core = observation.core
    in_setup = (take(core.lane_setup, core.lane) & (core.lane >= 0)).any(axis=1)
    return (core.status == RUNNING) & observation.per_gang(observation.workload.preemptible) & ~in_setup
