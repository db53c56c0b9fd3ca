"""`symphony compare`: policies side by side on the same scenarios."""

from __future__ import annotations

import difflib
import shlex
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from symphony.baselines import BASELINES, FOR_TRAINING
from symphony.cli import terminal
from symphony.evaluation.compare import compare as run_comparison
from symphony.evaluation.metrics import METRICS
from symphony.evaluation.report import Report
from symphony.evaluation.survey import Survey, SurveyWorkload, survey
from symphony.lowering.family import family, names
from symphony.policies import SHIPPED
from symphony.problem.errors import InputError, SymphonyWarning
from symphony.simulator.scenarios import Disturbances


def compare(
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "paper",
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            "-w",
            help="Family or file, e.g. 'cholesky:10?jobs=20&load=0.5', on the topology or, with @, on another: "
            "'training@gpu24'. Several times for several; 'dags' or 'all' for every family. [default: variant-calling]",
        ),
    ] = None,
    policies: Annotated[
        str, typer.Option("--policies", "-p", help="Comma-separated names, or all; the first is the baseline.")
    ] = f"fifo,random,shortest-queue,sjf,heft,eft-static,eft-belief,eft-exact,{SHIPPED}",
    seeds: Annotated[int, typer.Option("--seeds", "-n", help="How many seeds: 0 to N-1.", min=1)] = 20,
    first_seed: Annotated[int, typer.Option(help="Start at another seed than 0.", min=0)] = 0,
    relative_to: Annotated[str, typer.Option(help="Compare with this policy instead of the first.")] = "",
    metric: Annotated[str, typer.Option(help="Print this metric's table as well (see the report for names).")] = "",
    background: Annotated[float, typer.Option(help="Load of hidden tenants on their resources; 0 = none.")] = 0.6,
    counter_noise: Annotated[float, typer.Option(help="Relative error of counter readings.")] = 0.4,
    counters: Annotated[int, typer.Option(help="Counters of a machine, shared in turn; 0 = enough.", min=0)] = 0,
    counter_delay: Annotated[int, typer.Option(help="Windows by which readings come late.", min=0)] = 0,
    raw_counters: Annotated[bool, typer.Option("--raw-counters", help="Show policies raw readings.")] = False,
    work_noise: Annotated[float, typer.Option(help="Spread of true work about the profiles.")] = 0.05,
    failures_per_day: Annotated[float, typer.Option(help="Failures of each device.")] = 0.0,
    latency_s: Annotated[float, typer.Option(help="Scheduler latency charged for every decision, in seconds.")] = 0.0,
    job_slots: Annotated[int, typer.Option(help="Jobs in the system at once; 0 = chosen.", min=0)] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every record as JSON ('-': stdout).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write report.html, plots and records here.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run policies on the same scenarios; print, and write, who does how much better, and how sure that is."""
    listed = [name.strip() for name in policies.split(",") if name.strip()]
    chosen = [*BASELINES, SHIPPED] if policies == "all" else listed
    if relative_to and relative_to not in chosen:
        raise InputError(
            f"--relative-to {relative_to!r} is not among --policies", hint=f"choose of {', '.join(chosen)}"
        )
    # What would fail at the end is found at the beginning: a comparison may take an hour.
    to_stdout = str(json_file) == "-"
    _check_outputs(metric, None if to_stdout else json_file, report)
    console = terminal.console(stderr=to_stdout)
    disturbances = Disturbances(
        background=background,
        counter_noise=counter_noise,
        counters=counters or None,
        counter_delay=counter_delay,
        corrected=not raw_counters,
        work_noise=work_noise,
        failures_per_day=failures_per_day,
        latency_s=latency_s,
    )
    places = _places(workload or ["variant-calling"], topology)
    numbers = range(first_seed, first_seed + seeds)
    command = shlex.join(["symphony", *sys.argv[1:]])
    result: Report | Survey
    with (
        warnings.catch_warnings(record=True) as caught,
        terminal.progress_bar(console, quiet=quiet, width=16) as bars,
    ):
        warnings.simplefilter("always", SymphonyWarning)
        bar = bars.add_task("compiling", total=1.0)

        if len(places) == 1:
            result = run_comparison(
                chosen,
                topology=places[0].topology,
                workload=places[0].workload,
                seeds=numbers,
                disturbances=disturbances,
                job_slots=job_slots or None,
                baseline=relative_to or None,
                command=command,
                progress=lambda name, share: bars.update(
                    bar, description=name, completed=(chosen.index(name) + share) / len(chosen)
                ),
            )
        else:
            if report is None:
                raise InputError(
                    "several workloads need a folder to keep what is done",
                    hint="add --report DIR; the same command goes on where it was stopped",
                )
            result = survey(
                chosen,
                places,
                report,
                seeds=numbers,
                disturbances=disturbances,
                job_slots=job_slots or None,
                command=command,
                suits=lambda name, one: name not in FOR_TRAINING or one.workload.preemptible,
                progress=lambda what, share: bars.update(bar, description=what, completed=share),
            )
    written = []
    # Records first: nothing that follows may lose them.
    if to_stdout:
        with tempfile.TemporaryDirectory() as folder:
            result.to_json(Path(folder) / "records.json")
            sys.stdout.buffer.write((Path(folder) / "records.json").read_bytes())
            sys.stdout.buffer.flush()
    elif json_file is not None:
        result.to_json(json_file)
        written.append(f"records: {json_file}")
    console.print(result.summary() if isinstance(result, Report) else result.table())
    if metric:
        console.print(result.table(metric))
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        terminal.console(stderr=True).print(f"[yellow]warning[/]: {message}")
    if report is not None:
        written.append(f"report: {result.write(report)}")
    for line in written:
        console.print(escape(line), soft_wrap=True)


def _places(specs: list[str], topology: str) -> list[SurveyWorkload]:
    """The workloads that are meant, each with its topology; `dags` and `all` stand for many."""
    places: list[SurveyWorkload] = []
    for spec in specs:
        if spec in ("dags", "all"):
            dags = [name for name in names() if name not in ("training", "mixed")]
            places += [SurveyWorkload(_shorter(name), topology) for name in dags]
            if spec == "all":
                places += [SurveyWorkload(_shorter("mixed"), topology), SurveyWorkload("training", "gpu24")]
        else:
            places.append(SurveyWorkload.of(spec, topology))
    return list(dict.fromkeys(places))


def _shorter(name: str) -> str:
    """A family with a third of its jobs: with many families, policies and seeds, that many are enough."""
    return f"{name}?jobs={max(1, int(family(name).common['jobs'].default) // 3)}"


def _check_outputs(metric: str, json_file: Path | None, report: Path | None) -> None:
    """Refuse what could not be written or shown before the long work, not after it."""
    if metric and metric not in METRICS:
        close = difflib.get_close_matches(metric, METRICS, 1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"--metric {metric!r} is no metric", hint=f"{meant}there are {', '.join(METRICS)}")
    if report is not None:
        try:
            report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--report {report} cannot be made: {error.strerror}", hint="name a folder that can be written"
            ) from error
    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        why = "it is a directory" if json_file.is_dir() else f"no such directory: {json_file.parent}"
        raise InputError(f"--json {json_file} cannot be written: {why}", hint="name a file in a folder that exists")
