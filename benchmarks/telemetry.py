"""Errors of multiplexed counters, and their reduction by inference: `python -m benchmarks.telemetry [--quick] …`.

True counts are known for slices of 4 ms (Linux's turn of a group) and read as by Linux. Every method has the same
counters and the same time:

* Linux scaling: all wanted events in turn, count × enabled / running;
* by instructions: the same, scaled by the window's instructions over those counted with the group;
* cleaner: Linux scaling, then outliers replaced and gaps filled from neighbours, after CounterMiner;
* basis only: sums of other events are added up instead of counted, with Linux scaling for the rest;
* ours without identities, and ours.

An error is |estimate − truth| over the truth, or over 5% of the event's mean if that is more. Instructions have a
counter of their own and are not scored. Whole runs are scored, too, where systematic errors of windows add up.

Unfair to us: real counters have errors that are not simulated. Unfair to Linux scaling: wanted events include sums of
others, as in vendors' metrics, which it does not exploit. Traces of real programs have no clock; a dump is stretched to
8 ms (in the sweep, also to 4 and 16).
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import arguments, keep
from symphony.telemetry import bayes_net, gate, posterior
from symphony.telemetry.architectural import CATALOGUE
from symphony.telemetry.estimates import Posterior
from symphony.telemetry.events import Event, Pmu
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import infer
from symphony.telemetry.planning import plan
from symphony.telemetry.reading import Model
from symphony.telemetry.samples import Floats, Recording, record
from tests.compiling import compile_quickly
from tests.telemetry.simulated import SimulatedSource, phases

PROGRAMS = ("python", "xz", "sort")
RAW = ("ir", "dr", "dw", "i1mr", "d1mr", "d1mw", "ilmr", "dlmr", "dlmw", "bc", "bcm", "bi", "bim")  # callgrind's
SUMS = {  # totals as in a CPU's listing, each a sum of parts
    "d1mr": ("llhr", "dlmr"),
    "d1mw": ("llhw", "dlmw"),
    "i1mr": ("llhi", "ilmr"),
    "dr": ("drh", "d1mr"),
    "dw": ("dwh", "d1mw"),
    "bc": ("bch", "bcm"),
    "bi": ("bih", "bim"),
    "d": ("dr", "dw"),
    "d1m": ("d1mr", "d1mw"),
    "dlm": ("dlmr", "dlmw"),
    "l1m": ("i1mr", "d1m"),
    "llm": ("ilmr", "dlm"),
    "llh": ("llhr", "llhw", "llhi"),
    "b": ("bc", "bi"),
    "bm": ("bcm", "bim"),
}
WINDOW, SLICE_S = 25, 0.004
FLOOR = 0.05  # of an event's mean: least denominator of a relative error


@dataclass(frozen=True, eq=False)
class Case:
    """True counts of a program, and the identities between them."""

    name: str
    events: tuple[str, ...]  # the first is the instructions, which have a counter of their own
    truth: Floats  # [T, E]
    identities: tuple[Identity, ...]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The events to be estimated."""
        return self.events[1:]


def summed(total: str, parts: Sequence[str]) -> Identity:
    """total = part + part + …"""
    terms = ((total, 1.0), *((part, -1.0) for part in parts))
    return Identity(f"{total} = {' + '.join(parts)}", terms, source="umask union", tolerance=1e-3)


def synthetic(seed: int, events: int = 40, windows: int = 100) -> Case:
    """A synthetic program, with phases that change while groups take turns."""
    names, truth, sums = phases(events, windows * WINDOW, seed=seed)
    return Case(f"phases {seed}", names, truth, tuple(summed(total, parts) for total, *parts in sums))


def program(name: str, slices_per_dump: float = 2.0) -> Case | None:
    """Exact counts of a real program, resampled to equal times; None without a trace."""
    folder = Path(os.environ.get("SYMPHONY_DATA", "../shared/data")) / "pmu-events" / "traces"
    if not (file := folder / f"{name}.csv.gz").exists():
        return None
    with gzip.open(file, "rt") as lines:
        dumps = np.loadtxt(lines, delimiter=",", skiprows=1)
    column = dict(zip(RAW, dumps.T, strict=True))
    first, last = (sum(column[f"{kind}m{way}"] for kind, way in kinds) for kinds in (_kinds("1"), _kinds("l")))
    cycles = 0.4 * column["ir"] + 12 * (column["bcm"] + column["bim"]) + 10 * first + 100 * last
    clock = np.concatenate([[0.0], np.cumsum(cycles)])
    grid = np.linspace(0, clock[-1], int(len(dumps) * slices_per_dump) + 1)
    counts = {
        event: np.diff(np.interp(grid, clock, np.concatenate([[0.0], np.cumsum(values)])))
        for event, values in column.items()
    }
    for total, parts in SUMS.items():
        if total in counts:  # and one part: what is left is hits
            (rest,) = (part for part in parts if part not in counts)
            counts[rest] = counts[total] - sum(counts[part] for part in parts if part in counts)
        else:
            counts[total] = sum(counts[part] for part in parts)
    identities = tuple(summed(total, parts) for total, parts in SUMS.items())
    return Case(name, tuple(counts), np.stack(list(counts.values()), axis=1), identities)


