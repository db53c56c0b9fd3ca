"""`symphony serve`: this machine, or a Ray cluster, for others to submit to."""

from __future__ import annotations

import getpass
import logging
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from symphony.cli import options, terminal
from symphony.cli.remote import Database, State
from symphony.cli.terminal import print_json
from symphony.problem import topologies
from symphony.problem.defaults import LIVE_POLICY
from symphony.problem.errors import InputError
from symphony.problem.extras import needs_extra
from symphony.service.address import check_address, is_loopback
from symphony.service.client import ADDRESS_FILE, DEFAULT_PORT, default_folder
from symphony.service.tls import CERTIFICATE_FILE, TlsFiles

if TYPE_CHECKING:
    from symphony.engines.containment import Containment
    from symphony.engines.engine import Engine

log = logging.getLogger("symphony.service")
SECRETS = ("SYMPHONY_DATABASE", "SYMPHONY_TOKEN", "PGPASSWORD")  # environment variables that jobs do not inherit


def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 = any free one.", min=0, max=65_535)] = DEFAULT_PORT,
    state: State = None,
    database: Database = "",
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for training jobs, which all machines must reach.")
    ] = None,
    round_s: Annotated[float, typer.Option(help="Seconds between plans of training jobs.", min=0.1)] = 360.0,
    at_once: Annotated[int, typer.Option(help="Jobs that the policy considers at once.", min=1, max=1_000)] = 16,
    policy: Annotated[str, typer.Option("--policy", "-p", help="The scheduling policy.")] = LIVE_POLICY,
    ray: Annotated[
        str, typer.Option(help="Serve a Ray cluster: HOST:PORT, auto (the one on this machine) or local (a new one).")
    ] = "",
    topology: Annotated[str, typer.Option("--topology", "-t", help="Topology to use instead of discovering it.")] = "",
    drain_s: Annotated[float, typer.Option(help="Seconds for jobs to finish after SIGTERM.", min=0.0)] = 30.0,
    rate: Annotated[float, typer.Option(help="Requests per second of a user.", min=1.0)] = 500.0,
    open_jobs: Annotated[int, typer.Option(help="Unfinished jobs of a user.", min=1)] = 10_000,
    body_bytes: Annotated[int, typer.Option(help="Largest request.", min=1_000)] = 16 << 20,
    blob_bytes: Annotated[int, typer.Option(help="Largest argument or function.", min=1_000)] = 1 << 30,
    blob_quota: Annotated[
        int, typer.Option(help="Bytes of arguments and results of a user; 0 = unlimited.", min=0)
    ] = 0,
    connections: Annotated[int, typer.Option(help="Connections at once.", min=4, max=50_000)] = 512,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Host name that requests may use, such as a proxy's; * = any. Repeatable.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain for HTTPS (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    own_token_days: Annotated[
        float, typer.Option(help="Lifetime of the serving user's token; 0 = unlimited.", min=0)
    ] = 30.0,
    output_bytes: Annotated[int, typer.Option(help="Output of jobs that is kept, in all.", min=1_000)] = 1 << 30,
    limits_file: Annotated[
        Path | None, typer.Option("--limits", help="TOML file with limits of jobs and users: memory, running_jobs, …")
    ] = None,
    run_as: Annotated[
        str,
        typer.Option(help="service: jobs run as the user who serves. user: as the user who submitted (needs root)."),
    ] = "service",
    keep_days: Annotated[float, typer.Option(help="Days that finished jobs are kept.", min=0.0)] = 7.0,
    share: Annotated[list[str] | None, typer.Option(help="USER=WEIGHT: share of a user; 1 unless set.")] = None,
    log_format: Annotated[str, typer.Option(help="text or json (one object on each line).")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON on standard output.")] = False,
) -> None:
    """Serve this machine, or a Ray cluster, over HTTP."""
    options.check_policy(policy)
    options.check_choice("--log-format", log_format, ("text", "json"))
    options.check_choice("--log-level", log_level.lower(), ("debug", "info", "warning", "error"))
    options.check_choice("--run-as", run_as, ("service", "user"))
    weights = _weights(share or [])
    containment = _containment(limits_file, run_as, ray)
    tls = _tls(tls_cert, tls_key)
    named_topology = topologies.topology(topology) if topology else None
    folder = state or default_folder()
    options.check_folder(folder)
    options.check_folder(checkpoints)
    check_address(host, port)
    with needs_extra("service", "symphony serve"):
        from symphony.service import logs, tokens
        from symphony.service.database import open_database

    keep_private(folder)
    opened = open_database(database, folder)
    days = own_token_days or None
    own = tokens.own_token(opened, folder, getpass.getuser(), days)
    others = len(tokens.listed(opened)) > 1
    opened.dispose()
    if not is_loopback(host) and not others:
        raise InputError(
            f"{host} can be reached from other machines, and no user there has a token",
            hint="create one: symphony token create NAME; or serve on 127.0.0.1",
        )
    with needs_extra("service", "symphony serve"):  # JAX among them: after all checks
        from symphony.service.connections import raise_descriptor_limit
        from symphony.service.service import Limits, Service
        from symphony.service.serving import serve as run
    from symphony.engines.local import LocalEngine
    from symphony.problem.program_cache import keep_programs
    from symphony.runtime.cluster import ray_engine

    logs.configure(log_format, log_level)
    if os.geteuid() == 0 and run_as == "service":
        log.warning("serving as root: every user with a token can do anything on this machine; serve as another user")
    if tls is None and not is_loopback(host):
        log.warning("tokens and results cross the network unencrypted: use --tls-cert and --tls-key, or a TLS proxy")
    _warn_of_password(database)
    keep_programs(folder / "compiled")
    raise_descriptor_limit()

    def engine() -> Engine:
        return ray_engine(ray, named_topology) if ray else LocalEngine(named_topology, containment)

    limits = Limits(
        body_bytes=body_bytes,
        blob_bytes=blob_bytes,
        blob_quota_bytes=blob_quota,
        open_jobs=open_jobs,
        requests_per_s=rate,
        connections=connections,
        hosts=frozenset(name.lower() for name in allowed_host or ()),
        at_once=at_once,
        output_bytes=output_bytes,
        keep_s=keep_days * 86_400.0,
        weights=weights,
        containment=containment,
    )
    database = without_secrets(database)
    service = Service(
        engine, folder, database=database, policy=policy, limits=limits, checkpoints=checkpoints, round_s=round_s
    )

    def maintain() -> None:
        tokens.own_token(service.database, folder, getpass.getuser(), days)  # renews it in time
        if tls is not None:
            (folder / CERTIFICATE_FILE).write_text(tls.leaf)  # which may be new

    def ready(url: str) -> None:
        if tls is not None:
            (folder / CERTIFICATE_FILE).write_text(tls.leaf)
        (folder / ADDRESS_FILE).write_text(url + "\n")
        if as_json:
            print_json({"url": url, "state": str(folder), "token_file": str(own)})
            return
        out = terminal.console(stderr=True)
        out.print(f"serving {service.cluster.topology.name} on {url}; state in {folder}", soft_wrap=True)
        out.print(f"  export SYMPHONY_URL={url}", soft_wrap=True)
        out.print(f"  export SYMPHONY_TOKEN=$(cat {own})", soft_wrap=True)

    try:
        status = run(service, host, port, drain_s=drain_s, ready=ready, tls=tls, maintain=maintain)
    finally:
        (folder / ADDRESS_FILE).unlink(missing_ok=True)
    sys.exit(status)


