"""Forecasts of training jobs against what happened: `python -m benchmarks.forecasts [--quick] [--json FILE]`.

Drawn jobs with unknown speeds in the closed loop under the planner, as in `training_jobs`. Every tenth round, speed,
start and finish of each job are forecast. After the run, forecasts are compared with the outcomes: coverage of the 80%
bands, and error of the median. *others*: with drawn arrivals of further jobs, as shipped. *nobody*: without.

Seeds below 100 were used for tuning. Figures of one list are not independent, because a job is forecast several times;
so the smallest and largest figure of any list are printed beside the mean. Speeds are compared with those of the next
round, for jobs that were not moved. A start or finish counts as covered with a tolerance of a second.

Unfair to forecasts: they do not know when lists end. Favourable to them: future jobs are like earlier ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import before, gather, in_parts, parser
from benchmarks.training_jobs import Figures, planner, slots_for, unknown_case
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs.beliefs import Beliefs
from symphony.training_jobs.closed_loop import run
from symphony.training_jobs.forecast import JobNow
from symphony.training_jobs.job_forecast import Band, JobForecast
from symphony.training_jobs.measured_jobs import describe_jobs
from symphony.training_jobs.run_forecasts import RunForecaster, actual_times

SECTION = "forecasts"
LOADS = (2.0, 4.0)
EVERY, FIRST = 10, 3  # rounds between forecasts, and before the first
WAYS = {"others": True, "nobody": False}
BANDS = ("speed", "start_s", "finish_s")
COLUMNS = ("now_s", "job", "runs", *BANDS, "speed_was", "start_was_s", "finish_was_s")


def forecasts(options: Any) -> Iterator[Figures]:
    """Measure the seeds and loads that are not in the file."""
    known = {(row["load"], row["seed"]) for row in options.before}
    for seed in range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds)):
        for load in LOADS[1:] if options.quick else LOADS:
            if (load, seed) not in known:
                yield one_list(load, seed, options.jobs // 2 if options.quick else options.jobs)


def one_list(load: float, seed: int, jobs: int) -> Figures:
    """Forecasts during a run, and the outcomes."""
    scenario, made = unknown_case(seed, slots_for("planner"), jobs, load)
    outlook = RunForecaster(scenario)
    told: list[tuple[str, JobSnapshot, JobNow, JobForecast]] = []
    looks: dict[float, JobSnapshot] = {}
    taken: list[float] = []

    def watch(look: JobSnapshot, beliefs: Beliefs) -> bool:
        outlook.observe(look)
        looks[float(look.now_s)] = look
        if int(look.windows) >= FIRST and (int(look.windows) - FIRST) % EVERY == 0:
            now = outlook.jobs(look)
            for way, others in WAYS.items():
                began = time.perf_counter()
                found = outlook.forecast(look, beliefs, others=others)
                taken.append(time.perf_counter() - began)
                told.extend((way, look, job, one) for job, one in zip(now, found, strict=True))
        return True

    done = run(scenario, planner([]), describe_jobs(made, scenario.topology), watch=watch).run
    after = {float(look.now_s): actual_times(done, float(look.now_s)) for _, look, _, _ in told}
    instants = sorted(looks)
    following = dict(pairwise(instants))
    rows: dict[str, list[str]] = {way: [] for way in WAYS}
    for way, look, job, one in told:
        now = float(look.now_s)
        then = after[now][job.job]
        nxt = looks.get(following.get(now, -1.0))
        speed = None if nxt is None else reached(outlook, look, nxt, job)
        bands = (*one.speed, *one.start_s, *one.finish_s)
        rows[way].append(in_a_line([now, job.job, one.runs, *bands, speed, *then]))
    return {
        "load": load,
        "seed": seed,
        "last_arrival_s": max(job.arrival_s for job in scenario.workload.jobs),
        "forecasts": len(taken),
        "median_s": float(np.median(taken)),
        "most_s": float(np.max(taken)),
        "columns": COLUMNS,
        **rows,
    }


def reached(outlook: RunForecaster, look: JobSnapshot, after: JobSnapshot, job: JobNow) -> float | None:
    """Units per second of a job in the next round, if it was not moved and had no set-up."""
    gangs = [np.flatnonzero(np.asarray(x.job) == job.job) for x in (look, after)]
    if not job.devices or not all(len(gang) for gang in gangs):
        return None
    lanes = [np.flatnonzero(np.asarray(x.holds) == gang[0]) for x, gang in zip((look, after), gangs, strict=True)]
    same = len(lanes[0]) > 0 and np.array_equal(*lanes)
    if not same or np.asarray(look.setup)[lanes[0]].any() or np.asarray(after.setup)[lanes[0]].any():
        return None
    if float(np.asarray(after.since_s)[lanes[0]].max()) > float(look.now_s):
        return None
    units = job.left - float(after.units_left[gangs[1][0]])
    return units / (float(after.now_s) - float(look.now_s)) if units > 0 else None


def in_a_line(values: Sequence[float | None]) -> str:
    """A forecast and its outcome for the file; a band is three numbers."""
    return " ".join("-" if value is None else f"{value:.6g}" for value in values)


def from_line(line: str) -> dict[str, Any]:
    """Read such a line, by column."""
    numbers = iter(None if word == "-" else float(word) for word in line.split())
    return {column: [next(numbers) for _ in range(3)] if column in BANDS else next(numbers) for column in COLUMNS}


# ------------------------------------------------------------------------------------------------------- figures


def within(band: Sequence[float], value: float, by: float = 0.0) -> bool:
    """Whether a value is in a band."""
    b = Band(*band)
    return b.low - by <= value <= b.high + by


def judged(rows: Sequence[Figures], way: str, load: float, runs: bool, late: bool) -> Figures:
    """Quality of the forecasts of one kind; `late`: made after the last arrival."""
    found: Figures = {"load": load, "way": way, "runs": runs, "late": late}
    by_list = []
    some: list[dict[str, Any]] = []
    for row in (row for row in rows if row["load"] == load):
        mine = [from_line(line) for line in row[way]]
        mine = [one for one in mine if one["runs"] == runs and (one["now_s"] > row["last_arrival_s"]) == late]
        some += mine
        if mine:
            by_list.append(float(np.mean([within(one["finish_s"], one["finish_was_s"], 1.0) for one in mine])))
    if not some:
        return found | {"count": 0}
    left = np.asarray([one["finish_was_s"] - one["now_s"] for one in some])
    said = np.asarray([one["finish_s"][1] - one["now_s"] for one in some])
    found |= {
        "count": len(some),
        "finish_within": float(np.mean([within(one["finish_s"], one["finish_was_s"], 1.0) for one in some])),
        "of_lists": [min(by_list), max(by_list)],
        "finish_before": float(np.mean([one["finish_was_s"] < one["finish_s"][0] - 1 for one in some])),
        "finish_off": float(np.median(np.abs(said - left) / np.maximum(left, 1.0))),
        "width": float(np.median([one["finish_s"][2] - one["finish_s"][0] for one in some] / np.maximum(left, 1.0))),
    }
    if runs:
        ran = [one for one in some if one["speed_was"] is not None]
        found["speeds"] = len(ran)
        found["speed_within"] = float(np.mean([within(one["speed"], one["speed_was"]) for one in ran]))
        found["speed_off"] = float(np.median([abs(one["speed"][1] / one["speed_was"] - 1) for one in ran]))
    else:
        found["start_within"] = float(np.mean([within(one["start_s"], one["start_was_s"], 1.0) for one in some]))
        found["start_off_s"] = float(np.median([abs(one["start_s"][1] - one["start_was_s"]) for one in some]))
        found["start_wait_s"] = float(np.median([one["start_was_s"] - one["now_s"] for one in some]))
    return found


def show(rows: Sequence[Figures], console: Console) -> Figures:
    """Print the coverage of bands; returns the summary."""
    printed = Table(title="80% bands")
    for column in ("load", "when", "others", "", "forecasts", "finish within (by list)", "earlier", "off", "width",
                   "speed within; off", "start within; off"):  # fmt: skip
        printed.add_column(column)
    all_of = []
    for load in sorted({row["load"] for row in rows}):
        for late in (False, True):
            for way in WAYS:
                for runs in (True, False):
                    f = judged(rows, way, load, runs, late)
                    all_of.append(f)
                    if not f["count"]:
                        continue
                    printed.add_row(
                        f"{load:g}", "after" if late else "while they come", way, "runs" if runs else "waits",
                        str(f["count"]), f"{f['finish_within']:.0%} ({f['of_lists'][0]:.0%} to {f['of_lists'][1]:.0%})",
                        f"{f['finish_before']:.0%}", f"{f['finish_off']:.1%}", f"{f['width']:.0%}",
                        f"{f['speed_within']:.0%}; {f['speed_off']:.1%}" if runs else "",
                        "" if runs else f"{f['start_within']:.0%}; {f['start_off_s']:,.0f} s",
                    )  # fmt: skip
    console.print(printed)
    return {"judged": all_of}


def main() -> None:
    """Measure, print, keep. What is there is kept after every row, so that a run may be stopped."""
    options_parser = parser(__doc__.splitlines()[0], (SECTION,))
    in_parts(options_parser)
    options_parser.add_argument("--jobs", type=int, default=48, help="of each seed")
    options = options_parser.parse_args()
    found: dict[str, Any] = {}
    rows = before(options, SECTION)
    gather(options, found, SECTION, rows, partial(forecasts, options), partial(show, console=Console()))


if __name__ == "__main__":
    main()
