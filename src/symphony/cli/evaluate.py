"""`symphony evaluate`: a policy against its targets."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from symphony.cli import options, terminal
from symphony.problem.defaults import SHIPPED


def evaluate(
    *,
    weights: Annotated[str, typer.Argument(help="A file written by train, or the name of a policy.")] = SHIPPED,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results so far.")] = Path("evaluated"),
    seeds: options.Seeds = 20,
    instances: Annotated[int, typer.Option(help="Small graphs to compare with the oracle; 0 = none.", min=0)] = 20,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a policy on held-out scenarios and compare it with its targets. Resumes where it was stopped."""
    options.check_policy(weights)
    options.check_folder(output)

    from symphony.evaluation.scorecard import evaluate as run_evaluation

    console = terminal.console(stderr=as_json)
    with terminal.progress_bar(console, quiet=quiet, width=40) as show_progress:
        card = run_evaluation(
            weights,
            output,
            seeds=seeds,
            instances=instances,
            command=shlex.join(["symphony", *sys.argv[1:]]),
            progress=show_progress,
        )
    if as_json:
        terminal.print_json(card.as_json())
    else:
        console.print(card.table())
