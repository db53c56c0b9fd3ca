"""Scenarios: a topology, a workload and drawn disturbances: everything that a run depends on except the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem import limits, units
from symphony.problem.arrays import (
    Numeric,
    TopologyArrays,
    WorkloadArrays,
    topology_arrays,
    workload_arrays,
)
from symphony.problem.errors import InputError
from symphony.problem.flows import flows
from symphony.problem.runnable import first_tasks, gang_seconds
from symphony.problem.speeds import BeliefArrays, SpeedArrays, Speeds, belief_arrays, check_speeds, speed_arrays
from symphony.problem.texts import did_you_mean
from symphony.problem.topology import RESOURCE_KINDS, Topology
from symphony.problem.workload import Workload
from symphony.simulator.contention import LOAD_UNIT
from symphony.simulator.counted_rows import DOMAIN_NAMES, unseen


@dataclass(frozen=True)
class Phase:
    """The load by the hidden tenants of one group (a machine or a rack) changes."""

    gap_s: float  # since the phase before it
    group: str
    load: Mapping[str, float]  # row, or resource kind -> background load, as a fraction of capacity (absent = 0)


@dataclass(frozen=True)
class Failure:
    """A device goes down for a while."""

    gap_s: float  # since the failure before it
    device: str
    down_s: float


@dataclass(frozen=True)
class Disturbances:
    """Parameters from which phases, failures and noise of a scenario are drawn."""

    background: float = 0.6  # typical background load on a busy tenant's main resource; 0 = no tenants
    tenants: str = "flows"  # where they are: on flows, or (as in older figures) on all rows of a "machine" by kind
    busy_share: float = 0.3  # share of the time for which a flow, or a machine, is busy
    phase_s: float | None = None  # mean length of a busy phase of one flow; None = `phase_gangs`
    phase_gangs: float = 20.0  # the same, in times of a typical gang
    failures_per_day: float = 0.0  # of each device
    repair_s: float = 600.0
    work_noise: float = 0.05  # spread of the true amount of work about the profile
    demand_noise: float = 0.0  # spread of the true demands about the profile: a hidden factor for each kernel
    burst: float = 0.9  # deviation of a load from time slice to time slice, relative to it
    counters: int | None = 1  # of each domain (`counted_rows.py`), which its rows share; None = one for each row
    uncounted: tuple[str, ...] = ("pcie", "device")  # domains without counters
    counter_delay: int = 0  # windows by which readings are delayed
    belief: str = "joint"  # what policies see of others' loads: one of BELIEFS
    window_s: float | None = None  # length of a counter window; None = a typical gang's time
    latency_s: float = 0.0  # scheduler latency charged for every decision
    offer_at_windows: bool = False  # offer a decision at the end of every window, even if no gang is ready


# none: what is typical; raw: the last readings; rows: a filter for each row; joint: one filter over the flows of a
# machine; exact: the true loads.
BELIEFS = ("none", "raw", "rows", "joint", "exact")
CALM = Disturbances(background=0.0, work_noise=0.0, burst=0.0, belief="exact")
MIN_PHASE_S = 1e-6
READING_ERRORS = 1021  # drawn beforehand; a prime, so that windows and rows use them in ever new order
ERROR_DEGREES_OF_FREEDOM = 4  # of Student's t: errors of readings have heavier tails than a normal distribution


@dataclass(frozen=True)
class Scenario:
    """Everything that a run depends on except the policy. Checked on construction."""

    topology: Topology
    workload: Workload
    seed: int
    phases: tuple[Phase, ...]  # cyclic; () = none
    failures: tuple[Failure, ...]  # cyclic
    work_noise: tuple[float, ...]  # the true work of gang i of job j is units * work_noise[(31 j + i) % len]
    disturbances: Disturbances
    job_slots: int = 16  # jobs in the system at once
    truth: Speeds | None = None  # true speeds of kernels; None = those of their profiles
    believed: Speeds | None = None  # initial belief about speeds that policies are shown, beside profiles
    demand_factor: tuple[float, ...] = ()  # of each kernel: its true demands over those of its profile; () = all 1

    def __post_init__(self) -> None:
        _check(self)


# Levels of busy tenants on a flow of each kind, relative to Disturbances.background.
_FLOW_LEVELS: Mapping[str, float] = {
    "cores": 1.0,
    "memory": 1.6,
    "remote": 1.0,
    "kernel": 1.2,
    "copy": 1.2,
    "peer": 1.0,
    "network": 1.6,
    "row": 1.0,
}
SECOND_FLOW_SHARE = 0.3  # of tenants that use a second flow of the same machine
# Loads of busy tenants on the rows of their machine or rack, relative to Disturbances.background.
_TENANTS: tuple[Mapping[str, float], ...] = (
    {"memory": 1.6, "cache": 1.2, "compute": 0.3},  # memory-bound
    {"compute": 1.0, "cache": 0.6, "memory": 0.4},  # compute-bound
    {"link": 0.8, "switch": 1.6, "memory": 0.5, "interconnect": 0.8},  # PCIe transfers
    {"nic": 1.6, "uplink": 1.2, "switch": 0.6, "memory": 0.3},  # network traffic
    {"device_memory": 1.2, "compute": 0.7, "link": 0.4},  # uses the accelerators
)


def draw(
    topology: Topology, workload: Workload, seed: int, disturbances: Disturbances = CALM, *, job_slots: int = 16
) -> Scenario:
    """Draw the disturbances of a scenario from its seed, independently of how the workload was drawn."""
    typical = _typical_gang_s(topology, workload)
    d = disturbances
    d = replace(
        d,
        phase_s=min(d.phase_gangs * typical, limits.SECONDS) if d.phase_s is None else d.phase_s,
        window_s=typical if d.window_s is None else d.window_s,
    )
    _check_disturbances(d)
    _check_seed(seed)
    assert d.phase_s is not None
    rng = np.random.default_rng([seed, 1])
    phases: list[Phase] = []
    if d.background > 0 and topology.resources:
        phases = _flow_phases(topology, d, rng) if d.tenants == "flows" else _machine_phases(topology, d, rng)
    failures: list[Failure] = []
    if d.failures_per_day > 0:
        mean_gap = 86400.0 / (d.failures_per_day * len(topology.devices))
        for gap in rng.exponential(mean_gap, 256):
            device = topology.devices[rng.integers(len(topology.devices))].name
            repair_s = min(float(rng.exponential(d.repair_s)) + 1e-3, limits.SECONDS)
            failures.append(Failure(min(float(gap), limits.SECONDS), device, repair_s))
    noise = np.exp(rng.normal(0.0, d.work_noise, 127)) if d.work_noise > 0 else np.ones(1)
    noise = np.clip(noise, 1 / limits.NOISE, limits.NOISE)
    scenario = Scenario(
        topology, workload, seed, tuple(phases), tuple(failures), tuple(map(float, noise)), d, job_slots
    )
    if not d.demand_noise:
        return scenario
    factors = np.exp(np.random.default_rng([seed, 5]).normal(0.0, d.demand_noise, len(workload.kernels)))
    return replace(scenario, demand_factor=tuple(map(float, np.clip(factors, 1 / limits.NOISE, limits.NOISE))))


def varied(seed: int) -> Disturbances:
    """Disturbances of a training scenario: strength, length and counters are drawn.

    Never drawn, so that tests can tell how a policy does where it was not trained: a background above 1.6, bursts above
    1.4, phases of more than 60 gangs, late readings.
    """
    rng = np.random.default_rng([seed, 4])
    hidden: tuple[tuple[str, ...], ...] = (("pcie", "device"), ("pcie",), ())
    return Disturbances(
        background=float(rng.uniform(0.3, 1.6)) if rng.random() < 0.9 else 0.0,
        busy_share=float(rng.uniform(0.1, 0.4)),
        phase_gangs=float(np.exp(rng.uniform(np.log(8.0), np.log(60.0)))),
        burst=float(rng.uniform(0.4, 1.4)),
        counters=int(rng.integers(1, 4)),
        uncounted=hidden[rng.choice(3, p=(0.6, 0.2, 0.2))],
    )


def _machine_phases(topology: Topology, d: Disturbances, rng: np.random.Generator) -> list[Phase]:
    """Phases in which one tenant at a time loads all rows of a machine, by kind."""
    assert d.phase_s is not None
    groups = list(dict.fromkeys(resource.group for resource in topology.resources))
    count = max(64, min(1024, 4 * len(groups)))
    # Every group starts in a random phase; after that, one group changes at a time.
    gaps = [0.0] * len(groups) + list(rng.exponential(d.phase_s / len(groups), count))
    order = groups + [groups[i] for i in rng.integers(len(groups), size=count)]
    phases = []
    for gap, group in zip(gaps, order, strict=True):
        load: dict[str, float] = {}
        if rng.random() < d.busy_share:
            tenant = _TENANTS[rng.integers(len(_TENANTS))]
            level = d.background * rng.uniform(0.5, 1.5)
            load = {kind: level * weight for kind, weight in tenant.items()}
        phases.append(Phase(min(float(gap), limits.SECONDS), group, load))
    return phases


def _flow_phases(topology: Topology, d: Disturbances, rng: np.random.Generator) -> list[Phase]:
    """Phases of tenants, each on one or two flows of a machine. Tenants come and go independently of each other."""
    assert d.phase_s is not None
    all_flows = flows(topology)
    of_group: dict[str, list[int]] = {}
    for number, flow in enumerate(all_flows):
        of_group.setdefault(flow.group, []).append(number)

    def drawn(number: int) -> dict[int, float]:
        """The load of a tenant that begins: level of each flow that it uses."""
        beside = of_group[all_flows[number].group]
        used = {number}
        if rng.random() < SECOND_FLOW_SHARE:
            used.add(beside[rng.integers(len(beside))])
        return {x: d.background * _FLOW_LEVELS[all_flows[x].kind] * rng.uniform(0.5, 1.5) for x in sorted(used)}

    # One tenant for each flow, busy for `busy_share` of the time.
    share = min(max(d.busy_share, 0.01), 0.99)
    idle_s = d.phase_s * (1 - share) / share
    tenants = [drawn(number) if rng.random() < share else {} for number in range(len(all_flows))]

    def phase(gap_s: float, group: str) -> Phase:
        load: dict[str, float] = {}
        for number in of_group[group]:
            for used, level in tenants[number].items():
                for row, weight in all_flows[used].weights:
                    load[row] = load.get(row, 0.0) + level * weight
        return Phase(min(gap_s, limits.SECONDS), group, load)

    phases = [phase(0.0, group) for group in of_group]
    for _ in range(max(64, min(2048, 6 * len(all_flows)))):
        rates = np.cumsum([1 / d.phase_s if tenant else 1 / idle_s for tenant in tenants])
        which = min(int(np.searchsorted(rates, rng.uniform(0, rates[-1]))), len(tenants) - 1)
        tenants[which] = {} if tenants[which] else drawn(which)
        phases.append(phase(float(rng.exponential(1 / rates[-1])), all_flows[which].group))
    return phases


def _check_number(where: str, name: str, value: object, most: float = limits.SECONDS, *, above: bool = False) -> None:
    if not units.is_number(value, 0, most) or (above and value == 0):
        least = "above 0" if above else "0 or more"
        raise InputError(f"{name} is {value!r}", where=where, hint=f"write a number, {least}, up to {most:g}")


def _check_word(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        hint = f"{did_you_mean(str(value), known)}use one of {', '.join(known)}"
        raise InputError(f"{name} is {value!r}", where="disturbances", hint=hint)


def _check_seed(seed: object) -> None:
    if not units.is_whole(seed, 0, limits.SEED):
        raise InputError(f"seed is {seed!r}", where="scenario", hint=f"write a whole number from 0 to {limits.SEED}")


def _check_disturbances(d: Disturbances) -> None:
    for name in ("background", "burst"):
        _check_number("disturbances", name, getattr(d, name), limits.NOISE)
    for name in ("work_noise", "demand_noise"):
        _check_number("disturbances", name, getattr(d, name), limits.WORK_NOISE)
    _check_number("disturbances", "phase_gangs", d.phase_gangs, above=True)
    _check_number("disturbances", "busy_share", d.busy_share, 1)
    _check_number("disturbances", "failures_per_day", d.failures_per_day, limits.FAILURES_PER_DAY)
    _check_number("disturbances", "repair_s", d.repair_s)
    _check_word("tenants", d.tenants, ("flows", "machine"))
    _check_word("belief", d.belief, BELIEFS)
    for domain in d.uncounted:
        _check_word("uncounted", domain, DOMAIN_NAMES)
    _check_number("disturbances", "latency_s", d.latency_s, limits.LATENCY_S)
    if d.counters is not None and not units.is_whole(d.counters, 1, limits.COUNTERS):
        hint = f"write 1 to {limits.COUNTERS} for each domain, or None for one counter for each row"
        raise InputError(f"counters is {d.counters!r}", where="disturbances", hint=hint)
    if not units.is_whole(d.counter_delay, 0, limits.COUNTER_DELAY):
        hint = f"write 0 to {limits.COUNTER_DELAY} windows"
        raise InputError(f"counter_delay is {d.counter_delay!r}", where="disturbances", hint=hint)
    for name in ("phase_s", "window_s"):
        value = getattr(d, name)
        _check_number("disturbances", name, value, above=True)
        if value is not None and value < MIN_PHASE_S:
            raise InputError(
                f"{name} is {value:g} s, below the resolution of the clock",
                where="disturbances",
                hint=f"write {MIN_PHASE_S:g} or more, or None to scale it to the workload",
            )


def _check(s: Scenario) -> None:
    where = f"scenario of {s.workload.name!r}"
    _check_seed(s.seed)
    if not units.is_whole(s.job_slots, 1, limits.JOB_SLOTS):
        raise InputError(f"job_slots is {s.job_slots!r}", where=where, hint=f"write 1 to {limits.JOB_SLOTS:,}")
    group_of = {resource.name: resource.group for resource in s.topology.resources}
    groups = set(group_of.values())
    devices = {device.name for device in s.topology.devices}
    for phase in s.phases:
        if phase.group not in groups:
            raise InputError(
                f"a phase names {phase.group!r}, which is not a group of {s.topology.name!r}",
                where=where,
                hint=f"use a machine or rack, such as {next(iter(sorted(groups)), 'none')!r}",
            )
        _check_number(where, "gap_s of a phase", phase.gap_s)
        for kind, load in phase.load.items():
            if kind not in RESOURCE_KINDS and group_of.get(kind) != phase.group:
                hint = f"use a row of {phase.group!r} or one of {', '.join(RESOURCE_KINDS)}"
                raise InputError(f"a phase loads the unknown resource kind or row {kind!r}", where=where, hint=hint)
            if limits.NOISE < load < limits.NUMBER and kind in group_of:
                raise InputError(
                    f"others on {phase.group!r} would load {kind} {load:.3g} times over",
                    where=where,
                    hint="capacities on one path differ too much: check their units (a bare number is in bytes/s)",
                )
            _check_number(where, f"load on {kind} in a phase", load, limits.NOISE)
    for failure in s.failures:
        if failure.device not in devices:
            raise InputError(
                f"a failure names {failure.device!r}, which is not a device of {s.topology.name!r}",
                where=where,
                hint=f"use a device, such as {s.topology.devices[0].name!r}",
            )
        _check_number(where, "gap_s of a failure", failure.gap_s)
        _check_number(where, "down_s of a failure", failure.down_s)
    for name, gaps in (("phases", [p.gap_s for p in s.phases]), ("failures", [f.gap_s for f in s.failures])):
        if gaps and not sum(gaps):
            hint = "give one of them a gap_s above 0"
            raise InputError(f"{name} repeat for ever at one instant", where=where, hint=hint)
    if not s.work_noise:
        raise InputError("work_noise is empty", where=where, hint="write (1.0,) for no noise")
    for factor in s.work_noise:
        _check_number(where, "a factor of work_noise", factor, limits.NOISE, above=True)
    if s.demand_factor and len(s.demand_factor) != len(s.workload.kernels):
        hint = f"give one for each of the {len(s.workload.kernels)} kernels, or () for what profiles say"
        raise InputError(f"demand_factor has {len(s.demand_factor)} factors", where=where, hint=hint)
    for factor in s.demand_factor:
        _check_number(where, "a factor of demand_factor", factor, limits.NOISE, above=True)
    if s.truth is not None:
        check_speeds(s.truth, s.topology, s.workload, f"{where}, truth")
    if s.believed is not None:
        check_speeds(s.believed, s.topology, s.workload, f"{where}, believed", least=0.0)


def _typical_gang_s(topology: Topology, workload: Workload) -> float:
    """Mean isolated time of a gang: the time scale of a workload."""
    kernels = {kernel.name: kernel for kernel in workload.kernels}
    times = [
        gang_seconds(topology, kernels[task.kernel], gang, task)
        for graph in workload.graphs
        for gang, task in first_tasks(graph)
    ]
    finite = [seconds for seconds in times if seconds < float("inf")]
    return sum(finite) / len(finite) if finite else 1.0


def calm(scenario: Scenario) -> Scenario:
    """The same scenario without tenants, failures or noise."""
    return replace(scenario, phases=(), failures=(), work_noise=(1.0,), disturbances=CALM, demand_factor=())


class ScenarioArrays(eqx.Module):
    """A scenario, or a batch, as arrays: NumPy on the host, JAX in programs. Phases and failures are cyclic lists."""

    topology: TopologyArrays | Any  # None while a batch is being stacked
    workload: WorkloadArrays
    phases: Int[Numeric, "*batch"]
    phase_gap: Float[Numeric, "*batch phases"]
    phase_group: Int[Numeric, "*batch phases"]
    phase_load: Float[Numeric, "*batch phases slots"]  # of the rows of that group
    failures: Int[Numeric, "*batch"]
    failure_gap: Float[Numeric, "*batch failures"]
    failure_device: Int[Numeric, "*batch failures"]
    failure_down: Float[Numeric, "*batch failures"]
    work_noises: Int[Numeric, "*batch"]
    work_noise: Float[Numeric, "*batch factors"]
    burst: Float[Numeric, "*batch"]  # deviation of a load from slice to slice, relative to it
    counter_error: Float[Numeric, "*batch errors"]  # in standard deviations
    unseen: Float[Numeric, "*batch rows"]  # 1/n - 1/N for rows counted in n of a window's N slices; inf = no counter
    delay: Int[Numeric, "*batch"]  # windows by which readings are delayed
    belief: Int[Numeric, "*batch"]  # index into BELIEFS
    window: Float[Numeric, "*batch"]  # seconds
    latency: Float[Numeric, "*batch"]  # seconds
    offer: Bool[Numeric, "*batch"]
    job_slots: int = eqx.field(static=True)
    late: int = eqx.field(static=True)  # maximal delay of readings in the batch, in windows
    joint: bool = eqx.field(static=True, default=True)  # the filter is over flows; False: one for each row
    reads: bool = eqx.field(static=True, default=True)  # what is read changes what policies see
    truth: SpeedArrays | None = None
    believed: BeliefArrays | None = None
    demand_factor: Float[Numeric, "*batch kernels"] | None = None  # true demands over those of profiles; None = all 1


def scenario_arrays(scenario: Scenario) -> ScenarioArrays:
    """The array form of one scenario, as NumPy arrays."""
    s = scenario
    topology, workload = topology_arrays(s.topology), workload_arrays(s.topology, s.workload)
    group_of = {row.group: int(group) for row, group in zip(s.topology.resources, topology.row_group, strict=False)}
    device_of = {device.name: index for index, device in enumerate(s.topology.devices)}
    x, f, m = (limits.bucket(max(1, len(items))) for items in (s.phases, s.failures, s.work_noise))
    phase_gap, phase_group = np.full(x, 1.0), np.zeros(x, np.int32)
    phase_load = np.zeros((x, topology.group_row.shape[1]))
    rows_of: dict[str, list[tuple[int, str, str]]] = {}
    for row, slot in zip(s.topology.resources, topology.row_slot, strict=False):
        rows_of.setdefault(row.group, []).append((int(slot), row.name, row.kind))
    for i, phase in enumerate(s.phases):
        phase_gap[i], phase_group[i] = phase.gap_s, group_of[phase.group]
        for slot, name, kind in rows_of[phase.group]:
            load = phase.load.get(name, phase.load.get(kind, 0.0))
            phase_load[i, slot] = np.round(load / LOAD_UNIT) * LOAD_UNIT
    failure_gap, failure_device, failure_down = np.full(f, 1.0), np.zeros(f, np.int32), np.ones(f)
    for i, failure in enumerate(s.failures):
        failure_gap[i], failure_device[i], failure_down[i] = failure.gap_s, device_of[failure.device], failure.down_s
    noise = np.ones(m)
    noise[: len(s.work_noise)] = s.work_noise
    d = s.disturbances
    return ScenarioArrays(
        topology=topology,
        workload=workload,
        phases=np.int32(len(s.phases)),
        phase_gap=phase_gap,
        phase_group=phase_group,
        phase_load=phase_load,
        failures=np.int32(len(s.failures)),
        failure_gap=failure_gap,
        failure_device=failure_device,
        failure_down=failure_down,
        work_noises=np.int32(len(s.work_noise)),
        work_noise=noise,
        burst=np.float64(d.burst),
        counter_error=_reading_errors(s.seed),
        unseen=_padded(unseen(s.topology, d.counters, d.uncounted), topology.capacity.shape[0]),
        delay=np.int32(d.counter_delay),
        # A cluster that is not shared is known not to be.
        belief=np.int32(BELIEFS.index(d.belief if s.phases or s.demand_factor else "exact")),
        window=np.float64(1.0 if d.window_s is None else d.window_s),
        latency=np.float64(d.latency_s),
        offer=np.bool_(d.offer_at_windows),
        job_slots=s.job_slots,
        late=d.counter_delay,
        joint=d.belief != "rows",
        reads=d.belief not in ("none", "exact"),
        truth=None if s.truth is None else speed_arrays(s.truth, s.topology, s.workload),
        believed=None if s.believed is None else belief_arrays(s.believed, s.topology, s.workload),
        demand_factor=_demand_factors(s.demand_factor, workload.time_fixed.shape[0]),
    )


def _demand_factors(factors: tuple[float, ...], kernels: int) -> np.ndarray | None:
    """One for each kernel with padding; None if all demands are as their profiles say."""
    return np.array([*factors, *[1.0] * (kernels - len(factors))]) if factors else None


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    """Values of rows with padding, which has no counter."""
    return np.pad(rows, (0, count - len(rows)), constant_values=np.inf)


def _reading_errors(seed: int) -> np.ndarray:
    """Errors of readings in standard deviations: Student's t, scaled to unit variance."""
    errors = np.random.default_rng([seed, 2]).standard_t(ERROR_DEGREES_OF_FREEDOM, READING_ERRORS)
    return errors / np.sqrt(ERROR_DEGREES_OF_FREEDOM / (ERROR_DEGREES_OF_FREEDOM - 2))


