"""The command line. Each command group is a file; errors raised on purpose end as two lines, never as a traceback."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from symphony.problem.errors import KernelError, SymphonyError

# Typer may bring its own copy of Click, so the class is found through one that Typer exports.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")


# What the list of commands says of each: the first paragraph of its own help.
COMMANDS = {
    "compare": "Run policies on the same scenarios; print, and write, who does how much better, and how sure that is.",
    "evaluate": "Run a policy against its aims on held-out scenarios. The same command goes on where it was stopped.",
    "explain": "Say why: of a job that a service runs or ran (ID), or of one decision of the learned policy.",
    "forecast": "Forecast speed, start and finish of training jobs: of a simulated cluster, or (--live) of a service.",
    "oracle": "Plan one scenario with everything known; print the best value, what it is called, and lower bounds.",
    "plan": "Draw many schedules from the learned policy, improve the best, and say how far from optimal it is.",
    "train": "Train a policy on scenarios of a cluster and its work. The same command goes on where it was stopped.",
    "stat": "Count events like `perf stat`, with 95% intervals.",
    "serve": "Serve this machine, or a Ray cluster, over HTTP.",
    "top": "Watch devices, users and jobs.",
    "profile": "Show how long kernels take: of a service, or of this user's own runs where none is named.",
    "submit": "Submit the graph of a file to a service.",
    "jobs": "List the newest jobs.",
    "job": "Show a job and its tasks.",
    "result": "Wait for a job, and print what it results in.",
    "logs": "Print what happened to a job, and what its tasks have written.",
    "cancel": "Stop a job: what runs is killed, what waits never starts.",
    "trace": "Write what ran where and when, for chrome://tracing or ui.perfetto.dev.",
    "topology": "Look at clusters, check their files, describe this machine.",
    "workload": "List workload families and file formats; show, convert and sample workloads.",
    "catalogue": "See what CPUs can count: events and metrics from the kernel's listings.",
    "repair": "Repair the journal of a service that does not run.",
    "token": "Tokens of a service: make, list, revoke.",
}
COMMAND_MODULES = dict.fromkeys(
    ("submit", "job", "result", "logs", "cancel", "trace"), "jobs"
)  # where it is not called like the command


class _Group(TyperGroup):
    """Loads the command that is to run, and no other: some need JAX, which takes seconds to import."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="symphony",
    cls=_Group,
    help="Schedule work on clusters of unlike processors whose shared parts are contended.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        typer.echo(f"symphony {version('symphony-scheduler')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _placeholder_command() -> None:
    """What stands for a command until it is loaded."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_placeholder_command)


def load(name: str) -> Any:
    """A command, as Click has it."""
    module = import_module(f"{__name__}.{COMMAND_MODULES.get(name, name)}")
    holder = typer.Typer()
    holder.callback()(_placeholder_command)  # so that it is a group, however few commands it has
    if hasattr(module, "app"):  # it has commands of its own
        holder.add_typer(module.app, name=name)
    else:
        holder.command(name, context_settings=getattr(module, "SETTINGS", None))(getattr(module, name))
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def main() -> None:
    """Entry point of the `symphony` command."""
    from symphony.cli.terminal import print_error

    try:
        sys.exit(app(prog_name="symphony", standalone_mode=False))
    except SymphonyError as error:
        print_error(f"{error.where}: {error.message}" if error.where else error.message, error.hint)
        if isinstance(error, KernelError) and error.traceback:
            typer.echo(f"\n{error.traceback.rstrip()}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:  # no file that somebody named
            raise
        print_error(f"{error.filename}: {error.strerror}", "name a file that can be read or written")
        sys.exit(2)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            path = error.ctx.command_path if error.ctx is not None else "symphony"
            print_error(error.format_message(), f"type {path} --help for help")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
