"""Compiled turns: one program for each policy and each set of shapes, shared by all clusters of a process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.program_cache import call_combined, compiled, compiled_call
from symphony.problem.speeds import BeliefArrays
from symphony.runtime.background_load import UNREAD_LOAD, RowLoads
from symphony.runtime.live_workload import LEARNED_ARRAYS, LiveWorkload
from symphony.runtime.packing import Packed, Packing
from symphony.runtime.turn import PackedInputs, SchedulerEvent, TurnCommands, pack_events, take_turn, unpack_events
from symphony.scheduling import state
from symphony.scheduling.policy import Policy
from symphony.scheduling.state import QUEUED, Core
from symphony.training_jobs.round_planning import HostPlanner

# A turn is many small operations: what costs time is compiling them, and the older code generator takes half as long
# for a program that is as fast.
COMPILER_OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_llvm_disable_expensive_passes": True}
_lock = threading.Lock()
_compiled: dict[Any, Any] = {}


@dataclass
class TurnResult:
    """What a turn leaves behind."""

    core: Packed
    policy_state: Any
    answer: TurnCommands


class TurnProgram:
    """A policy's turns for books of one shape. Everything runs on the CPU: the accelerators are for kernels."""

    def __init__(self, policy: Policy, books: LiveWorkload, seed: int = 0) -> None:
        self.policy = policy
        self._device = jax.devices("cpu")[0]
        self._unknown = np.repeat(np.array(UNREAD_LOAD, np.float32)[:, None], books.t.capacity.shape[0], axis=1)
        self._t = Packing.of(books.t)
        self._w = Packing.of(_fixed(books.w))
        self._core = Packing.of(state.empty(books.t, books.w, books.shapes.jobs, np))
        self._lanes, self._workers = books.t.lane_device.shape[0], books.shapes.workers
        arrays, self._code = eqx.partition(policy, eqx.is_array)
        # As a list, and where it is needed: to take a tree of modules apart takes longer than a decision.
        self._policy, self._form = jax.tree.flatten(jax.device_put(arrays, self._device))
        self._version = -1
        self._workload: Packed | None = None
        self._prepared: Any = None
        with jax.default_device(self._device):
            self._key = compiled_call(jax.random.key, seed)
            self._topology: Packed = jax.device_put(self._t.pack(books.t), self._device)
            self._turn = self._compile(books)

    def empty(self, books: LiveWorkload) -> Packed:
        """A core before its first event."""
        return jax.device_put(self._core.pack(state.empty(books.t, books.w, books.shapes.jobs, np)), self._device)

    def begin(self, books: LiveWorkload) -> Any:
        """The policy's state before its first decision."""
        with jax.default_device(self._device):
            # Strong types: a weakly typed leaf would make the second turn compile again.
            found = jax.tree.map(jnp.asarray, self.policy.init(books.t))
            found = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), found)
            return jax.device_put(found, self._device)

    def unpacked(self, core: Packed) -> Core:
        """A core as NumPy arrays, to be looked at."""
        return self._core.unpack((np.asarray(core[0]), np.asarray(core[1])), np)

    def packed(self, core: Core) -> Packed:
        """The inverse."""
        return jax.device_put(self._core.pack(core), self._device)

    def queued(self, core: Packed) -> list[tuple[int, int]]:
        """Gangs that wait for nothing but lanes, in order, each with the device of its first worker."""
        names = ("status", "inputs_left", "sequence", "device")
        status, left, sequence, devices = self._core.peek((np.asarray(core[0]), core[1]), names)
        waits = np.flatnonzero((status == QUEUED) & (left == 0))
        order = waits[np.argsort(sequence[waits], kind="stable")]
        return list(zip(order.tolist(), devices[order, 0].tolist(), strict=True))

    def take(
        self,
        books: LiveWorkload,
        core: Packed,
        policy_state: Any,
        events: list[SchedulerEvent],
        now_s: float,
        others: RowLoads | None = None,
    ) -> TurnResult:
        """One turn. Changes nothing: who does not like the result has the core as it was."""
        with jax.default_device(self._device):
            self._read(books)
            known = (self._policy, self._topology, self._workload, books.learned, self._speeds(books))
            given = (core, policy_state, self._prepared, self._at(events, now_s, others), self._key)
            after, policy_state, answer = self._turn(*known, *given)
        return TurnResult(after, policy_state, TurnCommands.of(np.asarray(answer), self._lanes, self._workers))

    def _at(self, events: list[SchedulerEvent], now_s: float, others: RowLoads | None = None) -> PackedInputs:
        """What a turn is told. Of others, before anything was read: little, and not much of it."""
        load = self._unknown.copy()
        if others is not None:
            load[:, : len(others[0])] = others
        return pack_events(events, now_s, load)

    def _speeds(self, books: LiveWorkload) -> BeliefArrays | None:
        """Of training jobs, for policies that plan by them; others go by the mean, which is in the books."""
        return books.believed if isinstance(self.policy, HostPlanner) else None

    def _read(self, books: LiveWorkload) -> None:
        """Take over graphs that have changed."""
        if self._version != books.version:
            self._workload = jax.device_put(self._w.pack(_fixed(books.w)), self._device)
            self._prepared = self._prepare(books)
            self._version = books.version

    def _prepare(self, books: LiveWorkload) -> Any:
        """What the policy computes of the graphs before it decides."""
        arrays, constants = eqx.partition((self.policy, books.t, books.w), eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        key = (structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), self._form, self._code)
        with _lock:
            if key not in _compiled:
                _compiled[key] = compiled(call_combined, (_prepared, constants), (arrays,))
        return _compiled[key](arrays)

    def _compile(self, books: LiveWorkload) -> Any:
        self._read(books)
        given = (self._policy, self._topology, self._workload, self.begin(books), self._prepared)
        forms = tuple(
            (jax.tree.structure(x), tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(x))) for x in given
        )
        key = (forms, self._form, self._code, self._t, self._w, self._core)
        with _lock:
            if key not in _compiled:
                _compiled[key] = self._build(books)
            return _compiled[key]

    def _build(self, books: LiveWorkload) -> Any:
        constants = (self._t, self._w, self._core, self._form, self._code)
        arguments = (
            self._policy,
            self._topology,
            self._workload,
            books.learned,
            self._speeds(books),
            self.empty(books),
            self.begin(books),
            self._prepared,
            self._at([], 0.0),
            self._key,
        )
        return compiled(_packed_turn, constants, arguments, COMPILER_OPTIONS)


