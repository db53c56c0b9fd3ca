"""Graphs in files: Python that builds one, or TOML that lists commands and functions.

name = "sample-17"                                  # TOML

[[task]]
name = "sort"
command = ["sort", "reads.txt"]                     # its value is what it prints

[[task]]
name = "count"
call = "mymodule:count"                             # imported where it runs
args = [{ from = "sort" }, 3]
kwargs = { strict = true }
after = ["sort"]                                    # wait for a task whose value is not read
device = "cpu"                                      # and timeout_s, retries, workers

[[task]]
name = "train"
command = ["python", "train.py"]                    # or a call, whose first argument is then a handle of the run
[task.training]                                     # it goes in steps, saves what it has, and goes on from there
steps = 2000                                        # and what else @sy.training takes

[outputs]
lines = "count"
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Annotated, Any

import cloudpickle
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from symphony.problem.errors import InputError, SymphonyError, WorkloadError
from symphony.runtime.graph import Graph, Handle
from symphony.runtime.kernels import KernelFunction, KernelOptions
from symphony.service.wire import TrainingSpec

REFERENCE_KEY = "from"
MAX_KERNEL_NAME_CHARS = 100  # characters of a word that names what a command runs
EXAMPLES = {"name": 'name = "…"', "task": "[[task]]", "steps": "steps = 2000"}  # of what a file must have
Word = Annotated[str, StringConstraints(min_length=1)]


class _Task(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Word
    command: list[Any] = Field([], description="words; { from = … } is what another task made")
    stdin: Any = None
    call: Annotated[str, StringConstraints(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    after: list[Word] = []
    device: Word = "cpu"
    timeout_s: float = math.inf
    retries: int = 2
    workers: int = 1
    training: TrainingSpec | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Word
    task: list[_Task] = Field(min_length=1)
    outputs: dict[Word, Word] = {}


def load(path: str, arguments: Mapping[str, Any]) -> Graph:
    """The graph of a file. `FILE.py:name` is another than `graph`; `arguments` are for one that is a function."""
    file, _, name = path.partition(":")
    found = Path(file)
    if not found.is_file():
        raise InputError(f"there is no file {file!r}", hint="write graph.py or graph.toml")
    if found.suffix == ".py":
        return _of_module(found, name or "graph", arguments)
    if found.suffix == ".toml" and not name:
        if arguments:
            raise InputError("a graph in TOML takes no arguments", where=file, hint="use a graph.py")
        return _of_toml(found)
    raise InputError(f"{path!r} is no graph", hint="write graph.py, graph.py:name or graph.toml")


# --- Python


def _of_module(path: Path, name: str, arguments: Mapping[str, Any]) -> Graph:
    module = _module(path)
    if not hasattr(module, name):
        raise InputError(f"it has no {name!r}", where=str(path), hint="name a graph, or a function that makes one")
    found = getattr(module, name)
    if isinstance(found, Graph) and not arguments:
        return found
    if isinstance(found, Graph) or not callable(found):
        raise InputError(f"{name!r} takes no arguments", where=str(path), hint="have a function make the graph")
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
    """Compiles a file each time that it is read.

    Byte code that Python kept is pickled otherwise, and the second submission of a file would not be the first's equal.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Of what the file holds now."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(path: Path) -> ModuleType:
    """Run a file as a module. Its functions are sent whole: where they run there is no such file."""
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
    cloudpickle.register_pickle_by_value(module)
    return module


