"""`symphony forecast`: what each training job of a service or of a simulated cluster may expect.

Of a simulated one, what then happened, too.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from symphony.cli import terminal
from symphony.cli.remote import Key, Url, connect
from symphony.lowering import measured_spec
from symphony.lowering.measured_jobs import MeasuredJobs, sharable
from symphony.policies.beliefs import Beliefs
from symphony.policies.describing import describe
from symphony.policies.forecast import Band, JobForecast, JobNow
from symphony.policies.planner import Planner
from symphony.problem import topologies
from symphony.problem.errors import InputError
from symphony.problem.limits import bucket
from symphony.simulator.scenarios import CALM, Scenario, draw
from symphony.simulator.stretch import Look
from symphony.training.closed_loop import run
from symphony.training.outlook import Happened, Outlook, happened

FORMAT = "symphony.forecast/1"
ROUND_S = 360.0  # of the planner
WORK_NOISE = 0.06  # what drawn jobs differ by from others of their kernel
WIDE = 120  # columns of a terminal that has room for a job on a line
FEWEST_SLOTS, MOST_SLOTS = 16, 256  # jobs in the system at once


class _Told:
    """A forecast at an instant, and whom it is of."""

    def __init__(self, look: Look, jobs: list[JobNow], forecasts: list[JobForecast]) -> None:
        self.at_s = float(look.now_s)
        self.of = list(zip(jobs, forecasts, strict=True))


def forecast(
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "gpu24",
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="measured:JOBS?load=…&hours=…, or a list of Gavel's: FILE?jobs=…")
    ] = "measured:48?load=2",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the workload, the truth and the draws.", min=0)] = 0,
    at: Annotated[
        float | None, typer.Option(help="Seconds into the run; the middle of arrivals if it is not said.", min=0)
    ] = None,
    share: Annotated[float, typer.Option(help="Of what happens, that bands are to hold.")] = 0.8,
    check: Annotated[bool, typer.Option("--check", help="Run on, and show beside it what happened.")] = False,
    tables: Annotated[Path | None, typer.Option(help="Folder of Gavel's tables, if not $SYMPHONY_DATA/gavel.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write it as JSON ('-': stdout).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Of the training jobs that a service runs, instead.")] = False,
    url: Url = "",
    token: Key = "",
) -> None:
    """Run training jobs of unknown speed under the planner up to an instant, and say what each may expect from then."""
    to_stdout = str(json_file) == "-"
    if json_file is not None and not to_stdout and (json_file.is_dir() or not json_file.parent.is_dir()):
        raise InputError(f"--json {json_file} cannot be written", hint="name a file in a folder that exists")
    if not 0 < share < 1:
        raise InputError(f"--share is {share:g}", hint="write a number between 0 and 1, such as 0.8")
    if live:
        _live(url, token, share, json_file)
        return
    scenario, made = _scenario(topology, workload, seed, tables)
    at_s = max(job.arrival_s for job in scenario.workload.jobs) / 2 if at is None else at
    console = terminal.console(stderr=to_stdout)
    told, after = _run(scenario, made, at_s, share, console, check=check, quiet=quiet)
    said = _as_json(told, after, scenario, {"topology": topology, "workload": workload, "seed": seed, "share": share})
    _write(
        console, said, f"{workload} on {topology}, seed {seed}: at {_time(told.at_s)}, bands of {share:.0%}", json_file
    )


def _write(console: Console, said: dict[str, Any], title: str, json_file: Path | None) -> None:
    """As a table, and into a file; only the latter, if that is standard output."""
    if json_file is not None:
        text = json.dumps(said, indent=1)
        if str(json_file) == "-":
            sys.stdout.write(text + "\n")
            return
        json_file.write_text(text)
    _show(console, said, title)


def _live(url: str, token: str, share: float, json_file: Path | None) -> None:
    """Of the jobs of a service."""
    with connect(url, token=token) as cluster:
        found, where = cluster.forecasts(share), cluster.url
    jobs = []
    for one in found:
        content = one.model_dump(mode="json")
        samples = content.pop("samples")
        behind = {"signature": samples["here"], "kernel": samples["elsewhere"], "family": samples["family"]}
        behind |= {"newest_s": samples["newest_s"], "guess_only": samples["newest_s"] is None}
        jobs.append(
            content
            | {"kernel": content.pop("task"), "workers": max(len(one.devices), 1), "kind": one.kind or None}
            | {"units_left": content.pop("steps_left"), "samples": behind}
        )
    said = {"format": FORMAT, "service": where, "share": share, "at_s": 0.0, "jobs": jobs}
    console = terminal.console(stderr=str(json_file) == "-")
    if not jobs and json_file is None:
        console.print("no training job runs or waits there")
        return
    _write(console, said, f"training jobs of {where}, bands of {share:.0%}", json_file)


def _scenario(topology: str, workload: str, seed: int, tables: Path | None) -> tuple[Scenario, MeasuredJobs]:
    cluster = sharable(topologies.topology(topology))
    made = measured_spec.workload(workload, cluster, seed, tables)
    noise = WORK_NOISE if workload.startswith(measured_spec.NAME) else 0.0
    rounds = replace(CALM, window_s=ROUND_S, offer_at_windows=True, work_noise=noise)
    slots = min(MOST_SLOTS, max(FEWEST_SLOTS, bucket(len(made.workload.jobs))))
    drawn = draw(cluster, made.workload, seed, rounds, job_slots=slots)
    return replace(drawn, truth=made.truth, told=made.told), made


def _run(
    scenario: Scenario, made: MeasuredJobs, at_s: float, share: float, console: Console, *, check: bool, quiet: bool
) -> tuple[_Told, dict[int, Happened]]:
    """The forecast at the end of the first round from then on; and what happened, if the run is to go on."""
    outlook = Outlook(scenario)
    told: list[_Told] = []
    with terminal.bars(console, quiet=quiet, width=30) as bars:
        bar = bars.add_task("compiling", total=1.0)

        def watch(look: Look, beliefs: Beliefs) -> bool:
            outlook.see(look)
            now_s = float(look.now_s)
            bars.update(bar, description=f"at {_time(now_s)}", completed=min(1.0, now_s / max(at_s, 1.0)))
            if not told and now_s >= at_s and not bool(look.over):
                found = outlook.forecast(look, beliefs, share=share, seed=scenario.seed)
                told.append(_Told(look, outlook.jobs(look), found))
            return check or not told

        policy = Planner(rows=scenario.job_slots)
        out = run(scenario, policy, describe(made, scenario.topology), watch=watch)
    if not told:
        ended = _time(max((job.finish_s for job in out.run.jobs), default=0.0))
        raise InputError(f"all jobs were done by {ended}", where="--at", hint="name an earlier instant")
    return told[0], happened(out.run, told[0].at_s) if check else {}


def _as_json(told: _Told, after: dict[int, Happened], scenario: Scenario, where: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind.name for kind in scenario.topology.kinds]
    jobs = []
    for job, one in told.of:
        content = {
            "job": one.job,
            "kernel": scenario.workload.kernels[job.kernel].name,
            "runs": one.runs,
            "devices": [scenario.topology.devices[d].name for d in job.devices],
            "kind": kinds[one.kind] if one.kind >= 0 else None,
            "workers": job.workers,
            "units_left": job.left,
            "speed": _band(one.speed),
            "start_s": _band(one.start_s),
            "finish_s": _band(one.finish_s),
            "loses": [{"job": loss.job, "kept": _band(loss.kept)} for loss in one.loses],
            "samples": one.behind._asdict() | {"guess_only": one.behind.guess_only},
        }
        if after:
            content["happened"] = after[one.job]._asdict()
        jobs.append(content)
    said = {"format": FORMAT, **where, "at_s": told.at_s, "jobs": jobs}
    return said | ({"check": _checked(jobs)} if after else {})


def _band(band: Band) -> dict[str, float | None]:
    """What is never to be expected is null."""
    return {name: value if math.isfinite(value) else None for name, value in band._asdict().items()}


def _within(band: dict[str, float | None], value: float) -> bool:
    """Whether a time is in a band, to the second."""
    low, high = (math.inf if end is None else end for end in (band["low"], band["high"]))
    return low - 1 <= value <= high + 1


def _checked(jobs: list[dict[str, Any]]) -> dict[str, int]:
    waited = [job for job in jobs if not job["runs"]]
    return {
        "jobs": len(jobs),
        "finishes_within": sum(_within(job["finish_s"], job["happened"]["finish_s"]) for job in jobs),
        "waited": len(waited),
        "starts_within": sum(_within(job["start_s"], job["happened"]["start_s"]) for job in waited),
    }


# ----------------------------------------------------------------------------------------------------------- table


def _unit(seconds: float) -> tuple[float, str]:
    units = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s"))
    return next((size, unit) for size, unit in units if seconds >= 2 * size)


def _figure(value: float) -> str:
    """Three digits, or all of them, without exponents that nobody reads."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _time(seconds: float) -> str:
    size, unit = _unit(seconds)
    return f"{_figure(seconds / (size or 1))} {unit}"


