"""The command line. Each command or group of commands is a file; expected errors print two lines and no traceback."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from symphony.cli.terminal import print_error, print_warning
from symphony.problem.errors import InputError, KernelError, SymphonyError
from symphony.problem.validation_texts import text_of_problem

# Typer may bundle its own copy of Click, so the class is found through one that Typer exports.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")

# The help of each command in the list of commands: the first paragraph of its own help.
COMMANDS = {
    "compare": "Run policies on the same scenarios and compare them, with 95% confidence intervals.",
    "evaluate": "Run a policy on held-out scenarios and compare it with its targets. Resumes where it was stopped.",
    "explain": "Explain why a job of a service (ID) took so long, or one decision of the learned policy.",
    "forecast": "Forecast speed, start and finish of training jobs: of a simulated cluster, or (--live) of a service.",
    "oracle": "Plan one scenario with full knowledge; print the best value found, its label and lower bounds.",
    "plan": "Sample schedules from the learned policy, improve the best, and print its distance to the lower bound.",
    "train": "Train a policy for a cluster and its workloads. Resumes where it was stopped.",
    "stat": "Count events like `perf stat`, with 95% intervals.",
    "policies": "List the policies, with a line each.",
    "serve": "Serve this machine, or a Ray cluster, over HTTP.",
    "demo": "Start a service, run three applications in it, and open its dashboard.",
    "top": "Watch devices, users and jobs of a service.",
    "usage": "Show device time and jobs of users.",
    "profile": "Show how long kernels take: on a service, or in your own runs if no service is named.",
    "run": "Run a program on a service, or on this machine if no service is configured.",
    "submit": "Submit the graph of a file to a service.",
    "jobs": "List the newest jobs.",
    "job": "Show a job and its tasks.",
    "result": "Wait for a job and print its result.",
    "logs": "Print the events of a job and the output of its tasks.",
    "cancel": "Cancel a job: running tasks are killed, waiting tasks never start.",
    "why": "Say why a job waits, what is ahead of it, and the smallest change that would help.",
    "when": "Say when a job starts and ends, with bands, and how reliable such bands were.",
    "whatif": "Play the open jobs, or the journalled ones again, with something changed, and compare.",
    "record": "Show how often forecasts were right, by horizon and user.",
    "trace": "Write which task ran where and when, for chrome://tracing or ui.perfetto.dev.",
    "topology": "Show clusters, check their files, describe this machine.",
    "workload": "List workload families and file formats; show, convert and sample workloads.",
    "catalogue": "See what CPUs can count: events and metrics from the kernel's listings.",
    "status": "Say which parts of a service are degraded. Exits with 1 if one is.",
    "audit": "Show the audit log of a service.",
    "backup": "Write journal and blobs of a service to a file, while it runs.",
    "restore": "Restore a backup into a new state folder.",
    "repair": "Repair the journal of a service that is not running.",
    "token": "Create, list, rotate and revoke the tokens of a service.",
}
# Modules whose names differ from their commands'.
COMMAND_MODULES = dict.fromkeys(("submit", "job", "result", "logs", "cancel", "trace"), "jobs") | {"restore": "backup"}
COMMAND_MODULES |= dict.fromkeys(("why", "when", "whatif", "record"), "futures")
OUTPUT_IS_FOLDER = ("evaluate", "train")
# Objects until a garbage collection, by generation: imports make a hundred thousand, none of which is garbage.
COLLECT_AFTER = 50_000, 20, 100
JSON_TOOK_FILE = ("compare", "explain", "forecast", "oracle", *OUTPUT_IS_FOLDER)  # in earlier versions


class _Group(TyperGroup):
    """Loads only the command that is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
            if args[0] in JSON_TOOK_FILE:
                args = [args[0], *_current_spelling(args[0], args[1:])]
        return super().resolve_command(ctx, args)


def _current_spelling(command: str, words: list[str]) -> list[str]:
    """Arguments with the option names of earlier versions replaced: `--json FILE` by `--output FILE`, and `--out`."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--json=") else [word])]
    spelled: list[str] = []
    for word in words:
        if spelled[-1:] != ["--json"] or not (word == "-" or word.endswith((".json", ".json.gz"))):
            spelled.append("--output" if word == "--out" and command in OUTPUT_IS_FOLDER else word)
        elif word != "-":
            if command in OUTPUT_IS_FOLDER:
                raise InputError(f"--json {word}: --json takes no file", hint=f"write --json > {word}")
            print_warning(f"--json FILE is deprecated: write --output {word} (--json prints to standard output)")
            spelled[-1:] = ["--output", word]
    return spelled


app = typer.Typer(
    name="symphony",
    cls=_Group,
    help="Schedule work on clusters of different processors that contend for shared resources.",
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
    """Stands for a command until that is loaded."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_placeholder_command)


def load(name: str) -> Any:
    """The Click command of a name."""
    module = import_module(f"{__name__}.{COMMAND_MODULES.get(name, name)}")
    holder = typer.Typer()
    holder.callback()(_placeholder_command)  # makes it a group even with one command
    if hasattr(module, "app"):  # a group of commands
        holder.add_typer(module.app, name=name)
    else:
        holder.command(name, context_settings=getattr(module, "SETTINGS", None))(getattr(module, name))
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def main() -> None:
    """Entry point of the `symphony` command."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no banners of XLA; it is read when JAX is imported
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every locale has all characters of names and tables
    gc.set_threshold(*COLLECT_AFTER)
    atexit.register(gc.freeze)  # the end of the process would look at every object for garbage
    try:
        sys.exit(app(prog_name="symphony", standalone_mode=False))
    except SymphonyError as error:
        print_error(f"{error.where}: {error.message}" if error.where else error.message, error.hint)
        if isinstance(error, KernelError) and error.traceback:
            typer.echo(f"\n{error.traceback.rstrip()}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:  # not about a file that the user named
            raise
        print_error(f"{error.filename}: {error.strerror}", "name a file that can be read or written")
        sys.exit(2)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            path = error.ctx.command_path if error.ctx is not None else "symphony"
            if hasattr(error.__cause__, "errors"):  # of pydantic, which Typer asks
                error.message = text_of_problem(error.__cause__.errors()[0])
            print_error(error.format_message(), f"type {path} --help for help")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
