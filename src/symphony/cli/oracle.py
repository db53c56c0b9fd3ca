"""`symphony oracle`: the best known schedule of one scenario, and a proof or a bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from symphony.cli import options, terminal
from symphony.problem import units
from symphony.problem.errors import InputError

if TYPE_CHECKING:
    from symphony.oracle.oracle import Solution


def oracle(
    *,
    topology: options.Topology = "machine",
    workload: options.Workload = "cholesky:8?jobs=1",
    seed: options.Seed = 0,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds to solve and search.")] = 60.0,
    objective: Annotated[str, typer.Option(help="makespan or mean_completion.")] = "makespan",
    disturbed: Annotated[
        bool, typer.Option("--disturbed", help="With hidden tenants and noise, as in compare.")
    ] = False,
    output: options.Output = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Plan one scenario with full knowledge; print the best value found, its label and lower bounds."""
    options.check_choice("objective", objective, ("makespan", "mean_completion"))
    if not time_limit > 0:
        raise InputError(f"--time-limit is {time_limit:g} s", hint="write a number of seconds above 0")
    options.check_file(output)
    options.check_scenario(topology, workload, seed)

    from symphony.oracle.oracle import Oracle
    from symphony.problem.topologies import topology as find_topology
    from symphony.simulator.scenario_source import scenario
    from symphony.simulator.scenarios import CALM, Disturbances

    console = terminal.console(stderr=as_json)
    planner = Oracle(time_limit, objective, seed=seed)  # type: ignore[arg-type]  # checked above
    drawn = scenario(find_topology(topology), workload, seed, Disturbances() if disturbed else CALM)
    with terminal.progress_bar(console, quiet=quiet, width=40) as update:

        def show_progress(phase: str, share: float, value_s: float, bound_s: float) -> None:
            values = f"{phase}: {units.show(value_s, 'seconds')}, bound {units.show(bound_s, 'seconds')}"
            update(values if value_s < float("inf") else phase, share)

        solution = planner.solve(drawn, progress=show_progress)
    content = _as_json(solution, topology, workload, seed)
    if output is not None:
        output.write_text(json.dumps(content, indent=1))
    if as_json:
        terminal.print_json(content)
        return
    console.print(_table(solution, f"{workload} on {topology}, seed {seed}"))
    for reason in solution.outside:
        console.print(f"no proof: {reason}")


def _table(solution: Solution, title: str) -> Table:
    """The value, the checks behind it, the bounds below it and the baselines above it."""

    def against(value_s: float) -> str:
        return f"{value_s / solution.value_s - 1:+.1%}"

    table = Table(title=f"{solution.objective.replace('_', ' ')}: {title}")
    for column in ("", "seconds", "against the oracle", ""):
        table.add_column(column, justify="left" if not column else "right")
    label = f"{solution.label} {solution.scope}".strip()
    table.add_row("[bold]oracle", f"[bold]{solution.value_s:.6g}", "", f"[bold]{label}")
    for check in solution.checks:
        table.add_row("", "", "", f"{'✓' if check.passed else '✗'} {check.what}: {check.detail}")
    table.add_section()
    for name, bound in sorted(solution.bounds.items(), key=lambda x: -x[1]):
        table.add_row(f"bound: {name}", f"{bound:.6g}", against(bound), "no policy is faster")
    table.add_section()
    for name, value in sorted(solution.baselines.items(), key=lambda x: x[1]):
        table.add_row(name, f"{value:.6g}", against(value), "")
    return table


def _as_json(solution: Solution, topology: str, workload: str, seed: int) -> dict[str, Any]:
    return {
        "topology": topology,
        "workload": workload,
        "seed": seed,
        "objective": solution.objective,
        "value_s": solution.value_s,
        "label": solution.label,
        "scope": solution.scope,
        "bounds_s": dict(solution.bounds),
        "outside": list(solution.outside),
        "baselines_s": dict(solution.baselines),
        "checks": [{"what": c.what, "passed": c.passed, "detail": c.detail} for c in solution.checks],
        "candidates": solution.candidates,
        "solve_s": solution.solve_s,
        "wall_s": solution.wall_s,
        "plan": [
            {"job": g.job, "gang": g.gang, "devices": list(g.devices), "start_s": g.start_s, "finish_s": g.finish_s}
            for g in solution.run.gangs
        ],
    }
