"""`symphony topology`: show clusters, check their files, and describe this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from symphony.cli import options, terminal
from symphony.cli.options import AsJson
from symphony.cli.terminal import print_json
from symphony.problem import discover as discovery
from symphony.problem import topologies, topology_file
from symphony.problem.errors import SymphonyError
from symphony.problem.topology import RESOURCE_KINDS, SPANS, Device, Topology
from symphony.problem.units import show as quantity

app = typer.Typer(help="Show clusters, check their files, describe this machine.", no_args_is_help=True)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the built-in topologies."""
    if as_json:
        print_json([{"name": name, "what": what} for name, what in topologies.BUILT_IN.items()])
        return
    table = Table("name", "what it is", box=None)
    for name, what in topologies.BUILT_IN.items():
        table.add_row(f"[bold]{escape(name)}[/]", escape(what))
    console = terminal.console()
    console.print(table)
    console.print("\nA file of your own works everywhere these names do: see [bold]symphony topology validate[/].")


@app.command()
def show(
    topology: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A built-in topology or a TOML file.")],
    as_json: AsJson = False,
    devices: Annotated[bool, typer.Option("--devices", help="List every device with its route.")] = False,
) -> None:
    """Draw a topology: its devices and the capacities of its shared resources."""
    cluster = topologies.topology(topology)
    if as_json:
        print_json(_as_json(cluster, devices=devices))
        return
    console = terminal.console()
    _draw(cluster, console)
    if devices:
        console.print(_device_table(cluster))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Topology files.")], as_json: AsJson = False
) -> None:
    """Check topology files and report the error of each."""
    console = terminal.console()
    results: list[dict[str, Any]] = []
    for file in files:
        try:
            summary = _summary(topology_file.read(file))
            results.append({"file": str(file), "valid": True, "summary": summary})
        except SymphonyError as error:
            problem = {"message": error.message, "where": error.where, "hint": error.hint}
            results.append({"file": str(file), "valid": False, **problem})
    if as_json:
        print_json(results)
    else:
        for result in results:
            _print_result(result, console)
    if not all(result["valid"] for result in results):
        raise typer.Exit(2)


