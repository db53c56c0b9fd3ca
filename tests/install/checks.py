"""What an installation of Symphony must do: `python checks.py SECTION… --clone FOLDER [--quick]`, in an empty folder.

    names       every public name is there, every module can be imported or belongs to an extra
    commands    every command prints its help and does something small, or says which extra it needs
    examples    every example, on tiny sizes
    readme      the Python of README.md runs, and its command lines are understood
    service     serve, and every command that talks to a service (extra `service`)

Needs Symphony and nothing else, no pytest either: it also runs where only the base is installed (`make release`). The
clone is where README.md and examples/ are; Symphony is whatever Python finds. With --quick, nothing is compiled:
some command lines are left out, and examples only print their help.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import pkgutil
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

GRAPH = """
import symphony as sy

@sy.kernel(device="cpu")
def double(x):
    print("doubling")
    return 2 * x

def graph():
    made = sy.graph("double")
    made.task(double, 21)
    return made
"""
# What a module needs that cannot be imported with the base only.
OPTIONAL = {"symphony.engines.ray": "ray", "symphony.envs.gymnasium_env": "envs", "symphony.service": "service"}
NOBODY = "http://127.0.0.1:1"  # where no service listens


def source_root() -> Path:
    """The clone that Symphony is imported from; or a folder of Python's, if it is an installed package."""
    found = importlib.util.find_spec("symphony")
    assert found is not None and found.origin is not None
    return Path(found.origin).parents[2]


# Of an installed package, the demonstration lacks its applications first.
DEMO_LACKS = {"extra": "service"} if (source_root() / "examples").is_dir() else {"error": "come with the sources"}


class Check(NamedTuple):
    """A command line, and how it ends: it works, or an error has this text."""

    line: str
    error: str = ""
    extra: str = ""  # the error names this extra, and how to install it
    long: bool = False  # it compiles programs


COMMANDS = (
    Check("compare -w no-such-workload", "no-such-workload"),
    Check("compare -t machine -w layered:4?jobs=2 -p fifo,heft --seeds 2 -q --report report", long=True),
    Check("evaluate -q", extra="oracle"),
    Check("evaluate no-such-policy", "no-such-policy"),
    Check("explain -t machine -w layered:4?jobs=2 -d 1", long=True),
    Check("explain 1", NOBODY),
    Check("forecast", "SYMPHONY_DATA"),
    Check("forecast --live", NOBODY),
    Check("why 1", NOBODY),
    Check("when 1", NOBODY),
    Check("whatif --policy heft", NOBODY),
    Check("record", NOBODY),
    Check("oracle -w layered:4?jobs=1 -q", extra="oracle"),
    Check("plan -w layered:4?jobs=1 --samples 2 --seconds 1 -q -o plan.json", long=True),
    Check("train -t machine -w layered:4 --jobs 2 --rounds 1 -q", long=True),
    Check("stat -- true"),
    Check("stat -e gpm.active_us -- true", extra="nvidia"),
    Check("serve --port 0", extra="service"),
    Check("token create ann", extra="service"),
    Check("token list", extra="service"),
    Check("token rotate 00000000", extra="service"),
    Check("token revoke ann", extra="service"),
    Check("audit", extra="service"),
    Check("backup b.tar", extra="service"),
    Check("restore b.tar", extra="service"),
    Check("repair list", extra="service"),
    Check("repair cancel 1", extra="service"),
    Check("repair quarantine 1", extra="service"),
    Check("repair check", extra="service"),
    Check("repair salvage", extra="service"),
    Check("repair compact", extra="service"),
    Check("demo --seconds 1 --no-open", **DEMO_LACKS),
    Check("top --looks 1", NOBODY),
    Check("status", NOBODY),
    Check("profile", NOBODY),
    Check("submit graph.py", NOBODY),
    Check("jobs", NOBODY),
    Check("usage", NOBODY),
    Check("run --here -- true"),
    Check("policies"),
    Check("job 1", NOBODY),
    Check("result 1", NOBODY),
    Check("logs 1", NOBODY),
    Check("cancel 1", NOBODY),
    Check("trace 1 -o trace.json", NOBODY),
    Check("topology list"),
    Check("topology discover -o here.toml"),
    Check("topology validate here.toml"),
    Check("topology show paper"),
    Check("workload list"),
    Check("workload formats"),
    Check("workload show cholesky:4 -t here.toml"),
    Check("workload sample layered:4 -t machine --jobs 2 -o work.json"),
    Check("workload convert work.json -o again.json"),
    Check("catalogue add no-such-file", "no-such-file"),
    Check("catalogue install no-such-file", "no-such-file"),
    Check("catalogue list"),
    Check("catalogue show"),
    Check("catalogue graph -o graph.svg"),
)