def _packed_turn(
    constants: tuple[Packing, Packing, Packing, Any, Any],
    policy: Any,
    t: Packed,
    w: Packed,
    learned: Any,
    speeds: Any,
    core: Packed,
    state: Any,
    prepared: Any,
    moment: Any,
    key: Any,
) -> Any:
    t_form, w_form, core_form, policy_form, code = constants
    topology: TopologyArrays = t_form.unpack(t)
    fixed: WorkloadArrays = w_form.unpack(w)
    workload = eqx.tree_at(
        lambda x: [getattr(x, name) for name in LEARNED_ARRAYS], fixed, list(learned), is_leaf=lambda x: x is None
    )
    after, new, answer = take_turn(
        eqx.combine(jax.tree.unflatten(policy_form, policy), code),
        topology,
        workload,
        core_form.unpack(core),
        state,
        prepared,
        unpack_events(moment),
        key,
        speeds,
    )
    return core_form.pack(after, jnp), new, answer


def _prepared(policy: Policy, t: TopologyArrays, w: WorkloadArrays) -> Any:
    return policy.prepare(t, w)


def _fixed(w: WorkloadArrays) -> WorkloadArrays:
    """Without what is learned, which travels by itself."""
    return eqx.tree_at(lambda x: [getattr(x, name) for name in LEARNED_ARRAYS], w, [None] * len(LEARNED_ARRAYS))
