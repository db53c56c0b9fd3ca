"""The command line. Each command group is a file; errors raised on purpose end as two lines, never as a traceback."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer

from symphony.problem.errors import SymphonyError

app = typer.Typer(
    name="symphony",
    help="Schedule work on clusters of unlike processors whose shared parts are contended.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Typer may bring its own copy of Click, so the class is found through one that Typer exports.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        typer.echo(f"symphony {version('symphony-scheduler')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cache
def _add_commands() -> None:
    """Once, however often `main` is called."""
    # Imported here: the command files import this package.
    from symphony.cli import (
        catalogue,
        compare,
        evaluate,
        explain,
        forecast,
        jobs,
        oracle,
        plan,
        profile,
        serve,
        stat,
        token,
        top,
        topology,
        train,
        workload,
    )

    app.add_typer(topology.app, name="topology")
    app.add_typer(workload.app, name="workload")
    app.add_typer(catalogue.app, name="catalogue")
    app.add_typer(token.app, name="token")
    app.command("compare")(compare.compare)
    app.command("evaluate")(evaluate.evaluate)
    app.command("explain")(explain.explain)
    app.command("forecast")(forecast.forecast)
    app.command("oracle")(oracle.oracle)
    app.command("plan")(plan.plan)
    app.command("train")(train.train)
    app.command("stat", context_settings=stat.SETTINGS)(stat.stat)
    app.command("serve")(serve.serve)
    app.command("top")(top.top)
    app.command("profile")(profile.profile)
    for command in (jobs.submit, jobs.jobs, jobs.job, jobs.logs, jobs.cancel, jobs.trace):
        app.command(command.__name__)(command)


def main() -> None:
    """Entry point of the `symphony` command."""
    from symphony.cli.terminal import complain

    _add_commands()
    try:
        sys.exit(app(prog_name="symphony", standalone_mode=False))
    except SymphonyError as error:
        complain(f"{error.where}: {error.message}" if error.where else error.message, error.hint)
        sys.exit(2)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            path = error.ctx.command_path if error.ctx is not None else "symphony"
            complain(error.format_message(), f"type {path} --help for help")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
