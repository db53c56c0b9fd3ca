"""Write docs/reference/cli.md from the help of the commands: `python -m tools.cli_reference`.

A test compares the page with what this file makes of the commands.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from symphony import cli

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
COMMON = 3  # an option with the same help in so many commands is described once, at the top
LINE_WIDTH = 114
WIDEST_NAME = 26  # a longer name has its text on the next line
GUIDES = {
    "compare": "comparing.md",
    "train": "training.md",
    "evaluate": "training.md",
    "stat": "telemetry.md",
    "catalogue": "telemetry.md",
    "topology": "topologies.md",
    "workload": "workloads.md",
    "serve": "service.md",
    "submit": "service.md",
    "repair": "service.md#repairs",
    "token": "service.md#users-and-tokens",
}
HEAD = """\
# The command line

You can look up every command and option here. `symphony COMMAND --help` prints the same text. `python -m
tools.cli_reference` makes this page from it.

- `python -m symphony` is the same as `symphony`. `-h` is the same as `--help`.
- After `symphony --install-completion`, the tab key completes commands and options.
- An error is two lines on standard error: what is wrong, and what to type. The exit status is then 2.
- `[…]` at the end of a line is the default, or with `$` the environment variable. Defaults of 0 and "off" are left out.
- Ctrl-C exits with 130. `symphony stat` exits with the status of its command.

A *topology* is a built-in name (`machine`, `paper`, `gpu24`, `fat-tree:N`) or the path of a
[TOML file](../guides/topologies.md). A *workload* is a [family](../guides/workloads.md) or a
[file](../guides/traces.md), with options: `'cholesky:10?jobs=20&load=0.5'`. Quote it: `?` and `&` mean something to a
shell. A *policy* is a [baseline](baselines.md), `symphony`, `symphony-late`, `look-ahead`, `planner`, or a file that
`train` wrote.
"""


def commands() -> dict[str, Any]:
    """Every command that can be run, by its full name."""

    def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if getattr(command, "commands", None):
            for child, inner in command.commands.items():
                yield from leaves(f"{name} {child}", inner)
        elif not command.hidden:
            yield name, command

    return {name: command for top in cli.COMMANDS for name, command in leaves(top, cli.load(top))}


def option_names(parameter: Any) -> str:
    """`--topology, -t` of an option, `FILE` of an argument."""
    if is_option(parameter):
        return ", ".join(sorted(parameter.opts, key=len, reverse=True))
    return argument_name(parameter).strip("[]")


def is_option(parameter: Any) -> bool:
    return str(parameter.opts[0]).startswith("-")


def argument_name(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()).strip("[]")
    return name if parameter.required else f"[{name}]"


def help_text(parameter: Any) -> str:
    return " ".join((parameter.help or "").split())


def default_text(parameter: Any) -> str:
    """The default and the environment variable, in brackets, or nothing."""
    default = parameter.default
    known = not (callable(default) or default is None or default in (False, "", ()))
    return (f" [{default}]" if known else "") + (f" [${parameter.envvar}]" if parameter.envvar else "")


def definitions(rows: list[tuple[str, str]]) -> list[str]:
    """Two aligned columns; the second is folded."""
    width = min(max(len(name) for name, _ in rows), WIDEST_NAME)
    lines = []
    for name, text in rows:
        folded = textwrap.wrap(text, LINE_WIDTH - width - 2, break_on_hyphens=False) or [""]
        if len(name) > width:
            folded.insert(0, "")
        lines += [f"{name:{width}}  {folded[0]}".rstrip(), *(" " * (width + 2) + line for line in folded[1:])]
    return lines


def code_block(lines: list[str]) -> list[str]:
    return [f"    {line}".rstrip() for line in lines]


def command_section(name: str, command: Any, common: set[tuple[str, str]]) -> list[str]:
    """What a command does, and its options."""
    arguments = [argument_name(one) for one in command.params if not is_option(one)]
    own, shared = [], []
    for one in command.params:
        label = option_names(one)
        if (label, help_text(one)) not in common:
            own.append((label, help_text(one) + default_text(one)))
        elif is_option(one):
            shared.append(label.partition(",")[0] + ("" if one.envvar else default_text(one)))
    lines = []
    if arguments or " " in name:
        lines.append(" ".join(["symphony", name, *arguments]))
    lines += definitions(own) if own else []
    lines += [f"also: {', '.join(shared)}"] if shared else []
    return [inspect.cleandoc(command.help or "").partition("\n\n")[0], "", *code_block(lines), ""]


def page() -> str:
    """The text of docs/reference/cli.md."""
    found = commands()
    uses = Counter((option_names(one), help_text(one)) for command in found.values() for one in command.params)
    common = {row for row, count in uses.items() if count >= COMMON}
    # Where an option is common with several texts, the most frequent one is shown.
    described = {label: text for (label, text), count in reversed(uses.most_common()) if count >= COMMON}
    lines = [HEAD, "## Common options", "", *code_block(definitions(sorted(described.items()))), ""]
    for top, summary in cli.COMMANDS.items():
        lines += [f"## symphony {top}", ""]
        inner = {name: command for name, command in found.items() if name.partition(" ")[0] == top}
        if list(inner) != [top]:
            lines += [summary, ""]
        if top in GUIDES:
            lines += [f"[Guide](../guides/{GUIDES[top]}).", ""]
        for name, command in inner.items():
            lines += command_section(name, command, common)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