def _raised(who: str, error: BaseException, path: Path) -> InputError:
    """With the line of the file that had to do with it last."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    return InputError(f"{who} raised {type(error).__name__}: {error}", where=where)


# --- TOML


def _of_toml(path: Path) -> Graph:
    read: dict[str, Any] = {}
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        content = _File.model_validate(read)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(str(error), where=str(path), hint="see docs/guides/service.md") from None
    except ValidationError as error:
        raise _wrong(error, read, path) from None
    graph, made = Graph(content.name), dict[str, Handle]()
    for task in content.task:
        where = f"{path}: task {task.name!r}"
        if task.name in made:
            raise WorkloadError("its name is taken", where=where, hint="choose another")
        if bool(task.command) == (task.call is not None):
            raise WorkloadError("it has no command and no call, or both", where=where, hint="give one of them")
        after = [_handle(name, made, where) for name in task.after]
        options = _options(task, where)
        trains = options.training is not None
        if task.call is not None:
            made_of = task.call.split(":")
            kernel = _kernel(_training_by(*made_of) if trains else _calling(*made_of), task, options)
            args, kwargs = _filled((task.args, task.kwargs), made, where)
            made[task.name] = graph.task(kernel, after, list(args), kwargs)
        else:
            kernel = _kernel(_training_program() if trains else _running(), task, options)
            words, stdin = _filled((task.command, task.stdin), made, where)
            made[task.name] = graph.task(kernel, after, words, stdin)
    for name, of in content.outputs.items():
        graph.output(name, _handle(of, made, f"{path}: output {name!r}"))
    return graph


def _wrong(error: ValidationError, read: Mapping[str, Any], path: Path) -> WorkloadError:
    """What is wrong with a file, by the names that are in it, and what to write instead."""
    # What is missing comes last: it is often there, misspelt, and the unknown field says more.
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
        return WorkloadError(f"there is no field {field!r}", where=where, hint=hint)
    if first["type"] == "missing":
        example = EXAMPLES.get(str(field), "…")
        return WorkloadError(f"it has no {field!r}", where=where, hint=f"write {example}; see docs/guides/service.md")
    return WorkloadError(f"{field}: {first['msg']}", where=where, hint="see docs/guides/service.md")


def _options(task: _Task, where: str) -> KernelOptions:
    try:
        trains = None if task.training is None else task.training.training()
        return KernelOptions(task.timeout_s, task.retries, trains is not None, task.workers, trains)
    except WorkloadError as error:
        raise WorkloadError(error.message, where=where, hint=error.hint) from None


def _kernel(function: Callable[..., Any], task: _Task, options: KernelOptions) -> KernelFunction:
    kernel = KernelFunction(function, task.device, task.name, options)
    kernel.key = f"toml.{task.call or task.command[0]}"
    if options.training is not None and task.command:  # steps of one script tell nothing of another's
        words = [word for word in task.command[1:] if isinstance(word, str) and not word.startswith("-")]
        kernel.key = " ".join([kernel.key, *(_short(word) for word in words[:1])])
    return kernel


def _short(word: str) -> str:
    """As it is, or its digest: some are whole programs."""
    return (
        word
        if len(word) <= MAX_KERNEL_NAME_CHARS and word.isprintable()
        else hashlib.sha256(word.encode()).hexdigest()[:12]
    )


def _filled(value: Any, made: Mapping[str, Handle], where: str) -> Any:
    """A value of the file, with handles where it refers to tasks."""
    if isinstance(value, dict) and set(value) == {REFERENCE_KEY}:
        return _handle(value[REFERENCE_KEY], made, where)
    if isinstance(value, dict):
        return {key: _filled(one, made, where) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(one, made, where) for one in value]
    return value


def _handle(name: Any, made: Mapping[str, Handle], where: str) -> Handle:
    if not isinstance(name, str) or name not in made:
        raise WorkloadError(f"there is no task {name!r} above it", where=where, hint="tasks read from those above them")
    return made[name]


def _calling(module: str, name: str) -> Callable[..., Any]:
    # Within a function, so that it is sent whole: a process that runs it need not import Symphony.
    def call(_: list[Any], args: list[Any], kwargs: dict[str, Any], **place: int) -> Any:
        import importlib
        from functools import reduce

        return reduce(getattr, name.split("."), importlib.import_module(module))(*args, **kwargs, **place)  # type: ignore[operator]

    return call


def _program() -> Callable[..., str]:
    """How commands are run: what one writes is in the logs as it comes, what it prints is its value at the end."""

    def run(words: list[Any], stdin: Any, told: dict[str, Any], look: Callable[[], None] | None = None) -> str:
        """`look` is for one that trains: it is called while that runs, ten times a second, and when it has ended."""
        import io
        import os
        import selectors
        import signal
        import subprocess
        import sys
        import tempfile
        import time
        from contextlib import suppress

        trains, most = look is not None, 16 << 20
        log = getattr(sys.stdout, "log", lambda data: None)
        environment = os.environ | {f"SYMPHONY_{name}": str(value) for name, value in told.items()}
        end_with_us = None
        if trains:
            import ctypes

            environment.setdefault("PYTHONUNBUFFERED", "1")  # or lines would come in batches
            prctl = ctypes.CDLL(None).prctl

            def end_with_us() -> None:
                prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: what is stopped here must not go on there

        printed, wrong, cut, look_s = bytearray(), bytearray(), False, 0.0
        with tempfile.TemporaryFile("w+") as given, selectors.DefaultSelector() as streams:
            given.write("" if stdin is None else str(stdin))
            given.seek(0)
            with subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL if stdin is None else given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                preexec_fn=end_with_us,  # noqa: PLW1509 - one call of the system, and no lock is taken
            ) as child:
                assert child.stdout is not None and child.stderr is not None
                streams.register(child.stdout, selectors.EVENT_READ, printed)
                streams.register(child.stderr, selectors.EVENT_READ, wrong)
                over, after = False, 0
                try:
                    while not over:
                        ended, ready = child.poll() is not None, streams.select(0.1) if streams.get_map() else []
                        for key, _ in ready:
                            data = os.read(key.fd, 1 << 16)
                            if not data:
                                streams.unregister(key.fileobj)
                            log(data)
                            key.data.extend(data)
                        del wrong[:-16_000]
                        if trains and len(printed) > 2 * most:
                            cut = True
                            del printed[:-most]
                        if not streams.get_map():
                            with suppress(subprocess.TimeoutExpired):
                                child.wait(0.1)
                                ended = True
                        # Those whom one that trains has left behind may hold its streams, and go on writing.
                        after += ended
                        over = ended and not (ready and after < 32 if trains else streams.get_map())
                        if look is not None and (over or time.monotonic() >= look_s):
                            look_s = time.monotonic() + 0.1
                            look()
                except BaseException:
                    child.kill()
                    raise
        if child.returncode:
            raise RuntimeError(f"exit status {child.returncode}\n{wrong.decode(errors='replace')[-4000:]}")
        if cut:
            log(b"symphony: it printed too much for a value: that is the end of it\n")
            del printed[: printed.find(b"\n") + 1]
        return io.TextIOWrapper(io.BytesIO(printed)).read()

    return run


def _running() -> Callable[..., Any]:
    program = _program()

    def run(_: list[Any], words: list[Any], stdin: Any, **place: int) -> str:
        return program(words, stdin, {name.upper(): value for name, value in place.items()})

    return run


def _training_by(module: str, name: str) -> Callable[..., Any]:
    def call(job: Any, _: list[Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        import importlib
        from functools import reduce

        return reduce(getattr, name.split("."), importlib.import_module(module))(job, *args, **kwargs)  # type: ignore[operator]

    return call


def _training_program() -> Callable[..., Any]:
    """A command that trains: it is told where to go on, and says how far it is by files, which are passed on."""
    program = _program()

    def run(job: Any, _: list[Any], words: list[Any], stdin: Any) -> str:
        import os

        def number(name: str) -> tuple[int, int] | None:
            """What a file of its says, and when that was written."""
            try:
                return os.stat(job.folder / name).st_mtime_ns, int((job.folder / name).read_text())
            except (OSError, ValueError):  # there is none, or it is just being written
                return None

        saved = number("saved")

        def look() -> None:
            nonlocal saved
            now, step = number("saved"), number("step")
            if step is not None:
                job.reached(step[1])
            if now is not None and now != saved:
                saved = now
                job.saved(now[1])

        if job.rank == 0:
            (job.folder / "step").unlink(missing_ok=True)
        told = {"FOLDER": job.folder, "STEPS": job.total, "STEP": job.began, "RANK": job.rank, "SIZE": job.size}
        return program(words, stdin, told, look)

    return run
