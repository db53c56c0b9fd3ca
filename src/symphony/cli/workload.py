"""`symphony workload`: which workloads there are, and what one holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from symphony.lowering import drawing
from symphony.lowering.family import family, names, workload
from symphony.lowering.summary import Summary, summarise
from symphony.problem import units
from symphony.problem.errors import InputError
from symphony.problem.topologies import topology as find_topology

app = typer.Typer(help="List the workload families; show what a workload holds.", no_args_is_help=True)


@app.command("list")
def list_families() -> None:
    """The workload families and their options."""
    table = Table(title="Workload families", title_justify="left", box=box.SIMPLE, padding=(0, 1, 1, 0))
    table.add_column("spec", style="bold", no_wrap=True)
    table.add_column("what it is, and the defaults of its options")
    meaning: dict[tuple[str, str, str], None] = {}
    for name in names():
        found = family(name)
        defaults = " ".join(f"{key}={found.values[key]}" for key in (*found.own, "jobs"))
        table.add_row(f"{name}:{found.size}", f"{escape(found.about)}\n[dim]{defaults}[/]")
        meaning |= {(key, option.about, option.allowed): None for key, option in found.options.items()}
    common = " ".join(f"{key}={option.default}" for key, option in found.common.items() if key != "jobs")
    table.add_row("all of them", f"[dim]{common}[/]")
    glossary = Table(title="Options", title_justify="left", box=box.SIMPLE)
    glossary.add_column("option", style="bold", no_wrap=True)
    glossary.add_column("what it is")
    glossary.add_column("values", style="dim")
    for key, about, allowed in sorted(meaning):
        glossary.add_row(key, escape(about), escape(allowed))
    console = Console(highlight=False)
    console.print(table, glossary)
    console.print("For example: symphony workload show 'cholesky:16?jobs=5&arrivals=batch' --topology machine")


@app.command()
def show(
    spec: Annotated[str, typer.Argument(help="name, name:N or name:N?option=value&… (see `list`)")],
    *,
    topology: Annotated[
        str, typer.Option("--topology", "-t", help="A built-in topology or the path of a file.")
    ] = "paper",
    seed: Annotated[int, typer.Option(help="Which draw of the family.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Number of jobs, whatever the spec says.")] = None,
    graph: Annotated[int, typer.Option(help="Which of the graphs to draw.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The counts as JSON, nothing else.")] = False,
    dot: Annotated[Path | None, typer.Option(help="Write the graph as Graphviz text.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the graph as a picture.")] = None,
) -> None:
    """What a workload holds on a topology: counts, kernels, load, and one of its graphs drawn."""
    cluster = find_topology(topology)
    drawn = workload(spec, cluster, seed, jobs=jobs)
    if not 0 <= graph < len(drawn.graphs):
        raise InputError(
            f"there is no graph {graph}",
            where=f"workload {spec!r}",
            hint=f"write --graph 0 to {len(drawn.graphs) - 1}",
        )
    chosen = drawn.graphs[graph]
    written = []
    if dot:
        written.append(_write(dot, drawing.dot(chosen)))
    if svg:
        written.append(_write(svg, drawing.svg(chosen)))
    summary = summarise(cluster, drawn)
    if as_json:
        typer.echo(json.dumps({"seed": seed, **dataclasses.asdict(summary)}, indent=2))
        return
    console = Console(highlight=False)
    console.print(_counts(summary, seed))
    console.print(_kernels(summary))
    tasks = f"{len(chosen.tasks)} task{'s' if len(chosen.tasks) > 1 else ''}"
    about = f"graph {graph} of {len(drawn.graphs)}: {escape(chosen.name)}, {tasks}"
    console.print(Panel(drawing.text(chosen), title=about, title_align="left", expand=False))
    for path in written:
        console.print(f"wrote {escape(str(path))}", soft_wrap=True)


def _counts(s: Summary, seed: int) -> Table:
    table = Table(
        title=f"{escape(s.workload)} on {escape(s.topology)}, seed {seed}",
        title_justify="left",
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def row(name: str, value: str, about: str = "") -> None:
        table.add_row(name, value, f"[dim]{about}[/]")

    least, mean, most = s.tasks_per_job
    row("jobs", f"{s.jobs:,}", f"of {s.graphs} distinct graph{'s' if s.graphs > 1 else ''}")
    row(
        "tasks",
        f"{s.tasks:,}",
        f"{least} to {most} in a job, {mean:.4g} on average" if least < most else f"{most} in a job",
    )
    row("gangs", f"{s.gangs:,}", f"of up to {s.widest_gang} worker{'s' if s.widest_gang > 1 else ''}")
    row("edges", f"{s.edges:,}", f"{units.show(s.bytes, 'bytes')} in all")
    row("capacity", f"{s.capacity:.4g} jobs/s", "what the cluster can sustain at most")
    if s.rate is None or s.load is None or s.least_jobs_at_once is None:
        row("arrivals", "all at once")
    else:
        row("arrivals", f"{s.rate:.4g} jobs/s", f"the last after {units.show(s.last_arrival_s, 'seconds')}")
        row("load", f"{s.load:.2f}", "arrivals over capacity, as drawn")
        row("jobs at once", f"{s.least_jobs_at_once:.3g}", "on average, at least")
    row("work", units.show(s.work_s, "seconds"), "device time, every gang on its best devices")
    least_s, mean_s, most_s = (units.show(seconds, "seconds") for seconds in s.critical_path_s)
    row("critical path", mean_s, f"on average; {least_s} to {most_s}" if least_s != most_s else "")
    return table


def _kernels(s: Summary) -> Table:
    kinds = sorted({kind for kernel in s.kernels for kind in kernel.seconds})
    title = "Kernels: isolated seconds of a task (of one iteration) at the mean size"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    for column in ("tasks", "size", *kinds):
        table.add_column(column, justify="right")
    exchanges = any(kernel.exchange_bytes for kernel in s.kernels)
    if exchanges:
        table.add_column("exchange", justify="right")
    for kernel in s.kernels:
        best = min(kernel.seconds.values(), default=0.0)
        times = [_time(kernel.seconds.get(kind), best) for kind in kinds]
        sent = units.show(kernel.exchange_bytes, "bytes") if kernel.exchange_bytes else "–"
        extra = [sent] if exchanges else []
        table.add_row(escape(kernel.name), f"{kernel.tasks:,}", f"{kernel.mean_size:.3g}", *times, *extra)
    return table


def _time(seconds: float | None, best: float) -> str:
    """Seconds, marked if it is the best of its row; a dash where the kernel does not run."""
    if seconds is None:
        return "–"
    return f"[bold green]{seconds:.3g}[/]" if seconds == best else f"{seconds:.3g}"


def _write(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write it: {error.strerror or error}",
            where=str(path),
            hint="name a file that can be written",
        ) from None
    return path
