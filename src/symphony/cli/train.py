"""`symphony train`: weights for your own cluster and work."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

from symphony.cli import terminal
from symphony.learning.beliefs import NONE
from symphony.learning.train import RIVALS, RoundSize, TrainingRound
from symphony.learning.train import train as run_training
from symphony.policies import SUFFIX, load, save
from symphony.policies.learned import PRESETS
from symphony.problem import topologies
from symphony.problem.errors import InputError

ON_CPU = RoundSize(pool=48, scenarios=8, group=8, validation=20, every=5)
ON_GPU = RoundSize(pool=160, scenarios=128)


def train(
    *,
    topology: Annotated[
        list[str] | None,
        typer.Option("--topology", "-t", help="Built-in name or TOML file; several in turn. [default: machine]"),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Family or file; several times for several. [default: layered]"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights, checkpoint and curve.")] = Path(
        "trained"
    ),
    begin: Annotated[str, typer.Option("--from", help=f"Weights to go on from: a *{SUFFIX} file.")] = "",
    rounds: Annotated[int, typer.Option(help="Rounds of running and learning.", min=1)] = 200,
    minutes: Annotated[float, typer.Option(help="Stop after so long, whatever is done.", min=0)] = float("inf"),
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many looks that found nothing better.", min=1)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Jobs of a scenario, unless the workload says it.", min=1)] = 24,
    sizes: Annotated[
        str, typer.Option(help=f"Of the network, unless --from says it: {' or '.join(PRESETS)}.")
    ] = "standard",
    telemetry_gradient: Annotated[
        str,
        typer.Option(
            help="Train the filter of counter readings, too: none, pathwise, covariance, implicit.",
        ),
    ] = NONE,
    seed: Annotated[int, typer.Option(help="Of everything that is random.", min=0)] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what was told of each round.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train a policy on scenarios of a cluster and its work. The same command goes on where it was stopped."""
    if json_file is not None and not json_file.parent.is_dir():
        raise InputError(f"--json {json_file} cannot be written", hint="name a file in a folder that exists")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file", hint="name a folder")
    if sizes not in PRESETS:
        raise InputError(f"--sizes {sizes} is not known", hint=f"use {' or '.join(PRESETS)}")
    console = terminal.console()
    clusters, work = topology or ["machine"], workload or ["layered"]
    start = load(begin)[0] if begin else None
    with terminal.progress_bar(console, quiet=quiet, width=60) as bars:
        bar = bars.add_task("drawing scenarios, compiling", total=rounds)

        def tell(told: TrainingRound) -> None:
            line = f"{told.rate:,.0f} decisions/s, entropy {told.entropy:.2f}"
            bars.update(bar, description=line, completed=told.number + 1)
            if told.against is not None:
                console.print(
                    f"round {told.number + 1:>4}  {told.seconds:7.0f} s  {_verdict(told.against)}", soft_wrap=True
                )

        policy, history = run_training(
            topology=[topologies.topology(name) for name in clusters],
            workload=work,
            jobs=jobs,
            rounds=rounds,
            minutes=minutes,
            patience=patience,
            start=start,
            size=ON_CPU if jax.default_backend() == "cpu" else ON_GPU,
            sizes=start.network.sizes if start is not None else PRESETS[sizes],
            telemetry_gradient=telemetry_gradient,
            seed=seed,
            checkpoint=out,
            tell=tell,
        )
    looks = [told.against for told in history if told.against is not None]
    card = {
        "command": shlex.join(["symphony", *sys.argv[1:]]),
        "topologies": clusters,
        "workloads": work,
        "rounds": len(history),
        "decisions": history[-1].decisions if history else 0,
        "against": min(looks, default=None),
        "rivals": list(RIVALS),
    }
    weights = out / f"best{SUFFIX}"
    save(weights, policy.network, card)
    if json_file is not None:
        json_file.write_text(json.dumps({**card, "history": [asdict(told) for told in history]}, indent=1))
    if looks:
        _draw(history, out / "curve.png")
        console.print(f"best: {_verdict(min(looks))}", soft_wrap=True)
    console.print(f"weights: {weights}")
    tried = shlex.join(["symphony", "compare", "-t", clusters[0], "-w", work[0], "-p"])
    console.print(f"try them: {tried} eft-belief,{weights}", soft_wrap=True)


def _verdict(against: float) -> str:
    better = "less" if against < 1 else "more"
    return f"mean completion time {abs(against - 1):.1%} {better} than the best rival's on each scenario"


def _draw(history: list[TrainingRound], path: Path) -> None:
    from symphony.evaluation.plots import blank

    drawn, axes = blank(7.0, 4.0)
    looks = [(told.decisions, told.against) for told in history if told.against is not None]
    axes.plot(*np.transpose(looks), marker="o", markersize=3)
    axes.axhline(1.0, color="#777777", linewidth=1)
    axes.set_xlabel("decisions learned from")
    axes.set_ylabel("mean completion time\nagainst the best rival")
    drawn.savefig(path, dpi=150)
