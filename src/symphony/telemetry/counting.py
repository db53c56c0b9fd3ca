"""`symphony stat` without its command line: counts a command, processes or CPUs, or corrects a log of perf.

`count` and `replay` choose events and sources, run the inference, and pass spans, totals and notes to a `StatOutput`.
They print nothing themselves.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from symphony.problem.errors import InputError, SymphonyError
from symphony.telemetry import architectural, event_selection, machine, reading, verdicts
from symphony.telemetry.event_selection import CounterLayout, EventSelection
from symphony.telemetry.events import HYBRID_UNITS
from symphony.telemetry.expressions import key
from symphony.telemetry.gate import Verdict
from symphony.telemetry.naming import CommonScope, bare, kind
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.sample_feed import CommandLead, IdleLead, Lead, SampleFeed
from symphony.telemetry.samples import CounterSource, Problem, Sample
from symphony.telemetry.sources import KernelSource, NvmlSource, PerfSource, Replay, read_perf
from symphony.telemetry.spans import Span
from symphony.telemetry.stat import StatRun

if TYPE_CHECKING:
    from symphony.telemetry.interval_plots import IntervalPlots

SAMPLING_MS = 100
CPUS_AT_ONCE = 32  # CPUs whose counts can be inferred one by one within a window of SAMPLING_MS
MACHINE_PLACE = "machine"  # the place of the kernel's own counters
NO_PMU_NOTE = "this machine has no performance counters that can be reached (a virtual machine?)"
NO_PERF_NOTE = "perf is not installed (Debian: linux-perf; Ubuntu: linux-tools-generic)"
KERNEL_FIGURES_NOTE = "counters of the kernel and of GPUs are read instead"


@dataclass(frozen=True)
class StatRequest:
    """What to count and how to report it."""

    events: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # metrics, or groups of metrics
    counters: int | None = None  # general counters of the core to use; None: all that are free
    audit: bool = False  # count sums as well, to test identities
    explain: bool = False
    interval_ms: int | None = None

    @property
    def named(self) -> bool:
        """Whether events or metrics were named: then exactly these are reported, counted or not."""
        return bool(self.events or self.metrics)


@dataclass(frozen=True)
class StatTarget:
    """The command, processes or CPUs that are counted."""

    command: tuple[str, ...] = ()
    system_wide: bool = False
    cpus: str = ""  # "0-3,8"
    pids: tuple[int, ...] = ()
    per_cpu: bool = False

    @property
    def task(self) -> bool:
        """Whether a command or processes are counted, not CPUs."""
        return not self.system_wide and not self.cpus

    def __str__(self) -> str:
        if self.task:
            return f"'{' '.join(self.command)}'" if self.command else f"process {', '.join(map(str, self.pids))}"
        return f"CPUs {self.cpus}" if self.cpus else "all CPUs"


class StatOutput(Protocol):
    """Receives the results of a run."""

    wanted: EventSelection  # set before the first span: the events and metrics to report

    @property
    def wants_spans(self) -> bool:
        """Whether spans are used before the run ends."""

    @property
    def live(self) -> bool:
        """Whether results are served while they arrive: a log is then replayed at its own pace."""

    def note(self, text: str, kind: str = "note") -> None:
        """A remark beside the counts; `kind` is "note" or "warning"."""

    def problems(self, found: Sequence[Problem]) -> None:
        """What a source could not use."""

    def add_unsupported(self, names: Iterable[str]) -> None:
        """Events and metrics that this machine cannot count."""

    def spans(self, spans: Iterable[Span], several: bool) -> None:
        """The next intervals; `several`: there is more than one place."""

    def totals(
        self, spans: Collection[Span], title: str, empty: Span, elapsed_s: float | None = None, *, about: bool = False
    ) -> None:
        """The whole run, a span for each place; `empty` is a span in which nothing was counted.

        `elapsed_s`: the duration of the run if it differs from the spans'; `about`: the duration is not exact.
        """

    def explain(
        self,
        cpu: str,
        groups: Sequence[Sequence[str]],
        derived: Sequence[str],
        found: Sequence[Verdict],
        used: Container[str],
    ) -> None:
        """Events that were counted together, events derived from them, verdicts, and names of the identities used."""


def stat_model(cpu: str | None, constants: Iterable[str], *, core_wide: bool, here: bool) -> Model:
    """The model of a CPU. `constants` are like "num_cpus_online=8"; `here` or the constant "here": this machine's."""
    named = [constant for constant in constants if constant != "here"]
    here = here or len(named) < len(tuple(constants))
    platform = machine.platform(system_wide=core_wide) if here else machine.unknown_platform()
    return reading.model(cpu, platform=machine.with_constants(platform, named))


