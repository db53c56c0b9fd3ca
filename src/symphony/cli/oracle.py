"""`symphony oracle`: what could be done at best on one scenario, and how sure that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from symphony.cli import terminal
from symphony.evaluation.compare import scenario as make_scenario
from symphony.oracle.bounds import Objective
from symphony.oracle.oracle import Oracle, Solution
from symphony.problem import topologies, units
from symphony.problem.errors import InputError
from symphony.simulator.scenarios import CALM, Disturbances


def oracle(
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "machine",
    workload: Annotated[str, typer.Option("--workload", "-w", help="Family spec.")] = "cholesky:8?jobs=1",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Seed of workload and disturbances.", min=0)] = 0,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds to solve and search.")] = 60.0,
    objective: Annotated[str, typer.Option(help="makespan or mean_completion.")] = "makespan",
    disturbed: Annotated[
        bool, typer.Option("--disturbed", help="With tenants and noise, as compare has them.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Threads of the solver.", min=1)] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what was found as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Plan one scenario with everything known; print the best value, what it is called, and lower bounds."""
    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        raise InputError(f"--json {json_file} cannot be written", hint="name a file in a folder that exists")
    console = terminal.console()
    planner = Oracle(time_limit, _objective(objective), workers, seed)
    cluster = topologies.topology(topology)
    drawn = make_scenario(cluster, workload, seed, Disturbances() if disturbed else CALM)
    with terminal.progress_bar(console, quiet=quiet, width=40) as bars:
        bar = bars.add_task("compiling", total=1.0)

        def tell(what: str, share: float, value_s: float, bound_s: float) -> None:
            found = f"{what}: {units.show(value_s, 'seconds')}, bound {units.show(bound_s, 'seconds')}"
            bars.update(bar, description=found if value_s < float("inf") else what, completed=share)

        found = planner.solve(drawn, progress=tell)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(found, topology, workload, seed), indent=1))
    console.print(table(found, f"{workload} on {topology}, seed {seed}"))
    for reason in found.outside:
        console.print(f"no proof: {reason}")


def _objective(word: str) -> Objective:
    if word == "makespan":
        return "makespan"
    if word == "mean_completion":
        return "mean_completion"
    raise InputError(f"--objective {word!r} is not known", hint="write makespan or mean_completion")


def table(found: Solution, title: str) -> Table:
    """The answer, the checks behind it, the bounds under it and the baselines above it."""

    def against(value_s: float) -> str:
        return f"{value_s / found.value_s - 1:+.1%}"

    shown = Table(title=f"{found.objective.replace('_', ' ')}: {title}")
    for column in ("", "seconds", "against the oracle", ""):
        shown.add_column(column, justify="left" if not column else "right")
    label = f"{found.label} {found.scope}".strip()
    shown.add_row("[bold]oracle", f"[bold]{found.value_s:.6g}", "", f"[bold]{label}")
    for check in found.checks:
        shown.add_row("", "", "", f"{'✓' if check.passed else '✗'} {check.what}: {check.detail}")
    shown.add_section()
    for name, bound in sorted(found.bounds.items(), key=lambda x: -x[1]):
        shown.add_row(f"bound: {name}", f"{bound:.6g}", against(bound), "no policy is faster")
    shown.add_section()
    for name, value in sorted(found.baselines.items(), key=lambda x: x[1]):
        shown.add_row(name, f"{value:.6g}", against(value), "")
    return shown


def as_json(found: Solution, topology: str, workload: str, seed: int) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    return {
        "topology": topology,
        "workload": workload,
        "seed": seed,
        "objective": found.objective,
        "value_s": found.value_s,
        "label": found.label,
        "scope": found.scope,
        "bounds_s": dict(found.bounds),
        "outside": list(found.outside),
        "baselines_s": dict(found.baselines),
        "checks": [{"what": c.what, "passed": c.passed, "detail": c.detail} for c in found.checks],
        "candidates": found.candidates,
        "solve_s": found.solve_s,
        "wall_s": found.wall_s,
        "plan": [
            {"job": g.job, "gang": g.gang, "devices": list(g.devices), "start_s": g.start_s, "finish_s": g.finish_s}
            for g in found.run.gangs
        ],
    }