def _containment(path: Path | None, run_as: str, ray: str) -> Containment:
    from symphony.engines.containment import Containment, read_limits

    policy = Containment() if path is None else read_limits(path)
    if ray and (policy.limits or run_as == "user"):
        what = f"the limits {', '.join(sorted(policy.limits))} are" if policy.limits else "--run-as user is"
        raise InputError(
            f"{what} for jobs on this machine, not for those on a Ray cluster",
            hint="leave that out, or leave --ray out; running_jobs, slots and device_time_per_day work there",
        )
    if run_as == "user" and os.geteuid() != 0:
        raise InputError("only root can run jobs as other users", hint="serve as root, or leave --run-as out")
    return replace(policy, own_accounts=run_as == "user")


def _tls(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--tls-cert and --tls-key go together", hint="write --tls-cert chain.pem --tls-key key.pem")
    return TlsFiles(certificate, key)


def keep_private(folder: Path) -> None:
    """Make the state folder of a service readable by its owner alone; warn if it holds other files or is not ours."""
    if not folder.is_dir() or not folder.stat().st_mode & 0o077:
        return
    inside = {path.name for path in folder.iterdir()}
    if folder.stat().st_uid == os.geteuid() and (not inside or "lock" in inside):
        folder.chmod(0o700)
    else:
        terminal.console(stderr=True).print(
            f"warning: other users can read {folder}, the state of the service\nhint: chmod 700 {folder}",
            soft_wrap=True,
        )


def without_secrets(database: str) -> str:
    """Take secrets from the environment, which jobs inherit; the URL of the database with its password."""
    with needs_extra("service", "symphony serve"):
        import sqlalchemy as sa

    taken = {name: os.environ.pop(name, "") for name in SECRETS}
    if not taken["PGPASSWORD"] or not database.startswith("postgres") or sa.make_url(database).password:
        return database
    return sa.make_url(database).set(password=taken["PGPASSWORD"]).render_as_string(hide_password=False)


def _warn_of_password(database: str) -> None:
    password = re.search(r"://[^/@:]*:([^@/]+)@", database)
    if password is not None and any(password[1] in word for word in sys.argv):
        log.warning(
            "all users of this machine can see the database's password in the list of processes; "
            "put the address into SYMPHONY_DATABASE instead of --database"
        )


def _weights(words: list[str]) -> dict[str, float]:
    weights = {}
    for word in words:
        user, _, weight = word.partition("=")
        try:
            weights[user] = float(weight)
        except ValueError:
            weights[user] = 0.0
        if not user or not 0.0 < weights[user] < 1e6:
            raise InputError(f"--share {word!r} is not USER=WEIGHT with a weight above 0", hint="write --share ann=2")
    return weights