def all_programs(slices_per_dump: float = 2.0) -> list[Case]:
    """All programs with traces."""
    return [case for name in PROGRAMS if (case := program(name, slices_per_dump))]


def _kinds(level: str) -> tuple[tuple[str, str], ...]:
    return ((f"i{level}", "r"), (f"d{level}", "r"), (f"d{level}", "w"))


# --- Methods -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Result:
    """Estimates of a method for every window and wanted event [K, E]."""

    estimate: Floats
    lower: Floats | None = None
    upper: Floats | None = None
    groups: int = 0
    verdicts: tuple[gate.Verdict, ...] = ()
    totals: Floats | None = None  # [3, E]: mean, lower and upper of the whole run's; None: the sum of windows'


def read(case: Case, groups: Sequence[Sequence[str]], **errors: Any) -> Recording:
    """Linux's readings when groups take turns."""
    source = SimulatedSource(case.events, case.truth, tuple(map(tuple, groups)), WINDOW, SLICE_S, **errors)
    return record(source.samples())[""]


def in_turn(case: Case, events: Sequence[str], counters: int) -> list[tuple[str, ...]]:
    """Groups of as many events as there are counters, in order; instructions have a counter of their own."""
    return [(case.events[0], *events[at : at + counters]) for at in range(0, len(events), counters)]


def scaled(recording: Recording, by: str | None = None) -> dict[str, Floats]:
    """Counts scaled up by time, or by the count of an event in every group."""
    counts = recording.scaled
    found = {column.event: counts[:, c] for c, column in enumerate(recording.columns)}
    if by is None:
        return found
    group = {column.group: counts[:, c] for c, column in enumerate(recording.columns) if column.event == by}
    total = np.nansum([recording.count[:, c] for c, x in enumerate(recording.columns) if x.event == by], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            column.event: np.where(group[column.group] > 0, counts[:, c] / group[column.group] * total, counts[:, c])
            for c, column in enumerate(recording.columns)
        }


def ordered(case: Case, counts: Mapping[str, Floats]) -> Floats:
    """Wanted events side by side; a window without a reading has the value of the previous one."""
    found = np.stack([counts[event] for event in case.wanted], axis=1)
    for k in range(len(found)):
        found[k] = np.where(np.isfinite(found[k]), found[k], found[k - 1] if k else 0.0)
    return found


def linux(case: Case, counters: int, **errors: Any) -> Result:
    """count × enabled / running."""
    groups = in_turn(case, case.wanted, counters)
    return Result(ordered(case, scaled(read(case, groups, **errors))), groups=len(groups))


def by_instructions(case: Case, counters: int, **errors: Any) -> Result:
    """count × instructions of the window / instructions of the group."""
    groups = in_turn(case, case.wanted, counters)
    return Result(ordered(case, scaled(read(case, groups, **errors), case.events[0])), groups=len(groups))


def cleaner(case: Case, counters: int, **errors: Any) -> Result:
    """Linux scaling, outliers replaced by the median about them, gaps by the five nearest in time."""
    groups = in_turn(case, case.wanted, counters)
    series = np.stack([scaled(read(case, groups, **errors))[event] for event in case.wanted], axis=1)
    for values in series.T:
        known = np.isfinite(values) & (values > 0)
        for k in np.flatnonzero(~known & np.isnan(values)):
            near = np.argsort(np.abs(np.flatnonzero(known) - k))[:5]
            values[k] = values[np.flatnonzero(known)[near]].mean() if known.any() else 0.0
        centre, spread = np.mean(values), np.std(values)
        wide = np.quantile(np.abs(values - centre), 0.99) / max(spread, 1e-30)
        for k in np.flatnonzero(np.abs(values - centre) > wide * spread):
            values[k] = np.median(values[max(0, k - 5) : k + 6])
    return Result(series, groups=len(groups))


