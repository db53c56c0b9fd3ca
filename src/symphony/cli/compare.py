"""`symphony compare`: policies side by side on the same scenarios."""

from __future__ import annotations

import shlex
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from symphony.cli import options, terminal
from symphony.evaluation.metrics import METRICS
from symphony.lowering.family import family, names
from symphony.problem.defaults import SHIPPED
from symphony.problem.errors import InfeasibleError, InputError, SymphonyWarning
from symphony.problem.objective import objective_weights

if TYPE_CHECKING:
    from symphony.evaluation.report import Report
    from symphony.evaluation.survey import Survey


def compare(
    *,
    topology: options.Topology = "paper",
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            "-w",
            help="Family or file, e.g. 'cholesky:10?jobs=20&load=0.5'; with @, on another topology: "
            "'training@gpu24'. Repeatable; 'dags' or 'all' for every family. [default: variant-calling]",
        ),
    ] = None,
    policies: Annotated[
        str, typer.Option("--policies", "-p", help="Comma-separated names, or all; the first is the baseline.")
    ] = f"fifo,random,shortest-queue,sjf,heft,eft-static,eft-belief,eft-exact,{SHIPPED}",
    seeds: options.Seeds = 20,
    first_seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    metric: Annotated[str, typer.Option(help="Print the table of this metric as well.")] = "",
    background: Annotated[float, typer.Option(help="Load of hidden tenants on their resources; 0 = none.")] = 0.6,
    belief: Annotated[
        str,
        typer.Option(
            help="What policies see of the tenants: none (what is typical), raw readings, rows (a filter for each "
            "row), joint (one for each machine), or exact."
        ),
    ] = "joint",
    counters: Annotated[
        int, typer.Option(help="Counters of each domain, which its rows share; 0 = one for each row.", min=0)
    ] = 1,
    failures_per_day: Annotated[float, typer.Option(help="Failures of each device.")] = 0.0,
    latency_s: Annotated[float, typer.Option(help="Scheduler latency charged for every decision, in seconds.")] = 0.0,
    job_slots: Annotated[int, typer.Option(help="Jobs in the system at once; 0 = automatic.", min=0)] = 0,
    objective: Annotated[str, typer.Option(help=options.OBJECTIVE_HELP)] = "",
    lengths: Annotated[
        str,
        typer.Option(help="Of training jobs: told, or unknown (policies see estimates from jobs that have ended)."),
    ] = "told",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write all records to this file, as JSON (.gz: compressed).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all records as JSON on standard output instead of a table.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write report.html, plots and records into this folder.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Run policies on the same scenarios and compare them, with 95% confidence intervals."""
    chosen = [name.strip() for name in policies.split(",") if name.strip()]
    if policies == "all":
        chosen = [*options.BASELINE_NAMES, SHIPPED]
    places = _places(workload or ["variant-calling"], topology)
    if objective:
        objective_weights(objective)
    _check(chosen, places, first_seed, metric, output, report)
    if lengths == "unknown" and len(places) > 1:
        raise InputError("lengths can be hidden in one workload at a time", hint="name one --workload")

    from symphony.baselines import FOR_TRAINING
    from symphony.evaluation.compare import chosen_policies
    from symphony.evaluation.compare import compare as run_comparison
    from symphony.evaluation.report import Report
    from symphony.evaluation.survey import SurveyWorkload, survey
    from symphony.simulator.scenarios import Disturbances

    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
    console = terminal.console(stderr=as_json)
    disturbances = Disturbances(
        background=background,
        belief=belief,
        counters=counters or None,
        failures_per_day=failures_per_day,
        latency_s=latency_s,
    )
    numbers = range(first_seed, first_seed + seeds)
    command = shlex.join(["symphony", *sys.argv[1:]])
    result: Report | Survey
    with (
        warnings.catch_warnings(record=True) as caught,
        terminal.progress_bar(console, quiet=quiet, width=16) as show_progress,
    ):
        warnings.simplefilter("always", SymphonyWarning)
        if len(places) == 1:
            result = run_comparison(
                chosen,
                topology=places[0][1],
                workload=places[0][0],
                seeds=numbers,
                disturbances=disturbances,
                job_slots=job_slots or None,
                objective=objective or None,
                lengths=lengths,
                command=command,
                progress=lambda name, share: show_progress(name, (chosen.index(name) + share) / len(chosen)),
            )
        else:
            assert report is not None  # `_check` has refused it
            result = survey(
                chosen_policies(chosen, objective or None),
                [SurveyWorkload(*place) for place in places],
                report,
                seeds=numbers,
                disturbances=disturbances,
                job_slots=job_slots or None,
                command=command,
                suits=lambda name, scenario: name not in FOR_TRAINING or scenario.workload.preemptible,
                progress=show_progress,
            )
    written = []
    # Records first: nothing that follows may lose them.
    if output is not None:
        result.to_json(output)
        written.append(f"records: {output}")
    if as_json:
        _print_records(result)
    else:
        console.print(result.summary() if isinstance(result, Report) else result.table())
        if metric:
            console.print(result.table(metric))
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        terminal.print_warning(message)
    if report is not None:
        written.append(f"report: {result.write(report)}")
    for line in written:
        console.print(escape(line), soft_wrap=True)


def _places(specs: list[str], topology: str) -> list[tuple[str, str]]:
    """Pairs of workload and topology; `dags` and `all` stand for many."""
    places: list[tuple[str, str]] = []
    for spec in specs:
        if spec in ("dags", "all"):
            dags = [name for name in names() if name not in ("training", "mixed")]
            places += [(_third_of_jobs(name), topology) for name in dags]
            if spec == "all":
                places += [(_third_of_jobs("mixed"), topology), ("training", "gpu24")]
            continue
        work, at, cluster = spec.rpartition("@")
        place = (work, cluster) if at else (spec, topology)
        if not all(place):
            raise InputError(f"{spec!r} names no workload", hint="write WORKLOAD or WORKLOAD@TOPOLOGY")
        places.append(place)
    return list(dict.fromkeys(places))


def _third_of_jobs(name: str) -> str:
    """A family with a third of its jobs: enough where many families, policies and seeds are compared."""
    return f"{name}?jobs={max(1, int(family(name).common['jobs'].default) // 3)}"


def _check(
    policies: list[str], places: list[tuple[str, str]], seed: int, metric: str, output: Path | None, report: Path | None
) -> None:
    """Refuse every argument that could not be run, shown or written: a comparison may take an hour."""
    for name in policies:
        options.check_policy(name)
    if metric:
        options.check_choice("metric", metric, METRICS)
    options.check_folder(report)
    if output is not None and output.parent != report:  # a folder that will be created
        options.check_file(output)
    if len(places) > 1 and report is None:
        raise InputError(
            "several workloads need a folder for their results",
            hint="add --report DIR; the same command resumes where it was stopped",
        )
    for work, cluster in places:
        try:
            options.check_scenario(cluster, work, seed)
        except InfeasibleError:
            if len(places) == 1:
                raise  # of several, a survey skips it and says so


def _print_records(result: Report | Survey) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.json"
        result.to_json(file)
        sys.stdout.write(file.read_text(encoding="utf-8"))
        sys.stdout.flush()
