"""Which events and metrics were requested, in the syntax of `perf stat`, and how they are counted: in which groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from symphony.problem.errors import InputError
from symphony.telemetry import architectural, bayes_net, naming
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.events import Catalogue, Event
from symphony.telemetry.expressions import key
from symphony.telemetry.gate import Verdict, accepted
from symphony.telemetry.naming import CounterKind, bare, kind
from symphony.telemetry.planning import plan
from symphony.telemetry.reading import Model

DEFAULT_GROUPS = ("TopdownL1", "Topdown_L1", "PipelineL1")  # groups of metrics: the first one that a catalogue has
DEFAULT_METRICS = ("ipc", "branch_miss_rate", "cache_miss_rate")  # of the architectural catalogue
DEFAULT_SOFTWARE_EVENTS = ("task-clock", "context-switches", "cpu-migrations", "page-faults")  # as of `perf stat`
DEFAULT_KERNEL_EVENTS = (
    "psi.cpu.some_us",
    "psi.memory.some_us",
    "psi.io.some_us",
    "sched.run_us",
    "sched.wait_us",
    "process.run_us",
    "process.wait_us",
    "cgroup.cpu.usage_us",
    "cgroup.cpu.throttled_us",
    "vm.major_faults",
    "net.receive_bytes",
    "net.transmit_bytes",
)
DEFAULT_GPU_EVENTS = (
    "gpm.sm_busy_us",
    "gpm.dram_busy_us",
    "nvml.busy_us",
    "nvml.memory_used_byte_s",
    "nvml.pcie_receive_bytes",
    "nvml.pcie_transmit_bytes",
    "nvml.energy_mj",
)
TIME_EVENTS = frozenset({"duration_time", "tsc", "msr/tsc/"})  # known without counting
# Names that the kernel defines for some CPUs.
_KERNEL_EVENT = re.compile(r"slots|topdown-[a-z-]+|branches|cpu-cycles|ref-cycles|mem-(loads|stores)|r[0-9a-f]+")
_SLOTS = frozenset({"slots", "topdown.slots"})
# The fields of Intel's top-down register, which are read at once and need no counter.
_PARTS = ("retiring", "bad-spec", "fe-bound", "be-bound", "heavy-ops", "br-mispredict", "fetch-lat", "mem-bound")
_TOPDOWN = tuple(f"topdown-{part}" for part in _PARTS)
_FIRST_TOPDOWN_COUNTER = 100  # its fields are treated as fixed counters from this number on
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def split_names(lists: Iterable[str]) -> tuple[str, ...]:
    """The names in lists like those of perf: `a,b`, `{a,b}:W`, `cpu/event=0x3c,umask=0/`."""
    found: list[str] = []
    for text in lists:
        name, inside, depth = "", False, 0
        for symbol in re.sub(r"\}(:[a-zA-Z]+)?", "}", text) + ",":
            if symbol == "/":
                inside = not inside
            if not inside and symbol in "{},":
                depth += {"{": 1, "}": -1}.get(symbol, 0)
                found += [name.strip()] if name.strip() else []
                name = ""
            else:
                name += symbol
            if depth not in (0, 1):
                break
        if inside or depth:
            raise InputError(f"{text!r} is not a list of events", hint="write -e cycles,instructions or -e '{a,b},c'")
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class EventSelection:
    """Events and metrics to report, and the events that must be counted for them."""

    events: tuple[str, ...]  # as they were requested
    metrics: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # keys of hardware events
    plain: tuple[str, ...] = ()  # software events, counted by perf
    spelled: Mapping[str, str] = field(default_factory=dict)  # nodes whose names perf needs in capitals: `cycles:G`

    def of(self, *kinds: CounterKind) -> tuple[str, ...]:
        """The requested events of some kinds."""
        return tuple(event for event in self.events if kind(event) in kinds)


def select_events(model: Model, events: Sequence[str], metrics: Sequence[str]) -> EventSelection:
    """The events to count for some events and metrics (or groups of metrics); raises `InputError` if one is unknown."""
    for event in events:
        _check(model.catalogue, event)
    names = expand(model.catalogue, metrics)
    computed = model.catalogue.needed(names, platform=model.platform) if names else ()
    needed = [event for event in computed if event not in TIME_EVENTS]
    hardware = {event: naming.node(model.catalogue, event) for event in events if kind(event) == "hardware"}
    return EventSelection(
        tuple(events),
        names,
        tuple(dict.fromkeys([*hardware.values(), *(event for event in needed if kind(event) == "hardware")])),
        tuple(dict.fromkeys(e for e in (*events, *needed) if kind(e) == "software")),
        {node: event for event, node in hardware.items() if "+" in node},
    )


def default_selection(model: Model) -> tuple[Model, EventSelection]:
    """The default events and metrics, and the model for them: `model`, or that of the architectural catalogue."""
    groups = {group for metric in model.catalogue.metrics for group in metric.groups}
    own = next((group for group in DEFAULT_GROUPS if group in groups), None)
    if own:
        return model, select_events(model, DEFAULT_SOFTWARE_EVENTS, [own])
    general = replace(model, catalogue=architectural.CATALOGUE)
    return general, select_events(general, (*DEFAULT_SOFTWARE_EVENTS, "cycles", "instructions"), DEFAULT_METRICS)


def expand(catalogue: Catalogue, metrics: Iterable[str]) -> tuple[str, ...]:
    """Names of metrics, with groups replaced by their members."""
    found: list[str] = []
    groups: dict[str, list[str]] = {}
    own = {key(metric.name): metric.name for metric in catalogue.metrics}
    for metric in catalogue.metrics:
        for group in metric.groups:
            groups.setdefault(group.lower(), []).append(metric.name)
    for name in metrics:
        if key(name) in own:
            found.append(own[key(name)])
        elif name.lower() in groups:
            found += groups[name.lower()]
        else:
            general = key(name) in architectural.CATALOGUE.definitions()
            hint = "--cpu architectural has it, for every CPU; " if general else ""
            raise catalogue.unknown("metric", name, [*own, *groups], hint)
    return tuple(dict.fromkeys(found))


def _check(catalogue: Catalogue, name: str) -> None:
    plain = key(bare(name))
    if kind(name) != "hardware" or "/" in plain or _KERNEL_EVENT.fullmatch(plain):
        return
    if any(listed.resolve(plain) is not None for listed in (catalogue, architectural.CATALOGUE)):
        return
    if any(Path("/sys/bus/event_source/devices").glob(f"*/events/{re.sub(r'[^a-z0-9_.-]', '', plain)}")):
        return
    listed = (key(event.name) for each in (catalogue, architectural.CATALOGUE) for event in each.events)
    known = dict.fromkeys([*listed, *DEFAULT_KERNEL_EVENTS, *DEFAULT_GPU_EVENTS])
    raise catalogue.unknown("event", name, known)


# --- How it is counted -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CounterLayout:
    """Groups of events that are counted in turn, and the events that are derived from them."""

    groups: tuple[tuple[str, ...], ...]  # keys of events
    derived: tuple[str, ...]
    net: BayesNet  # by which they are derived
    audit: bool  # all events are counted, because identities have not been tested
    words: Mapping[str, str]  # perf's name of each event

    @property
    def in_words(self) -> list[list[str]]:
        """The groups in perf's names."""
        return [[self.words[event] for event in group] for group in self.groups]