def new_plots(file: Path) -> IntervalPlots:
    """An empty plot of intervals; raises `InputError` if it could not be saved to the file."""
    from symphony.telemetry import interval_plots  # importing matplotlib takes a second

    interval_plots.check(file)
    return interval_plots.IntervalPlots()


# --- Counting ----------------------------------------------------------------------------------------------


def count(model: Model, request: StatRequest, target: StatTarget, output: StatOutput) -> int:
    """Count until the command ends, or until ctrl-C; returns the command's exit status."""
    if request.named:
        chosen = event_selection.select_events(model, request.events, request.metrics)
    else:
        model, chosen = event_selection.default_selection(model)
    device = event_selection.core_device()
    chosen, unsupported, kernel_instead = _countable(chosen, device, output, request.named)
    output.add_unsupported(unsupported)
    if chosen.nodes:
        _note_kinds_of_cores(model, output)
    output.wanted = chosen if request.named else _with_kernel(chosen)
    stored = _stored(model, chosen)
    layout = event_selection.lay_out(
        model,
        chosen.nodes,
        stored,
        counters=request.counters,
        reserved=_watchdog_counters(),
        audit=request.audit,
        pmu_device=device or "",
        spelled=chosen.spelled,
    )
    every, step_ms = _steps(request.interval_ms, target, output.live)
    feed = _feed(target, layout, chosen, step_ms, kernel_instead, output)
    if request.named:
        feed.reserve = []  # only named events are read
    names = {_printed(words): node for node, words in layout.words.items()}
    model = replace(model, common=CommonScope())  # requested modifiers distinguish events, whatever perf adds
    reader = Reader(model, stored, names)
    run = StatRun(lambda sample: reader, every)
    several = target.per_cpu or bool(feed.others)

    def take(sample: Sample) -> None:
        nonlocal unsupported
        unsupported |= getattr(feed.lead, "unsupported", frozenset())
        output.add_unsupported(unsupported)
        output.spans(run.update(sample), several)

    try:
        for sample in feed:
            take(sample)
    except KeyboardInterrupt:
        for sample in feed.rest():
            take(sample)
    output.spans(run.finish(), several)
    if not run.windows and not unsupported:
        output.note("the run ended before anything was counted")
    title = f"Counts of {target} ({model.catalogue.name}, {_windows(run)})"
    totals = list(run.totals.values())
    if isinstance(feed.lead, PerfSource) and not feed.lead_counted:
        totals.append(Span(reader, "", 0.0))  # perf printed nothing: its events are reported as not counted
    output.totals(totals, title, Span(reader, "", 0.0), feed.elapsed_s)
    # A program that sleeps is not counted: that is no problem.
    output.problems([p for source in feed.sources for p in source.problems if "was not counted" not in p.what])
    _conclude(model, run, request, output, layout.groups, layout.derived, keep=layout.audit)
    status = getattr(feed.lead, "exit_status", None) or 0
    return 128 - status if status < 0 else status


def _note_kinds_of_cores(model: Model, output: StatOutput) -> None:
    """Whose events names mean, on a CPU with two kinds of cores."""
    if len({event.unit for event in model.catalogue.events} & set(HYBRID_UNITS)) > 1:
        output.note(
            "this CPU has two kinds of cores: names of events and metrics mean those of cpu_core, "
            "and cpu_atom/NAME/ means an event of the others"
        )


def _stored(model: Model, chosen: EventSelection) -> tuple[Verdict, ...]:
    """Verdicts of earlier runs about the chosen events."""
    nodes = set(chosen.nodes)
    return tuple(one for one in verdicts.load(model.catalogue.name) if nodes.issuperset(one.identity.events))


def _windows(run: StatRun) -> str:
    return f"{run.windows} window{'' if run.windows == 1 else 's'}"


def _conclude(
    model: Model,
    run: StatRun,
    request: StatRequest,
    output: StatOutput,
    groups: Sequence[Sequence[str]],
    derived: Sequence[str],
    *,
    keep: bool,
) -> None:
    """Store the verdicts on identities (`keep`) and explain the counts, as requested."""
    found = verdicts.together([place.verdicts for place in run.places.values()])
    if keep:
        try:
            file = verdicts.store(model.catalogue.name, found, run.windows)
        except SymphonyError as error:
            output.note(str(error.message))
        else:
            if request.audit and file is None:
                output.note(f"no identity could be tested in {_windows(run)}: run it for longer")
            elif request.audit:
                accepted = sum(one.accepted for one in found)
                output.note(f"{accepted} of {len(found)} identities hold; the verdicts are stored in {file}")
    if request.explain:
        net = next((place.net for place in run.places.values() if place.net), None)
        used = {identity.name for identity in (*net.exact, *net.soft, *net.bounds)} if net else set()
        output.explain(model.catalogue.name, groups, derived, found, used)


