"""Graphs in files: Python that builds a graph, or TOML that lists commands and functions.

name = "sample-17"                                  # TOML

[[task]]
name = "sort"
command = ["sort", "reads.txt"]                     # its value is its standard output

[[task]]
name = "count"
call = "mymodule:count"                             # imported where it runs
args = [{ from = "sort" }, 3]
kwargs = { strict = true }
after = ["sort"]                                    # wait for a task whose value is not read
device = "cpu"                                      # and timeout_s, retries, retry_on, retry_delay_s, workers,
                                                    # cores, memory ("8 GB")

[[task]]
name = "train"
command = ["python", "train.py"]                    # or a call, whose first argument is then a TrainingRun
[task.training]                                     # it runs in steps, writes checkpoints and resumes from them
steps = 2000                                        # and the other arguments of @sy.training

[outputs]
lines = "count"
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from symphony.problem import units
from symphony.problem.errors import InputError, SymphonyError, WorkloadError
from symphony.problem.validation_texts import text_of_problem
from symphony.runtime.failures import PROGRAM_FAILED
from symphony.runtime.graph import Graph, Handle
from symphony.runtime.kernels import KernelFunction, KernelOptions, exception_names
from symphony.service.modules_beside import check_imports, send_modules
from symphony.service.wire import ExceptionName, TrainingSpec

REFERENCE_KEY = "from"
MAX_KERNEL_NAME_CHARS = 100  # longer words are hashed
EXAMPLES = {"name": 'name = "…"', "task": "[[task]]", "steps": "steps = 2000"}  # of required fields
Word = Annotated[str, StringConstraints(min_length=1)]


class _Task(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Word
    command: list[Any] = Field([], description="words; { from = … } is the value of another task")
    stdin: Any = None
    call: Annotated[str, StringConstraints(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    after: list[Word] = []
    device: Word = "cpu"
    timeout_s: float = math.inf
    retries: int = 2
    retry_on: list[ExceptionName] = []
    retry_delay_s: float = 0.0
    workers: int = 1
    cores: int = 1
    memory: str | float = 0.0
    training: TrainingSpec | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Word
    task: list[_Task] = Field(min_length=1)
    outputs: dict[Word, Word] = {}


def load(path: str, arguments: Mapping[str, Any]) -> Graph:
    """The graph of a file. `FILE.py:name` names a graph other than `graph`; `arguments` are for a function that makes
    it.
    """
    file, _, name = path.partition(":")
    found = Path(file)
    if not found.is_file():
        raise InputError(f"there is no file {file!r}", hint="use graph.py or graph.toml")
    if found.suffix == ".py":
        graph = _of_module(found, name or "graph", arguments)
        send_modules(found.parent)  # again: a function that makes the graph may have imported more
        check_imports(graph, found.parent)
        return graph
    if found.suffix == ".toml" and not name:
        if arguments:
            raise InputError("a graph in TOML takes no arguments", where=file, hint="use a graph.py")
        return _of_toml(found)
    raise InputError(f"{path!r} is not a graph file", hint="use graph.py, graph.py:name or graph.toml")


# --- Python


def _of_module(path: Path, name: str, arguments: Mapping[str, Any]) -> Graph:
    module = _module(path)
    if not hasattr(module, name):
        raise InputError(
            f"it does not define {name!r}", where=str(path), hint="name a graph, or a function that makes one"
        )
    found = getattr(module, name)
    if isinstance(found, Graph) and not arguments:
        return found
    if isinstance(found, Graph) or not callable(found):
        raise InputError(f"{name!r} takes no arguments", where=str(path), hint="use a function that makes the graph")
    try:
        made = found(**arguments)
    except SymphonyError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(name, error, path) from error
    if not isinstance(made, Graph):
        raise InputError(f"{name} returned {type(made).__name__}", where=str(path), hint="return a sy.graph(…)")
    return made


class _Source(SourceFileLoader):
    """Compiles a file each time it is read: cached byte code is pickled differently, so that the same file would make
    another job.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(path: Path) -> ModuleType:
    """Run a file as a module. Its functions are pickled by value, because workers do not have the file."""
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_Source(path.stem, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except SymphonyError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised("it", error, path) from error
    send_modules(path.parent)
    return module


def _raised(what: str, error: BaseException, path: Path) -> InputError:
    """The error, with the last line of the file in its traceback."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    return InputError(f"{what} raised {type(error).__name__}: {error}", where=where)


# --- TOML


def _of_toml(path: Path) -> Graph:
    read: dict[str, Any] = {}
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        content = _File.model_validate(read)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(str(error), where=str(path), hint="see docs/guides/service.md") from None
    except ValidationError as error:
        raise _validation_error(error, read, path) from None
    graph, made = Graph(content.name), dict[str, Handle]()
    for task in content.task:
        where = f"{path}: task {task.name!r}"
        if task.name in made:
            raise WorkloadError("another task has the same name", where=where, hint="choose another name")
        if bool(task.command) == (task.call is not None):
            raise WorkloadError("it needs a command or a call, but not both", where=where, hint="give one of them")
        after = [_handle(name, made, where) for name in task.after]
        options = _options(task, where)
        trains = options.training is not None
        if task.call is not None:
            module, _, name = task.call.partition(":")
            kernel = _kernel(_calling(module, name), task, options)
            args, kwargs = _filled((task.args, task.kwargs), made, where)
            made[task.name] = graph.task(kernel, after, list(args), kwargs)
        else:
            kernel = _kernel(_training_program() if trains else _running(), task, options)
            words, stdin = _filled((task.command, task.stdin), made, where)
            made[task.name] = graph.task(kernel, after, words, stdin)
    for name, of in content.outputs.items():
        graph.output(name, _handle(of, made, f"{path}: output {name!r}"))
    return graph


def _validation_error(error: ValidationError, read: Mapping[str, Any], path: Path) -> WorkloadError:
    """What is wrong with a file, where, and what to write instead."""
    # Missing fields last: often they are only misspelled, and the error about the unknown field is better.
    first = min(error.errors(), key=lambda one: one["type"] == "missing")
    *tables, field = first["loc"]
    model: type[BaseModel] = _File
    places = []
    match tables:
        case ["task", int(number), *rest]:
            task = read["task"][number]
            name = task.get("name") if isinstance(task, dict) else None
            places.append(f"task {name!r}" if isinstance(name, str) else f"task {number + 1} in the file")
            places += map(str, rest)
            model = TrainingSpec if "training" in rest else _Task
        case _:
            places += map(str, tables)
    where = ": ".join([str(path), *([", ".join(places)] if places else [])])
    if first["type"] == "extra_forbidden":
        close = get_close_matches(str(field), model.model_fields, n=1)
        fields = ", ".join(model.model_fields)
        hint = f"did you mean {close[0]!r}?" if close else f"fields are {fields}"
        if not close and field in TrainingSpec.model_fields:
            hint = f"write it below [task.training]; fields here are {fields}"
        if field == "training":
            hint = "write [task.training], below its [[task]]"
        return WorkloadError(f"unknown field {field!r}", where=where, hint=hint)
    if first["type"] == "missing":
        example = EXAMPLES.get(str(field), "…")
        return WorkloadError(f"{field!r} is missing", where=where, hint=f"write {example}; see docs/guides/service.md")
    example = EXAMPLES.get(str(field), "")
    if field == "command" and isinstance(first.get("input"), str):
        example = f"command = {json.dumps(shlex.split(first['input'])) or '[…]'}"
    hint = f"write {example}; see docs/guides/service.md" if example else "see docs/guides/service.md"
    return WorkloadError(f"{field}: {text_of_problem(first)}", where=where, hint=hint)


def _options(task: _Task, where: str) -> KernelOptions:
    try:
        training = None if task.training is None else task.training.training()
        return KernelOptions(
            task.timeout_s,
            task.retries,
            training is not None,
            task.workers,
            training,
            task.cores,
            units.parse(task.memory, "bytes"),
            exception_names(task.retry_on),
            task.retry_delay_s,
        )
    except InputError as error:
        raise WorkloadError(error.message, where=where, hint=error.hint) from None


def _kernel(function: Callable[..., Any], task: _Task, options: KernelOptions) -> KernelFunction:
    kernel = KernelFunction(function, task.device, task.name, options)
    # `python` and `sh` run many programs: the first argument belongs to the name.
    words = [word for word in task.command[1:] if isinstance(word, str) and not word.startswith("-")]
    kernel.key = " ".join([f"toml.{task.call or task.command[0]}", *(_short(word) for word in words[:1])])
    return kernel


def _short(word: str) -> str:
    """The word, or its digest if it is long: some are whole programs."""
    return (
        word
        if len(word) <= MAX_KERNEL_NAME_CHARS and word.isprintable()
        else hashlib.sha256(word.encode()).hexdigest()[:12]
    )


def _filled(value: Any, made: Mapping[str, Handle], where: str) -> Any:
    """A value of the file, with its references replaced by handles."""
    if isinstance(value, dict) and set(value) == {REFERENCE_KEY}:
        return _handle(value[REFERENCE_KEY], made, where)
    if isinstance(value, dict):
        return {key: _filled(one, made, where) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(one, made, where) for one in value]
    return value


def _handle(name: Any, made: Mapping[str, Handle], where: str) -> Handle:
    if not isinstance(name, str) or name not in made:
        raise WorkloadError(f"there is no task {name!r} above it", where=where, hint="define a task before it is used")
    return made[name]


def _calling(module: str, name: str) -> Callable[..., Any]:
    # A nested function is pickled by value: a process that runs it need not import Symphony.
    def call(*sent: Any, **place: int) -> Any:
        """`sent`: the `TrainingRun`, if it trains; the values of `after`, which are ignored; args; kwargs."""
        import importlib
        from functools import reduce

        *training_run, _, args, kwargs = sent
        function: Any = reduce(getattr, name.split("."), importlib.import_module(module))
        return function(*training_run, *args, **kwargs, **place)

    return call


def _program() -> Callable[..., str]:
    """The function that runs a command: its output goes to the log as it is written, and is its value at the end."""

    def run(words: list[Any], stdin: Any, variables: dict[str, Any], poll: Callable[[], None] | None = None) -> str:
        """`poll`, for a command that trains, is called ten times a second while it runs, and when it has ended."""
        import io
        import os
        import selectors
        import signal
        import subprocess
        import sys
        import tempfile
        import time
        from contextlib import suppress

        trains, most = poll is not None, 16 << 20
        failed = type(PROGRAM_FAILED, (RuntimeError,), {})  # without a traceback: `runtime.failures`
        log = getattr(sys.stdout, "log", lambda data: None)
        environment = os.environ | {f"SYMPHONY_{name}": str(value) for name, value in variables.items()}
        die_with_parent = None
        if trains:
            import ctypes

            environment.setdefault("PYTHONUNBUFFERED", "1")  # or lines would arrive in batches
            prctl = ctypes.CDLL(None).prctl

            def die_with_parent() -> None:
                prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a preempted run must not continue

        printed, errors, cut, poll_s = bytearray(), bytearray(), False, 0.0
        with tempfile.TemporaryFile("w+") as stdin_file, selectors.DefaultSelector() as streams:
            stdin_file.write("" if stdin is None else str(stdin))
            stdin_file.seek(0)
            try:
                started = subprocess.Popen(
                    [str(word) for word in words],
                    stdin=subprocess.DEVNULL if stdin is None else stdin_file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    preexec_fn=die_with_parent,  # noqa: PLW1509 - a single system call, without locks
                )
            except OSError as error:
                raise failed(f"cannot be started: {error.strerror}: {str(words[0])!r}") from None
            with started as child:
                assert child.stdout is not None and child.stderr is not None
                streams.register(child.stdout, selectors.EVENT_READ, printed)
                streams.register(child.stderr, selectors.EVENT_READ, errors)
                over, reads_after_end = False, 0
                try:
                    while not over:
                        ended, ready = child.poll() is not None, streams.select(0.1) if streams.get_map() else []
                        for key, _ in ready:
                            data = os.read(key.fd, 1 << 16)
                            if not data:
                                streams.unregister(key.fileobj)
                            log(data)
                            key.data.extend(data)
                        del errors[:-16_000]
                        if trains and len(printed) > 2 * most:
                            cut = True
                            del printed[:-most]
                        if not streams.get_map():
                            with suppress(subprocess.TimeoutExpired):
                                child.wait(0.1)
                                ended = True
                        # Orphaned child processes of a training command may hold its streams and continue to write.
                        reads_after_end += ended
                        over = ended and not (ready and reads_after_end < 32 if trains else streams.get_map())
                        if poll is not None and (over or time.monotonic() >= poll_s):
                            poll_s = time.monotonic() + 0.1
                            poll()
                except BaseException:
                    child.kill()
                    raise
        if child.returncode:
            code = child.returncode
            how = f"ended with exit status {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
            raise failed(f"{how}\n{errors.decode(errors='replace')[-4000:]}")
        if cut:
            log(b"symphony: the output is too long for a value; only its end is kept\n")
            del printed[: printed.find(b"\n") + 1]
        return io.TextIOWrapper(io.BytesIO(printed)).read()

    return run


def _running() -> Callable[..., Any]:
    program = _program()

    def run(_: list[Any], words: list[Any], stdin: Any, **place: int) -> str:
        return program(words, stdin, {name.upper(): value for name, value in place.items()})

    return run


def _training_program() -> Callable[..., Any]:
    """The function that runs a training command, which has environment variables for input and reports by files."""
    program = _program()

    def run(job: Any, _: list[Any], words: list[Any], stdin: Any) -> str:
        import os

        def number(name: str) -> tuple[int, int] | None:
            """Modification time and contents of a file; None if it is missing or being written."""
            try:
                return os.stat(job.folder / name).st_mtime_ns, int((job.folder / name).read_text())
            except (OSError, ValueError):
                return None

        saved = number("saved")

        def poll() -> None:
            nonlocal saved
            now, step = number("saved"), number("step")
            if step is not None:
                job.reached(step[1])
            if now is not None and now != saved:
                saved = now
                job.saved(now[1])

        if job.rank == 0:
            (job.folder / "step").unlink(missing_ok=True)
        variables = {"FOLDER": job.folder, "STEPS": job.total, "STEP": job.began, "RANK": job.rank, "SIZE": job.size}
        return program(words, stdin, variables, poll)

    return run
