"""`symphony serve`: this machine, or a Ray cluster, for others to submit to."""

from __future__ import annotations

import getpass
import logging
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from symphony.cli import terminal
from symphony.cli.remote import AsJson, Database, State, print_json
from symphony.engines.engine import Engine
from symphony.engines.local import LocalEngine
from symphony.problem import topologies
from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra
from symphony.runtime.cluster import DEFAULT_POLICY, ray_engine
from symphony.runtime.live_workload import Shapes
from symphony.runtime.programs import keep_programs
from symphony.service.client import ADDRESS_FILE, DEFAULT_PORT, default_folder
from symphony.training_jobs.live.rounds import ROUND_S

log = logging.getLogger("symphony.service")
Ray = Annotated[
    str, typer.Option("--ray", help="A Ray cluster instead: HOST:PORT, auto (that of this machine), local.")
]
Checkpoints = Annotated[
    Path | None, typer.Option("--checkpoints", help="Folder that all machines reach, for training jobs.")
]


def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.", min=0, max=65_535)] = DEFAULT_PORT,
    state: State = None,
    database: Database = "",
    checkpoints: Checkpoints = None,
    round_s: Annotated[float, typer.Option(help="Seconds until training jobs are planned anew.", min=0.1)] = ROUND_S,
    at_once: Annotated[int, typer.Option(help="Jobs that the policy looks at.", min=1, max=1_000)] = Shapes.jobs,
    policy: Annotated[str, typer.Option("--policy", "-p", help="Who decides.")] = DEFAULT_POLICY,
    ray: Ray = "",
    topology: Annotated[str, typer.Option("--topology", "-t", help="Of what is served, if not as discovered.")] = "",
    drain_s: Annotated[float, typer.Option(help="Seconds that jobs get to finish at the end.", min=0.0)] = 30.0,
    rate: Annotated[float, typer.Option(help="Requests a second of a user.", min=1.0)] = 500.0,
    open_jobs: Annotated[int, typer.Option(help="Jobs of a user that are not over.", min=1)] = 10_000,
    body_bytes: Annotated[int, typer.Option(help="The largest request.", min=1_000)] = 16 << 20,
    blob_bytes: Annotated[int, typer.Option(help="The largest argument or function.", min=1_000)] = 1 << 30,
    connections: Annotated[int, typer.Option(help="Connections at once.", min=4, max=50_000)] = 512,
    allowed_host: Annotated[list[str] | None, typer.Option(help="A name that it is asked by; * for any.")] = None,
    output_bytes: Annotated[int, typer.Option(help="Of what all jobs write that is kept.", min=1_000)] = 1 << 30,
    keep_days: Annotated[float, typer.Option(help="For which jobs that are over are remembered.", min=0.0)] = 7.0,
    share: Annotated[list[str] | None, typer.Option(help="USER=WEIGHT: his share, if not 1.")] = None,
    log_format: Annotated[str, typer.Option(help="text or json (one object on each line).")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    as_json: AsJson = False,
) -> None:
    """Serve this machine, or a Ray cluster, over HTTP."""
    with needs_extra("service", "symphony serve"):
        from symphony.service import logs, tokens
        from symphony.service.connections import is_loopback, raise_descriptor_limit
        from symphony.service.database import open_database
        from symphony.service.service import Limits, Service
        from symphony.service.serving import serve as run
    folder = state or default_folder()
    _check_logging(log_format, log_level)
    limits = Limits(
        body_bytes=body_bytes,
        blob_bytes=blob_bytes,
        open_jobs=open_jobs,
        requests_per_s=rate,
        connections=connections,
        hosts=frozenset(name.lower() for name in allowed_host or ()),
        at_once=at_once,
        output_bytes=output_bytes,
        keep_s=keep_days * 86_400.0,
        weights=_weights(share or []),
    )
    given = topologies.topology(topology) if topology else None
    keep_private(folder)
    found = open_database(database, folder)
    own = tokens.own_token(found, folder, getpass.getuser())
    others = len(tokens.listed(found)) > 1
    found.dispose()
    if not is_loopback(host) and not others:
        raise InputError(
            f"{host} can be reached from other machines, and nobody there has a token",
            hint="make one: symphony token create NAME; or serve on 127.0.0.1",
        )
    logs.configure(log_format, log_level)
    if os.geteuid() == 0:
        log.warning("serving as root: whoever may submit may do anything on this machine; serve as another user")
    _warn_of_password(database)
    keep_programs(folder / "compiled")
    raise_descriptor_limit()

    def engine() -> Engine:
        return ray_engine(ray, given) if ray else LocalEngine(given)

    service = Service(
        engine, folder, database=database, policy=policy, limits=limits, checkpoints=checkpoints, round_s=round_s
    )

    def ready(url: str) -> None:
        (folder / ADDRESS_FILE).write_text(url + "\n")
        if as_json:
            print_json({"url": url, "state": str(folder), "token_file": str(own)})
            sys.stdout.flush()
            return
        out = terminal.console(stderr=True)
        out.print(f"serving {service.cluster.topology.name} on {url}; state in {folder}", soft_wrap=True)
        out.print(f"  export SYMPHONY_URL={url}", soft_wrap=True)
        out.print(f"  export SYMPHONY_TOKEN=$(cat {own})", soft_wrap=True)

    try:
        status = run(service, host, port, drain_s=drain_s, ready=ready)
    finally:
        (folder / ADDRESS_FILE).unlink(missing_ok=True)
    sys.exit(status)


def keep_private(folder: Path) -> None:
    """Let nobody else into the folder of a service, which has what users sent. One of others' things is left alone."""
    if not folder.is_dir() or not folder.stat().st_mode & 0o077:
        return
    inside = {path.name for path in folder.iterdir()}
    if folder.stat().st_uid == os.geteuid() and (not inside or "lock" in inside):
        folder.chmod(0o700)
    else:
        terminal.console(stderr=True).print(
            f"warning: others may look into {folder}, where everything is kept\nhint: chmod 700 {folder}",
            soft_wrap=True,
        )


def _warn_of_password(database: str) -> None:
    """Everybody on this machine sees the words of a command."""
    found = re.search(r"://[^/@:]*:([^@/]+)@", database)
    if found is not None and any(found[1] in word for word in sys.argv):
        log.warning(
            "everybody on this machine can see the database's password among the processes; "
            "put the address into SYMPHONY_DATABASE instead of --database"
        )


def _weights(given: list[str]) -> dict[str, float]:
    found = {}
    for one in given:
        user, _, weight = one.partition("=")
        try:
            found[user] = float(weight)
        except ValueError:
            found[user] = 0.0
        if not user or not 0.0 < found[user] < 1e6:
            raise InputError(f"--share {one!r}", hint="write --share ann=2")
    return found


def _check_logging(form: str, level: str) -> None:
    if form not in ("text", "json"):
        raise InputError(f"--log-format {form!r}", hint="write text or json")
    if level.lower() not in ("debug", "info", "warning", "error"):
        raise InputError(f"--log-level {level!r}", hint="write debug, info, warning or error")