def _countable(
    chosen: EventSelection, device: str | None, output: StatOutput, named: bool
) -> tuple[EventSelection, frozenset[str], bool]:
    """What this machine can count of a selection, what it cannot, and whether to read the kernel's counters instead."""
    perf = shutil.which("perf") is not None
    if (perf or not chosen.plain) and ((perf and device is not None) or not chosen.nodes):
        return chosen, frozenset(), not named and not chosen.nodes
    output.note(
        f"{NO_PMU_NOTE if perf else NO_PERF_NOTE}: hardware events are not counted"
        + ("" if named else f"; {KERNEL_FIGURES_NOTE}")
    )
    impossible = chosen.of("hardware") if perf else chosen.of("hardware", "software")
    unsupported = frozenset((*impossible, *chosen.metrics))
    plain = chosen.plain if perf else ()
    if named:
        return replace(chosen, nodes=(), plain=plain), unsupported, False
    return EventSelection(tuple(dict.fromkeys([*chosen.events, *plain])), plain=plain), unsupported, True


def _with_kernel(chosen: EventSelection) -> EventSelection:
    """With the default events of the kernel and of GPUs, which are shown if they are read after all."""
    more = [
        *(() if chosen.of("kernel") else event_selection.DEFAULT_KERNEL_EVENTS),
        *(() if chosen.of("gpu") else event_selection.DEFAULT_GPU_EVENTS),
    ]
    return replace(chosen, events=(*chosen.events, *more))


def _watchdog_counters() -> int:
    """General counters that the kernel's watchdog uses: 1 or 0."""
    try:
        return int(Path("/proc/sys/kernel/nmi_watchdog").read_text(encoding="ascii").strip() == "1")
    except (OSError, UnicodeDecodeError):
        return 0


