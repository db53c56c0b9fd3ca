"""The worker process of the local engine: reads work from one pipe and writes results to another.

Before it begins work, it reads a permit from a third pipe: the n-th message with work has permit n. The engine takes
back work that has not begun by reading the rest of the permits itself.

The fork server loads this file by its path. It imports nothing of Symphony, and JAX only with kernels that use it. The
engine imports the encoding of values from here.

Values are pickled with large buffers (arrays) out of band. These are written to a file in shared memory once, and
mapped copy-on-write by the kernels that read them. Messages of the engine are `marshal`led tuples of plain values,
prefixed with their length. Messages of the worker are validated frames (`messages.py`), because kernels run in this
process and could write to its pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import io
import itertools
import marshal
import mmap
import os
import pickle
import resource
import select
import signal
import stat
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn


def _sibling_module(name: str, folder: str = ".") -> Any:
    """Load a module from a folder, relative to that of this file: Symphony need not be importable here."""
    qualified = f"symphony_{name}"
    if qualified not in sys.modules:
        import importlib.util

        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), folder, f"{name}.py")
        spec = importlib.util.spec_from_file_location(qualified, path)
        assert spec is not None and spec.loader is not None
        sys.modules[qualified] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[qualified])
    return sys.modules[qualified]


if __package__:
    from symphony.engines.messages import MAX_BUFFERS, MAX_TEXT, Portable, done, failed, ready
else:
    _messages = _sibling_module("messages")
    MAX_BUFFERS, MAX_TEXT, Portable = _messages.MAX_BUFFERS, _messages.MAX_TEXT, _messages.Portable
    done, failed, ready = _messages.done, _messages.failed, _messages.ready

MIN_OUT_OF_BAND_BYTES = 8 << 10  # smaller buffers stay in the pickle
MAX_INLINE_VALUE_BYTES = 16 << 10  # larger values go into files
READ_BYTES = 1 << 18  # bytes read from a pipe at once
PERMIT_BYTES = 8
MAX_PENDING_LINE = 1 << 12  # characters, or pieces, of an unfinished line that are buffered
HIGH = 900  # lowest descriptor for pipes: kernels that close or write to low descriptors miss them
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# As many threads as cores: more would compete for the CPUs.
ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")

COMPILERS = frozenset({"jax", "torch", "numba", "tensorflow", "cupy"})  # modules that compile on the first call

PLAIN_TYPES = {type(None), bool, int, float, str, bytes}  # without out-of-band buffers


# --- values ------------------------------------------------------------------------------------------------


def _as_numpy(value: Any) -> Any:
    """JAX arrays pickle their bytes in band; pickled as NumPy arrays, they are out of band."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        import numpy as np

        return jax.numpy.asarray, (np.asarray(value),)
    return NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _as_numpy(value)


def pickled(value: Any, refer: Callable[[Any], Any] | None = None) -> tuple[bytes, list[memoryview]]:
    """The pickle of a value, and its large buffers. `refer` gives the persistent id of an object, or None.

    Falls back to cloudpickle, for example for functions of a notebook; its errors name what cannot be sent.
    """
    if refer is None:
        if type(value) in PLAIN_TYPES:
            return pickle.dumps(value, protocol=5), []
        try:
            return _pickled(_Pickler, value)
        except Exception:  # cloudpickle may succeed; if not, it raises the error again
            pass
    return _pickled(_deep_pickler(), value, refer)


# The class, once it was made. Not `functools.cache`: with that, an actor cannot be sent by value.
_deep_picklers: list[Any] = []


def _deep_pickler() -> Any:
    """A pickler that also pickles functions and classes which cannot be imported elsewhere."""
    if _deep_picklers:
        return _deep_picklers[0]
    import cloudpickle

    class Deep(cloudpickle.Pickler):
        refer: Any = None

        def reducer_override(self, value: Any) -> Any:
            plain = _as_numpy(value)
            return super().reducer_override(value) if plain is NotImplemented else plain

        def persistent_id(self, value: Any) -> Any:
            return None if self.refer is None else self.refer(value)

    _deep_picklers.append(Deep)
    return Deep


class _ReferringPickler(pickle.Pickler):
    refer: Any = None

    def persistent_id(self, value: Any) -> Any:
        return self.refer(value)