def _times(band: dict[str, Any], now_s: float, apart: str = " ") -> str:
    """A band from now on, in the unit of its middle."""
    if band["mid"] is None:
        return "never" if band["low"] is None else f"{_time(band['low'] - now_s)} or never"
    size, unit = _unit(band["mid"] - now_s)
    low, mid, high = (
        "never" if band[end] is None else _figure((band[end] - now_s) / (size or 1)) for end in ("low", "mid", "high")
    )
    return f"{mid} {unit}{apart}({low} to {high})"


def _where(job: dict[str, Any]) -> str:
    if len(job["devices"]) == 1:
        return str(job["devices"][0])
    place = f"{job['workers']} × {job['kind']}" if job["workers"] > 1 else str(job["kind"])
    return place if job["runs"] else "nowhere" if job["kind"] is None else f"{place}?"


def _samples(behind: dict[str, Any], apart: str) -> str:
    if behind["guess_only"]:
        return "guess only"
    counts = f"{behind['signature']} + {behind['kernel']} + {behind['family']}"
    return f"{counts},{apart}{_time(behind['newest_s'])} old"


def _what_happened(job: dict[str, Any], now_s: float) -> str:
    """Times from then on; those outside their bands are marked."""

    def one(what: str, key: str) -> str:
        mark = "" if _within(job[key], job["happened"][key]) else " ✗"
        return f"{what} {_time(job['happened'][key] - now_s)}{mark}"

    done = one("done", "finish_s")
    return done if job["runs"] else f"{one('started', 'start_s')}, {done}"