def batch_axes(batch: ScenarioArrays) -> ScenarioArrays:
    """`in_axes` for `vmap`: all scenarios share the topology; everything else has a leading axis."""
    return replace(jax.tree.map(lambda _: 0, batch), topology=None)


def stack(scenarios: list[Scenario]) -> ScenarioArrays:
    """Several scenarios on one topology as one batch; sizes are padded to the largest."""
    if not scenarios:
        raise InputError("no scenario is given", hint="draw at least one: sy.draw(topology, workload, seed)")
    if len({id(s.topology) for s in scenarios}) > 1 and len({s.topology for s in scenarios}) > 1:
        raise InputError("scenarios of one batch must share a topology", hint="run one batch for each topology")
    for name in ("truth", "believed", "demand_factor"):
        if len({getattr(s, name) in (None, ()) for s in scenarios}) > 1:
            raise InputError(f"some scenarios of a batch have `{name}` and some do not", hint="run them apart")
    if len({s.disturbances.belief == "rows" for s in scenarios}) > 1:
        raise InputError("some scenarios of a batch have a filter for each row", hint="run them apart")
    return stack_arrays([scenario_arrays(s) for s in scenarios])


def stack_arrays(batch: list[ScenarioArrays]) -> ScenarioArrays:
    """The array forms of several scenarios on one topology as one batch; sizes are padded to the largest."""
    kernels = max(b.workload.exchange.shape[0] for b in batch)
    batch = [replace(b, workload=_with_kernels(b.workload, kernels)) for b in batch]
    leaves = [jax.tree.leaves(replace(b, topology=None)) for b in batch]
    stacked = [_stack_leaf(column) for column in zip(*leaves, strict=True)]
    first = replace(
        batch[0],
        topology=None,
        workload=replace(
            batch[0].workload,
            max_workers=max(b.workload.max_workers for b in batch),
            fan=max(b.workload.fan for b in batch),
        ),
        job_slots=max(b.job_slots for b in batch),
        late=max(b.late for b in batch),
    )
    joined = jax.tree.unflatten(jax.tree.structure(first), stacked)
    return replace(joined, topology=jax.device_put(batch[0].topology))


def pick(batch: ScenarioArrays, which: Any) -> ScenarioArrays:
    """One or several scenarios of a batch, by index. They share the topology."""
    rows = jax.tree.map(lambda x: jnp.asarray(x)[which], replace(batch, topology=None))
    return replace(rows, topology=batch.topology)


def _with_kernels(w: WorkloadArrays, count: int) -> WorkloadArrays:
    """Pad the kernels; padding runs nowhere, so that no device can be configured for it."""
    more = ((0, count - w.time_fixed.shape[0]), (0, 0))
    return replace(w, time_fixed=np.pad(w.time_fixed, more, constant_values=np.inf))


def _stack_leaf(column: tuple[np.ndarray, ...]) -> Array:
    """Stack arrays of unequal shape, padded at the end with their last element."""
    shape = np.max([np.shape(x) for x in column], axis=0)
    padded = [
        np.pad(x, [(0, int(n) - m) for n, m in zip(shape, np.shape(x), strict=True)], mode="edge")
        if np.shape(x) != tuple(shape)
        else x
        for x in map(np.asarray, column)
    ]
    return jax.device_put(np.stack(padded))  # `jnp.asarray` would compile a program for every shape
