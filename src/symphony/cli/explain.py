"""`symphony explain`: why a job took so long, or why the learned policy decided as it did."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from symphony.cli import options, terminal
from symphony.cli.remote import Key, Url
from symphony.problem.defaults import SHIPPED
from symphony.service.client import connect


def explain(
    job: Annotated[int | None, typer.Argument(metavar="[ID]", help="A job of a service: why it took so long.")] = None,
    *,
    topology: options.Topology = "paper",
    workload: options.Workload = "variant-calling?jobs=20",
    policy: options.Learned = SHIPPED,
    seed: options.Seed = 0,
    decision: Annotated[int, typer.Option("--decision", "-d", help="Number of the decision, from 0.", min=0)] = 0,
    output: options.Output = None,
    as_json: options.AsJson = False,
    url: Url = "",
    token: Key = "",
) -> None:
    """Explain why a job of a service (ID) took so long, or one decision of the learned policy."""
    options.check_file(output)
    if job is not None:
        with connect(url, token=token) as cluster:
            remote = cluster.job(job)
            text = remote.explain()
            content = {**remote.detail().model_dump(mode="json"), "text": text}
    else:
        options.check_learned(policy)
        options.check_scenario(topology, workload, seed)
        from symphony.cli.explain_decision import explain_decision, show

        with terminal.progress_bar(terminal.console(stderr=as_json), quiet=False, width=16):
            explanation = explain_decision(policy, topology, workload, seed, decision)
        content = asdict(explanation)
    if output is not None:
        output.write_text(json.dumps(content, indent=1))
    if as_json:
        terminal.print_json(content)
    elif job is not None:
        typer.echo(text)
    else:
        show(terminal.console(), explanation)
