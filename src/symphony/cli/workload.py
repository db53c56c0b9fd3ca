"""`symphony workload`: list, show, convert and sample workloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from symphony.cli import options, terminal
from symphony.cli.options import AsJson
from symphony.cli.terminal import print_json
from symphony.lowering import drawing, readers, trace
from symphony.lowering.family import Option, drawn, family, file_options, is_path, names, reader_options, reading
from symphony.lowering.readers import symphony_file
from symphony.lowering.readers.reading import FileContents, SkippedRecord
from symphony.lowering.summary import Summary, summarise
from symphony.problem import topology_file, units
from symphony.problem.errors import InputError
from symphony.problem.topologies import topology as find_topology
from symphony.problem.topology import Topology

app = typer.Typer(
    help="List workload families and file formats; show, convert and sample workloads.", no_args_is_help=True
)

Format = Annotated[str | None, typer.Option(help="Format of the file (see `formats`); by default it is detected.")]
KeepGood = Annotated[
    bool, typer.Option("--keep-good", help="Leave out bad records and list them, instead of refusing the file.")
]
MAX_LISTED_PROBLEMS = 10  # further ones are counted


@app.command("list")
def list_families(as_json: AsJson = False) -> None:
    """List the workload families and their options."""
    families = [family(name) for name in names()]
    if as_json:
        content = [
            {"name": entry.name, "about": entry.about, "size": entry.size, "options": _as_json(entry.options)}
            for entry in families
        ]
        print_json({"families": content, "files": {"options": _as_json(file_options())}})
        return
    table = _titled("Workload families", "spec", "what it is, and the defaults of its options")
    table.padding = (0, 1, 1, 0)
    meaning: dict[tuple[str, str, str], None] = {}
    for entry in families:
        defaults = " ".join(f"{key}={entry.values[key]}" for key in (*entry.own, "jobs"))
        table.add_row(f"{entry.name}:{entry.size}", f"{escape(entry.about)}\n[dim]{defaults}[/]")
        meaning |= {(key, option.about, option.allowed): None for key, option in entry.options.items()}
    common = " ".join(f"{key}={option.default}" for key, option in families[0].common.items() if key != "jobs")
    table.add_row("all of them", f"[dim]{common}[/]")
    table.add_row("path of a file", "a part of a file in one of the formats that `symphony workload formats` lists")
    glossary = _titled("Options", "option", "what it is", "values")
    for key, about, allowed in sorted(meaning):
        glossary.add_row(key, escape(about), escape(allowed))
    console = terminal.console()
    console.print(table, glossary)
    console.print("For example: symphony workload show 'cholesky:16?jobs=5&arrivals=batch' --topology machine")


@app.command()
def formats(as_json: AsJson = False) -> None:
    """List the file formats that can be read, and the options of a file as a workload."""
    if as_json:
        known = [{"name": f.name, "about": f.about, "options": _reader_defaults(f)} for f in readers.FORMATS]
        print_json({"formats": known, "options": _as_json(file_options())})
        return
    table = _titled("File formats", "format", "what it is", "options of its own")
    for format in readers.FORMATS:
        own = (f"{key}={'' if value is None else value}" for key, value in _reader_defaults(format).items())
        table.add_row(format.name, escape(format.about), escape(" ".join(own)))
    common = _titled("Options of every file", "option", "what it is", "values")
    for key, option in file_options().items():
        common.add_row(key, escape(option.about), "see above" if key == "format" else escape(option.allowed))
    console = terminal.console()
    console.print(table, common)
    console.print("For example: symphony workload show 'jobs.csv?jobs=50&load=0.7' --topology gpu24")


def _titled(title: str, *columns: str) -> Table:
    """A table whose first column is bold, and whose third is dim."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name, style in zip(columns, ("bold", "", "dim"), strict=False):
        table.add_column(name, style=style, no_wrap=style == "bold")
    return table


