"""`symphony catalogue`: events and metrics of CPUs, from the kernel's listings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from symphony.cli import terminal
from symphony.problem import topologies
from symphony.problem.discover import discover
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.telemetry import (
    ARCHITECTURAL_NAME,
    Catalogue,
    CatalogueEntry,
    Event,
    Metric,
    add_perf,
    at_hand,
    draw,
    entries,
    installed_source,
    load,
    split_names,
    svg,
    this_cpu,
)
from symphony.telemetry import add as add_listings

app = typer.Typer(help="See what CPUs can count: events and metrics from the kernel's listings.", no_args_is_help=True)

HERE = "here"  # the discovered topology of this machine
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("install", hidden=True)  # the word that people try first
@app.command()
def add(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="A kernel tree, its folder tools/perf/pmu-events/arch or one inside it, an archive, Debian's "
            "linux-source package, or output of `perf list --json` (-: standard input). Default: in /usr/src.",
        ),
    ] = None,
    perf: Annotated[bool, typer.Option("--perf", help="Run `perf list --json` and add its output.")] = False,
    as_json: Json = False,
) -> None:
    """Read listings into your cache folder, for the other commands."""
    console = terminal.console()
    if not paths and not perf:
        source = installed_source()
        if source is None:
            raise InputError(
                "there is no kernel source in /usr/src",
                hint="install Debian's (apt install linux-source), give a PATH, or --perf for this machine's events",
            )
        paths = [str(source)]
    added: list[CatalogueEntry] = []
    for path in paths or ():
        if as_json or path == "-" or Path(path).is_dir():
            added += add_listings(path)
        else:
            with console.status(f"reading {escape(path)}"):  # a package takes a quarter of a minute
                added += add_listings(path)
    if perf:
        added += add_perf()
    if as_json:
        _print_json([asdict(entry) for entry in added])
        return
    console.print(_summary(added))
    _note_left_out([text for entry in added for text in entry.left_out], console, "--json lists them all")
    cpu, catalogue = this_cpu()
    if cpu:
        console.print(_for_cpu(cpu, catalogue), soft_wrap=True)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the catalogues."""
    known = entries()
    mine = at_hand().name
    if as_json:
        _print_json([{**asdict(entry), "this_cpu": entry.name == mine} for entry in known])
        return
    table = Table(box=None)
    for column in ("", "name"):
        table.add_column(column, no_wrap=True)
    for column in ("core events", "other events", "metrics"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("from", overflow="ellipsis")  # the only column that may be shortened
    for entry in known:
        mark = "[green]*[/]" if entry.name == mine else ""
        counts = (f"{count:,}" for count in (entry.core, entry.other, entry.metrics))
        table.add_row(mark, f"[bold]{escape(entry.name)}[/]", *counts, escape(entry.source))
    console = terminal.console()
    console.print(table)
    console.print("\n[green]*[/] is for this machine's CPU.", end=" ")
    if len(known) == 1:
        console.print("[bold]symphony catalogue add PATH[/] adds the catalogues of a kernel tree.", end="")
    console.print()


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A catalogue; by default that of this machine's CPU.")
    ] = None,
    events: Annotated[
        str | None, typer.Option("--events", metavar="PATTERN", help="List the events whose names contain PATTERN.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="PATTERN", help="List the metrics whose names or groups contain PATTERN."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a catalogue: its counters, events and metrics.

    PATTERN is a part of a name, or a pattern for the whole name with * and ?; '*' lists all.
    """
    found = load(name) if name else at_hand()
    chosen = found.events_like(events) if events is not None else []
    computed = found.metrics_like(metrics) if metrics is not None else []
    if as_json:
        whole = events is None and metrics is None
        _print_json(_as_json(found, found.events if whole else chosen, found.metrics if whole else computed))
        return
    console = terminal.console()
    _describe(found, console)
    if events is not None:
        _print_table(console, _event_table(chosen), len(chosen), f"no event has {events!r} in its name")
    if metrics is not None:
        _print_table(
            console, _metric_table(computed), len(computed), f"no metric has {metrics!r} in its name or groups"
        )
    if events is None and metrics is None:
        console.print("\n[bold]--events PATTERN[/] and [bold]--metrics PATTERN[/] list them.")


@app.command("graph")
def graph_(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A catalogue; by default that of this machine's CPU.")
    ] = None,
    events: Annotated[
        str | None, typer.Option("--events", metavar="PATTERN", help="Events whose names contain PATTERN.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="METRICS", help="Metrics or groups, separated by commas; * and ? are allowed."
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology", "-t", metavar="NAME|FILE", help="Draw the use of its rows as well; `here`: this machine."
        ),
    ] = None,
    machine_name: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="The machine of the topology. By default its first.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.svg", help="The picture.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the network of counts: counted events, derived events, metrics, and rows of a topology.

    Without --events and --metrics: the events of the metrics that `symphony stat` shows by default, and, for this
    machine's CPU, this machine's rows.
    """
    if output is None and not as_json:
        raise InputError("no file for the picture", hint="symphony catalogue graph -o net.svg, or --json")
    if output is not None and output.suffix.lower() != ".svg":
        raise InputError(f"-o {output}: the picture is an SVG", hint=f"-o {output.with_suffix('.svg')}")
    if topology is None and name is None and events is None and metrics is None:
        topology = HERE
    wanted = None if metrics is None else split_names([metrics])
    drawn, uncovered = draw(name, events, wanted, _machine(topology, machine_name))
    if output is not None:
        try:
            output.write_text(svg(drawn), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"-o {output} cannot be written: {error.strerror or error}", hint="name a file in a folder that exists"
            ) from None
    if as_json:
        _print_json(drawn.as_json())
    else:
        free, derived = (sum(node.kind == kind for node in drawn.nodes) for kind in ("free", "derived"))
        console = terminal.console()
        console.print(f"{output}: {free} events to count, {derived} derived", markup=False, soft_wrap=True)
        if uncovered:
            console.print(f"[yellow]note[/]: no counter shows {escape(', '.join(uncovered))}", soft_wrap=True)


def _machine(topology: str | None, machine_name: str | None) -> tuple[Topology, str] | None:
    """The topology, and which of its machines to draw."""
    if topology is None:
        if machine_name is not None:
            raise InputError("--machine without --topology", hint=f"--topology {HERE}, or a name or a file")
        return None
    cluster = discover().topology if topology == HERE else topologies.topology(topology)
    return cluster, machine_name or cluster.devices[0].machine


# --- Tables ------------------------------------------------------------------------------------------------


def _summary(added: Sequence[CatalogueEntry]) -> str:
    events, metrics = sum(entry.core + entry.other for entry in added), sum(entry.metrics for entry in added)
    what = f"{len(added)} catalogues" if len(added) != 1 else escape(added[0].name)
    return f"[green]added[/] {what}: {events:,} events, {metrics:,} metrics"


def _note_left_out(left_out: Iterable[str], console: Console, where: str) -> None:
    """What could not be read; that of files which several catalogues share is mentioned once."""
    first, *others = [*dict.fromkeys(left_out), ""]
    if first:
        more = f", and {len(others) - 1:,} more ({where})" if len(others) > 1 else ""
        console.print(f"[yellow]left out[/]: {escape(first)}{more}", soft_wrap=True)


def _for_cpu(cpu: str, name: str | None) -> str:
    if name is None:
        return f"[yellow]note[/]: none of them is for this machine's CPU ({escape(cpu)})"
    if name not in {entry.name for entry in entries()}:
        return f"[yellow]note[/]: this machine's CPU ({escape(cpu)}) is {escape(name)}, which has not been added"
    return f"this machine's CPU is {escape(name)}"


def _describe(found: Catalogue, console: Console) -> None:
    console.print(f"[bold]{escape(found.name)}[/]  from {escape(found.source)}", soft_wrap=True)
    if found.name == ARCHITECTURAL_NAME:
        console.print(
            "[yellow]note[/]: these are the events that Linux has on every CPU. For those of this one, "
            "[bold]symphony catalogue add PATH[/].",
            soft_wrap=True,
        )
    _note_left_out(found.left_out, console, "`symphony catalogue list --json` lists them all")
    table = Table("unit", box=None)
    for column in ("events", "counters", "fixed counters", "metrics"):
        table.add_column(column, justify="right")
    for unit in (units := _units(found)):
        pmu = found.pmu(unit)
        about = "≈" if pmu.assumed else ""
        table.add_row(
            escape(unit or "core"),
            f"{sum(event.unit == unit for event in found.events):,}",
            f"{about}{pmu.general}",
            f"{about}{pmu.fixed}",
            f"{sum(metric.unit == unit for metric in found.metrics):,}",
        )
    console.print(table)
    if any(found.pmu(unit).assumed for unit in units):
        console.print("≈ assumed: not stated in the listing.")


def _event_table(events: Iterable[Event]) -> Table:
    columns = Column("event", no_wrap=True), "unit", Column("select", overflow="fold"), "counters", "what it counts"
    table = Table(*columns, box=None)
    for event in events:
        counters = [str(counter) for counter in event.counters]
        if event.fixed is not None:
            counters.append(f"fixed {event.fixed}" if event.fixed >= 0 else "fixed")
        name = f"[strike]{escape(event.name)}[/]" if event.deprecated else f"[bold]{escape(event.name)}[/]"
        cells = (event.unit or "core", event.perf_terms, ",".join(counters), event.description)
        table.add_row(name, *map(escape, cells))
    return table


def _metric_table(metrics: Iterable[Metric]) -> Table:
    table = Table(Column("metric", no_wrap=True), "unit", "expression", "what it is", box=None)
    for metric in metrics:
        scale = f"{metric.scale:g} × " if metric.scale != 1 else ""
        expression = f"{scale}({metric.expression})" if scale else metric.expression
        table.add_row(
            f"[bold]{escape(metric.name)}[/]", *map(escape, (metric.scale_unit, expression, metric.description))
        )
    return table


def _print_table(console: Console, table: Table, rows: int, otherwise: str) -> None:
    console.print()
    console.print(table if rows else escape(otherwise))


def _units(found: Catalogue) -> list[str]:
    """Units of events or metrics, the core first."""
    units = {*(event.unit for event in found.events), *(metric.unit for metric in found.metrics)}
    return sorted(units, key=lambda unit: (unit != "", unit.lower()))


def _as_json(found: Catalogue, events: Iterable[Event], metrics: Sequence[Metric]) -> dict[str, Any]:
    groups = {group for metric in metrics for group in metric.groups}
    return {
        "name": found.name,
        "source": found.source,
        "pmus": [{**asdict(found.pmu(unit)), "unit": unit} for unit in _units(found)],
        "events": [{**asdict(event), "terms": dict(event.terms), "perf": event.perf_terms} for event in events],
        "metrics": [asdict(metric) for metric in metrics],
        "groups": {group: about for group, about in found.groups.items() if group in groups},
    }


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