def lay_out(
    model: Model,
    nodes: Sequence[str],
    stored: Sequence[Verdict] = (),
    *,
    counters: int | None = None,
    reserved: int = 0,
    audit: bool = False,
    pmu_device: str = "",
    spelled: Mapping[str, str] | None = None,
) -> CounterLayout:
    """The groups to count. Sums are derived only if all equalities between `nodes` were tested before (`stored`).

    `counters`: general counters of the core to use; None: those of the catalogue, without the `reserved` ones.
    `pmu_device`: the core's device in perf, "" to use the names of the catalogue; `spelled`: nodes for which perf needs
    other names.
    """
    names = {verdict.identity.name for verdict in stored}
    untested = [claim for claim in model.claims(nodes) if claim.relation == "=" and claim.name not in names]
    audit = audit or bool(untested)
    net = bayes_net.build(nodes, () if audit else accepted(stored))
    events = {node: described(model.catalogue, node) for node in nodes}
    offered = [node for node in nodes if (fixed := events[node].fixed) is not None and fixed < _FIRST_TOPDOWN_COUNTER]
    if instructions := _instructions(model.catalogue, nodes):
        events.setdefault(instructions, described(model.catalogue, instructions))
        offered = [instructions, *(node for node in offered if node != instructions)]
    groups: list[tuple[str, ...]] = []
    by_unit: dict[str, list[str]] = {}
    for node in net.free:
        by_unit.setdefault(events[node].unit, []).append(node)
    for unit, own in by_unit.items():
        pmu = model.catalogue.pmu(unit)
        if events[own[0]].core:
            pmu = replace(pmu, general=counters or max(1, pmu.general - reserved))
        anchors = [node for node in offered if events[node].unit == unit]
        # The kernel requires that slots lead the group of their parts.
        planned = plan(own, net, events, pmu, anchors=anchors).groups
        groups += (tuple(sorted(group, key=lambda node: node not in _SLOTS)) for group in planned)
    derived = tuple(node for node in nodes if node not in net.free)
    words = {node: _words(event, pmu_device) for node, event in events.items()}
    return CounterLayout(tuple(groups), derived, net, audit, words | dict(spelled or {}))


def described(catalogue: Catalogue, node: str) -> Event:
    """The event of a node. Events that only the kernel defines may use any counter, or the top-down register."""
    found = catalogue.resolve(node) or architectural.CATALOGUE.resolve(node)
    if found is None and node in (*_TOPDOWN, "slots"):
        return Event(node, fixed=3 if node == "slots" else _FIRST_TOPDOWN_COUNTER + _TOPDOWN.index(node))
    return replace(found, name=node) if found and key(found.name) == node else found or Event(node)


def _instructions(catalogue: Catalogue, nodes: Sequence[str]) -> str | None:
    """The event that counts instructions: a wanted one, or else the catalogue's."""
    names = sorted(bayes_net.INSTRUCTIONS)
    return next((n for n in nodes if n in names), None) or next((n for n in names if catalogue.find(n)), None)


def _words(event: Event, device: str) -> str:
    """An event in perf's syntax: by its code, with its own name, if a counter of the core counts it."""
    encoded = event.perf_terms and "type" not in dict(event.terms)
    name = event.name.replace(":", "_")  # perf allows no colons in names
    if not (device and encoded and event.core and _NAME.fullmatch(name)):
        return event.name
    modifiers = dict(event.terms).get("modifiers", "")
    unit = event.unit if event.unit.startswith("cpu_") else device
    return f"{unit}/{event.perf_terms},name={name}/{modifiers}"


def core_device(root: Path = Path("/")) -> str | None:
    """The kernel's name of the core's PMU ("" if it is not `cpu`); None if there is none, as in most guests."""
    devices = root / "sys/bus/event_source/devices"
    found = [path.name for path in sorted(devices.glob("*")) if path.name.startswith(("cpu", "arm", "apple"))]
    if not found and not any(_type(path) == "4" for path in devices.glob("*")):
        return None
    return "cpu" if "cpu" in found or "cpu_core" in found else ""


def _type(device: Path) -> str:
    try:
        return (device / "type").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
