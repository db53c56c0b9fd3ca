"""`symphony stat`: what `perf stat` counts, with error bars, from few counters or from a log."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated

import numpy as np
import typer

from symphony.cli import prometheus
from symphony.cli.stat_lines import Lines
from symphony.cli.stat_outputs import MACHINE_PLACE, StatOutputs
from symphony.problem.errors import InputError, SymphonyError
from symphony.telemetry import architectural, event_selection, machine, reading, verdicts
from symphony.telemetry.event_selection import CounterLayout, EventSelection
from symphony.telemetry.expressions import key
from symphony.telemetry.naming import CommonScope, bare, kind
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.sample_feed import CommandLead, IdleLead, Lead, SampleFeed
from symphony.telemetry.samples import CounterSource, Sample
from symphony.telemetry.sources import KernelSource, NvmlSource, PerfSource, Replay, read_perf
from symphony.telemetry.stat import StatRun

SAMPLING_MS = 100
CPUS_AT_ONCE = 32  # that can be inferred in a tenth of a second, one by one
SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
NO_PMU_NOTE = "this machine has no performance counters that can be reached (a virtual machine?)"
NO_PERF_NOTE = "perf is not installed (Debian: linux-perf; Ubuntu: linux-tools-generic)"
KERNEL_FIGURES_NOTE = "what the kernel and the GPUs tell is counted instead"


def stat(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="StatRun a command and count it.")
    ] = None,
    *,
    events: Annotated[
        list[str] | None,
        typer.Option("-e", "--event", metavar="EVENTS", help="Events, with commas; {…} is accepted. Repeatable."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("-M", "--metrics", metavar="METRICS", help="Metrics, or groups of them, with commas. Repeatable."),
    ] = None,
    interval: Annotated[
        int | None,
        typer.Option(
            "-I",
            "--interval-print",
            metavar="MS",
            min=1,
            help="Print every so many milliseconds. An estimate is printed two windows (of at most 100 ms) late, when "
            "what followed has been taken into account; the last ones at the end.",
        ),
    ] = None,
    system_wide: Annotated[bool, typer.Option("-a", "--all-cpus", help="Count all CPUs.")] = False,
    cpus: Annotated[str, typer.Option("-C", "--cpu-list", metavar="CPUS", help="Count these CPUs: 0-3,8.")] = "",
    pids: Annotated[str, typer.Option("-p", "--pid", metavar="PID", help="Count these processes, with commas.")] = "",
    per_cpu: Annotated[bool, typer.Option("-A", "--no-aggr", help="Tell CPUs apart (with -a or -C).")] = False,
    as_json: Annotated[bool, typer.Option("-j", "--json", help="A JSON object on each line.")] = False,
    separator: Annotated[
        str | None, typer.Option("-x", "--field-separator", metavar="SEP", help="Fields with this between them.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write there, not to standard error (--replay: output)."),
    ] = None,
    cpu: Annotated[
        str | None, typer.Option("--cpu", metavar="NAME", help="The catalogue; by default that of this machine's CPU.")
    ] = None,
    counters: Annotated[
        int | None, typer.Option("--counters", metavar="N", min=1, help="Use so many of the core's general counters.")
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Count sums, too, to see which identities hold here, and remember it.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what was counted together, what is derived, and by which identities.")
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="FILE",
            help="Correct what `perf stat -I … -j` or `-x` wrote (-: standard input); needs no perf.",
        ),
    ] = None,
    constants: Annotated[
        list[str] | None,
        typer.Option(
            "--constant",
            metavar="NAME=VALUE",
            help="A constant of metrics, such as num_cpus_online=8. --replay knows none but these; `here`: all of this "
            "machine's. Repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw means and 95% bands over time (.svg, .png).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--prometheus", metavar="PORT", min=0, max=65535, help="Serve the newest on loopback; 0: any free port."
        ),
    ] = None,
) -> None:
    """Count events like `perf stat`, with 95% intervals.

    More events than the CPU has counters take turns, and are scaled up: that is wrong by tens of per cent where a
    program changes what it does. Here, counts are inferred from all readings together, with what is known about the
    CPU's events: what is a sum of others is not counted, and parts add up to their totals. Groups are chosen for that.
    """
    target = _Target(tuple(command or ()), system_wide, _cpus(cpus), _numbers(pids), per_cpu)
    _check(target, replay is not None)
    if replay and counters is not None:
        raise InputError("--counters beside --replay", hint="leave it out: a log has been counted already")
    if as_json and separator is not None:
        raise InputError("both -j and -x", hint="choose one of them")
    if plot:
        from symphony.telemetry import interval_plots  # matplotlib takes a second to import

        interval_plots.check(plot)
    given = [constant for constant in constants or () if constant != "here"]
    at_hand = replay is None or "here" in (constants or ())  # a log is of some machine
    platform = machine.platform(system_wide=system_wide or bool(cpus)) if at_hand else machine.unknown_platform()
    model = reading.model(cpu, platform=machine.with_constants(platform, given))
    asked = _Request(
        event_selection.split(events or ()), event_selection.split(metrics or ()), counters, audit, explain, interval
    )
    with ExitStack() as stack:
        lines = Lines(_open(output, stack, sys.stdout if replay else sys.stderr), as_json=as_json, separator=separator)
        teller = StatOutputs(lines, interval is not None, asked.anything)
        if plot:
            teller.bands = interval_plots.IntervalPlots()
        if port is not None:
            teller.page = prometheus.Page()
            lines.note(f"serving http://127.0.0.1:{stack.enter_context(prometheus.serve(teller.page, port))}/metrics")
        status = _replay(model, asked, replay, teller) if replay else _live(model, asked, target, teller)
        if plot and teller.bands is not None:
            teller.bands.figure().savefig(plot, dpi=150)
    raise typer.Exit(status)


def _open(output: Path | None, stack: ExitStack, otherwise: IO[str]) -> IO[str]:
    if output is None:
        return otherwise
    try:
        return stack.enter_context(output.open("w", encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"-o {output} cannot be written: {error.strerror or error}", hint="name a file in a folder that exists"
        ) from None


def _cpus(text: str) -> str:
    """A list of CPUs, all of which there are."""
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise InputError(f"-C {text!r} is no list of CPUs", hint="-C 0-3,8")
        last = int(found[2] or found[1])
        if not Path(f"/sys/devices/system/cpu/cpu{last}").exists() and last >= (os.cpu_count() or 1):
            raise InputError(f"there is no CPU {last}", hint="`lscpu -e` lists those that there are")
    return text


def _numbers(pids: str) -> tuple[int, ...]:
    words = [word.strip() for word in pids.split(",") if pids]
    for word in words:
        if not (word.isascii() and word.isdecimal()):
            raise InputError(f"-p {pids!r} are no process numbers", hint="-p 4711,4712")
        if not Path("/proc", word).exists():
            raise InputError(f"there is no process {word}", hint="`ps -e` lists the numbers of those that run")
    return tuple(map(int, words))


@dataclass(frozen=True)
class _Request:
    events: tuple[str, ...]
    metrics: tuple[str, ...]
    counters: int | None
    audit: bool
    explain: bool
    interval_ms: int | None

    @property
    def anything(self) -> bool:
        """Whether events or metrics were named: then these are told of, counted or not, and no others."""
        return bool(self.events or self.metrics)


@dataclass(frozen=True)
class _Target:
    """Who is counted."""

    command: tuple[str, ...]
    system_wide: bool
    cpus: str
    pids: tuple[int, ...]
    per_cpu: bool

    @property
    def task(self) -> bool:
        return not self.system_wide and not self.cpus

    def __str__(self) -> str:
        if self.task:
            return f"'{' '.join(self.command)}'" if self.command else f"process {', '.join(map(str, self.pids))}"
        return f"CPUs {self.cpus}" if self.cpus else "all CPUs"


def _check(target: _Target, replaying: bool) -> None:
    """Whether it is clear what to count."""
    if replaying:
        if target != _Target((), False, "", (), False):
            raise InputError("--replay counts nothing", hint="leave out the command, -a, -A, -C and -p")
        return
    if target.pids and (target.command or not target.task):
        raise InputError("-p beside a command, -a or -C", hint="choose one of them")
    if not (target.command or target.pids or not target.task):
        raise InputError("nothing to count", hint="symphony stat -- CMD, or -a for all CPUs, or -p PID")
    if target.per_cpu and target.task:
        raise InputError("-A tells CPUs apart, and none is counted", hint="add -a, or -C 0-3")
    if target.command and shutil.which(target.command[0]) is None:
        raise InputError(f"there is no command {target.command[0]!r}", hint="give its path, or install it")


# --- What is kept ------------------------------------------------------------------------------------------


def _windows(run: StatRun) -> str:
    return f"{run.windows} window{'' if run.windows == 1 else 's'}"


def _keep(model: Model, run: StatRun, lines: Lines, asked: _Request) -> None:
    """Remember what was found of identities."""
    found = verdicts.together([place.verdicts for place in run.places.values()])
    try:
        file = verdicts.store(model.catalogue.name, found, run.windows)
    except SymphonyError as error:
        lines.note(str(error.message))
        return
    if asked.audit and file is None:
        lines.note(f"no identity could be tested in {_windows(run)}: run it for longer")
    elif asked.audit:
        lines.note(f"{sum(one.accepted for one in found)} of {len(found)} identities hold; remembered in {file}")


# --- Live --------------------------------------------------------------------------------------------------


def _live(model: Model, asked: _Request, target: _Target, teller: StatOutputs) -> int:
    """Count until the command ends, or until ctrl-C."""
    if asked.anything:
        chosen = event_selection.select_events(model, asked.events, asked.metrics)
    else:
        model, chosen = event_selection.default_selection(model)
    device = event_selection.core_device()
    chosen, without = _countable(chosen, device, teller.lines, asked.anything)
    teller.wanted = chosen if asked.anything else _with_kernel(chosen)
    stored = tuple(v for v in verdicts.load(model.catalogue.name) if set(v.identity.events) <= set(chosen.nodes))
    layout = event_selection.lay_out(
        model,
        chosen.nodes,
        stored,
        counters=asked.counters or _free_counters(model),
        audit=asked.audit,
        pmu_device=device or "",
        spelled=chosen.spelled,
    )
    every, step_ms = _steps(asked.interval_ms, target, teller.page is not None)
    feed = _feed(target, layout, chosen, step_ms, without, teller.lines)
    if asked.anything:
        feed.reserve = []  # nobody asked for what the kernel tells
    names = {_printed(words): node for node, words in layout.words.items()}
    model = replace(model, common=CommonScope())  # what was asked for is told apart, whatever perf adds
    reader = Reader(model, stored, names)
    run = StatRun(lambda sample: reader, every)
    several = target.per_cpu or bool(feed.others)

    def take(sample: Sample) -> None:
        teller.lines.unsupported |= getattr(feed.lead, "unsupported", frozenset())
        teller.spans(run.update(sample), several)

    try:
        for sample in feed:
            take(sample)
    except KeyboardInterrupt:
        for sample in feed.rest():
            take(sample)
    teller.spans(run.finish(), several)
    if not run.windows and not teller.lines.unsupported:
        teller.lines.note("it ended before anything was counted")
    elapsed_s = getattr(feed.lead, "elapsed_s", None)
    teller.totals(run, f"Counts of {target} ({model.catalogue.name}, {_windows(run)})", reader, elapsed_s)
    # A program that sleeps is not counted, and that is as it should be.
    teller.lines.problems([p for source in feed.sources for p in source.problems if "was not counted" not in p.what])
    if layout.audit:
        _keep(model, run, teller.lines, asked)
    if asked.explain:
        teller.explain(model, run, layout.groups, layout.derived)
    status = getattr(feed.lead, "exit_status", None) or 0
    return 128 - status if status < 0 else status


def _countable(chosen: EventSelection, device: str | None, lines: Lines, asked: bool) -> tuple[EventSelection, bool]:
    """What this machine can count of it, and whether the kernel has to tell something because nothing was asked for."""
    perf = shutil.which("perf") is not None
    if (perf or not chosen.plain) and ((perf and device is not None) or not chosen.nodes):
        return chosen, not asked and not chosen.nodes
    lines.note(
        f"{NO_PMU_NOTE if perf else NO_PERF_NOTE}: hardware events are not counted"
        + ("" if asked else f"; {KERNEL_FIGURES_NOTE}")
    )
    impossible = chosen.of("hardware") if perf else chosen.of("hardware", "software")
    lines.unsupported = frozenset((*impossible, *chosen.metrics))
    plain = chosen.plain if perf else ()
    if asked:
        return replace(chosen, nodes=(), plain=plain), False
    return EventSelection(tuple(dict.fromkeys([*chosen.events, *plain])), plain=plain), True


def _with_kernel(chosen: EventSelection) -> EventSelection:
    """With the kernel's and the GPUs' events of interest: where they are counted after all, they are shown."""
    more = [
        *(() if chosen.of("kernel") else event_selection.DEFAULT_KERNEL_EVENTS),
        *(() if chosen.of("gpu") else event_selection.DEFAULT_GPU_EVENTS),
    ]
    return replace(chosen, events=(*chosen.events, *more))


def _free_counters(model: Model) -> int:
    """The core's general counters, less the one that the kernel's watchdog may hold."""
    try:
        watchdog = Path("/proc/sys/kernel/nmi_watchdog").read_text(encoding="ascii").strip() == "1"
    except (OSError, UnicodeDecodeError):
        watchdog = False
    return max(1, model.catalogue.pmu().general - watchdog)


def _steps(interval_ms: int | None, target: _Target, serving: bool) -> tuple[int, int]:
    """How many windows to an interval, and how long they are in ms."""
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
    target: _Target, layout: CounterLayout, chosen: EventSelection, step_ms: int, without: bool, lines: Lines
) -> SampleFeed:
    """The sources: perf if it can count something, and what the kernel and the GPUs tell if it cannot, or if asked."""
    where = {"pids": target.pids, "cpus": target.cpus, "system_wide": target.system_wide, "per_cpu": target.per_cpu}
    plain = [[event] for event in chosen.plain]
    leads: list[Lead] = []
    if shutil.which("perf"):
        for groups in ([*plain, *layout.in_words] if layout.groups else None, plain):
            if groups and (not leads or layout.groups):
                leads.append(PerfSource(groups, command=target.command, interval_ms=step_ms, **where))  # type: ignore[arg-type]
    feed = SampleFeed([*leads, CommandLead(target.command) if target.command else IdleLead()], note=lines.note)
    pid = target.pids[0] if target.pids else None
    kernel = KernelSource(interval_s=step_ms / 1e3, pid=pid, sleep=feed.pause, where=MACHINE_PLACE)
    gpus = [gpu for gpu in (_gpus(feed, step_ms, lines if chosen.of("gpu") else None),) if gpu]
    feed.others = [
        *([kernel] if without or chosen.of("kernel") else []),
        *(gpus if without or chosen.of("gpu") else []),
    ]
    feed.reserve = [source for source in (kernel, *gpus) if source not in feed.others]
    return feed


def _gpus(feed: SampleFeed, step_ms: int, lines: Lines | None) -> CounterSource | None:
    """NVIDIA's GPUs, if there are any; only who asked for them is told that there are none."""
    try:
        return NvmlSource(interval_s=max(0.1, step_ms / 1e3), sleep=feed.pause_whole)
    except SymphonyError as error:
        if lines is not None:
            lines.note(f"{error.message}: GPUs are not counted" + (f"; {error.hint}" if error.hint else ""))
        return None


