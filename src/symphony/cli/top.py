"""`symphony top`: the state of a service, refreshed in a terminal."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from symphony.cli import terminal
from symphony.cli.jobs import table as job_table
from symphony.cli.options import AsJson
from symphony.cli.remote import Key, Url, plain_table
from symphony.cli.terminal import print_json
from symphony.problem.units import show
from symphony.service.client import RemoteCluster, connect
from symphony.service.wire import ClusterView, DecisionsView

BAR_COLUMNS = 20
SHOWN_JOBS = 12


def top(
    *,
    every: Annotated[float, typer.Option("--every", "-n", help="Seconds between updates.", min=0.1)] = 1.0,
    looks: Annotated[int, typer.Option(help="Stop after this many updates; 0 = until ctrl-C.", min=0)] = 0,
    url: Url = "",
    token: Key = "",
    as_json: AsJson = False,
) -> None:
    """Watch devices, users and jobs of a service."""
    with connect(url, token=token) as cluster:
        if as_json:
            jobs = [job.model_dump(mode="json") for job in cluster.jobs(limit=SHOWN_JOBS)]
            print_json({**cluster.state().model_dump(mode="json"), "jobs": jobs})
            return
        console = terminal.console()
        with Live(screen(cluster), console=console, auto_refresh=False, screen=console.is_terminal) as live:
            updates = 1
            while updates != looks:
                time.sleep(every)
                live.update(screen(cluster), refresh=True)
                updates += 1
        if not console.is_terminal:  # the last update ends without a new line there
            console.print()


def screen(cluster: RemoteCluster) -> Group:
    state = cluster.state()
    jobs = cluster.jobs(limit=SHOWN_JOBS)
    listed = job_table(jobs, everybody=True) if jobs else "no jobs"
    return Group(_head(cluster.url, state), "", _devices(state), "", _users(state), "", listed)


def _head(url: str, state: ClusterView) -> Text:
    finished = ", ".join(f"{count} {status}" for status, count in state.counts.items() if count) or "none finished"
    draining = "; draining" if state.draining else ""
    return Text(
        f"{state.name} at {url}: {state.running} running, {state.waiting} waiting, {finished}{draining}\n"
        f"policy {state.policy}: {_decisions(state.decisions)}"
    )


def _decisions(view: DecisionsView) -> str:
    if view.p50_s is None or view.p99_s is None:
        return "no decisions yet"
    latency = f"p50 {_s(view.p50_s)}, p99 {_s(view.p99_s)}"
    count = sum(view.fallbacks.values())
    fallbacks = f", {count} turns by the heuristic ({', '.join(sorted(view.fallbacks))})" if count else ""
    by = "".join(f", {count} by the {who}" for who, count in view.by.items())
    return f"{view.decisions} decisions{by}, {latency}{fallbacks}"


def _devices(state: ClusterView) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in ("device", "kind", "busy", "", "running"):
        made.add_column(name, overflow="ellipsis", no_wrap=True)
    for device in state.devices:
        busy = min(len(device.running), device.slots)
        bar = "█" * round(BAR_COLUMNS * busy / device.slots)
        rest = f" and {len(device.running) - 3} more" if len(device.running) > 3 else ""
        running = ", ".join(device.running[:3]) + rest if device.up else "down"
        made.add_row(
            escape(device.name), escape(device.kind), f"{busy}/{device.slots}", f"{bar:<{BAR_COLUMNS}}", escape(running)
        )
    return made


def _users(state: ClusterView) -> Table:
    counts = ("running", "waiting", "used lately")
    made = plain_table("user", *counts, right=counts)
    for user in sorted(state.users, key=lambda user: -user.usage_s):
        made.add_row(escape(user.user), str(user.running), str(user.waiting), _s(user.usage_s))
    return made


def _s(seconds: float) -> str:
    return show(float(f"{seconds:.3g}"), "seconds")