@app.command()
def discover(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a topology file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe this machine: sockets, caches, PCIe tree, accelerators, network interface."""
    options.check_file(output)
    from symphony.telemetry import memory_traffic  # with JAX

    machine = discovery.discover()
    lines = [*machine.notes, f"memory traffic in real runs: {memory_traffic()}"]
    if output:
        notes = "\n".join(f"- {note}" for note in lines)
        comment = f"Written by `symphony topology discover`. Correct it where it is wrong:\n{notes}"
        topology_file.write(machine.cluster, output, comment=comment)
    if as_json:
        print_json({**_as_json(machine.topology, devices=True), "notes": lines})
        return
    console = terminal.console()
    _draw(machine.topology, console)
    for note in lines:
        console.print(f"[yellow]note[/]: {escape(note)}", soft_wrap=True)
    if output:
        console.print(f"written to {escape(str(output))}", soft_wrap=True)


# --- The tree ----------------------------------------------------------------------------------------------

# The levels of the tree, and the kinds of resource that belong to each.
_TREE_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("rack", frozenset({"uplink"})),
    ("machine", frozenset({"nic"})),
    ("socket", frozenset({"memory", "cache", "interconnect"})),
    ("switch", frozenset({"switch"})),
)
_Rows = Mapping[str, tuple[str, float]]  # resource name -> kind and capacity
_DEVICE_ROW_KINDS = frozenset(RESOURCE_KINDS).difference(*(kinds for _, kinds in _TREE_LEVELS))


@dataclass(frozen=True)
class _TreePart:
    """A rack, machine, socket, switch or device, or several that differ only in their names."""

    what: str  # a level, or a device kind
    names: tuple[str, ...] = field(compare=False)
    rows: tuple[tuple[str, float], ...]  # kind and capacity
    inside: tuple[_TreePart, ...] = ()
    count: int = 1


def _parts(devices: Iterable[Device], rows: _Rows, depth: int = 0) -> list[_TreePart]:
    """The parts that devices form at a level of the tree; equal parts are merged into one with a count."""
    parts: list[_TreePart] = []
    if depth == len(_TREE_LEVELS):
        parts = [
            _TreePart(device.kind, (device.name,), _rows_of([device], rows, _DEVICE_ROW_KINDS)) for device in devices
        ]
    else:
        level, kinds = _TREE_LEVELS[depth]
        groups: dict[str, list[Device]] = {}
        for device in devices:
            groups.setdefault(getattr(device, level), []).append(device)
        for name, members in groups.items():
            own, inside = _rows_of(members, rows, kinds), _parts(members, rows, depth + 1)
            if level == "switch" and not own:  # there is no switch: the devices belong to the socket
                parts += inside
            else:
                parts.append(_TreePart(level, (name,), own, tuple(inside)))
    alike: dict[_TreePart, list[_TreePart]] = {}
    for part in parts:
        alike.setdefault(replace(part, count=1), []).append(part)
    return [
        replace(part, count=sum(p.count for p in same), names=tuple(name for p in same for name in p.names))
        for part, same in alike.items()
    ]


def _rows_of(devices: Iterable[Device], rows: _Rows, kinds: frozenset[str]) -> tuple[tuple[str, float], ...]:
    names = dict.fromkeys(hop.resource for device in devices for hop in device.route)
    return tuple(rows[name] for name in names if rows[name][0] in kinds)


def _grow(tree: Tree, parts: Iterable[_TreePart]) -> None:
    for part in parts:
        times = f" [cyan]×{part.count}[/]" if part.count > 1 else ""
        if not part.inside:
            tree.add(escape(part.what) + times)
            continue
        short = [name.rpartition("/")[2] for name in part.names]
        called = short[0] if short[0] == short[-1] else f"{short[0]} … {short[-1]}"
        rows = (f"{kind} {_capacity(kind, size)}".removeprefix(f"{part.what} ") for kind, size in part.rows)
        carries = ", ".join(dict.fromkeys(rows))
        label = f"[dim]{part.what}[/] [bold]{escape(called)}[/]{times}"
        _grow(tree.add(f"{label}  {carries}" if carries else label), part.inside)


def _draw(topology: Topology, console: Console) -> None:
    """Print the tree of a topology, and tables of its device kinds and resource kinds."""
    rows = {row.name: (row.kind, row.capacity) for row in topology.resources}
    tree = Tree(f"[bold]{escape(_summary(topology))}[/]")
    _grow(tree, _parts(topology.devices, rows))
    kinds = Table("device kind", "type", "devices", "slots", "memory", "reconfigure", box=None)
    for kind in topology.kinds:
        kinds.add_row(
            escape(kind.name),
            escape(kind.type),
            f"{topology.kind_counts[kind.name]:,}",
            str(kind.slots),
            quantity(kind.memory, "bytes") if kind.memory < math.inf else "no limit",
            quantity(kind.reconfigure_s, "seconds") if kind.reconfigurable else "",
        )
    resources = Table("resource kind", "rows", "capacity of each", "what it is", box=None)
    for entry in _resource_kinds(topology):
        kind, sizes = entry["kind"], (entry["least"], entry["most"])
        each = " to ".join(dict.fromkeys(_capacity(kind, size) for size in sizes))
        resources.add_row(kind, f"{entry['rows']:,}", each, RESOURCE_KINDS[kind][1])
    console.print(tree)
    for table in (kinds, resources):
        console.print()
        console.print(table)


def _device_table(topology: Topology) -> Table:
    """Every device with its resources; those of its own machine without the machine's name."""
    table = Table("device", "kind", "works in the memory of", "peers", "route (traffic that crosses it)", box=None)
    for device in topology.devices:
        prefix = f"{device.machine}/"
        hops = (hop.resource.removeprefix(prefix) + _spans(hop.spans) for hop in device.route)
        columns = (device.name, device.kind, device.home or "its own", device.peers, "\n".join(hops))
        table.add_row(*map(escape, columns))
    return table


def _spans(spans: tuple[int, ...]) -> str:
    """Spans in words: " (switch to cluster)" for 1 to 5."""
    if not spans:
        return ""
    if len(spans) > 2 and spans == tuple(range(spans[0], spans[-1] + 1)):
        return f" ({SPANS[spans[0]]} to {SPANS[spans[-1]]})"
    return f" ({', '.join(SPANS[span] for span in spans)})"


# --- Words and numbers -------------------------------------------------------------------------------------


def _capacity(kind: str, size: float) -> str:
    return quantity(size, RESOURCE_KINDS[kind][0])


def _summary(topology: Topology) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in topology.kind_counts.items() if count)
    racks = len({device.rack for device in topology.devices})
    sizes = (
        _counted(len(topology.devices), "device"),
        _counted(len(topology.machines), "machine"),
        _counted(racks, "rack"),
    )
    return f"{topology.name}: {sizes[0]} ({counts}) on {sizes[1]} in {sizes[2]}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _resource_kinds(topology: Topology) -> list[dict[str, Any]]:
    sizes: dict[str, list[float]] = {}
    for row in topology.resources:
        sizes.setdefault(row.kind, []).append(row.capacity)
    return [
        {"kind": kind, "rows": len(capacities), "unit": unit, "least": min(capacities), "most": max(capacities)}
        for kind, (unit, _) in RESOURCE_KINDS.items()
        if (capacities := sizes.get(kind))
    ]


def _as_json(topology: Topology, *, devices: bool) -> dict[str, Any]:
    kinds = [
        {
            **asdict(kind),
            "memory": kind.memory if kind.memory < math.inf else None,
            "devices": topology.kind_counts[kind.name],
        }
        for kind in topology.kinds
    ]
    content: dict[str, Any] = {
        "name": topology.name,
        "racks": len({device.rack for device in topology.devices}),
        "machines": len(topology.machines),
        "devices": len(topology.devices),
        "device_kinds": kinds,
        "resource_kinds": _resource_kinds(topology),
        "latency_s": dict(zip(SPANS, topology.latency_s, strict=True)),
    }
    if devices:
        content["device_list"] = [asdict(device) for device in topology.devices]
        content["resource_list"] = [asdict(row) for row in topology.resources]
    return content


def _print_result(result: dict[str, Any], console: Console) -> None:
    if result["valid"]:
        console.print(f"[green]valid[/]: {escape(result['file'])}: {escape(result['summary'])}", soft_wrap=True)
        return
    where = f"{result['where']}: " if result["where"] else f"{result['file']}: "
    console.print(f"[bold red]error[/]: {escape(where + result['message'])}", soft_wrap=True)
    if result["hint"]:
        console.print(f"  [bold cyan]hint[/]: {escape(result['hint'])}", soft_wrap=True)
