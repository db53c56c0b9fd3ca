"""`native.c` from Python: decisions that cost their arithmetic. Without a compiler at installation it is not there.

`NativeTables` holds the fields of the C structure; the library itself says their names, order and types. The learned
policy and the heuristic ask it where they can (`PlainCore.native`, `NativeNetwork`), else decide in NumPy and in plain
Python, more slowly.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from symphony.policies.features import (
    MAX_LOG,
    DeviceColumn,
    GangColumn,
    OtherColumn,
    PairColumn,
    RowColumn,
    SceneColumn,
)
from symphony.policies.late_binding import MAX_BACKLOG_S, LateBinding
from symphony.policies.learned import MASKED_SCORE, STANDARD, Learned, Memory
from symphony.problem import native_code
from symphony.problem.arrays import KIND_INDEX, TopologyArrays
from symphony.problem.topology import SPANS
from symphony.runtime.live_workload import LiveWorkload
from symphony.runtime.plain_network import JOB_COLUMNS, NOT_NUMBERS, PlainAction, PlainNetwork
from symphony.scheduling.guard import MAX_DELAY, MAX_REGRET, OVERRUN
from symphony.scheduling.holding import MIN_SHARE, MIN_WAIT_S
from symphony.scheduling.policy import WAIT

if TYPE_CHECKING:
    from symphony.runtime.plain_turn import PlainCore

MAX_NATIVE_KINDS = 32  # MAX_KINDS in native.c
SIZES = (STANDARD.width, STANDARD.memory, STANDARD.gangs, STANDARD.devices, STANDARD.preempts)  # native_sizes there
TYPES = {"i1": np.int8, "i4": np.int32, "i8": np.int64, "f4": np.float32, "f8": np.float64}
BUFFER_FORMATS = {"i1": "b?", "i4": "i", "i8": "lq", "f4": "f", "f8": "d"}  # of these types, in buffers
RULES = {
    "max_log": MAX_LOG,
    "max_backlog_s": MAX_BACKLOG_S,
    "max_regret": MAX_REGRET,
    "max_delay": MAX_DELAY,
    "overrun": OVERRUN,
    "min_share": MIN_SHARE,
    "min_wait_s": MIN_WAIT_S,
    "masked": MASKED_SCORE,
}
CORE_FIELDS = (
    *("job", "graph", "home", "priority", "arrived", "unfinished"),
    *("status", "workers", "runs_on", "inputs_left", "first_device", "resumed", "held", "copies"),
    *("up", "lanes_free", "queued", "queued_s", "memory_free", "lane_holds", "lane_since", "lane_estimate"),
)
WORKLOAD_FIELDS = (
    *("time_fixed", "time_work", "kernel", "work", "units", "in_start", "in_source", "in_bytes", "isolated"),
    *("checkpoint", "restore"),
)


@cache
def library() -> ctypes.PyDLL | None:
    """The compiled `native.c`; None where it could not be compiled, or has other sizes."""
    loaded = native_code.library()
    if loaded is None:
        return None
    for name in ("native_decide", "native_features", "native_best_device"):
        getattr(loaded, name).argtypes, getattr(loaded, name).restype = [ctypes.c_void_p], None
    return loaded if tuple((ctypes.c_int32 * len(SIZES)).in_dll(loaded, "native_sizes")) == SIZES else None


@cache
def _layout() -> dict[str, tuple[int, str]]:
    """Position and type of each field. Every field takes 8 bytes."""
    text = ctypes.c_char * 65536
    fields = text.in_dll(library(), "native_layout").value.decode().split(";")[:-1]  # type: ignore[arg-type]
    return {name: (number, kind) for number, (kind, name) in enumerate(field.split() for field in fields)}


def suits_native(t: TopologyArrays) -> bool:
    """Whether decisions on a cluster can be taken natively."""
    lanes = t.lane_device
    return library() is not None and len(t.kind_memory) <= MAX_NATIVE_KINDS and bool((np.diff(lanes) >= 0).all())


class NativeFields:
    """Values of fields, ready to be set: numbers, and arrays, which must stay where they are."""

    def __init__(self, **values: Any) -> None:
        self.values, bits = values, []
        for name, value in values.items():
            kind = _layout()[name][1]
            if kind == "i8":
                bits.append(int(value))
            elif kind == "f8":
                bits.append(int(np.float64(value).view(np.int64)))
            else:
                view = memoryview(value)
                if view.format not in BUFFER_FORMATS[kind[:-1]] or not view.c_contiguous:
                    raise TypeError(f"{name} has the format {view.format!r}, which native.c cannot read")
                bits.append(value.buffer_info()[0] if isinstance(value, array) else value.ctypes.data)
        self.at, self.bits = np.array([_layout()[name][0] for name in values]), np.array(bits, np.int64)

    @staticmethod
    def converted(**values: Any) -> NativeFields:
        """Arrays as copies of the right type where they have another."""
        types = {name: TYPES[_layout()[name][1][:-1]] for name in values}
        return NativeFields(**{name: np.ascontiguousarray(value, types[name]) for name, value in values.items()})


class NativeTables:
    """The structure that `native.c` works on, for one core."""

    def __init__(self, core: PlainCore) -> None:
        self._ints = np.zeros(len(_layout()), np.int64)
        self._reals = self._ints.view(np.float64)
        self._kept: dict[str, Any] = {}  # what the pointers point at
        self._address = self._ints.ctypes.data
        self.owner: tuple[Any, int] = None, -1  # the network that has set its fields, and the version of the graphs
        loaded: Any = library()
        self._decide, self._features, self._best = (
            loaded.native_decide,
            loaded.native_features,
            loaded.native_best_device,
        )
        self._set_topology(core.workload.t)
        self._set_workload(core.workload, core.one_memory)
        self.set(**RULES, **{name: getattr(core, name) for name in CORE_FIELDS})
        self._make_room()
        (self._now, self._placing, self._placed, self._busy, self._action, self._gang, self._device, self._wait) = (
            _layout()[name][0]
            for name in ("now_s", "placing", "placed", "busy", "action", "action_gang", "action_device", "wait_s")
        )

    def set(self, *some: NativeFields, **values: Any) -> None:
        for fields in (*some, NativeFields(**values)) if values else some:
            self._ints[fields.at] = fields.bits
            self._kept.update(fields.values)

    def __getitem__(self, name: str) -> Any:
        number, kind = _layout()[name]
        return self._kept[name] if kind.endswith("*") else (self._ints if kind == "i8" else self._reals).item(number)

    def _set_topology(self, t: TopologyArrays) -> None:
        devices, hops = t.route_row.shape
        self.set(devices=devices, hops=hops, rows=len(t.capacity), lanes=len(t.lane_device), kinds=len(t.kind_memory))
        self.set(existing=int(t.exists.sum()), total_slots=max(int(t.slots.sum()), 1))
        names = "device_kind slots place peers route_row route_kind route_spans exists capacity latency kind_memory"
        self.set(NativeFields.converted(**{name: getattr(t, name) for name in names.split()}))
        lanes = np.searchsorted(t.lane_device, np.arange(devices + 1))
        self.set(NativeFields.converted(route_used=t.row_group[t.route_row] >= 0, lane_start=lanes))

    def _set_workload(self, workload: LiveWorkload, one_memory: bool) -> None:
        w = workload.tables
        self.set(**{name: getattr(w, name) for name in WORKLOAD_FIELDS}, demand=w.demand_fixed)
        self.set(preemptible=w.preemptible, resources=w.demand_fixed.shape[2], edges=w.in_source.shape[1], fan=w.fan)
        self.set(jobs=workload.shapes.jobs, tasks=workload.shapes.tasks, one_memory=one_memory)
        self.set(NativeFields.converted(is_compute=np.arange(w.demand_fixed.shape[2]) == KIND_INDEX["compute"]))

    def _make_room(self) -> None:
        devices, rows, jobs = self["devices"], self["rows"], self["jobs"]
        gangs, candidates, choices, victims = jobs * self["tasks"], STANDARD.gangs, STANDARD.devices, STANDARD.preempts
        width, job_columns = STANDARD.width, len(JOB_COLUMNS)
        room: dict[str, int] = {
            **dict.fromkeys(("own", "load"), rows),
            **dict.fromkeys(("busiest", "running_s", "queue_s", "idle", "wants"), devices),
            **dict.fromkeys(("queue_mean", "queue_least", "queue_stamp"), devices),
            **{"contention": 5 * candidates * devices, "pair_stamp": candidates * devices},
            **{"bandwidth": len(SPANS) * devices, "bandwidth_stamp": devices, "device_stamp": devices},
            **dict.fromkeys(("row_seen", "row_features", "row_shown"), rows * len(RowColumn)),
            **dict.fromkeys(("row_first", "row_second"), rows * width),
            **dict.fromkeys(("device_first", "device_down", "device_last"), devices * width),
            **{"device_pair": devices * 2 * width, "device_features": devices * len(DeviceColumn)},
            **dict.fromkeys(("ready", "allowed_gang", "overdue_gang", "key"), gangs + 1),
            **dict.fromkeys(("left_s", "path_s", "job_overdue", "job_ready"), jobs),
            **{"job_columns": jobs * job_columns, "candidate": candidates, "scene": len(SceneColumn)},
            **{"gang_features": candidates * len(GangColumn), "taken": devices},
            **dict.fromkeys(("pair_device", "pair_allowed"), candidates * choices),
            **{"pair_features": candidates * choices * len(PairColumn), "other_features": victims * len(OtherColumn)},
            **{"victim": victims, "victim_device": victims, "victim_features": victims * len(GangColumn)},
        }
        self.set(**{name: np.zeros(size, TYPES[_layout()[name][1][:-1]]) for name, size in room.items()})
        self["row_seen"][:] = -1  # nothing was seen yet

    def _see(self, core: PlainCore) -> None:
        """Set what changes with every decision."""
        self._reals[self._now], self._ints[self._placing], self._ints[self._busy] = core.now_s, core.placing, core.busy
        taken = core.devices[core.placing] if core.placing >= 0 else ()
        self._ints[self._placed] = len(taken)
        if taken:
            self["taken"][: len(taken)] = taken

    def best_device(self, core: PlainCore, gang: int) -> int:
        """The feasible device with the least cost, as `PlainCore` has it. There must be a feasible one."""
        self._see(core)
        self._ints[self._gang] = gang
        self._best(self._address)
        device = self._ints.item(self._device)
        if device < 0:
            raise RuntimeError(f"no device is feasible for gang {gang}")
        return int(device)

    def decide(self, core: PlainCore) -> PlainAction:
        """The network's action."""
        self._see(core)
        self._decide(self._address)
        item = self._ints.item
        kind = item(self._action)
        if kind < 0:
            raise ValueError(NOT_NUMBERS)
        if kind == WAIT:
            return PlainAction(WAIT, wait_s=self._reals.item(self._wait))
        return PlainAction(kind, item(self._gang), item(self._device))

    def features(self, core: PlainCore) -> None:
        """Compute the features of a decision, for tests."""
        self._see(core)
        self._features(self._address)