# --- Replay ------------------------------------------------------------------------------------------------


def _replay(model: Model, asked: _Request, file: Path, teller: StatOutputs) -> int:
    """Correct a log."""
    log = read_perf(file)
    teller.lines.problems(log.problems)
    teller.lines.unsupported = log.unsupported
    names = list(dict.fromkeys(column.event for recording in log.values() for column in recording.columns))
    fits = _fits(model, names, teller.lines)
    model = model.among(names)
    teller.wanted = chosen = _in_log(model, asked, names, file)
    stored = tuple(v for v in verdicts.load(model.catalogue.name) if set(v.identity.events) <= set(chosen.nodes))
    reader = Reader(model, stored)
    length_s = min(float(np.median(recording.duration_s)) for recording in log.values())
    every = max(1, round(asked.interval_ms / 1e3 / length_s)) if asked.interval_ms else 1
    run = StatRun(lambda sample: reader, every)
    several = len(log) > 1
    if teller.page is not None and all(len(recording) == 1 for recording in log.values()):
        raise InputError(
            "--prometheus serves a log at its own pace, and this one has one window", hint="record it with -I 1000"
        )
    if teller.page is not None:  # at its own pace, for whoever looks
        for sample in Replay(log, pace=1.0).samples():
            teller.spans(run.update(sample), several)
        teller.spans(run.finish(), several)
    else:
        spans = [span for place in log.values() for span in run.replay(place) if teller.wants_spans]
        teller.spans(sorted([*spans, *run.finish()], key=lambda span: span.end_s), several)
    _note_constants(model, chosen.metrics, teller.lines)
    name = "standard input" if str(file) == "-" else file.name
    title = f"Counts of {name} ({model.catalogue.name}, {_windows(run)})"
    teller.totals(run, title, reader, about=not log.timed)
    if asked.audit and fits:
        _keep(model, run, teller.lines, asked)
    if asked.explain:
        columns = [column for column in next(iter(log.values())).columns if kind(column.event) == "hardware"]
        groups = [[c.event for c in columns if c.group == number] for number in dict.fromkeys(c.group for c in columns)]
        teller.explain(model, run, groups, ())
    return 0


