"""The policy protocol: what a policy is shown, and what it may answer.

A policy is asked for one action whenever a decision is wanted (docs/concepts/simulation.md, "Decisions"). It is shown
an `Observation`: the scheduler's own state, profiles, and a belief about the load of every resource row. It is never
shown the true background load, the true amount of work, or raw counters. Policies that set `cheats` are shown the true
background as well, and are marked wherever results are printed.

    class ShortestQueue(sy.Policy):
        def decide(self, key, state, observation):
            return state, sy.best_feasible(observation, -observation.queue_s)

All methods must be pure and traceable by JAX: they run inside the compiled simulator.
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
from jaxtyping import Bool, Float, Int, Num

from symphony.estimation.tuning import Tuning
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.errors import PolicyError
from symphony.problem.speeds import BeliefArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import GangFacts, candidates, facts, fits, open_devices, per_gang, seconds_by_kind
from symphony.scheduling.indexing import NO_INDEX, BoolScalar, FloatScalar, IntScalar, first, first_min, take
from symphony.scheduling.state import RUNNING, Core

PLACE, PREEMPT, RECONFIGURE, WAIT = range(4)


class Action(eqx.Module):
    """One decision. Fields that do not apply to its kind are ignored."""

    kind: IntScalar  # PLACE, PREEMPT, RECONFIGURE or WAIT
    gang: IntScalar  # PLACE its next worker, or PREEMPT it
    device: IntScalar  # to PLACE on or RECONFIGURE
    kernel: IntScalar  # to RECONFIGURE to
    more: BoolScalar = eqx.field(default_factory=lambda: jnp.asarray(False))  # the next one was decided with it
    seconds: FloatScalar = eqx.field(default_factory=lambda: jnp.asarray(jnp.inf, float))  # to WAIT, at most
    order: IntScalar = eqx.field(default_factory=lambda: jnp.asarray(0, jnp.int32))  # to PLACE: see `place`


def place(gang: ArrayLike, device: ArrayLike, order: ArrayLike = 0) -> Action:
    """Put the next worker of a gang on a device; wait if there is no gang (-1).

    `order`: below 0, with the first worker: the gang's sequence number in its queues, the lowest first. Otherwise the
    gang goes behind all others.
    """
    action = _action(jnp.where(jnp.asarray(gang) < 0, WAIT, PLACE), gang=gang, device=device)
    return replace(action, order=jnp.asarray(order, jnp.int32))


def preempt(gang: ArrayLike) -> Action:
    """Checkpoint a running gang and take it off its devices."""
    return _action(PREEMPT, gang=gang)


def reconfigure(device: ArrayLike, kernel: ArrayLike) -> Action:
    """Configure a free slot of a reconfigurable device for a kernel."""
    return _action(RECONFIGURE, device=device, kernel=kernel)


def wait(seconds: ArrayLike = jnp.inf) -> Action:
    """Do nothing until the next event, or for at most `seconds`. A bound of 0 or less is ignored."""
    return replace(_action(WAIT), seconds=jnp.asarray(seconds, float))


def _action(kind: ArrayLike, gang: ArrayLike = 0, device: ArrayLike = 0, kernel: ArrayLike = 0) -> Action:
    return Action(*(jnp.asarray(x, jnp.int32) for x in (kind, gang, device, kernel)))


def with_more(action: Action, more: ArrayLike) -> Action:
    """The same action. With `more`, the next decision was made along with it and is charged no scheduler latency."""
    return replace(action, more=jnp.asarray(more, bool))


def choose(condition: BoolScalar, a: Action, b: Action) -> Action:
    """`a` where the condition holds, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


class Observation(eqx.Module):
    """What a policy is shown. Derived values are computed only on request."""

    core: Core  # its `reading` is the belief mean, not the truth
    topology: TopologyArrays
    workload: WorkloadArrays  # kernels and graphs; fields about jobs yet to arrive are None
    now: Amount
    own_load: Float[Array, " rows"]  # current load by Symphony's own workers and transfers
    background: Float[Array, " rows"]  # mean …
    background_std: Float[Array, " rows"]  # … and standard deviation of the belief about the load by others
    true_background: Float[Array, " rows"] | None  # for policies that cheat
    units_left: Float[Array, " gangs"]  # whole units (iterations) that each gang reports as yet to do
    prepared: Any  # the result of the policy's own `prepare`
    background_slope: Float[Array, "factors rows 2"] | None = None  # of mean and std, by `tuning`; in training only
    believed: BeliefArrays | None = None  # beliefs about the speeds of kernels, where they differ from profiles

    @property
    def load_mean(self) -> Float[Array, " rows"]:
        """Belief mean of the load of each row in the last window. Its standard deviation is `background_std`."""
        return self.background + self.core.own_reading

    @property
    def candidates(self) -> Bool[Array, " gangs"]:
        """Gangs that may be placed now."""
        return candidates(self.core, self.topology)

    def facts(self, gang: Int[Array, "*gang"]) -> GangFacts:
        """What the workload says of a gang."""
        return facts(self.core, self.workload, gang)

    def feasible(self, gang: IntScalar) -> Bool[Array, " devices"]:
        """Devices that may take the next worker of a gang."""
        return fits(self.core, self.topology, gang)

    def seconds(self, gang: IntScalar) -> Float[Array, " devices"]:
        """Isolated seconds of a gang on each device; inf where it cannot run."""
        return take(seconds_by_kind(self.workload, self.facts(gang)), self.topology.device_kind)

    @property
    def running_s(self) -> Float[Array, " devices"]:
        """Isolated seconds that the running workers of each device have left, by their profiles."""
        core = self.core
        left = jnp.maximum(core.lane_estimate - self.now.minus(core.lane_since), 0)
        left = jnp.where(core.lane_holds >= 0, left, 0)
        return by_device(left, self.topology)

    @property
    def queue_s(self) -> Float[Array, " devices"]:
        """Isolated seconds of work ahead of a new gang on each device; 0 if it could start at once."""
        idle = (self.core.lanes_free > 0) & (self.core.queued == 0)
        backlog = (self.core.queued_s + self.running_s) / jnp.maximum(self.topology.slots, 1)
        return jnp.where(idle, 0, backlog)

    def per_gang(self, table: ArrayLike) -> Array:
        """A table of the graphs [graphs, tasks], for the gangs in the system [gangs]."""
        return per_gang(self.core, jnp.asarray(table))


