"""`symphony plan`: a schedule for work that is known in advance, and how far from the best possible it may be."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from symphony.cli import terminal
from symphony.evaluation.compare import scenario as make_scenario
from symphony.lowering.family import workload as drawn_workload
from symphony.oracle import plan_file
from symphony.oracle.bounds import Objective
from symphony.oracle.planning import Planned
from symphony.oracle.planning import plan as make_plan
from symphony.policies import SHIPPED
from symphony.problem import topologies, units
from symphony.problem.errors import InputError, SymphonyError
from symphony.simulator.scenarios import CALM, Scenario

_OBJECTIVES: dict[str, Objective] = {
    "makespan": "makespan",
    "completion": "mean_completion",
    "mean_completion": "mean_completion",
}


def plan(
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "machine",
    workload: Annotated[str, typer.Option("--workload", "-w", help="Family or file.")] = "cholesky:8?jobs=1",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the workload and the samples.", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="Schedules to draw from the policy.", min=0)] = 256,
    seconds: Annotated[float, typer.Option(help="To draw and search in; compilation comes on top.")] = 20.0,
    policy: Annotated[str, typer.Option("--policy", "-p", help="The shipped policy, or a trained one.")] = SHIPPED,
    objective: Annotated[str, typer.Option(help="makespan or completion (the mean of all jobs).")] = "makespan",
    arrivals: Annotated[
        bool, typer.Option("--arrivals", help="Jobs arrive as drawn or recorded, instead of all at the start.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here ('-': stdout).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write schedule.png and curve.png into this folder.")] = None,
    check: Annotated[Path | None, typer.Option(help="Follow a written plan instead, and compare.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Draw many schedules from the learned policy, improve the best, and say how far from optimal it is."""
    if check is not None:
        _check(check)
        return
    if objective not in _OBJECTIVES:
        raise InputError(f"--objective {objective!r} is not known", hint="write makespan or completion")
    if out is not None and str(out) != "-" and (out.is_dir() or not out.parent.is_dir()):
        raise InputError(f"--output {out} cannot be written", hint="name a file in a folder that exists")
    where = {"topology": topology, "workload": workload, "seed": seed, "arrivals": arrivals}
    console = terminal.console(stderr=as_json or str(out) == "-")
    with terminal.progress_bar(console, quiet=quiet, width=30) as bars:
        bar = bars.add_task("compiling", total=1.0)

        def tell(what: str, share: float, value_s: float) -> None:
            found = f"{what}: {units.show(value_s, 'seconds')}" if value_s < float("inf") else what
            bars.update(bar, description=found, completed=share)

        planned = make_plan(
            _scenario(where),
            policy=policy,
            samples=samples,
            seconds=seconds,
            objective=_OBJECTIVES[objective],
            seed=seed,
            progress=tell,
        )
    said = plan_file.as_json(planned, where)
    text = json.dumps(said, indent=1)
    # What is read back is followed: the plan that is claimed is the one that is written.
    followed = plan_file.follow(json.loads(text), planned.scenario)
    if not followed.agrees:
        raise AssertionError(f"the plan is said to take {followed.claimed_s} s and takes {followed.value_s} s")
    if out is not None and str(out) != "-":
        out.write_text(text)
    if plot is not None:
        from symphony.evaluation.plan_plots import save_plan  # matplotlib takes a second to import

        save_plan(planned, plot)
    if as_json or str(out) == "-":
        sys.stdout.write(text + "\n")
        return
    _show(console, planned, f"{workload} on {topology}, seed {seed}")


def _scenario(where: dict[str, Any]) -> Scenario:
    """The scenario of a plan, from what its file says."""
    cluster = topologies.topology(where["topology"])
    work = drawn_workload(where["workload"], cluster, where["seed"])
    if not where["arrivals"]:
        work = replace(work, jobs=tuple(replace(job, arrival_s=0.0) for job in work.jobs))
    return make_scenario(cluster, work, where["seed"], CALM)


def _check(path: Path) -> None:
    """Follow a plan from a file."""
    said = plan_file.read(path)
    try:
        drawn = _scenario(said)
    except KeyError as error:
        hint = "write it with plan -o, or follow it from Python"
        raise InputError(f"it does not say its {error.args[0]}", where=str(path), hint=hint) from None
    followed = plan_file.follow(said, drawn)
    if not followed.agrees:
        raise SymphonyError(
            f"it is said to take {followed.claimed_s:.9g} s, and takes {followed.value_s:.9g} s in the simulator "
            f"(a start or finish is off by {followed.off_s:.3g} s)",
            where=str(path),
            hint="plan again; topology, workload or simulator have changed since",
        )
    terminal.console().print(f"it takes {followed.value_s:.6g} s in the simulator, as it says")


def _show(console: Console, planned: Planned, title: str) -> None:
    shown = Table(title=f"{planned.objective.replace('_', ' ')}: {title}")
    for column in ("", "seconds", "above the bound"):
        shown.add_column(column, justify="right" if column else "left")

    def row(name: str, value_s: float, style: str = "") -> None:
        shown.add_row(name, f"{value_s:.6g}", f"{value_s / planned.bound_s - 1:+.1%}", style=style)

    row("the plan, followed in the simulator", planned.value_s, "bold")
    shown.add_section()
    for count, best in planned.curve:
        row(f"best of {count:,} sample{'' if count == 1 else 's'}, on average", best)
    shown.add_section()
    row(f"{planned.policy_name}, its own decisions", planned.greedy_s)
    for name, value in sorted(planned.heuristics.items(), key=lambda item: item[1]):
        row(name, value)
    shown.add_section()
    for name, bound in sorted(planned.bounds.items(), key=lambda item: -item[1]):
        row(f"bound: {name}", bound)
    console.print(shown)
    console.print(
        f"{len(planned.samples_s):,} samples in {planned.sampling_s:.1f} s, {planned.rebuilt:,} rebuilt plans in "
        f"{planned.rebuilding_s:.1f} s and {planned.candidates:,} plans of the search in "
        f"{planned.search_s:.1f} s; {planned.wall_s:.0f} s with compilation"
    )
