"""`symphony explain`: why a job took so long, or why the learned policy decided so."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from symphony.cli import terminal
from symphony.cli.remote import Key, Url, connect, print_json
from symphony.problem.defaults import SHIPPED


def explain(
    job: Annotated[int | None, typer.Argument(metavar="[ID]", help="A job of a service: why it took so long.")] = None,
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "paper",
    workload: Annotated[str, typer.Option("--workload", "-w", help="Family or file.")] = "variant-calling?jobs=20",
    policy: Annotated[str, typer.Option("--policy", "-p", help="A policy that was trained.")] = SHIPPED,
    seed: Annotated[int, typer.Option(help="Of the scenario.", min=0)] = 0,
    decision: Annotated[int, typer.Option("--decision", "-d", help="Its number, from 0.", min=0)] = 0,
    most: Annotated[int, typer.Option(help="Candidates to show.", min=1)] = 8,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write it as JSON ('-': stdout).")] = None,
    url: Url = "",
    token: Key = "",
) -> None:
    """Say why: of a job that a service runs or ran (ID), or of one decision of the learned policy."""
    if job is not None:
        _explain_job(job, url, token, json_file)
        return
    from symphony.cli.explain_decision import explain_decision, show  # with JAX, which jobs of a service do without

    told = explain_decision(policy, topology, workload, seed, decision)
    if json_file is not None:
        text = json.dumps(asdict(told), indent=1)
        if str(json_file) == "-":
            sys.stdout.write(text + "\n")
            return
        json_file.write_text(text)
    show(terminal.console(), told, most)


def _explain_job(number: int, url: str, token: str, json_file: Path | None) -> None:
    with connect(url, token=token) as cluster:
        found = cluster.job(number)
        text = found.explain()
        content = {**found.detail().model_dump(mode="json"), "text": text}
    if json_file is None:
        typer.echo(text)
    elif str(json_file) == "-":
        print_json(content)
    else:
        json_file.write_text(json.dumps(content, indent=1))
