"""`symphony evaluate`: a policy against everything it has to beat."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from symphony.cli import terminal
from symphony.evaluation.scorecard import SCORECARD_JOBS
from symphony.evaluation.scorecard import evaluate as run_evaluation
from symphony.policies import SHIPPED, named
from symphony.problem.errors import InputError


def evaluate(
    *,
    weights: Annotated[str, typer.Argument(help="A file that train wrote, or the name of a policy.")] = SHIPPED,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that keeps what is done.")] = Path("evaluated"),
    seeds: Annotated[int, typer.Option("--seeds", "-n", help="How many.", min=1)] = 20,
    jobs: Annotated[int, typer.Option(help="Of each run.", min=1)] = SCORECARD_JOBS,
    instances: Annotated[int, typer.Option(help="Small graphs to compare with the oracle; 0 = none.", min=0)] = 20,
    oracle_s: Annotated[float, typer.Option(help="Seconds of the oracle for each.", min=0.1)] = 20.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every line.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run a policy against its aims on held-out scenarios. The same command goes on where it was stopped."""
    if json_file is not None and not json_file.parent.is_dir():
        raise InputError(f"--json {json_file} cannot be written", hint="name a file in a folder that exists")
    named(weights)  # a slip of the pen is found before the long work
    console = terminal.console()
    with terminal.progress_bar(console, quiet=quiet, width=40) as bars:
        bar = bars.add_task("compiling", total=1.0)
        card = run_evaluation(
            weights,
            out,
            seeds=seeds,
            jobs=jobs,
            instances=instances,
            oracle_s=oracle_s,
            command=shlex.join(["symphony", *sys.argv[1:]]),
            progress=lambda what, share: bars.update(bar, description=what, completed=share),
        )
    if json_file is not None:
        card.to_json(json_file)
    console.print(card.table())
