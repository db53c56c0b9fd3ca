"""`symphony train`: weights for your own cluster and workloads."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from symphony.cli import options, terminal
from symphony.problem.defaults import SHIPPED
from symphony.problem.errors import InputError
from symphony.problem.objective import ANY_OBJECTIVE, objective_weights

if TYPE_CHECKING:
    from symphony.learning.train import TrainingRound

TELEMETRY_GRADIENTS = ("none", "sampled", "implicit")
NETWORK_SIZES = ("standard", "published")
# Two cores run such a round in seconds, so that a training of a few minutes has some. See `learning.train.RoundSize`.
CPU_ROUNDS = {"pool": 48, "scenarios": 4, "group": 8, "validation": 12, "every": 4}
CPU_SEGMENTS = 128  # per gradient step
GPU_ROUNDS = {"pool": 160, "scenarios": 128}


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
    begin: Annotated[
        str, typer.Option("--from", help=f"Weights to start from: {SHIPPED}, or a *{options.POLICY_SUFFIX} file.")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Rounds of simulation and learning.", min=1)] = 200,
    minutes: Annotated[float, typer.Option(help="Time limit; compilation counts.", min=0)] = float("inf"),
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
    objective: Annotated[str, typer.Option(help=f"{options.OBJECTIVE_HELP} any: drawn for each scenario.")] = "mean",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a policy for a cluster and its workloads. Resumes where it was stopped."""
    began = time.perf_counter()
    clusters, work = topology or ["machine"], workload or ["layered"]
    if minutes == 0:
        raise InputError("--minutes 0 leaves no time to train", hint="give 2 or more")
    options.check_choice("telemetry gradient", telemetry_gradient, TELEMETRY_GRADIENTS)
    options.check_choice("network sizes", sizes, NETWORK_SIZES)
    if objective != ANY_OBJECTIVE:
        objective_weights(objective)
    options.check_folder(output)
    if begin:
        options.check_learned(begin)
    for cluster in clusters:
        for spec in work:
            options.check_scenario(cluster, spec, seed)
    output.mkdir(parents=True, exist_ok=True)

    console = terminal.console(stderr=as_json)
    with terminal.progress_bar(console, quiet=quiet, width=60) as update:
        update("starting", 0.0)
        import equinox as eqx
        import jax

        from symphony.learning import train as training
        from symphony.learning.update import PPO
        from symphony.policies import SUFFIX, Learned, named, save
        from symphony.policies.learned import PRESETS
        from symphony.problem import topologies

        start = named(begin) if begin else None
        assert start is None or isinstance(start, Learned)  # `check_learned` has refused others
        on_cpu = jax.default_backend() == "cpu"
        rivals = training.RIVALS[:1] if on_cpu else training.RIVALS  # each is a program more to compile
        finished_rounds = 0

        def share_done() -> float:
            passed = (time.perf_counter() - began) / (60 * minutes)
            return min(max(passed, finished_rounds / rounds), 1.0)

        def show_phase(phase: str) -> None:
            update(phase, share_done)

        def show_round(done: TrainingRound) -> None:
            nonlocal finished_rounds
            finished_rounds = done.number + 1
            show_phase(f"round {finished_rounds}: {done.rate:,.0f} decisions/s, entropy {done.entropy:.2f}")
            if done.against is not None:
                line = f"round {done.number + 1:>4}  {done.seconds:7.0f} s  {_verdict(done.against)}"
                console.print(line, soft_wrap=True)

        policy, history = training.train(
            topology=[topologies.topology(name) for name in clusters],
            workload=work,
            jobs=jobs,
            rounds=rounds,
            minutes=minutes - (time.perf_counter() - began) / 60,
            patience=patience,
            start=start,
            size=training.RoundSize(**(CPU_ROUNDS if on_cpu else GPU_ROUNDS)),
            method=replace(PPO, pieces=CPU_SEGMENTS) if on_cpu else PPO,
            sizes=start.network.sizes if start is not None else PRESETS[sizes],
            telemetry_gradient=telemetry_gradient,
            objective=objective,
            seed=seed,
            checkpoint=output,
            rivals=rivals,
            tell=show_round,
            phase=show_phase,
        )
    if not history:
        terminal.print_error(
            f"nothing was learned: the {minutes:g} minutes were over before the first round",
            f"give --minutes {2 * minutes:g} or more; compiled programs are kept, so the next start is faster",
        )
        sys.stdout.flush()
        os._exit(2)  # without waiting for a compilation that has begun
    validations = [done.against for done in history if done.against is not None]
    unchanged = start is not None and bool(eqx.tree_equal(policy.network, start.network))
    card = {
        "command": shlex.join(["symphony", *sys.argv[1:]]),
        "topologies": clusters,
        "workloads": work,
        "rounds": len(history),
        "decisions": history[-1].decisions,
        "against": min(validations, default=None),
        "initial": history[-1].initial,
        "unchanged": unchanged,
        "rivals": list(rivals),
        "objective": "mean" if objective == ANY_OBJECTIVE else objective,
    }
    weights = output / f"best{SUFFIX}"
    save(weights, policy.network, card)
    if validations:
        _draw(history, output / "curve.png")
    if as_json:
        terminal.print_json({**card, "history": [asdict(done) for done in history]})
        return
    if history[-1].initial is not None:
        console.print(f"initial weights: {_verdict(history[-1].initial)}", soft_wrap=True)
    if unchanged:
        console.print(
            f"nothing was learned: after {len(history)} rounds, no weights were better than the initial ones."
        )
        console.print(f"weights: {weights} (equal to the initial ones; train longer, or with another --seed)")
        return
    if validations:
        console.print(f"best: {_verdict(min(validations))}", soft_wrap=True)
    console.print(f"weights: {weights}")
    command = shlex.join(["symphony", "compare", "-t", clusters[0], "-w", work[0], "-p"])
    console.print(f"try them: {command} {begin or 'eft-belief'},{weights}", soft_wrap=True)


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