def audit(case: Case, counters: int, claims: Sequence[Identity], **errors: Any) -> tuple[gate.Verdict, ...]:
    """A run that counts all events, to test identities."""
    return gate.check_identities(claims, read(case, in_turn(case, case.wanted, counters), **errors))


def counted(case: Case, counters: int, identities: Sequence[Identity], repeats: int) -> list[tuple[str, ...]]:
    """Groups of the events to count if some identities hold."""
    net = bayes_net.build(case.events, identities)
    events = {name: Event(name, fixed=0 if name == case.events[0] else None) for name in case.events}
    made = plan(case.wanted, net, events, Pmu("", counters, 1), anchors=case.events[:1], repeats=repeats)
    return list(made.groups)


def basis_only(case: Case, counters: int, **errors: Any) -> Result:
    """Linux scaling of free events; the others added up."""
    holding = gate.accepted(audit(case, counters, case.identities, **errors))
    net = bayes_net.build(case.events, holding)
    groups = counted(case, counters, holding, repeats=1)
    found = scaled(read(case, groups, first=1, **errors))
    free = np.stack([found.get(event, np.zeros(1)) for event in net.free if event in found], axis=1)
    rows = np.stack([net.row(event)[[net.free.index(e) for e in net.free if e in found]] for event in case.wanted])
    return Result(ordered(case, dict(zip(case.wanted, (free @ rows.T).T, strict=True))), groups=len(groups))