@app.command()
def show(
    spec: Annotated[str, typer.Argument(help="NAME, NAME:N or PATH, with ?option=value&… (see `list`, `formats`)")],
    *,
    topology: Annotated[
        str | None,
        typer.Option("--topology", "-t", help="Built-in name or TOML file  [default: the file's own, or paper]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Number of jobs; overrides the spec.")] = None,
    graph: Annotated[int, typer.Option(help="Number of the graph to draw.")] = 0,
    format: Format = None,
    keep_good: KeepGood = False,
    as_json: AsJson = False,
    dot: Annotated[Path | None, typer.Option(help="Write the graph as Graphviz text.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the graph as a picture.")] = None,
) -> None:
    """Show a workload on a topology: counts, kernels, load, and one of its graphs."""
    options.check_file(dot)
    options.check_file(svg)
    spec = _with_options(spec, format, keep_good)
    of_file = reading(spec) if is_path(spec.partition("?")[0]) else None
    if of_file is not None and not of_file.graphs:
        _show_tables(of_file, as_json=as_json)
        return
    cluster = _cluster(topology, of_file)
    made = drawn(spec, cluster, seed, jobs=jobs)
    if not 0 <= graph < len(made.workload.graphs):
        raise InputError(
            f"there is no graph {graph}",
            where=f"workload {spec!r}",
            hint=f"write --graph 0 to {len(made.workload.graphs) - 1}",
        )
    chosen = made.workload.graphs[graph]
    for path, draw in ((dot, drawing.dot), (svg, drawing.svg)):
        if path is not None:
            path.write_text(draw(chosen), encoding="utf-8")
    summary = summarise(cluster, made.workload)
    if as_json:
        about = _remarks(made.notes, made.problems) if of_file is not None else {}
        print_json({"seed": seed, **dataclasses.asdict(summary), **about})
        return
    console = terminal.console()
    console.print(_counts(summary, seed))
    console.print("Kernels: isolated seconds of a task (of one iteration) at the mean size", style="italic")
    console.print(_kernels(summary))
    tasks = f"{len(chosen.tasks)} task{'s' if len(chosen.tasks) > 1 else ''}"
    about_graph = f"graph {graph} of {len(made.workload.graphs)}: {escape(chosen.name)}, {tasks}"
    console.print(Panel(drawing.text(chosen), title=about_graph, title_align="left", expand=False))
    _print_remarks(console, made.notes, made.problems)
    for path in filter(None, (dot, svg)):
        console.print(f"wrote {escape(str(path))}", soft_wrap=True)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="PATH, with ?option=value&… of its format.")],
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a Symphony workload file.")] = None,
    topology_out: Annotated[Path | None, typer.Option(help="Write the cluster that the file describes.")] = None,
    format: Format = None,
    keep_good: KeepGood = False,
    as_json: AsJson = False,
) -> None:
    """Convert a file of any format to Symphony's own."""
    if output is None and topology_out is None:
        raise InputError("no file is named", where="convert", hint="write -o workload.json.gz")
    options.check_file(output)
    options.check_file(topology_out)
    contents = _all_of(source, format, keep_good)
    if topology_out is not None:
        if contents.topology is None:
            raise InputError("it describes no cluster", where=contents.source, hint="omit --topology-out")
        topology_file.write(contents.topology, topology_out, comment=f"The cluster that {contents.source} describes.")
    if output is not None:
        _write_workload(contents, output)
    _report_written(contents, output, topology_out, as_json=as_json)


@app.command()
def sample(
    source: Annotated[str, typer.Argument(metavar="IN", help="Path of a file, or a family with --topology.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write a Symphony workload file.")],
    jobs: Annotated[int, typer.Option(help="Number of jobs (or graphs, of a file without arrivals).", min=1)],
    seed: Annotated[int, typer.Option(help="Seed of the sample.", min=0)] = 0,
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="Draw missing arrivals and times for this cluster.")
    ] = None,
    format: Format = None,
    keep_good: KeepGood = False,
    as_json: AsJson = False,
) -> None:
    """Write a part of a file, or one draw of a workload, in Symphony's own format."""
    options.check_file(output)
    if topology is not None:
        made = drawn(_with_options(source, format, keep_good), find_topology(topology), seed, jobs=jobs)
        workload = made.workload
        contents = FileContents(
            symphony_file.SYMPHONY_FORMAT_NAME,
            source,
            workload.kernels,
            workload.graphs,
            workload.jobs,
            homes=True,
            notes=made.notes,
            problems=made.problems,
        )
    elif is_path(source.partition("?")[0]):
        contents = trace.sample(_all_of(source, format, keep_good), jobs, seed)
    else:
        raise InputError(
            f"there is no file {source!r}", where="sample", hint="to draw from a family, add --topology paper"
        )
    _write_workload(contents, output)
    _report_written(contents, output, as_json=as_json)


def _cluster(name: str | None, of_file: FileContents | None) -> Topology:
    if name is None and of_file is not None and of_file.topology is not None:
        return of_file.topology
    return find_topology(name or "paper")


def _with_options(spec: str, format: str | None, keep_good: bool) -> str:
    """A spec, with --format and --keep-good appended as options."""
    extra = [f"format={format}"] if format else []
    extra += ["keep_good=1"] if keep_good else []
    if not extra:
        return spec
    return f"{spec}{'&' if '?' in spec else '?'}{'&'.join(extra)}"


def _all_of(spec: str, format: str | None, keep_good: bool) -> FileContents:
    """The whole contents of a file. Options that choose a part of it, or change it, are refused."""
    full = _with_options(spec, format, keep_good)
    contents = reading(full)
    chosen = [key for key in family(full).values if key in file_options() and key not in ("format", "keep_good")]
    if chosen:
        raise InputError(
            f"convert has no option {chosen[0]}", where=contents.source, hint=f"omit {chosen[0]}, or use `sample`"
        )
    return contents


