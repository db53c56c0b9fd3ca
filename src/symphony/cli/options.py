"""Options that several commands share, and checks of their values.

The checks import neither JAX nor the simulator, which take seconds: a command checks all its arguments first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from symphony.problem.defaults import LIVE_POLICY, SHIPPED
from symphony.problem.errors import InputError
from symphony.problem.objective import OBJECTIVE_NAMES
from symphony.problem.texts import did_you_mean

Topology = Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")]
Workload = Annotated[str, typer.Option("--workload", "-w", help="Family or file: 'cholesky:10?jobs=20&load=0.5'.")]
Seed = Annotated[int, typer.Option("--seed", "-s", help="Seed of all random draws.", min=0)]
Seeds = Annotated[int, typer.Option("--seeds", "-n", help="Number of seeds.", min=1)]
Learned = Annotated[str, typer.Option("--policy", "-p", help="The shipped policy, or a file written by train.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to this file, as JSON.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]

# The names in `symphony.baselines.BASELINES` and `symphony.policies.named`, which cannot be loaded without JAX.
BASELINE_NAMES = tuple(
    [
        "random",
        "fifo",
        "shortest-queue",
        "sjf",
        "heft",
        "cpop",
        "peft",
        "dm",
        "dmda",
        "dmdas",
        "heteroprio",
        "sparrow",
        "sparrow-batch",
        "paragon",
        "paragon-profiled",
        "graphene",
        "tetris",
        "drf",
        "least-interference",
        "load-balancing",
        "fifo-passing",
        "srtf",
        "las",
        "tiresias",
        "optimus",
        "allox",
        "max-min-fairness",
        "max-min-fairness-plain",
        "max-min-fairness-packed",
        "max-sum-throughput",
        "max-sum-throughput-packed",
        "min-total-duration",
        "min-total-duration-packed",
        "finish-time-fairness",
        "finish-time-fairness-packed",
        "eft-static",
        "eft-belief",
        "eft-rebinding",
        "eft-exact",
    ]
)
POLICY_NAMES = (SHIPPED, LIVE_POLICY, "symphony-late", "look-ahead", "planner", *BASELINE_NAMES)
POLICY_SUFFIX = ".policy"
OBJECTIVE_HELP = f"Weights for learned policies: {', '.join(OBJECTIVE_NAMES)}, e.g. mean=1,tail=0.5."


def check_policy(name: str) -> None:
    """Refuse a policy name that does not exist, and a file of weights that cannot be found."""
    if name.endswith(POLICY_SUFFIX):
        check_exists(Path(name), "write the path of a file that symphony train wrote")
    elif not name.startswith(f"{SHIPPED}:"):  # whose number `symphony.policies.named` checks
        check_choice("policy", name, POLICY_NAMES)


def check_learned(name: str) -> None:
    """Refuse what is not a learned policy: neither the shipped one nor a file of weights."""
    if name.endswith(POLICY_SUFFIX):
        check_policy(name)
    elif name != SHIPPED:
        hint = f"use {SHIPPED}, or a file that symphony train wrote"
        raise InputError(f"{name!r} is not a learned policy", hint=hint)


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices; the hint names the nearest one."""
    choices = list(choices)
    if value not in choices:
        meant = did_you_mean(value, choices)
        raise InputError(f"unknown {what} {value!r}", hint=f"{meant}choose one of {', '.join(choices)}")


def check_exists(path: Path, hint: str) -> None:
    if not path.is_file():
        raise InputError("there is no such file", where=str(path), hint=hint)


def check_file(path: Path | None) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold. None is allowed."""
    if path is None or (str(path) == "-"):
        return
    if path.is_dir():
        reason, hint = "it is a directory", f"name a file in it, such as {path / 'out'}"
    elif not path.parent.is_dir():
        reason, hint = f"there is no directory {path.parent}", "name a file in a folder that exists"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason, hint = "permission denied", "name a file that you may write"
    else:
        return
    raise InputError(f"it cannot be written: {reason}", where=str(path), hint=hint)


def check_folder(path: Path | None) -> None:
    """Refuse a folder that could not be made or written to. None is allowed."""
    if path is None:
        return
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file", where=str(path), hint="name a folder")
    if not os.access(nearest, os.W_OK):
        raise InputError("permission denied", where=str(path), hint="name a folder that can be written")


def check_scenario(topology: str, workload: str, seed: int) -> None:
    """Refuse a topology or workload that does not exist, and a workload that the topology cannot run."""
    from symphony.lowering.family import drawn
    from symphony.problem import topologies

    drawn(workload, topologies.topology(topology), seed)