def names() -> Iterator[str]:
    """What is wrong with the public names and the modules."""
    import symphony

    for name in symphony.__all__:
        if getattr(symphony, name, None) is None:
            yield f"symphony.{name} is missing"
    for found in pkgutil.walk_packages(symphony.__path__, "symphony.", onerror=lambda name: None):
        if found.name == "symphony._native":
            continue  # loaded with ctypes: it is no Python module
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if not any(found.name.startswith(part) for part in OPTIONAL):
                yield f"{found.name} cannot be imported: {error}"


class Ended(NamedTuple):
    """What a command, or an example, said and how it ended."""

    status: int
    output: str
    errors: str


def run(do: Callable[[], object], *arguments: str) -> Ended:
    """In this process, as if it had been started with these arguments. What it raises is a traceback for its user."""
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with mock.patch.object(sys, "argv", list(arguments)), redirect_stdout(out), redirect_stderr(err):
        try:
            do()
        except SystemExit as ended:
            status = ended.code
            if isinstance(status, str):  # as Python does
                print(status, file=sys.stderr)
                status = 1
        except BaseException:
            traceback.print_exc()
            status = 1
    return Ended(int(str(status or 0)), out.getvalue(), err.getvalue())


def says_what_to_install(text: str, extra: str) -> bool:
    """Whether an error names an extra, with the command that installs it."""
    return re.search(rf"needs \w+, which is not installed.*-m pip install .*\[{extra}\]'", text, re.DOTALL) is not None


def wrong(check: Check, ended: Ended) -> str:
    """What is not as it should be; "" if nothing."""
    if "Traceback" in ended.errors:
        return f"ended with a traceback: {ended.errors}"
    if check.extra:
        said = says_what_to_install(ended.errors, check.extra)
        return "" if said else f"does not say how to install {check.extra}: {ended.errors}"
    if check.error:
        right = ended.status == 2 and check.error in ended.errors
        return "" if right else f"ended with {ended.status}, without {check.error!r}: {ended.errors}"
    return f"ended with {ended.status}: {ended.errors}" if ended.status else ""


def report(what: str, check: Check, ended: Ended) -> Iterator[str]:
    """Print how a check went, and yield what is wrong."""
    problem = wrong(check, ended)
    print(f"{'wrong' if problem else 'ok':5}  {what} {check.line}", flush=True)
    if problem:
        yield f"{what} {check.line} {problem}"


def commands(quick: bool) -> Iterator[str]:
    """What is wrong with the commands."""
    from symphony import cli

    lines = []
    for name in cli.COMMANDS:
        lines += [f"{name} {part}" for part in getattr(cli.load(name), "commands", ())] or [name]
    for line in lines:
        if not any(f"{check.line} ".startswith(f"{line} ") for check in COMMANDS):
            yield f"{line}: nobody tries it"
        ended = run(cli.main, "symphony", *line.split(), "--help")
        if ended.status or "Usage: symphony" not in ended.output:
            yield f"{line} --help: {ended}"
    Path("graph.py").write_text(GRAPH)
    with mock.patch("symphony.service.client.FIRST_RETRY_S", 0.01):  # before they give up on nobody
        for check in COMMANDS:
            if not (quick and check.long):
                yield from report("symphony", check, run(cli.main, "symphony", *shlex.split(check.line)))


EXAMPLES = {
    "compare_policies": Check("--policies fifo,heft --seeds 2 --jobs 4"),
    "own_engine": Check(""),
    "perf_log": Check("--output perf.json"),
    "own_policy": Check("--topology machine --workload layered:4?jobs=4 --seeds 2"),
    "ppo": Check(
        "--scenario machine/layered:4?jobs=2 --rounds 1 --scenarios 2 --group 2 --bank 2 --steps 12 --batches 2"
        " --seeds 2 --every 1"
    ),
    "genomics": Check("--size 1 --profiles profiles.json"),
    "eeg": Check("--size 1 --profiles profiles.json"),
    "security": Check("--size 1 --profiles profiles.json"),
    "mix": Check("--size 1 --rounds 1 --seconds 0 --policies fifo,heft"),
    "gpu_training": Check("--size tiny --steps 5 --kinds embedding --profiles profiles.json"),
    "training_job": Check("--rows 200 --passes 5 --profiles profiles.json"),
}
NEED_EXTRAS = {"training_job": Check("--ray 127.0.0.1:1", extra="ray")}
PARTS = {"__init__", "arrays", "running"}  # what examples share


