"""What runs in a process of the local engine: it reads work from one pipe and writes what came of it to another.

Loaded by its path (`fork_server.py`), not as a module, and it imports nothing of Symphony: JAX comes in only with
kernels that use it. The engine imports from here how values travel.

Values are pickled with their large buffers (arrays) left out. Those go into a file in shared memory, once, and are
mapped by the kernels that read them; pages that a reader writes to are its own. What the engine says are `marshal`led
tuples of plain values, with their length before them. What it is told has a form that can be checked (`messages.py`):
kernels share the process, and may write there, too.
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


def _sibling_module(name: str) -> Any:
    """A module from a file beside this one: Symphony need not be where this runs."""
    known = f"symphony_{name}"
    if known not in sys.modules:
        import importlib.util

        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None and spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


if __package__:
    from symphony.engines.messages import MAX_BUFFERS, MAX_TEXT, Portable, done, dropped, failed, ready
else:
    _messages = _sibling_module("messages")
    MAX_BUFFERS, MAX_TEXT, Portable = _messages.MAX_BUFFERS, _messages.MAX_TEXT, _messages.Portable
    done, dropped, failed, ready = _messages.done, _messages.dropped, _messages.failed, _messages.ready

MIN_OUT_OF_BAND_BYTES = 8 << 10  # bytes of a buffer from which on it is left out of the pickle
MAX_INLINE_VALUE_BYTES = 16 << 10  # bytes of a value that may travel in a message
READ_BYTES = 1 << 18  # bytes read from a pipe at once
MAX_PENDING_LINE = 1 << 12  # characters, or pieces, of a line that may wait for its end
HIGH = 900  # the first number for pipes: kernels that write to, or close, all low descriptors do not meet it
# One CPU for each slot, one thread on each: more would get into one another's way.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")

COMPILERS = frozenset({"jax", "torch", "numba", "tensorflow", "cupy"})  # what is called first is compiled by these

PLAIN_TYPES = {type(None), bool, int, float, str, bytes}  # has nothing to leave out


# --- values ------------------------------------------------------------------------------------------------


def _as_numpy(value: Any) -> Any:
    """JAX's arrays pickle their bytes; as NumPy's, they are left out like those."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        import numpy as np

        return jax.numpy.asarray, (np.asarray(value),)
    return NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _as_numpy(value)