def pickled_plain(value: Any, refer: Callable[[Any], Any] | None) -> bytes:
    """As `pickled`, much faster, for containers of plain values and objects with persistent ids alone."""
    if refer is None:
        return pickle.dumps(value, protocol=5)
    file = io.BytesIO()
    pickler = _ReferringPickler(file, protocol=5)
    pickler.refer = refer
    pickler.dump(value)
    return file.getvalue()


def _pickled(kind: Any, value: Any, refer: Callable[[Any], Any] | None = None) -> tuple[bytes, list[memoryview]]:
    buffers: list[memoryview] = []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < MIN_OUT_OF_BAND_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler = kind(file, protocol=5, buffer_callback=out_of_band)
    if refer is not None:
        pickler.refer = refer
    pickler.dump(value)
    return file.getvalue(), buffers


class _Unpickler(pickle.Unpickler):
    def __init__(self, head: bytes, buffers: Iterable[Any], inputs: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(head), buffers=buffers)
        self._inputs = inputs

    def persistent_load(self, number: int) -> Any:
        return self._inputs[number]


def unpickled(head: bytes, buffers: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
    """The inverse of `pickled`; `inputs` are the objects with persistent ids 0, 1, …"""
    if not inputs and not buffers:
        return pickle.loads(head)
    return _Unpickler(head, buffers, inputs).load()


def store(head: bytes, buffers: Sequence[memoryview], folder: str, name: str) -> Portable:
    """Encode a pickled value for a message: inline if it is small, else in a new file `name`."""
    size = len(head) + sum(buffer.nbytes for buffer in buffers)
    if not buffers and len(head) <= MAX_INLINE_VALUE_BYTES:
        return head, None, (), size
    apart = len(head) > MAX_INLINE_VALUE_BYTES
    parts: list[Any] = [*([head] if apart else []), *buffers]
    spans, at = [], 0
    path = os.path.join(folder, name)
    try:
        with open(path, "xb", buffering=0, opener=private) as file:
            for part in parts:
                file.seek(at)
                length = len(part) if isinstance(part, bytes) else part.nbytes
                rest = memoryview(part).cast("B") if length else b""
                while rest:
                    rest = rest[file.write(rest) :]
                spans.append((at, length))
                at += -(-length // 64) * 64  # align arrays to 64 bytes
            file.truncate(at)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)  # a part of a value would fill the memory that it did not fit into
        raise
    return None if apart else head, name, tuple(spans), size


def private(path: str, flags: int) -> int:
    """The opener of new files of values."""
    return os.open(path, flags, 0o600)


def fetch(value: Portable, folder: str) -> tuple[bytes, list[Any]]:
    """The pickle and the buffers of a stored value, memory-mapped copy-on-write."""
    head, name, spans, _ = value
    if name is None:
        assert head is not None
        return head, []
    descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
    try:
        length = os.fstat(descriptor).st_size
        whole = memoryview(mmap.mmap(descriptor, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(descriptor)
    parts = [whole[at : at + size] for at, size in spans]
    return (bytes(parts[0]), list(parts[1:])) if head is None else (head, list(parts))


def copied(value: Portable, folder: str) -> tuple[bytes, list[Any]]:
    """The same, copied: a worker may truncate the file, and a process that had mapped it would be killed by SIGBUS.

    Raises `OSError` if the file does not contain the value.
    """
    head, name, spans, _ = value
    if name is None:
        assert head is not None
        return head, []
    descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        check_spans(spans, os.fstat(descriptor))
        parts = []
        for at, size in spans:
            part, done_bytes = bytearray(size), 0
            with memoryview(part) as view:
                while done_bytes < size:
                    count = os.preadv(descriptor, [view[done_bytes:]], at + done_bytes)
                    if not count:
                        raise OSError(errno.EIO, "the file of a value has become shorter")
                    done_bytes += count
            parts.append(part)
    finally:
        os.close(descriptor)
    return (bytes(parts[0]), list(parts[1:])) if head is None else (head, list(parts))


def check_spans(spans: Sequence[tuple[int, int]], status: os.stat_result) -> None:
    """Raise `OSError` unless a file is a regular one, has no other name, and contains all spans."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise OSError(errno.EIO, "the file of a value is not a regular file with one name")
    if max([at + size for at, size in spans], default=0) > status.st_size:
        raise OSError(errno.EIO, "the file of a value is too short")


# --- kernels -----------------------------------------------------------------------------------------------


class Kernels:
    def __init__(self, handles: Callable[[], Callable[..., Any]]) -> None:
        """`handles` returns the class of the first argument of training functions (`TrainingRun`)."""
        self._handles = handles
        self._process = os.getpid()
        self._functions: dict[str, Callable[..., Any]] = {}
        self._called: set[str] = set()

    def run(
        self,
        digest: str,
        code: Any,
        arguments: Any,
        inputs: Sequence[Any],
        place: tuple[int, int],
        fetched: Callable[[Any], tuple[bytes, Sequence[Any]]],
        kept: Callable[[bytes, list[memoryview]], Any],
        resumes: Sequence[Any] | None = None,
    ) -> tuple:
        """Call a function: ("done", began, seconds, cold, value, CPU seconds) or ("failed", began, seconds, step, …).

        `fetched` reads the bytes of code, arguments and inputs; `kept` stores those of the value. `place`: rank in the
        gang, and its size. `resumes`: arguments of the `TrainingRun` of a training function.
        """
        began, seconds, first, modules = time.monotonic(), 0.0, digest not in self._called, len(sys.modules)
        step = "function"
        try:
            function = self._functions.get(digest)
            if function is None:
                function = self._functions[digest] = unpickled(*fetched(code))
            step = "arguments"
            values = [unpickled(*fetched(value)) for value in inputs] if inputs else ()
            positional, named = unpickled(*fetched(arguments), values)
            step, handle = "call", None
            if resumes is not None:
                handle = self._handles()(*resumes, *place)
                positional = (handle, *positional)
            elif place[1] > 1:
                named = {**named, "rank": place[0], "size": place[1]}
            busy, began = time.process_time(), time.monotonic()
            value = function(*positional, **named)
            if os.getpid() != self._process:
                _end_fork(None)
            value = _wait_for(value)
            seconds, busy = time.monotonic() - began, time.process_time() - busy
            self._called.add(digest)
            if handle is not None:
                handle.returned()
            step, cold = "result", first and (len(sys.modules) > modules or not COMPILERS.isdisjoint(sys.modules))
            return "done", began, seconds, cold, kept(*pickled(value)), busy
        except BaseException as error:  # also SystemExit: a kernel must not end its process
            if os.getpid() != self._process:
                _end_fork(error)
            if isinstance(error, MemoryError):
                gc.collect()
            return "failed", began, time.monotonic() - began, step, *_error_parts(error)


def _wait_for(value: Any) -> Any:
    """JAX computes asynchronously: the time of a kernel includes the computation of its values."""
    jax = sys.modules.get("jax")
    return value if jax is None else jax.block_until_ready(value)


def _end_fork(error: BaseException | None) -> NoReturn:
    """Exit the child of a kernel that has forked: only the parent answers the engine."""
    code = 0 if error is None else 1
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def class_name(kind: type) -> str:
    """The name of a class with its module, unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _error_parts(error: BaseException) -> tuple[str, str, str, str, bytes | None]:
    """Type, classes, message, traceback and, if it can be pickled, the exception itself."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, inside))
    try:
        message = str(error)
    except Exception:  # its `__str__` raises
        message = "(its message cannot be read)"
    sent: bytes | None = None
    try:
        head, buffers = pickled(error.with_traceback(None))
        sent = head if len(head) <= MAX_TEXT and not buffers else None
    except Exception:  # not picklable: the traceback is sent anyway
        pass
    classes = " ".join(class_name(kind) for kind in type(error).__mro__)
    return type(error).__name__, classes, message, text, sent


class Surroundings:
    """State of a process that is restored between jobs: all but modules and memory.

    Working folder, environment, import path, umask, signal handlers, timers and soft limits.
    """

    def __init__(self) -> None:
        self._folder, self._environment, self._path = os.getcwd(), dict(os.environ), list(sys.path)
        self._umask = _umask()
        self._handlers = {one: signal.getsignal(one) for one in signal.valid_signals()}
        self._limits = {one: resource.getrlimit(one)[0] for one in _LIMITS}

    def restore(self) -> None:
        with contextlib.suppress(OSError):
            os.chdir(self._folder)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if sys.path != self._path:
            sys.path[:] = self._path
        os.umask(self._umask)
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.setitimer(signal.ITIMER_REAL, 0)
            for one, handler in self._handlers.items():
                if handler is not None and signal.getsignal(one) is not handler:
                    signal.signal(one, handler)
        for limit, soft in self._limits.items():
            now, hard = resource.getrlimit(limit)
            if now != soft:
                with contextlib.suppress(ValueError):  # the job has lowered the hard limit
                    resource.setrlimit(limit, (soft, hard))


_LIMITS = [resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_NOFILE]
_LIMITS += [resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_NPROC]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# --- messages of the engine --------------------------------------------------------------------------------


def framed(message: tuple) -> bytes:
    data = marshal.dumps(message)
    return len(data).to_bytes(4, "little") + data


class Inbox:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple]:
        data, at, messages = self._rest + data, 0, []
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end > len(data):
                break
            messages.append(marshal.loads(data[at + 4 : end]))
            at = end
        self._rest = data[at:]
        return messages


# --- the process -------------------------------------------------------------------------------------------


class OutputRedirect:
    """Redirects what a kernel writes to its standard streams to its log, if it has one."""

    def __init__(self, logs: Callable[[], Callable[..., Any]]) -> None:
        """`logs` returns the class `OutputLog`."""
        self._logs = logs
        self._streams: tuple[_Stream, _Stream] | None = None  # the same for all kernels: libraries keep references
        self.log: Any = None

    @contextlib.contextmanager
    def kept(self, output: Sequence[Any] | None, rank: int) -> Iterator[None]:
        if output is None:
            yield
            return
        before = sys.stdout, sys.stderr
        if self._streams is None:
            self._streams = _Stream(sys.stdout, self), _Stream(sys.stderr, self)
        for stream in self._streams:
            stream.pass_on()  # written by a thread of the previous kernel
        self.log = self._logs()(*output, rank)
        sys.stdout, sys.stderr = self._streams
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for stream in self._streams:
                stream.pass_on()
            log, self.log = self.log, None
            log.close()


class _Stream:
    """A standard stream that passes on whole lines."""

    def __init__(self, stream: Any, printed: OutputRedirect) -> None:
        self._stream, self._printed = stream, printed
        self._line: deque[str] = deque()  # pieces of the unfinished line; several threads may append and pop

    def write(self, text: str) -> int:
        if self._printed.log is None or not isinstance(text, str):
            return self._stream.write(text)
        self._line.append(text)
        if "\n" in text or "\r" in text or len(text) > MAX_PENDING_LINE or len(self._line) > MAX_PENDING_LINE:
            self.pass_on()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.pass_on()
        self._stream.flush()

    def pass_on(self) -> None:
        """Write the buffer to the log; if there is none, or writing fails, to the original stream."""
        if not self._line:
            return
        pieces = []
        with contextlib.suppress(IndexError):
            while True:
                pieces.append(self._line.popleft())
        text = "".join(pieces)
        if text and not self.log(text.encode("utf-8", "backslashreplace")):
            self._stream.write(text)

    def log(self, data: bytes) -> bool:
        """Write only to the log, for output of child processes; whether that succeeded."""
        log = self._printed.log  # another thread may set it to None meanwhile
        return log is not None and log.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Process:
    def __init__(self, read: int, write: int, permits: int) -> None:
        self.read, self.write, self.permits = read, write, permits
        self.inbox = Inbox()
        self.waiting: deque[tuple] = deque()  # received work, also what the engine has taken back
        self.passed = 0  # work that was begun or passed over
        self.kernels = Kernels(lambda: _sibling_module("training_run", "../training_jobs").TrainingRun)
        self.folder = ""
        self.printed = OutputRedirect(lambda: _sibling_module("output").OutputLog)
        self.names: Iterator[str] = iter(())  # of files for values
        self.surroundings: Surroundings | None = None
        self.job = -1  # of the last kernel
        self.opened: dict[str, int] = {}  # descriptors of folders that its user could not open

    def say(self, frame: bytes) -> None:
        data = memoryview(frame)
        while data:
            data = data[os.write(self.write, data) :]

    def listen(self) -> None:
        data = os.read(self.read, READ_BYTES)
        if not data:
            _end()  # the engine has ended
        for message in self.inbox.feed(data):
            if message[0] == "run":
                self.waiting.append(message[1:])
            elif message[0] == "pin":
                with contextlib.suppress(OSError):  # these CPUs are no longer allowed: run unpinned
                    os.sched_setaffinity(0, message[1] or os.sched_getaffinity(0))
            elif message[0] == "confine":
                self.confine(*message[1:])
            else:
                self.begin(*message[1:])

    def next_work(self) -> tuple:
        """Wait for work that the engine has not taken back. From then on, it cannot."""
        permit = self.permit()
        while True:
            while self.waiting:
                work = self.waiting.popleft()
                self.passed += 1
                if self.passed == permit:
                    return work
            self.listen()

    def permit(self) -> int:
        """Wait for the permit of the next work."""
        while True:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self.permits, PERMIT_BYTES)
                if not data:
                    _end()  # the engine has ended
                return int.from_bytes(data, "little")
            self.listen()  # the engine writes the permit before the work

    def begin(self, path: Sequence[str], working: str, folder: str, name: str, accelerator: str) -> None:
        """Set the process up; the names of its files begin with `name`."""
        sys.path[:] = path
        self.folder = folder
        self.names = (f"{name}-{number}" for number in itertools.count())
        with contextlib.suppress(OSError):  # the folder was removed: run elsewhere
            os.chdir(working)
        self.say(ready(_accelerator(accelerator)))

    def confine(
        self,
        group: str,
        environment: dict[str, str],
        limits: Sequence[tuple[int, int]],
        folders: Sequence[str],
        account: tuple[int, int, Sequence[int], str] | None,
    ) -> None:
        """Before its first kernel: enter a control group, set limits, open `folders`, and become another user (uid,
        gid, groups, home).
        """
        if group:
            with open(os.path.join(group, "cgroup.procs"), "w") as file:
                file.write("0")
        for folder in folders:
            with contextlib.suppress(OSError):
                self.opened[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for limit, value in limits:
            with contextlib.suppress(ValueError, OSError):  # it is lower already
                resource.setrlimit(limit, (value, value))
        if account is not None:
            uid, gid, groups, home = account
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            _sibling_module("processes").stay_readable()  # for programs that kernels start: /proc/PID/fd below
            try:
                os.chdir(home)
            except OSError:
                os.chdir("/")
        os.environ.update(environment)

    def found(self, path: str) -> str:
        """The path of a folder, through a descriptor if its user could not reach it otherwise."""
        for folder, descriptor in self.opened.items():
            if path.startswith(folder + os.sep):
                return f"/proc/{os.getpid()}/fd/{descriptor}{path[len(folder) :]}"
        return path

    def run(
        self, number: int, job: int, digest: str, code: Any, arguments: Any, inputs: Any, place: Any, *more: Any
    ) -> None:
        """Run a kernel and answer; `more`: arguments of `TrainingRun` and `OutputLog`, or None. `job` is -1 if the
        process serves a single job.
        """
        resumes, output = more
        if output is not None and self.opened:
            output = (self.found(output[0]), *output[1:])
        if self.surroundings is None and job >= 0:
            self.surroundings = Surroundings()
        elif self.surroundings is not None and job != self.job:
            self.surroundings.restore()
        self.job = job
        with self.printed.kept(output, place[0]):
            outcome = self.kernels.run(digest, code, arguments, inputs, place, self.fetched, self.kept, resumes)
        self.say(answer(number, outcome))

    def fetched(self, value: Portable) -> tuple[bytes, list[Any]]:
        return fetch(value, self.folder)

    def kept(self, head: bytes, buffers: list[memoryview]) -> Portable:
        return store(
            head, buffers, self.folder, next(self.names) if buffers or len(head) > MAX_INLINE_VALUE_BYTES else ""
        )


def answer(number: int, outcome: tuple) -> bytes:
    kind, *rest = outcome
    return (done if kind == "done" else failed)(number, *rest)


def _accelerator(kind: str) -> str:
    """Why JAX finds no accelerator of this kind; "" if it does, or none is needed."""
    if not kind:
        return ""
    try:
        import jax

        jax.devices(kind)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _watch(read: int) -> None:
    """Exit when the engine ends, also in the middle of a kernel."""
    ends = select.poll()
    ends.register(read, 0)  # wait only for the other end to close
    ends.poll()
    _end()


def _end() -> None:
    """Exit at once, and kill the child processes of kernels."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def _moved(descriptor: int) -> int:
    """The same pipe, under a high descriptor that is closed in child programs."""
    for least in (HIGH, 3):
        with contextlib.suppress(OSError):  # the limit of descriptors may be lower
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
            os.close(descriptor)
            return high
    raise OSError(errno.EMFILE, "there are no descriptors left")


def main(read: int, write: int, permits: int) -> None:
    """`read`: messages of the engine. `write`: answers. `permits`: to begin work; it does not block."""
    process = _Process(_moved(read), _moved(write), _moved(permits))
    threading.Thread(target=_watch, args=(process.read,), daemon=True).start()
    while True:
        process.run(*process.next_work())
