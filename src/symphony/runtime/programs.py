"""Compiled turns: one program for each policy and each set of shapes, shared by all clusters of a process."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.program_cache import call_combined, compiled
from symphony.runtime.background_load import UNREAD_LOAD, RowLoads
from symphony.runtime.live_workload import LEARNED_ARRAYS, LiveWorkload
from symphony.runtime.packing import Packed, Packing
from symphony.runtime.turn import PackedInputs, SchedulerEvent, TurnCommands, pack_events, take_turn, unpack_events
from symphony.scheduling import state
from symphony.scheduling.policy import Policy
from symphony.scheduling.state import QUEUED, Core
from symphony.training_jobs.round_planning import HostPlanner

# A turn consists of many small operations, so compile time dominates. The older code generator takes half as long, and
# its programs are as fast.
COMPILER_OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_llvm_disable_expensive_passes": True}
_lock = threading.Lock()
_compiled: dict[Any, Any] = {}


@dataclass
class TurnResult:
    core: Packed
    policy_state: Any
    commands: TurnCommands


class TurnProgram:
    """The turns of a policy, for live workloads of one shape. Runs on the CPU: accelerators are for kernels."""

    def __init__(self, policy: Policy, workload: LiveWorkload) -> None:
        self.policy = policy
        self._device = jax.devices("cpu")[0]
        self._unread = np.repeat(np.array(UNREAD_LOAD, np.float32)[:, None], workload.t.capacity.shape[0], axis=1)
        self._t = Packing.of(workload.t)
        self._w = Packing.of(_fixed(workload.w))
        self._core = Packing.of(state.empty(workload.t, workload.w, workload.shapes.jobs, np))
        self._lanes, self._workers = workload.t.lane_device.shape[0], workload.shapes.workers
        arrays, self._code = eqx.partition(policy, eqx.is_array)
        # A list, already on the device: flattening a tree of modules takes longer than a decision.
        self._policy, self._structure = jax.tree.flatten(jax.device_put(arrays, self._device))
        self._version = -1
        self._workload: Packed | None = None
        self._prepared: Any = None
        with jax.default_device(self._device):
            self._key = jax.random.key(0)
            self._topology: Packed = jax.device_put(self._t.pack(workload.t), self._device)
            self._turn = self._compile(workload)

    def empty(self, workload: LiveWorkload) -> Packed:
        """The core before its first event."""
        return jax.device_put(
            self._core.pack(state.empty(workload.t, workload.w, workload.shapes.jobs, np)), self._device
        )

    def begin(self, workload: LiveWorkload) -> Any:
        """The policy's state before its first decision."""
        with jax.default_device(self._device):
            # Strong types: a weakly typed leaf would make the second turn compile again.
            initial = jax.tree.map(jnp.asarray, self.policy.init(workload.t))
            initial = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), initial)
            return jax.device_put(initial, self._device)

    def unpacked(self, core: Packed) -> Core:
        """A core as NumPy arrays."""
        return self._core.unpack((np.asarray(core[0]), np.asarray(core[1])), np)

    def packed(self, core: Core) -> Packed:
        """Inverse of `unpacked`."""
        return jax.device_put(self._core.pack(core), self._device)

    def queued(self, core: Packed) -> list[tuple[int, int]]:
        """Gangs that wait only for free slots, in queue order, each with the device of its first worker."""
        names = ("status", "inputs_left", "sequence", "device")
        status, left, sequence, devices = self._core.peek((np.asarray(core[0]), core[1]), names)
        waits = np.flatnonzero((status == QUEUED) & (left == 0))
        order = waits[np.argsort(sequence[waits], kind="stable")]
        return list(zip(order.tolist(), devices[order, 0].tolist(), strict=True))

    def take(
        self,
        workload: LiveWorkload,
        core: Packed,
        policy_state: Any,
        events: list[SchedulerEvent],
        now_s: float,
        others: RowLoads | None = None,
    ) -> TurnResult:
        """One turn. Pure: `core` and `policy_state` stay valid, so the result may be discarded."""
        with jax.default_device(self._device):
            self._refresh(workload)
            inputs = self._inputs(events, now_s, others)
            after, policy_state, output = self._turn(*self._arguments(workload, core, policy_state, inputs))
        return TurnResult(after, policy_state, TurnCommands.of(np.asarray(output), self._lanes, self._workers))

    def _arguments(self, workload: LiveWorkload, core: Packed, policy_state: Any, inputs: PackedInputs) -> tuple:
        # Only planners use the beliefs about speeds. Other policies use their means, which are in the workload.
        speeds = workload.believed if isinstance(self.policy, HostPlanner) else None
        fixed = (self._policy, self._topology, self._workload)
        return (*fixed, workload.learned, speeds, core, policy_state, self._prepared, inputs, self._key)

    def _inputs(self, events: list[SchedulerEvent], now_s: float, others: RowLoads | None = None) -> PackedInputs:
        """Without readings of the load by others, the belief is `UNREAD_LOAD`."""
        load = self._unread.copy()
        if others is not None:
            load[:, : len(others[0])] = others
        return pack_events(events, now_s, load)

    def _refresh(self, workload: LiveWorkload) -> None:
        """Copy the workload to the device if its graphs have changed."""
        if self._version != workload.version:
            self._workload = jax.device_put(self._w.pack(_fixed(workload.w)), self._device)
            self._prepared = self._prepare(workload)
            self._version = workload.version

    def _prepare(self, workload: LiveWorkload) -> Any:
        """What the policy computes from the graphs before it decides."""
        arrays, constants = eqx.partition((self.policy, workload.t, workload.w), eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        key = (structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), self._structure, self._code)
        with _lock:
            if key not in _compiled:
                _compiled[key] = compiled(call_combined, (_prepared, constants), (arrays,))
        return _compiled[key](arrays)

    def _compile(self, workload: LiveWorkload) -> Any:
        self._refresh(workload)
        arguments = (self._policy, self._topology, self._workload, self.begin(workload), self._prepared)
        forms = tuple(
            (jax.tree.structure(x), tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(x)))
            for x in arguments
        )
        key = (forms, self._structure, self._code, self._t, self._w, self._core)
        with _lock:
            if key not in _compiled:
                _compiled[key] = self._build(workload)
            return _compiled[key]

    def _build(self, workload: LiveWorkload) -> Any:
        constants = (self._t, self._w, self._core, self._structure, self._code)
        inputs = self._inputs([], 0.0)
        arguments = self._arguments(workload, self.empty(workload), self.begin(workload), inputs)
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
    inputs: Any,
    key: Any,
) -> Any:
    t_form, w_form, core_form, structure, code = constants
    after, new_state, output = take_turn(
        eqx.combine(jax.tree.unflatten(structure, policy), code),
        t_form.unpack(t),
        _with_learned(w_form.unpack(w), learned),
        core_form.unpack(core),
        state,
        prepared,
        unpack_events(inputs),
        key,
        speeds,
    )
    return core_form.pack(after, jnp), new_state, output


def _prepared(policy: Policy, t: TopologyArrays, w: WorkloadArrays) -> Any:
    return policy.prepare(t, w)


def _fixed(w: WorkloadArrays) -> WorkloadArrays:
    """Without the learned arrays, which are passed to the program separately."""
    return _with_learned(w, [None] * len(LEARNED_ARRAYS))


def _with_learned(w: WorkloadArrays, learned: Sequence[Any]) -> WorkloadArrays:
    learned_of = operator.attrgetter(*LEARNED_ARRAYS)
    return eqx.tree_at(learned_of, w, tuple(learned), is_leaf=lambda x: x is None)
