"""`symphony plan`: a schedule for work that is known in advance, and its distance to the lower bound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from symphony.cli import options, terminal
from symphony.problem import units
from symphony.problem.defaults import SHIPPED
from symphony.problem.errors import InputError, SymphonyError

if TYPE_CHECKING:
    from symphony.oracle.planning import Planned
    from symphony.simulator.scenarios import Scenario

_OBJECTIVES = {"makespan": "makespan", "completion": "mean_completion", "mean_completion": "mean_completion"}


def plan(
    *,
    topology: options.Topology = "machine",
    workload: options.Workload = "cholesky:8?jobs=1",
    seed: options.Seed = 0,
    samples: Annotated[int, typer.Option(help="Schedules to sample from the policy.", min=0)] = 256,
    seconds: Annotated[float, typer.Option(help="Time to sample and search; compilation is not counted.")] = 20.0,
    policy: options.Learned = SHIPPED,
    objective: Annotated[str, typer.Option(help="makespan or completion (the mean of all jobs).")] = "makespan",
    arrivals: Annotated[
        bool, typer.Option("--arrivals", help="Jobs arrive as drawn or recorded, instead of all at the start.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this file.")] = None,
    as_json: options.AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write schedule.png and curve.png into this folder.")] = None,
    check: Annotated[Path | None, typer.Option(help="Simulate a written plan instead, and check its times.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Sample schedules from the learned policy, improve the best, and print its distance to the lower bound."""
    as_json = as_json or str(output) == "-"
    if check is not None:
        options.check_exists(check, "name a file that symphony plan -o wrote")
        _check_plan(check)
        return
    options.check_choice("objective", objective, _OBJECTIVES)
    options.check_learned(policy)
    options.check_file(output)
    options.check_folder(plot)
    if not seconds > 0:
        raise InputError(f"--seconds is {seconds:g}", hint="write a number of seconds above 0")
    options.check_scenario(topology, workload, seed)

    from symphony.oracle import plan_file, planning

    source = {"topology": topology, "workload": workload, "seed": seed, "arrivals": arrivals}
    console = terminal.console(stderr=as_json)
    with terminal.progress_bar(console, quiet=quiet, width=30) as update:

        def show_progress(phase: str, share: float, value_s: float) -> None:
            update(f"{phase}: {units.show(value_s, 'seconds')}" if value_s < float("inf") else phase, share)

        planned = planning.plan(
            _scenario(source),
            policy=policy,
            samples=samples,
            seconds=seconds,
            objective=_OBJECTIVES[objective],  # type: ignore[arg-type]  # checked above
            seed=seed,
            progress=show_progress,
        )
    content = plan_file.as_json(planned, source)
    text = json.dumps(content, indent=1)
    # The text is read back and simulated: the plan that is claimed is the one that is written.
    followed = plan_file.follow(json.loads(text), planned.scenario)
    if not followed.agrees:
        raise AssertionError(f"the plan claims {followed.claimed_s} s and takes {followed.value_s} s")
    if output is not None and str(output) != "-":
        output.write_text(text)
    if plot is not None:
        from symphony.evaluation.plots import save_plan  # matplotlib takes a second to import

        save_plan(planned, plot)
    if as_json:
        terminal.print_json(content)
    else:
        _show(console, planned, f"{workload} on {topology}, seed {seed}")


def _scenario(source: dict[str, Any]) -> Scenario:
    """The scenario of a plan, from the fields of its file."""
    from symphony.lowering.family import workload as drawn_workload
    from symphony.problem.topologies import topology
    from symphony.simulator.scenario_source import scenario
    from symphony.simulator.scenarios import CALM

    cluster = topology(source["topology"])
    work = drawn_workload(source["workload"], cluster, source["seed"])
    if not source["arrivals"]:
        work = replace(work, jobs=tuple(replace(job, arrival_s=0.0) for job in work.jobs))
    return scenario(cluster, work, source["seed"], CALM)


def _check_plan(path: Path) -> None:
    """Simulate a plan from a file; raise unless its times agree."""
    from symphony.oracle import plan_file

    content = plan_file.read(path)
    try:
        drawn = _scenario(content)
    except KeyError as error:
        hint = "write it with plan -o, or follow it from Python"
        raise InputError(f"the field {error.args[0]!r} is missing", where=str(path), hint=hint) from None
    followed = plan_file.follow(content, drawn)
    if not followed.agrees:
        raise SymphonyError(
            f"the plan claims {followed.claimed_s:.9g} s and takes {followed.value_s:.9g} s in the simulator "
            f"(a start or finish is off by {followed.off_s:.3g} s)",
            where=str(path),
            hint="plan again; topology, workload or simulator have changed since",
        )
    terminal.console().print(f"the plan takes {followed.value_s:.6g} s in the simulator, as it claims")


def _show(console: Console, planned: Planned, title: str) -> None:
    table = Table(title=f"{planned.objective.replace('_', ' ')}: {title}")
    for column in ("", "seconds", "above the bound"):
        table.add_column(column, justify="right" if column else "left")

    def row(name: str, value_s: float, style: str = "") -> None:
        table.add_row(name, f"{value_s:.6g}", f"{value_s / planned.bound_s - 1:+.1%}", style=style)

    row("the plan, in the simulator", planned.value_s, "bold")
    table.add_section()
    for count, best in planned.curve:
        row(f"best of {count:,} sample{'' if count == 1 else 's'}, on average", best)
    table.add_section()
    row(f"{planned.policy_name}, its own decisions", planned.greedy_s)
    for name, value in sorted(planned.heuristics.items(), key=lambda item: item[1]):
        row(name, value)
    table.add_section()
    for name, bound in sorted(planned.bounds.items(), key=lambda item: -item[1]):
        row(f"bound: {name}", bound)
    console.print(table)
    console.print(
        f"{len(planned.samples_s):,} samples in {planned.sampling_s:.1f} s, {planned.rebuilt:,} rebuilt plans in "
        f"{planned.rebuilding_s:.1f} s and {planned.candidates:,} plans of the search in "
        f"{planned.search_s:.1f} s; {planned.wall_s:.0f} s with compilation"
    )