def examples(folder: Path, quick: bool) -> Iterator[str]:
    """What is wrong with the examples of a folder."""
    there = {path.stem for path in folder.glob("*.py")}
    yield from (f"examples/{name}.py: nobody tries it" for name in there - PARTS - EXAMPLES.keys())
    sys.path.insert(0, str(folder.parent))
    chosen = {name: Check("--help") for name in EXAMPLES} if quick else EXAMPLES
    for name, check in [*chosen.items(), *NEED_EXTRAS.items()]:
        start = partial(runpy.run_module, f"examples.{name}", run_name="__main__", alter_sys=True)
        yield from report(f"examples/{name}.py", check, run(start, f"{name}.py", *check.line.split()))


def readme(page: Path) -> Iterator[str]:
    """What is wrong with the snippets of a page."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "readme"}
    for snippet in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        code = compile(snippet, page.name, "exec")
        yield from report(page.name, Check(f"snippet: {snippet.splitlines()[0]}"), run(lambda c=code: exec(c, names)))
    lines = re.findall(r"^\$ symphony (.*)$", text, flags=re.MULTILINE)
    if not lines:
        yield f"{page.name} has no command lines"
    for line in lines:
        name, *rest = shlex.split(line, comments=True)
        yield from report(f"{page.name} understood: symphony", Check(line), run(partial(parse, name, rest)))


def parse(name: str, arguments: list[str]) -> Any:
    """Have a command understand its arguments, and do nothing."""
    from symphony import cli

    command = cli.load(name)
    if hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command.make_context(name, arguments)


def service() -> Iterator[str]:
    """What is wrong with a service, and with what talks to it."""
    from symphony import cli

    Path("graph.py").write_text(GRAPH)
    symphony = [sys.executable, "-m", "symphony"]
    told, log = Path("served.json"), Path("serve.log")
    with told.open("w") as out, log.open("w") as errors:
        served = subprocess.Popen(
            [*symphony, "serve", "--port", "0", "--state", "state", "--json"], stdout=out, stderr=errors
        )
    try:
        while not told.read_text().endswith("}\n"):
            if served.poll() is not None:
                yield f"symphony serve ended with {served.returncode}: {log.read_text()}"
                return
            time.sleep(0.2)
        about = json.loads(told.read_text())
        os.environ |= {"SYMPHONY_URL": about["url"], "SYMPHONY_TOKEN": Path(about["token_file"]).read_text().strip()}
        for line, said in SERVED.items():
            ended = run(cli.main, "symphony", *line.split())
            yield from report("symphony", Check(line), ended)
            if said not in ended.output:
                yield f"symphony {line}: {said!r} is not in {ended.output}"
    finally:
        served.send_signal(signal.SIGTERM)
        if served.wait(120):
            yield f"symphony serve ended with {served.returncode}: {log.read_text()}"


SERVED = {
    "submit graph.py --wait": "42",
    "jobs": "double",
    "job 1": "double",
    "result 1": "42",
    "logs 1": "doubling",
    "explain 1": "double",
    "trace 1 -o trace.json": "",
    "cancel 1": "",
    "top --looks 1": "double",
    "profile": "double",
    "forecast --live": "",
    "when 1": "done",
    "why 1": "double",
    "record": "outcome",
    "token create ann --state state": "sy_",
    "token list --state state": "ann",
    "audit --state state": "token-created",
    "status": "journal",
    "backup b.tar --state state": "jobs",
    "restore b.tar --state restored": "restored",
}


def main() -> None:
    """Run the sections that are named; status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=["names", "commands", "examples", "readme", "service"])
    parser.add_argument("--clone", type=Path, required=True, help="folder with README.md and examples/")
    parser.add_argument("--quick", action="store_true", help="compile nothing")
    given = parser.parse_args()
    os.environ |= {"SYMPHONY_URL": NOBODY, "SYMPHONY_TOKEN": "none", "COLUMNS": "160"}
    os.environ |= {name: os.getcwd() for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
    os.environ.pop("SYMPHONY_DATA", None)
    clone = given.clone.resolve()
    sections: dict[str, Callable[[], Iterator[str]]] = {
        "names": names,
        "commands": partial(commands, given.quick),
        "examples": partial(examples, clone / "examples", given.quick),
        "readme": partial(readme, clone / "README.md"),
        "service": service,
    }
    problems = [problem for section in given.sections for problem in sections[section]()]
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