def ours(case: Case, counters: int, claims: Sequence[Identity] | None = None, **errors: Any) -> Result:
    """The posterior, with identities tested in an earlier run."""
    claims = case.identities if claims is None else claims
    verdicts = audit(case, counters, claims, **errors)
    groups = counted(case, counters, gate.accepted(verdicts), repeats=2)
    model = Model(CATALOGUE, identities=tuple(claims))
    found = infer(model, read(case, groups, first=1, **errors), trusted=verdicts)
    return intervals(case, found, len(groups) // 2, verdicts)


def without_identities(case: Case, counters: int, **errors: Any) -> Result:
    """The posterior without identities."""
    return ours(case, counters, claims=(), **errors)


def of_a_log(case: Case, counters: int, **errors: Any) -> Result:
    """The posterior from the readings of Linux scaling: no event is counted twice, no identity is known."""
    groups = in_turn(case, case.wanted, counters)
    found = infer(Model(CATALOGUE, identities=()), read(case, groups, **errors))
    return intervals(case, found, len(groups), ())


def intervals(case: Case, found: Posterior, groups: int, verdicts: tuple[gate.Verdict, ...]) -> Result:
    """Means and 95% intervals of the wanted events."""
    each = [found[event] for event in case.wanted]
    mean, lower, upper = (np.stack([getattr(e, what) for e in each], axis=1) for what in ("mean", "lower", "upper"))
    whole = [found.total(event) for event in case.wanted]
    totals = np.array([[getattr(e, what)[0] for e in whole] for what in ("mean", "lower", "upper")])
    return Result(mean, lower, upper, groups, verdicts, totals)


METHODS: dict[str, Callable[..., Result]] = {
    "Linux scaling": linux,
    "by instructions": by_instructions,
    "cleaner": cleaner,
    "basis only": basis_only,
    "ours without identities": without_identities,
    "ours": ours,
}


def score(case: Case, result: Result) -> dict[str, float]:
    windows = len(case.truth) // WINDOW
    truth = case.truth[: windows * WINDOW].reshape(windows, WINDOW, -1).sum(axis=1)[:, 1:]
    size = np.maximum(np.maximum(truth, FLOOR * truth.mean(axis=0)), 1.0)
    error = np.abs(result.estimate - truth) / size
    found = {"mean": float(error.mean()), "median": float(np.median(error)), "groups": float(result.groups)}
    if result.lower is not None and result.upper is not None:
        inside = (truth >= result.lower - 0.5) & (truth <= result.upper + 0.5)
        found["cover"] = float(inside.mean())
        found["width"] = float(np.median((result.upper - result.lower) / 2 / size))
    whole = truth.sum(axis=0)
    total = result.estimate.sum(axis=0) if result.totals is None else result.totals[0]
    off = total / np.maximum(whole, 1.0) - 1
    found |= {"total": float(np.abs(off).mean()), "total median": float(np.median(np.abs(off)))}
    found["total bias"] = float(off.mean())
    if result.totals is not None:
        inside = (whole >= result.totals[1] - 0.5) & (whole <= result.totals[2] + 0.5)
        found["total cover"] = float(inside.mean())
    return found


# --- Sections ----------------------------------------------------------------------------------------------

Figures = list[dict[str, Any]]


def compared(
    cases: Sequence[Case], counters: int, methods: Mapping[str, Callable[..., Result]] | None = None
) -> Figures:
    """Evaluate every method on every case."""
    found = []
    for case in cases:
        for name, method in (methods or METHODS).items():
            found.append(
                {"case": case.name, "counters": counters, "method": name, **score(case, method(case, counters))}
            )
    return found


def shown(console: Console, title: str, figures: Figures) -> None:
    """Means over cases, and their ratio to Linux scaling's."""
    table = Table(
        "method",
        "counters",
        "mean error",
        "of Linux's",
        "median error",
        "of Linux's",
        "groups",
        "in 95%",
        "±",
        "of totals",
        "median",
        "in 95%",
    )
    table.title = title
    for counters in dict.fromkeys(figure["counters"] for figure in figures):
        rows = [figure for figure in figures if figure["counters"] == counters]

        def average(method: str, what: str, rows: Figures = rows) -> float:
            values = [row[what] for row in rows if row["method"] == method and what in row]
            return float(np.mean(values)) if values else np.nan

        for method in dict.fromkeys(row["method"] for row in rows):
            mean, median = average(method, "mean"), average(method, "median")
            table.add_row(
                method,
                str(counters),
                f"{mean:.1%}",
                f"{mean / average('Linux scaling', 'mean'):.2f}",
                f"{median:.2%}",
                f"{median / average('Linux scaling', 'median'):.2f}",
                f"{average(method, 'groups'):.1f}",
                _or_blank(average(method, "cover"), ".1%"),
                _or_blank(average(method, "width"), ".1%"),
                f"{average(method, 'total'):.2%}",
                f"{average(method, 'total median'):.2%}",
                _or_blank(average(method, "total cover"), ".1%"),
            )
    console.print(table)


def _or_blank(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)


def corrupted(seeds: Sequence[int], counters: int) -> Figures:
    """Falsify two identities: whether they are rejected, and the cost."""
    found = []
    for seed in seeds:
        case = synthetic(seed)
        rng = np.random.default_rng(seed)
        bad = set(rng.choice(len(case.identities), 2, replace=False).tolist())
        claims = []
        for number, identity in enumerate(case.identities):
            (total, one), *parts = identity.terms
            # One part counts half more, or is replaced by an event of another family.
            if number in bad and number % 2:
                parts[0] = (parts[0][0], -1.5)
            elif number in bad:
                parts[0] = (case.identities[number - 1].terms[1][0], -1.0)
            claims.append(replace(identity, terms=((total, one), *parts), source="curated: corrupted"))
        result = ours(case, counters, claims)
        named = {verdict.identity.name for verdict in result.verdicts if not verdict.accepted}
        wrong = {claims[number].name for number in bad}
        blind = [gate.Verdict(claim, True, 0.0, 0.0, 0.0, "not tested") for claim in claims]
        groups = counted(case, counters, gate.accepted(blind), repeats=2)
        trusting = infer(Model(CATALOGUE, identities=()), read(case, groups, first=1), trusted=blind)
        found.append(
            {
                "case": case.name,
                "named": len(wrong & named),
                "also rejected": len(named - wrong),
                "Linux scaling": score(case, linux(case, counters))["mean"],
                "ours": score(case, result)["mean"],
                "ours without the gate": score(case, intervals(case, trusting, 0, ()))["mean"],
                "ours, none corrupted": score(case, ours(case, counters))["mean"],
            }
        )
    return found


def cost(events: int, cpus: int, windows: int) -> dict[str, float]:
    """Seconds of the inference of one window for all CPUs."""
    case = synthetic(0, events, windows)
    verdicts = audit(case, 4, case.identities)
    groups = counted(case, 4, gate.accepted(verdicts), repeats=2)
    recording = read(case, groups, first=1)
    net = bayes_net.build(case.events, gate.accepted(verdicts))
    wiring = net.wiring(recording.columns)
    belief = posterior.start(np, wiring, net.parameters, (cpus,))
    seconds = []
    shape = (cpus, len(recording.columns))
    for k in range(windows):
        window = posterior.Window(
            np.broadcast_to(recording.count[k] / recording.running_s[k], shape),
            np.broadcast_to(recording.running_s[k] / SLICE_S, shape),
            np.full(shape, float(WINDOW)),
            np.full(cpus, 1 / (WINDOW * SLICE_S)),
        )
        began = time.perf_counter()
        belief = posterior.update(np, wiring, net.parameters, belief, window)
        seconds.append(time.perf_counter() - began)
    return {"events": events, "cpus": cpus, "free": len(net.free), "ms": 1e3 * float(np.median(seconds))}


def in_simulator(scenarios: int, seconds: float) -> dict[str, float]:
    """Time of a simulator step with inference, and with counters that are read but not used."""
    import jax

    from benchmarks import simulator
    from symphony.baselines import EftBelief
    from symphony.simulator import rollout

    batch = simulator.tile(
        simulator.stack([simulator.scenario(simulator.small_cluster(), k) for k in range(8)]), scenarios
    )
    inferring, found = rollout.read_when, {}
    try:
        for name, read in (("with", inferring), ("without", lambda _, state, *__: state)):
            rollout.read_when = read
            jax.clear_caches()
            got = simulator.measure(batch, EftBelief(), 256, seconds)
            found[name] = 1e6 * got["events_per_step"] * scenarios / got["events_per_s"]
    finally:
        rollout.read_when = inferring
        jax.clear_caches()
    share = 1 - found["without"] / found["with"]
    return {"scenarios": scenarios, "us/step": found["with"], "us/step without": found["without"], "share": share}


def main() -> None:
    args = arguments(
        "Errors of multiplexed counters, and their reduction by inference.",
        ("phases", "programs", "log", "corrupted", "events", "counters", "stretch", "cost", "simulator"),
    )
    console = Console(width=140)
    figures: dict[str, Any] = {}
    quick = args.quick
    if quick:
        compile_quickly()  # most of the time is compilation; speeds of simulators are meaningless then
    seeds = range(2 if quick else 20)
    programs = all_programs()
    few = {name: METHODS[name] for name in ("Linux scaling", "basis only", "ours")}

    def section(name: str, measure: Callable[[], Any], show: Callable[[Any], None]) -> None:
        if name in args.only:
            figures[name] = measure()
            show(figures[name])
            keep(args.json, **figures)

    def table(title: str) -> Callable[[Figures], None]:
        return lambda found: shown(console, title, found)

    section(
        "phases",
        lambda: compared([synthetic(seed) for seed in seeds], 4),
        table(f"Programs in phases, 40 events, {len(seeds)} seeds"),
    )
    if programs:
        both = (4, 2)
        section(
            "programs",
            lambda: [figure for counters in both for figure in compared(programs, counters)],
            table("Real programs (callgrind), 27 events"),
        )
        replayed = {"Linux scaling": linux, "ours": of_a_log}
        section(
            "log",
            lambda: [figure for counters in both for figure in compared(programs, counters, replayed)],
            table("Real programs, a log in which nothing is counted twice"),
        )
        section(
            "stretch",
            lambda: [
                {**figure, "counters": f"{counters}, dump of {4 * stretch:g} ms"}
                for stretch in ((1.0,) if quick else (1.0, 2.0, 4.0))
                for counters in both
                for figure in compared(all_programs(stretch), counters, few)
            ],
            table("Real programs, stretched"),
        )
    else:
        console.print("no traces of real programs: set SYMPHONY_DATA to the folder that has pmu-events/traces")
    section(
        "corrupted", lambda: corrupted(seeds[:10], 4), lambda found: _shown_rows(console, "Two wrong identities", found)
    )
    section(
        "events",
        lambda: [
            {**figure, "counters": f"4, {events} events"}
            for events in ((10, 40) if quick else (10, 20, 30, 40, 50, 60))
            for figure in compared([synthetic(seed, events) for seed in seeds[:5]], 4, few)
        ],
        table("Against the number of events"),
    )
    section(
        "counters",
        lambda: [
            figure
            for counters in ((2, 8) if quick else (2, 3, 4, 6, 8))
            for figure in compared([synthetic(seed) for seed in seeds[:5]], counters, few)
        ],
        table("Against the number of counters"),
    )
    windows = 20 if quick else 60
    shapes = [(events, 1) for events in (10, 20, 30, 40, 50, 60)] + [(30, cpus) for cpus in (8, 32, 128)]
    shapes = shapes[::4] if quick else shapes
    section(
        "cost",
        lambda: [cost(events, cpus, windows) for events, cpus in shapes],
        lambda found: _shown_rows(console, "Time of one window (NumPy)", found),
    )
    import jax

    sizes = [64] if jax.default_backend() == "cpu" else [1024, 8192]
    section(
        "simulator",
        lambda: [in_simulator(size, 1.0 if quick else 3.0) for size in sizes],
        lambda found: _shown_rows(console, "A step of the simulator", found),
    )
    keep(args.json, **figures)


def _shown_rows(console: Console, title: str, rows: Figures) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
