"""Training jobs while the workload shifts: `python -m benchmarks.training_shifts [--quick] [--only …] [--json FILE]`.

- *families*: all that comes in the second half of a list is of families that were not there before.
- *mix*: half of the families stop coming.
- *lost*, *added*: the P100s go down for good when half the list has come; the V100s come up only then.
- *samples*: what is left of the quality if only a part of the reports is heard.

For each shift: mean completion of the jobs that come after it, and *recovery*: rounds, placements and jobs from the
shift until reports are off by no more than half again what they were off by before it (the mean of three rounds).
Regret is the mean over jobs of time in the system beyond that of a planner who is told the truth, as it grows over a
run (`--plot FILE`). As in `training_jobs`, many processes may measure a part each (`--merge`).

Unfair to all: a GPU that goes down takes the work since the last checkpoint with it. Unfair to the heuristics: those
that do not pack have devices that nobody shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import before, gather, in_parts, parser
from benchmarks.training_jobs import (
    OURS,
    TRUTH,
    Figures,
    beside,
    figures,
    in_the_loop,
    planner,
    slots_for,
    unknown_case,
)
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Failure, Scenario
from symphony.training_jobs.closed_loop import ClosedLoopRun, run
from symphony.training_jobs.measured_jobs import MeasuredJobs, describe_jobs
from symphony.training_jobs.speed_samples import SpeedReport

SECTIONS = ("families", "mix", "lost", "added", "samples")
OLD, NEW = ("LM", "ResNet-18", "A3C"), ("Transformer", "ResNet-50", "CycleGAN")
MODELS: dict[str, tuple[tuple[str, ...], ...]] = {"families": (OLD, NEW), "mix": (OLD + NEW, NEW)}
GONE = {"lost": "p100", "added": "v100"}  # the kind of GPU that is not there, after the shift or before it
FOR_EVER_S = 1e8
RIVALS = ("max-sum-throughput", "max-min-fairness", "allox")  # the best of `training_jobs`
HEARD = (0.05, 0.25, 1.0)  # parts of the reports
POINTS, CURVE = 60, 4.0  # of a curve, up to so many times the last arrival
AS_BEFORE, ROUNDS = 1.5, 3  # recovery: errors of so many rounds are at most so many times those before


def shifted(section: str, seed: int, slots: int, jobs: int, load: float) -> tuple[Scenario, MeasuredJobs, float]:
    """A scenario, and when it shifts: when the second half of its jobs begins to come."""
    scenario, made = unknown_case(seed, slots, jobs, load, MODELS.get(section, ()))
    at = scenario.workload.jobs[jobs // 2].arrival_s
    if section in GONE:
        devices = [device.name for device in scenario.topology.devices if device.kind == GONE[section]]
        first, down = (at, FOR_EVER_S) if section == "lost" else (1e-3, at)
        failures = [Failure(first if n == 0 else 0.0, name, down) for n, name in enumerate(devices)]
        # The list of failures repeats: the last one is a long time coming.
        scenario = replace(scenario, failures=(*failures, Failure(FOR_EVER_S, devices[0], 1.0)))
    return scenario, made, at


def recovery(out: ClosedLoopRun, at_s: float) -> dict[str, int] | None:
    """What it took from a shift until errors are about what they were; None if they never are.

    Rounds with reports; placements of any job, moves included; jobs that came since and have been placed.
    """
    before = [error for when, error in out.errors if when <= at_s][5:]
    after = [(when, error) for when, error in out.errors if when > at_s]
    if not before or len(after) < ROUNDS:
        return None
    level = AS_BEFORE * float(np.median(before))
    came = {job.job for job in out.run.jobs if job.arrival_s >= at_s}
    # At first nothing new has been reported yet.
    first = next((n for n, (_, error) in enumerate(after) if error > level), 0)
    for n in range(first, len(after) - ROUNDS + 1):
        if np.mean([error for _, error in after[n : n + ROUNDS]]) <= level:
            since = [gang for gang in out.run.gangs if at_s < gang.placed_s <= after[n][0]]
            return {"rounds": n, "placements": len(since), "jobs": len({gang.job for gang in since} & came)}
    return None


def time_in_system_s(record: RunRecord, at_s: np.ndarray) -> np.ndarray:
    """Mean over jobs of the time that they have been in the system, up to each of these instants."""
    jobs = [np.clip(at_s, job.arrival_s, job.finish_s) - job.arrival_s for job in record.jobs]
    return np.asarray(np.mean(jobs, axis=0))


def shift(section: str, options: Any) -> Iterator[Figures]:
    """One seed after the other, all policies; but for what has been measured."""
    names = (TRUTH, OURS, *RIVALS)
    known = {(row["seed"], row["policy"]) for row in options.before}
    for seed, name in ((s, n) for s in seeds(options) for n in options.policies or names if (s, n) not in known):
        scenario, made, at = shifted(section, seed, slots_for(name), options.jobs, options.load)
        out = in_the_loop(name, options.planner, scenario, made)
        times = np.linspace(0, CURVE * scenario.workload.jobs[-1].arrival_s, POINTS)
        later = [job.completion_s for job in out.run.jobs if job.arrival_s >= at]
        yield {
            "seed": seed, "policy": name, "shift_s": at, "later_mean_s": float(np.mean(later)),
            "recovery": None if name == TRUTH else recovery(out, at), **figures(out, scenario),
            "times_s": times.round().tolist(), "in_system_s": time_in_system_s(out.run, times).round(1).tolist(),
        }  # fmt: skip


def seeds(options: Any) -> range:
    """Those that are asked for."""
    return range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))


def samples(options: Any) -> Iterator[Figures]:
    """Parts of the reports; no shift."""
    known = {(row["seed"], row["policy"], row["heard"]) for row in options.before}
    cases = [(s, p) for s in seeds(options) for p in HEARD]
    for seed, part in ((s, p) for s, p in cases if (s, OURS, p) not in known):
        scenario, made = unknown_case(seed, 2, options.jobs, options.load)
        described = describe_jobs(made, scenario.topology)
        out = run(scenario, planner(options.planner), described, spoil=some(part, seed))
        yield {"seed": seed, "policy": OURS, "heard": part, **figures(out, scenario)}


def some(part: float, seed: int) -> Callable[[SpeedReport], list[SpeedReport]]:
    """Hears a part of the reports."""
    rng = np.random.default_rng([seed, 6])
    return lambda report: [report] if rng.random() < part else []


def show(section: str, rows: Sequence[Figures], console: Console) -> Figures:
    """Print a section; what was made of it."""
    if section == "samples":
        found = {}
        for policy in dict.fromkeys(row["policy"] for row in rows):
            for part in HEARD:
                at = [row for row in rows if row["policy"] == policy and row["heard"] == part]
                mean, number = (float(np.mean([row[name] for row in at])) for name in ("mean_s", "samples"))
                found[f"{policy}, {part:g}"] = {"mean_s": mean, "samples": number}
                console.print(f"{policy}: {part:.0%} of the reports, {number:,.0f} samples: {mean:,.0f} s")
        return found
    against = beside(rows, section, console, ["later_mean_s"])
    for policy in dict.fromkeys(row["policy"] for row in rows if row["policy"] != TRUTH):
        took = [row["recovery"] for row in rows if row["policy"] == policy]
        known = [one for one in took if one is not None]
        median = {name: float(np.median([one[name] for one in known])) for name in (known[0] if known else {})}
        against[f"recovery, {policy}"] = {"median": median, "never": took.count(None)}
        console.print(f"{policy}: recovery, in the median, {median}; never: {took.count(None)}")
    return against


def plot(found: dict[str, Any], file: Path) -> None:
    """Regret over time, a panel for each shift; thin lines are seeds."""
    from matplotlib.figure import Figure

    sections = [name for name in found if name != "samples"]
    figure = Figure(figsize=(4 * len(sections), 3.2), layout="constrained")
    for axis, section in zip(np.ravel(figure.subplots(1, len(sections), squeeze=False)), sections, strict=True):
        true = {row["seed"]: row["in_system_s"] for row in found[section]["rows"] if row["policy"] == TRUTH}
        rows = [row for row in found[section]["rows"] if row["policy"] != TRUTH and row["seed"] in true]
        for number, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
            curves = [row for row in rows if row["policy"] == policy]
            regret = [np.subtract(row["in_system_s"], true[row["seed"]]) for row in curves]
            for row, one in zip(curves, regret, strict=True):
                axis.plot(np.asarray(row["times_s"]) / 3600, one, color=f"C{number}", lw=0.3, alpha=0.2)
            hours = np.mean([row["times_s"] for row in curves], axis=0) / 3600
            axis.plot(hours, np.mean(regret, axis=0), color=f"C{number}", label=policy)
        axis.axvline(np.mean([row["shift_s"] for row in rows]) / 3600, color="0.5", ls=":")
        axis.set(title=section, xlabel="hours", ylabel="s behind who knows the truth")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(file)


def main() -> None:
    """Measure, print, keep. What is there is kept after every row, so that a run may be stopped."""
    options_parser = parser(__doc__.splitlines()[0], SECTIONS)
    in_parts(options_parser)
    options_parser.add_argument("--jobs", type=int, default=48, help="of each seed")
    options_parser.add_argument("--load", type=float, default=2.0, help="of what the cluster sustains")
    options_parser.add_argument("--planner", nargs="+", default=[], metavar="NAME=VALUE", help="settings of ours")
    options_parser.add_argument("--policies", nargs="+", help="run these only, after shifts")
    options_parser.add_argument("--plot", type=Path, metavar="FILE", help="draw regret over time (SVG, PNG)")
    options = options_parser.parse_args()
    if options.quick:
        options.jobs = options.jobs // 4
        options.policies = options.policies or (TRUTH, OURS)  # each rival is a program more
        options.only = options.only[:1]
    console = Console()
    found: dict[str, Any] = {}
    for section in options.only:
        more = partial(samples, options) if section == "samples" else partial(shift, section, options)
        gather(options, found, section, before(options, section), more, partial(show, section, console=console))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
