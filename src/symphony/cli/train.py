"""`symphony train`: weights for your own cluster and workloads."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from symphony.cli import options, terminal

if TYPE_CHECKING:
    from symphony.learning.train import TrainingRound

TELEMETRY_GRADIENTS = ("none", "sampled", "covariance", "pathwise", "implicit")
NETWORK_SIZES = ("standard", "published")


def train(
    *,
    topology: Annotated[
        list[str] | None,
        typer.Option("--topology", "-t", help="Built-in name or TOML file; repeatable. [default: machine]"),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", "-w", help="Family or file; repeatable. [default: layered]")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for weights, checkpoint and learning curve.")
    ] = Path("trained"),
    begin: Annotated[str, typer.Option("--from", help=f"Weights to start from: a *{options.POLICY_SUFFIX} file.")] = "",
    rounds: Annotated[int, typer.Option(help="Rounds of simulation and learning.", min=1)] = 200,
    minutes: Annotated[float, typer.Option(help="Stop after this time.", min=0)] = float("inf"),
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many validations without improvement.", min=1)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Jobs of a scenario, unless the workload says it.", min=1)] = 24,
    sizes: Annotated[
        str, typer.Option(help=f"Sizes of the network, unless --from is given: {' or '.join(NETWORK_SIZES)}.")
    ] = NETWORK_SIZES[0],
    telemetry_gradient: Annotated[
        str, typer.Option(help=f"Also train the filter of counter readings: {', '.join(TELEMETRY_GRADIENTS)}.")
    ] = TELEMETRY_GRADIENTS[0],
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a policy for a cluster and its workloads. Resumes where it was stopped."""
    clusters, work = topology or ["machine"], workload or ["layered"]
    options.check_choice("telemetry gradient", telemetry_gradient, TELEMETRY_GRADIENTS)
    options.check_choice("network sizes", sizes, NETWORK_SIZES)
    options.check_folder(output)
    if begin:
        options.check_exists(Path(begin), f"write the path of a *{options.POLICY_SUFFIX} file")
    for cluster in clusters:
        for spec in work:
            options.check_scenario(cluster, spec, seed)

    import jax

    from symphony.learning import train as training
    from symphony.policies import SUFFIX, load, save
    from symphony.policies.learned import PRESETS
    from symphony.problem import topologies

    console = terminal.console(stderr=as_json)
    start = load(begin)[0] if begin else None
    on_cpu = training.RoundSize(pool=48, scenarios=8, group=8, validation=20, every=5)
    on_gpu = training.RoundSize(pool=160, scenarios=128)
    with terminal.progress_bar(console, quiet=quiet, width=60) as update:

        def show_round(done: TrainingRound) -> None:
            update(f"{done.rate:,.0f} decisions/s, entropy {done.entropy:.2f}", (done.number + 1) / rounds)
            if done.against is not None:
                line = f"round {done.number + 1:>4}  {done.seconds:7.0f} s  {_verdict(done.against)}"
                console.print(line, soft_wrap=True)

        policy, history = training.train(
            topology=[topologies.topology(name) for name in clusters],
            workload=work,
            jobs=jobs,
            rounds=rounds,
            minutes=minutes,
            patience=patience,
            start=start,
            size=on_cpu if jax.default_backend() == "cpu" else on_gpu,
            sizes=start.network.sizes if start is not None else PRESETS[sizes],
            telemetry_gradient=telemetry_gradient,
            seed=seed,
            checkpoint=output,
            tell=show_round,
        )
    validations = [done.against for done in history if done.against is not None]
    card = {
        "command": shlex.join(["symphony", *sys.argv[1:]]),
        "topologies": clusters,
        "workloads": work,
        "rounds": len(history),
        "decisions": history[-1].decisions if history else 0,
        "against": min(validations, default=None),
        "rivals": list(training.RIVALS),
    }
    weights = output / f"best{SUFFIX}"
    save(weights, policy.network, card)
    if validations:
        _draw(history, output / "curve.png")
    if as_json:
        terminal.print_json({**card, "history": [asdict(done) for done in history]})
        return
    if validations:
        console.print(f"best: {_verdict(min(validations))}", soft_wrap=True)
    console.print(f"weights: {weights}")
    command = shlex.join(["symphony", "compare", "-t", clusters[0], "-w", work[0], "-p"])
    console.print(f"try them: {command} eft-belief,{weights}", soft_wrap=True)


def _verdict(against: float) -> str:
    better = "less" if against < 1 else "more"
    return f"mean completion time {abs(against - 1):.1%} {better} than the best rival's on each scenario"


def _draw(history: list[TrainingRound], path: Path) -> None:
    from symphony.evaluation.plots import blank

    drawn, axes = blank(7.0, 4.0)
    validations = [(done.decisions, done.against) for done in history if done.against is not None]
    axes.plot(*zip(*validations, strict=True), marker="o", markersize=3)
    axes.axhline(1.0, color="#777777", linewidth=1)
    axes.set_xlabel("decisions learned from")
    axes.set_ylabel("mean completion time\nagainst the best rival")
    drawn.savefig(path, dpi=150)