def _write_workload(contents: FileContents, path: Path) -> None:
    if not contents.graphs and not contents.kernels:
        raise InputError("it has no kernels, graphs or jobs to write", where=contents.source, hint="see `show`")
    symphony_file.write(contents, path)


def _report_written(contents: FileContents, output: Path | None, cluster: Path | None = None, *, as_json: bool) -> None:
    counts = {"kernels": len(contents.kernels), "graphs": len(contents.graphs), "jobs": len(contents.jobs)}
    remarks = _remarks(contents.notes, contents.problems)
    if as_json:
        files = [str(path) for path in (output, cluster) if path]
        content = {
            "source": contents.source,
            "format": contents.format,
            **counts,
            "tables": list(contents.tables),
            **remarks,
        }
        print_json({"written": files, **content})
        return
    console = terminal.console()
    _print_remarks(console, contents.notes, contents.problems)
    if contents.tables:
        console.print(
            f"[yellow]note[/]: Tables are not part of a workload: {', '.join(contents.tables)}.", soft_wrap=True
        )
    if output is not None:
        held = ", ".join(f"{count:,} {what if count > 1 else what[:-1]}" for what, count in counts.items() if count)
        console.print(f"wrote {escape(str(output))} ({held})", soft_wrap=True)
    if cluster is not None:
        console.print(f"wrote {escape(str(cluster))}", soft_wrap=True)


def _show_tables(contents: FileContents, *, as_json: bool) -> None:
    """Show a file without graphs: the kernels that it has times for, and its tables."""
    rows = {name: len(table) for name, table in contents.tables.items()}
    kernels = [{"name": kernel.name, "implementations": list(kernel.implementations)} for kernel in contents.kernels]
    if as_json:
        content = {"source": contents.source, "format": contents.format, "kernels": kernels, "tables": rows}
        print_json({**content, **_remarks(contents.notes, contents.problems)})
        return
    console = terminal.console()
    console.print(f"{escape(contents.source)} ({contents.format}) has no graphs and no jobs.", soft_wrap=True)
    if contents.kernels:
        console.print("Kernels: isolated seconds of a task of size 1", style="italic")
        table = Table(box=None)
        table.add_column("kernel", no_wrap=True)
        devices = list(dict.fromkeys(name for kernel in contents.kernels for name in kernel.implementations))
        for device in devices:
            table.add_column(escape(device), justify="right")
        for kernel in contents.kernels:
            seconds = {name: profile.seconds(1.0) for name, profile in kernel.implementations.items()}
            best = min(seconds.values())
            table.add_row(escape(kernel.name), *(_time(seconds.get(device), best) for device in devices))
        console.print(table)
    for name, count in rows.items():
        console.print(f"table {escape(name)}: {count:,} row{'s' if count != 1 else ''}")
    if contents.topology is not None:
        console.print("It describes a cluster; `symphony workload convert … --topology-out FILE` writes that.")
    _print_remarks(console, contents.notes, contents.problems)


def _remarks(notes: Sequence[str], problems: Sequence[SkippedRecord]) -> dict[str, Any]:
    return {"notes": list(notes), "problems": [dataclasses.asdict(problem) for problem in problems]}


def _print_remarks(console: Console, notes: Sequence[str], problems: Sequence[SkippedRecord]) -> None:
    for note in notes:
        console.print(f"[yellow]note[/]: {escape(note)}", soft_wrap=True)
    for problem in problems[:MAX_LISTED_PROBLEMS]:
        console.print(f"[red]left out[/]: {escape(str(problem))}", soft_wrap=True)
    if len(problems) > MAX_LISTED_PROBLEMS:
        console.print(f"[red]left out[/]: {len(problems) - MAX_LISTED_PROBLEMS:,} more; all are listed with --json")


def _reader_defaults(known: readers.Format) -> dict[str, Any]:
    return {name: default for name, (_, default) in reader_options(known).items()}


def _as_json(options: Mapping[str, Option]) -> dict[str, Any]:
    return {
        key: {"default": option.default, "about": option.about, "values": option.allowed}
        for key, option in options.items()
    }


def _counts(s: Summary, seed: int) -> Table:
    table = Table(
        title=f"{escape(s.workload)} on {escape(s.topology)}, seed {seed}", title_justify="left", show_header=False
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
    table = Table(box=None, pad_edge=False)
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
    """Seconds, highlighted if the best of its row; a dash where the kernel does not run."""
    if seconds is None:
        return "–"
    return f"[bold green]{seconds:.3g}[/]" if seconds == best else f"{seconds:.3g}"