def _loss(loss: dict[str, Any], others: bool) -> str:
    low, mid, high = (f"{1 - loss['kept'][end]:.0%}" for end in ("high", "mid", "low"))
    return f"{mid} ({low} to {high}) to {'job ' + str(loss['job']) if loss['job'] or not others else 'another user'}"


def _show(console: Console, said: dict[str, Any], title: str) -> None:
    now_s, checks, live = said["at_s"], "check" in said, "service" in said
    apart = "\n" if console.width < WIDE else " "  # bands below what they are of, where there is little room
    losses = any(job["loses"] for job in said["jobs"])
    shown = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    whose = ("job", "task", "where", "steps/s") if live else ("job", "kernel", "where", "units/s")
    for column in (*whose, *(["loses"] if losses else []), "start in", "finish in", "samples"):
        shown.add_column(column, overflow="fold")
    if checks:
        shown.add_column("happened")
    for job in sorted(said["jobs"], key=lambda job: (not job["runs"], job["finish_s"]["mid"] or math.inf)):
        low, mid, high = (_figure(job["speed"][end]) for end in ("low", "mid", "high"))
        row = [
            str(job["job"]),
            escape(job["kernel"]),
            escape(_where(job)),
            f"{mid}{apart}({low} to {high})",
            *(["; ".join(_loss(loss, live) for loss in job["loses"])] if losses else []),
            "runs" if job["runs"] else _times(job["start_s"], now_s, apart),
            _times(job["finish_s"], now_s, apart),
            _samples(job["samples"], apart),
        ]
        shown.add_row(*row, *([_what_happened(job, now_s)] if checks else []))
    console.print(shown)
    console.print()
    console.print("where?: most likely; samples: of the very same + of the kernel elsewhere + of others of its family")
    if checks:
        c = said["check"]
        finishes = f"{c['finishes_within']} of {c['jobs']} finishes"
        console.print(f"within bands: {finishes}, {c['starts_within']} of {c['waited']} starts")