def _steps(interval_ms: int | None, target: StatTarget, serving: bool) -> tuple[int, int]:
    """The number of windows in an interval, and their length in ms."""
    step = SAMPLING_MS * (math.ceil((os.cpu_count() or 1) / CPUS_AT_ONCE) if target.per_cpu else 1)
    if interval_ms is None:
        return (max(1, 1000 // step) if serving else 1), step
    windows = max(1, interval_ms // step)
    return windows, interval_ms // windows


def _printed(words: str) -> str:
    """The name under which perf prints an event."""
    _, _, name = words.partition("name=")
    return name.split("/")[0] if name else words


def _feed(
    target: StatTarget,
    layout: CounterLayout,
    chosen: EventSelection,
    step_ms: int,
    kernel_instead: bool,
    output: StatOutput,
) -> SampleFeed:
    """perf if it can count something; the kernel's and the GPUs' counters if it cannot, or if they were named."""
    where = {"pids": target.pids, "cpus": target.cpus, "system_wide": target.system_wide, "per_cpu": target.per_cpu}
    plain = [[event] for event in chosen.plain]
    leads: list[Lead] = []
    if shutil.which("perf"):
        for groups in ([*plain, *layout.in_words] if layout.groups else None, plain):
            if groups and (not leads or layout.groups):
                leads.append(PerfSource(groups, command=target.command, interval_ms=step_ms, **where))  # type: ignore[arg-type]
    feed = SampleFeed([*leads, CommandLead(target.command) if target.command else IdleLead()], note=output.note)
    pid = target.pids[0] if target.pids else None
    kernel = KernelSource(interval_s=step_ms / 1e3, pid=pid, sleep=feed.pause, where=MACHINE_PLACE)
    gpus = _gpus(feed, step_ms, output if chosen.of("gpu") else None)
    feed.others = [
        *([kernel] if kernel_instead or chosen.of("kernel") else []),
        *(gpus if kernel_instead or chosen.of("gpu") else []),
    ]
    feed.reserve = [source for source in (kernel, *gpus) if source not in feed.others]
    return feed


def _gpus(feed: SampleFeed, step_ms: int, output: StatOutput | None) -> list[CounterSource]:
    """NVIDIA's GPUs; if there are none, a note says so to an `output`."""
    try:
        return [NvmlSource(interval_s=max(0.1, step_ms / 1e3), sleep=feed.pause_whole)]
    except SymphonyError as error:
        if output is not None:
            output.note(f"{error.message}: GPUs are not counted" + (f"; {error.hint}" if error.hint else ""))
        return []


# --- Replaying a log ---------------------------------------------------------------------------------------


def replay(model: Model, request: StatRequest, file: Path, output: StatOutput) -> None:
    """Infer counts from a log of `perf stat`."""
    log = read_perf(file)
    output.problems(log.problems)
    output.add_unsupported(log.unsupported)
    names = list(dict.fromkeys(column.event for recording in log.values() for column in recording.columns))
    fits = _fits(model, names, output)
    _note_kinds_of_cores(model, output)
    model = model.among(names)
    output.wanted = chosen = _in_log(model, request, names, file)
    reader = Reader(model, _stored(model, chosen))
    length_s = min(float(np.median(recording.duration_s)) for recording in log.values())
    every = max(1, round(request.interval_ms / 1e3 / length_s)) if request.interval_ms else 1
    run = StatRun(lambda sample: reader, every)
    several = len(log) > 1
    if output.live and all(len(recording) == 1 for recording in log.values()):
        raise InputError(
            "--prometheus serves a log at its own pace, and this one has one window", hint="record it with -I 1000"
        )
    if output.live:
        for sample in Replay(log, pace=1.0).samples():
            output.spans(run.update(sample), several)
        output.spans(run.finish(), several)
    else:
        spans = [span for place in log.values() for span in run.replay(place) if output.wants_spans]
        output.spans(sorted([*spans, *run.finish()], key=lambda span: span.end_s), several)
    _note_constants(model, chosen.metrics, output)
    name = "standard input" if str(file) == "-" else file.name
    title = f"Counts of {name} ({model.catalogue.name}, {_windows(run)})"
    output.totals(run.totals.values(), title, Span(reader, "", 0.0), about=not log.timed)
    columns = [column for column in next(iter(log.values())).columns if kind(column.event) == "hardware"]
    groups = [[c.event for c in columns if c.group == number] for number in dict.fromkeys(c.group for c in columns)]
    _conclude(model, run, request, output, groups, (), keep=request.audit and fits)


def _fits(model: Model, names: Sequence[str], output: StatOutput) -> bool:
    """Whether the catalogue has most events of a log, those aside that every CPU has."""
    own = {key(bare(name)) for name in names if kind(name) == "hardware"}
    own = {name for name in own if "/" not in name and architectural.CATALOGUE.resolve(name) is None}
    known = sum(model.catalogue.resolve(name) is not None for name in own)
    if 2 * known >= len(own):
        return True
    output.note(
        f"{known} of {len(own)} events are in {model.catalogue.name}: name the CPU that was counted, --cpu NAME",
        "warning",
    )
    return False


def _note_constants(model: Model, metrics: Sequence[str], output: StatOutput) -> None:
    """Which constants metrics lack: a log does not name its machine."""
    texts = [model.catalogue.metric(metric).expression.lower() for metric in metrics]
    named = {name for text in texts for name in re.findall(r"#\w+", text)}
    if unknown := sorted(name for name in named if math.isnan(model.platform.constant(name))):
        output.note(
            f"some metrics need {', '.join(unknown)} of the machine that was counted: "
            f"--constant {unknown[0].removeprefix('#')}=…, or --constant here if it is this one"
        )


def _in_log(model: Model, request: StatRequest, names: Sequence[str], file: Path) -> EventSelection:
    """The requested events of a log; by default all, with those default metrics whose events it has."""
    keys = {model.node(name): name for name in names}
    events = []
    for event in request.events:
        if model.node(event) not in keys:
            raise InputError(f"{event} is not in the log", where=str(file), hint=f"it has {', '.join(names[:8])}")
        events.append(keys[model.node(event)])
    metrics: tuple[str, ...] = ()
    if request.metrics:
        metrics = event_selection.expand(model.catalogue, request.metrics)
    elif not request.events:
        _, default = event_selection.default_selection(model)
        metrics = tuple(metric for metric in default.metrics if _log_has_metric(model, metric, keys))
        events = list(names)
    return EventSelection(tuple(dict.fromkeys(events)), metrics, tuple(keys))


def _log_has_metric(model: Model, metric: str, keys: Container[str]) -> bool:
    if key(metric) not in model.catalogue.definitions():
        return False
    needed = model.catalogue.needed([metric], platform=model.platform)
    return all(event in keys for event in needed if event not in event_selection.TIME_EVENTS)