def by_device(lanes: Num[Array, " lanes"], t: TopologyArrays) -> Num[Array, " devices"]:
    """Sum over the lanes of each device; masked for small clusters, where that is faster than a scatter."""
    devices = t.device_kind.shape[0]
    if devices * lanes.shape[0] > 2**16:
        return jax.ops.segment_sum(lanes, t.lane_device, devices, indices_are_sorted=True)
    here = t.lane_device[None, :] == jnp.arange(devices)[:, None]
    return jnp.where(here & t.lane_exists, lanes, 0).sum(axis=1)


class Policy(eqx.Module):
    """A scheduling policy. Subclass it, implement `decide`, and run `sy.testing.check_policy` on it."""

    cheats: ClassVar[bool] = False  # wants `Observation.true_background`

    @property
    def tuning(self) -> Tuning | None:
        """Overrides for the counter filter; None = the defaults."""
        return None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return type(self).__name__

    def init(self, topology: TopologyArrays) -> Any:
        """State before the first decision of a run: a pytree of arrays, or None."""
        return None

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Any:
        """What can be computed from graphs and profiles before the first decision: a pytree of arrays, or None.

        Called once for each run; `workload` has no information about future jobs. `decide` finds the result in
        `observation.prepared`.
        """
        return None

    @abstractmethod
    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The state for the next call, and one action."""


def check_instance(policy: object, name: str = "") -> None:
    """Raise a `PolicyError` unless `policy` is an instance of `Policy`."""
    if isinstance(policy, Policy):
        return
    called = f"policy {name!r}" if name else "the policy"
    if isinstance(policy, type) and issubclass(policy, Policy):
        raise PolicyError(f"{called} is the class {policy.__name__}", hint=f"pass an instance: {policy.__name__}()")
    raise PolicyError(f"{called} is {policy!r}, not a sy.Policy", hint="subclass sy.Policy")


def pick_gang(
    observation: Observation, score: Num[Array, " gangs"] | None = None, among: Bool[Array, " gangs"] | None = None
) -> IntScalar:
    """The candidate to place next: highest priority, then highest score, then oldest job, then lowest number; or -1.

    With `among`, only these candidates are considered.
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


def best_device(observation: Observation, gang: IntScalar, score: Num[Array, " devices"]) -> IntScalar:
    """The feasible device with the highest score for the gang's next worker; ties go to the lowest number."""
    allowed = observation.feasible(gang)
    if jnp.shape(score) != allowed.shape:
        raise PolicyError(
            f"scores of devices have the shape {jnp.shape(score)}, and there are {allowed.size} devices",
            hint="give one score for each device, such as -observation.queue_s",
        )
    best = first_min(jnp.where(allowed & ~jnp.isnan(score), -score, jnp.inf))[1]
    # Where every score is -inf or NaN, the first feasible device.
    return jnp.where(take(allowed, best), best, first(allowed))


def best_feasible(
    observation: Observation, device_score: Num[Array, " devices"], gang_score: Num[Array, " gangs"] | None = None
) -> Action:
    """Place the best candidate gang (oldest first by default) on its best feasible device."""
    gang = pick_gang(observation, gang_score)
    return place(gang, best_device(observation, gang, device_score))


def idle_devices(observation: Observation) -> Bool[Array, " devices"]:
    """Devices that are up, with a free slot and an empty queue."""
    return open_devices(observation.core)


def movable(observation: Observation) -> Bool[Array, " gangs"]:
    """Running gangs that may be preempted now."""
    core = observation.core
    in_setup = (take(core.lane_setup, core.lane) & (core.lane >= 0)).any(axis=1)
    return (core.status == RUNNING) & observation.per_gang(observation.workload.preemptible) & ~in_setup