def _fits(model: Model, names: Sequence[str], lines: Lines) -> bool:
    """Whether the log can be of the catalogue's CPU: that has most of those events that not every CPU has."""
    own = {key(bare(name)) for name in names if kind(name) == "hardware"}
    own = {name for name in own if "/" not in name and architectural.CATALOGUE.resolve(name) is None}
    known = sum(model.catalogue.resolve(name) is not None for name in own)
    if 2 * known >= len(own):
        return True
    lines.note(
        f"{known} of {len(own)} events are in {model.catalogue.name}: name the CPU that was counted, --cpu NAME",
        "warning",
    )
    return False


def _note_constants(model: Model, metrics: Sequence[str], lines: Lines) -> None:
    """Which constants metrics lack: a log does not say of which machine it is."""
    texts = [model.catalogue.metric(metric).expression.lower() for metric in metrics]
    named = {name for text in texts for name in re.findall(r"#\w+", text)}
    if unknown := sorted(name for name in named if math.isnan(model.platform.constant(name))):
        lines.note(
            f"some metrics need {', '.join(unknown)} of the machine that was counted: "
            f"--constant {unknown[0].removeprefix('#')}=…, or --constant here if it is this one"
        )


def _in_log(model: Model, asked: _Request, names: Sequence[str], file: Path) -> EventSelection:
    """What a log has of what was asked for; by default all of it, and the usual metrics if it has their events."""
    keys = {model.node(name): name for name in names}
    events = []
    for event in asked.events:
        if model.node(event) not in keys:
            raise InputError(f"{event} is not in the log", where=str(file), hint=f"it has {', '.join(names[:8])}")
        events.append(keys[model.node(event)])
    if asked.metrics:
        metrics = event_selection.expand(model.catalogue, asked.metrics)
    else:
        _, usual = event_selection.default_selection(model)
        metrics = tuple(m for m in usual.metrics if _log_has_metric(model, m, keys)) if not asked.events else ()
    if not asked.events and not asked.metrics:
        events = list(names)
    return EventSelection(tuple(dict.fromkeys(events)), metrics, tuple(keys))


def _log_has_metric(model: Model, metric: str, keys: Container[str]) -> bool:
    """Whether a log has what a metric needs."""
    if key(metric) not in model.catalogue.definitions():
        return False
    needed = model.catalogue.needed([metric], platform=model.platform)
    return all(event in keys for event in needed if event not in event_selection.TIME_EVENTS)
