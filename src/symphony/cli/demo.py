"""`symphony demo`: a service on this machine, jobs of three applications in it, and the page that shows them."""

from __future__ import annotations

import getpass
import itertools
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.terminal import print_json
from symphony.problem.errors import InputError, SymphonyError
from symphony.problem.extras import needs_extra
from symphony.service.address import check_address
from symphony.service.client import connect

APPLICATIONS = ("genomics", "eeg", "security")
OPEN_JOBS, PAUSE_S = 4, 0.3  # jobs that the demonstration keeps in the service; between submissions
SIZE = 2  # parts of the input of each job
OPENER = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">
<a href="{address}">Open the dashboard</a>"""


def demo(
    *,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 = any free one.", min=0, max=65_535)] = 0,
    seconds: Annotated[float, typer.Option(help="Stop after so long; 0 = until ctrl-C.", min=0.0)] = 0.0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Start a service, run three applications in it, and open its dashboard."""
    builders = applications()
    check_address("127.0.0.1", port)
    with needs_extra("service", "symphony demo"):
        from symphony.service import logs, tokens
        from symphony.service.database import open_database
        from symphony.service.service import Service
        from symphony.service.serving import serve as run
    from symphony.engines.local import LocalEngine

    logs.configure("text", "warning")
    with tempfile.TemporaryDirectory(prefix="symphony-demo-") as name:
        folder, stop = Path(name), threading.Event()
        opened = open_database("", folder)
        token = tokens.own_token(opened, folder, getpass.getuser()).read_text().strip()
        opened.dispose()

        def ready(url: str) -> None:
            page = folder / "open.html"  # so that the token is on no command line; the folder is private
            page.write_text(OPENER.format(address=f"{url}/ui/login#{token}"))
            if as_json:
                print_json({"url": f"{url}/ui/", "token": token, "applications": list(APPLICATIONS)})
                sys.stdout.flush()
            else:
                out = terminal.console(stderr=True)
                out.print(f"the dashboard is at {url}/ui/login#{token}", soft_wrap=True)
                out.print(f"jobs of {', '.join(APPLICATIONS)} run until you press ctrl-C", soft_wrap=True)
            if browser:
                webbrowser.open(page.as_uri())
            threading.Thread(target=keep_busy, args=(url, token, builders, stop), daemon=True).start()
            if seconds:
                threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)).start()

        service = Service(lambda: LocalEngine(None), folder)
        status = run(service, "127.0.0.1", port, drain_s=0.0, ready=ready)
        stop.set()
    sys.exit(status)


def applications() -> list[Any]:
    """The functions that build a graph of each application, which come with the sources."""
    source = Path(__file__).parents[3]
    if not (source / "examples" / "genomics.py").exists():
        raise InputError(
            "the applications of the demonstration come with the sources of Symphony, not with an installed package",
            hint="run it in a clone, after make install",
        )
    import cloudpickle

    sys.path.append(str(source))
    for name in ("arrays", *APPLICATIONS):  # workers need not find the sources
        cloudpickle.register_pickle_by_value(import_module(f"examples.{name}"))
    return [import_module(f"examples.{name}").build for name in APPLICATIONS]


def keep_busy(url: str, token: str, builders: list[Any], stop: threading.Event) -> None:
    """Submit a job whenever fewer than `OPEN_JOBS` have not ended."""
    jobs: list[Any] = []
    try:
        with connect(url, token=token) as cluster:
            for number in itertools.count():
                jobs.append(cluster.submit(builders[number % len(builders)](SIZE, number)))
                while not stop.wait(PAUSE_S) and sum(job.status in ("waiting", "running") for job in jobs) >= OPEN_JOBS:
                    pass
                jobs = [job for job in jobs if job.status in ("waiting", "running")]
                if stop.is_set():
                    return
    except SymphonyError as error:
        if not stop.is_set() and "stopping" not in error.message:
            terminal.print_error(error.message, error.hint)