def pickled(value: Any, refer: Callable[[Any], Any] | None = None) -> tuple[bytes, list[memoryview]]:
    """The pickle of a value and its large buffers. `refer` names what is not to be pickled, and gives None elsewhere.

    What pickle cannot take (functions of a notebook, say) cloudpickle may; its error says what cannot be sent at all.
    """
    if refer is None:
        if type(value) in PLAIN_TYPES:
            return pickle.dumps(value, protocol=5), []
        try:
            return _pickled(_Pickler, value)
        except Exception:  # whatever it is, cloudpickle says it again, or does it
            pass
    import cloudpickle

    class Deep(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            plain = _as_numpy(value)
            return super().reducer_override(value) if plain is NotImplemented else plain

        def persistent_id(self, value: Any) -> Any:
            return None if refer is None else refer(value)

    return _pickled(Deep, value)


def _pickled(kind: Any, value: Any) -> tuple[bytes, list[memoryview]]:
    buffers: list[memoryview] = []

    def left_out(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < MIN_OUT_OF_BAND_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    kind(file, protocol=5, buffer_callback=left_out).dump(value)
    return file.getvalue(), buffers


class _Unpickler(pickle.Unpickler):
    def __init__(self, head: bytes, buffers: Iterable[Any], inputs: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(head), buffers=buffers)
        self._inputs = inputs

    def persistent_load(self, number: int) -> Any:
        return self._inputs[number]


def unpickled(head: bytes, buffers: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
    """The inverse of `pickled`; `inputs` are what was referred to by number."""
    if not inputs and not buffers:
        return pickle.loads(head)
    return _Unpickler(head, buffers, inputs).load()


def store(head: bytes, buffers: Sequence[memoryview], folder: str, name: str) -> Portable:
    """Put a pickled value where others can read it."""
    size = len(head) + sum(buffer.nbytes for buffer in buffers)
    if not buffers and len(head) <= MAX_INLINE_VALUE_BYTES:
        return head, None, (), size
    apart = len(head) > MAX_INLINE_VALUE_BYTES
    parts: list[Any] = [*([head] if apart else []), *buffers]
    spans, at = [], 0
    path = os.path.join(folder, name)
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            file.seek(at)
            length = len(part) if isinstance(part, bytes) else part.nbytes
            rest = memoryview(part).cast("B") if length else b""
            while rest:
                rest = rest[file.write(rest) :]
            spans.append((at, length))
            at += -(-length // 64) * 64  # arrays begin at multiples of 64 bytes
        file.truncate(at)
    return None if apart else head, name, tuple(spans), size


def fetch(value: Portable, folder: str) -> tuple[bytes, list[Any]]:
    """The pickle and the buffers of a stored value, mapped."""
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
    """The same, read: a process that runs kernels may cut the file meanwhile, which ends whoever has mapped it.

    Raises `OSError` if the file is not what was said.
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
            part, there = bytearray(size), 0
            with memoryview(part) as view:
                while there < size:
                    count = os.preadv(descriptor, [view[there:]], at + there)
                    if not count:
                        raise OSError(errno.EIO, "the file of a value has become shorter")
                    there += count
            parts.append(part)
    finally:
        os.close(descriptor)
    return (bytes(parts[0]), list(parts[1:])) if head is None else (head, list(parts))


def check_spans(spans: Sequence[tuple[int, int]], told: os.stat_result) -> None:
    """Raise `OSError` unless a file is one, and has all parts of a value."""
    if not stat.S_ISREG(told.st_mode) or max([at + size for at, size in spans], default=0) > told.st_size:
        raise OSError(errno.EIO, "the file of a value is too short, or no file")


# --- kernels -----------------------------------------------------------------------------------------------


class Kernels:
    """The functions that were sent to a process, and what comes of calling them."""

    def __init__(self, handles: Callable[[], Callable[..., Any]]) -> None:
        """`handles` gives the class of what training functions are called with."""
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
        """Call a function: ("done", began, seconds, cold, value, busy seconds of the processor), or ("failed", began,
        seconds, step, and what of it).

        `fetched` gives the bytes of code, arguments and inputs, `kept` takes those of the value. `place`: its rank in
        its gang, and the size of that. `resumes`: what a training function is told.
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
        except BaseException as error:  # SystemExit too: a kernel may not end its process
            if os.getpid() != self._process:
                _end_fork(error)
            if isinstance(error, MemoryError):
                gc.collect()
            return "failed", began, time.monotonic() - began, step, *_error_parts(error)


def _wait_for(value: Any) -> Any:
    """JAX answers before it has computed: the time of a kernel is that of its values."""
    jax = sys.modules.get("jax")
    return value if jax is None else jax.block_until_ready(value)


def _end_fork(error: BaseException | None) -> NoReturn:
    """A kernel has forked, and this is the child, which is done: the answer is its parent's to give."""
    code = 0 if error is None else 1
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _error_parts(error: BaseException) -> tuple[str, str, str, bytes | None]:
    """Type, message, traceback and, if it can be sent, the exception itself."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, inside))
    try:
        message = str(error)
    except Exception:  # an exception whose own message fails
        message = "(its message cannot be read)"
    sent: bytes | None = None
    try:
        head, buffers = pickled(error.with_traceback(None))
        sent = head if len(head) <= MAX_TEXT and not buffers else None
    except Exception:  # the text has to do
        pass
    return type(error).__name__, message, text, sent


class Surroundings:
    """What a job finds in a process, whatever one before it has changed: all but modules, and memory.

    Folder, environment, import path, permissions of new files, handlers of signals, alarms and soft limits.
    """

    def __init__(self) -> None:
        self._folder, self._environment, self._path = os.getcwd(), dict(os.environ), list(sys.path)
        self._umask = _umask()
        self._handlers = {one: signal.getsignal(one) for one in signal.valid_signals()}
        self._limits = {one: resource.getrlimit(one)[0] for one in _LIMITS}

    def restore(self) -> None:
        """Put back what has changed, as far as that can be done."""
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
                with contextlib.suppress(ValueError):  # the hard limit is lower by now
                    resource.setrlimit(limit, (soft, hard))


_LIMITS = [resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_NOFILE]
_LIMITS += [resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_NPROC]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# --- messages of the engine --------------------------------------------------------------------------------


def framed(message: tuple) -> bytes:
    """A message to a process as bytes, its length first."""
    data = marshal.dumps(message)
    return len(data).to_bytes(4, "little") + data


class Inbox:
    """What the engine says, out of bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple]:
        """Those that are complete now."""
        data, at, found = self._rest + data, 0, []
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end > len(data):
                break
            found.append(marshal.loads(data[at + 4 : end]))
            at = end
        self._rest = data[at:]
        return found


# --- the process -------------------------------------------------------------------------------------------


class OutputRedirect:
    """What a kernel writes to its standard streams: to its log, if it has one, and not where it would have gone."""

    def __init__(self, logs: Callable[[], Callable[..., Any]]) -> None:
        """`logs` gives the class of logs."""
        self._logs = logs
        self._streams: tuple[_Stream, _Stream] | None = None  # the same for all kernels: libraries hold on to them
        self.log: Any = None

    @contextlib.contextmanager
    def kept(self, output: Sequence[Any] | None, rank: int) -> Iterator[None]:
        """Keep what is written meanwhile, where it was said."""
        if output is None:
            yield
            return
        before = sys.stdout, sys.stderr
        if self._streams is None:
            self._streams = _Stream(sys.stdout, self), _Stream(sys.stderr, self)
        for stream in self._streams:
            stream.pass_on()  # what a thread has written that another kernel left behind
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
    """A standard stream, line by line: what is printed comes in pieces, and a line without an end can wait."""

    def __init__(self, stream: Any, printed: OutputRedirect) -> None:
        self._stream, self._printed = stream, printed
        self._line: deque[str] = deque()  # of what has not gone on; any thread may add to it, or take from it

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
        """All that there is: to the log, or where it would have gone if there is none, or it cannot be written."""
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
        """To the log alone, for what programs write that a kernel runs; whether that could be done."""
        log = self._printed.log  # which may be taken away meanwhile, from a thread that a kernel has left behind
        return log is not None and log.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Process:
    """The state of a worker process."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write
        self.inbox = Inbox()
        self.waiting: deque[tuple] = deque()  # work that has come
        self.dropped: set[int] = set()
        self.kernels = Kernels(lambda: _sibling_module("training_run").TrainingRun)
        self.folder = ""
        self.printed = OutputRedirect(lambda: _sibling_module("output").OutputLog)
        self.names: Iterator[str] = iter(())  # of files for values
        self.surroundings: Surroundings | None = None
        self.job = -1  # of the last kernel

    def say(self, frame: bytes) -> None:
        data = memoryview(frame)
        while data:
            data = data[os.write(self.write, data) :]

    def listen(self) -> None:
        """Take in what has come; wait only if there is nothing to do."""
        data = os.read(self.read, READ_BYTES)
        if not data:
            _end()  # the engine is gone
        for message in self.inbox.feed(data):
            if message[0] == "run":
                self.waiting.append(message)
            elif message[0] == "drop":
                self.dropped.add(message[1])
            elif message[0] == "pin":
                with contextlib.suppress(OSError):  # CPUs that were taken away: work goes on without
                    os.sched_setaffinity(0, message[1] or os.sched_getaffinity(0))
            else:
                self.begin(*message[1:])

    def begin(self, path: Sequence[str], working: str, folder: str, name: str, accelerator: str) -> None:
        """Become a worker; names of the files that it makes begin with `name`."""
        sys.path[:] = path
        self.folder = folder
        self.names = (f"{name}-{number}" for number in itertools.count())
        with contextlib.suppress(OSError):  # a folder that is gone: work goes on without
            os.chdir(working)
        self.say(ready(_accelerator(accelerator)))

    def run(
        self, number: int, job: int, digest: str, code: Any, arguments: Any, inputs: Any, place: Any, *more: Any
    ) -> None:
        """Run a kernel and say what came of it; `more`: what a training function is told, and where output is kept.

        `job` is -1 if the process is for one job only.
        """
        resumes, output = more
        if self.surroundings is None and job >= 0:
            self.surroundings = Surroundings()
        elif self.surroundings is not None and job != self.job:
            self.surroundings.restore()
        self.job = job
        with self.printed.kept(output, place[0]):
            told = self.kernels.run(digest, code, arguments, inputs, place, self.fetched, self.kept, resumes)
        self.say(answer(number, told))

    def fetched(self, value: Portable) -> tuple[bytes, list[Any]]:
        return fetch(value, self.folder)

    def kept(self, head: bytes, buffers: list[memoryview]) -> Portable:
        return store(
            head, buffers, self.folder, next(self.names) if buffers or len(head) > MAX_INLINE_VALUE_BYTES else ""
        )


def answer(number: int, told: tuple) -> bytes:
    """What came of a kernel, as it is told."""
    kind, *rest = told
    return (done if kind == "done" else failed)(number, *rest)


def _accelerator(kind: str) -> str:
    """Why there is no accelerator of a kind, for which JAX has to find one; "" if all is well."""
    if not kind:
        return ""
    try:
        import jax

        jax.devices(kind)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _watch(read: int) -> None:
    """End with the engine, also in the middle of a kernel: nobody waits for it any more."""
    ends = select.poll()
    ends.register(read, 0)  # only that the other end is closed
    ends.poll()
    _end()


def _end() -> None:
    """At once, with the processes that kernels have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def _moved(descriptor: int) -> int:
    """The same pipe, under a high number, and closed in programs that kernels start."""
    for least in (HIGH, 3):
        with contextlib.suppress(OSError):  # this process may have few descriptors
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
            os.close(descriptor)
            return high
    raise OSError(errno.EMFILE, "there are no descriptors left")


def main(read: int, write: int) -> None:
    """Work until the engine is gone."""
    process = _Process(_moved(read), _moved(write))
    threading.Thread(target=_watch, args=(process.read,), daemon=True).start()
    there = select.poll()
    there.register(process.read, select.POLLIN)
    while True:
        # What has come meanwhile is taken in first: work that was dropped is not begun.
        if not process.waiting or there.poll(0):
            process.listen()
            continue
        work = process.waiting.popleft()
        if work[1] in process.dropped:
            process.dropped.discard(work[1])
            process.say(dropped(work[1]))
        else:
            process.run(*work[1:])