class NativeNetwork(PlainNetwork):
    """Decides natively where the core can."""

    @staticmethod
    def suits(policy: Learned | LateBinding) -> bool:
        """Whether a policy has the sizes that the library is compiled for."""
        learned = policy.learned if isinstance(policy, LateBinding) else policy
        sizes = learned.network.sizes
        return library() is not None and all(
            getattr(sizes, name) == value for name, value in vars(STANDARD).items() if name != "sharpness"
        )

    def _use(self, workload: LiveWorkload) -> None:
        super()._use(workload)
        n, routes = self.network, self._routes
        weights: dict[str, np.ndarray] = {}
        columns, topology, size = len(RowColumn), n.topology, n.sizes.memory
        layers = {"device": topology.device, "up": topology.up, "down": topology.down, "again": topology.again}
        layers |= {name: getattr(n, name) for name in ("gang", "pair", "pair_gang", "pair_device", "pair_scene")}
        for name, mlp in (("score", n.score), ("other", n.other_action), ("waiting", n.waiting)):
            layers |= {f"{name}{number}": layer for number, layer in enumerate(mlp.layers)}
        for name, layer in layers.items():
            weights |= {f"w_{name}": layer.weight, f"b_{name}": layer.bias}
        for name, weight in (("w_ih", n.lstm.weight_ih), ("w_hh", n.lstm.weight_hh)):
            weights[name] = weight.reshape(4, size, -1).transpose(0, 2, 1)  # by gate: [before, after]
        static = routes.row_inputs[:, columns:] @ topology.row.weight[columns:] + topology.row.bias
        arrays = NativeFields.converted(
            **weights,
            b_lstm=n.lstm.bias,
            w_scene=n.scene.weight,
            b_scene=n.scene.bias + self._objective @ n.objective,
            w_row=topology.row.weight[:columns],
            row_static=static,
            row_from=routes.to_rows.indptr,
            row_device=routes.to_rows.indices,
            device_from=routes.to_devices.indptr,
            device_row=routes.to_devices.indices,
        )
        numbers = {name: getattr(n, name) for name in ("remaining", "critical", "queue", "apart")}
        self._weights = arrays, NativeFields(**numbers, late=self._late, regret=math.exp(n.regret), idle_bias=n.idle)

    def _prepare(self, workload: LiveWorkload) -> None:
        super()._prepare(workload)
        numbers = NativeFields(scale=self._scale, any_preemptible=self._any_preemptible, known_tasks=self._tasks)
        names = ["gang_table", "best", "tail", "inputs", "fastest_s", "nodes"]
        slower = self._device_table[DeviceColumn.SLOWER_KIND]
        tables = NativeFields.converted(**{name: getattr(self, f"_{name}") for name in names}, slower_kind=slower)
        self._graphs = numbers, tables

    def decide(self, core: PlainCore) -> PlainAction:
        """The action with the highest score. There must be a gang that may be placed."""
        tables = self._tables(core)
        return super().decide(core) if tables is None else tables.decide(core)

    def _tables(self, core: PlainCore) -> NativeTables | None:
        """With the fields that depend on the weights and the graphs; None if the core has none."""
        tables = core.native
        if tables is None:
            return None
        self.prepare(core.workload)
        if tables.owner != (self, self._version):
            if tables.owner[0] is not self:
                kept: Any = [np.array(part, np.float32) for part in self.memory]  # changed in place
                self.memory = Memory(*kept)
                tables.set(*self._weights, hidden=self.memory.hidden, cell=self.memory.cell)
                tables["row_seen"][:] = -1  # what was kept is of another network
            tables.set(*self._graphs)
            tables.owner = self, self._version
        return tables

    def features(self, core: PlainCore, devices: Any = None) -> Any:
        """As `PlainNetwork.features`, for tests."""
        tables = self._tables(core)
        if tables is None:
            return super().features(core, devices)
        tables.features(core)
        count, choices, others = tables["candidates"], tables["choices"], tables["others"]
        pairs = count * choices

        def some(name: str, *shape: int) -> np.ndarray:
            return tables[name][: math.prod(shape)].reshape(shape).copy()

        def gangs(number: np.ndarray, features: np.ndarray) -> SimpleNamespace:
            return SimpleNamespace(number=number, features=features)

        return SimpleNamespace(
            rows=tables["row_shown"].reshape(-1, len(RowColumn)),
            devices=tables["device_features"].reshape(-1, len(DeviceColumn)),
            gangs=gangs(some("candidate", count), some("gang_features", count, len(GangColumn))),
            pairs=some("pair_features", count, choices, len(PairColumn)),
            device=some("pair_device", pairs).reshape(count, choices),
            allowed=some("pair_allowed", pairs).reshape(count, choices) > 0,
            other_actions=SimpleNamespace(
                gangs=gangs(some("victim", others), some("victim_features", others, len(GangColumn))),
                device=some("victim_device", others),
                features=some("other_features", others, len(OtherColumn)),
            ),
            scene=tables["scene"].copy(),
            may_wait=bool(tables["may_wait"]),
            wait_s=tables["wait_s"],
        )
