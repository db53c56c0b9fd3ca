"""Samples of several sources as they arrive, each source read by its own thread.

The *lead* determines the duration: when it ends, the other sources are stopped. If a lead cannot start (because
counting is not permitted, for example), the next candidate replaces it, and the sources held in reserve are started.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread

from symphony.problem.errors import InputError, SymphonyError
from symphony.telemetry.samples import CounterSource, Problem, Sample
from symphony.telemetry.sources.perf import PerfSource

_STOP_TIMEOUT_S, _STOP_TRIES = 5.0, 25  # for a source to stop
_Ended = object()


class CommandLead:
    """Runs a command and counts nothing: the lead if perf cannot be used."""

    problems: Sequence[Problem] = ()

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self.exit_status: int | None = None
        self.elapsed_s: float | None = None  # duration of the command

    def samples(self) -> Iterator[Sample]:
        """No samples; returns when the command has ended."""
        began = time.monotonic()
        try:
            self._process = subprocess.Popen(self._command)
        except OSError as error:
            raise InputError(
                f"{self._command[0]!r} cannot be started: {error.strerror or error}",
                hint="give its path, or install it",
            ) from None
        self.exit_status = self._process.wait()
        self.elapsed_s = time.monotonic() - began
        yield from ()

    def stop(self) -> None:
        """Terminate the command if it is running."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)


class IdleLead:
    """Counts nothing until it is stopped: the lead if nothing else determines the duration."""

    problems: Sequence[Problem] = ()
    exit_status: int | None = None

    def __init__(self) -> None:
        self._stopped = Event()

    def samples(self) -> Iterator[Sample]:
        """No samples; returns when it is stopped."""
        self._stopped.wait()
        yield from ()

    def stop(self) -> None:
        self._stopped.set()


Lead = PerfSource | CommandLead | IdleLead


class SampleFeed:
    """Iterate over it for samples, then over `rest()` if the iteration was interrupted."""

    def __init__(self, leads: Sequence[Lead], note: Callable[[str], None] = lambda text: None) -> None:
        self._leads, self._note = list(leads), note
        self.others: list[CounterSource] = []  # set before the iteration: their constructors may need `pause`
        self.reserve: list[CounterSource] = []
        self._queue: SimpleQueue[object] = SimpleQueue()
        self._waiting = 0  # running threads
        self._stopping = Event()
        self._interrupted = False
        self.lead: Lead | None = None

    @property
    def sources(self) -> tuple[CounterSource, ...]:
        """The sources that are, or were, in use."""
        return (*([self.lead] if self.lead else []), *self.others)

    def __iter__(self) -> Iterator[Sample]:
        for source in self.others:
            self._begin(source)
        if self._leads:
            self._waiting += 1
            Thread(target=self._run_lead, daemon=True).start()
        yield from self._samples()

    def rest(self) -> Iterator[Sample]:
        """Stop all sources, and yield their remaining samples."""
        self._stopping.set()
        self._interrupted = True
        if self.lead is not None:
            self.lead.stop()
        yield from self._samples()

    def pause(self, seconds: float) -> None:
        """A `sleep` for polling sources: it returns early when the feed stops, for one last, short window."""
        if self._stopping.is_set():
            raise _FeedStopped
        self._stopping.wait(seconds)

    def pause_whole(self, seconds: float) -> None:
        """A `sleep` for sources that need complete windows: it raises when the feed stops."""
        if self._stopping.wait(seconds):
            raise _FeedStopped

    def _begin(self, source: CounterSource) -> None:
        self._waiting += 1
        Thread(target=self._run, args=(source,), daemon=True).start()

    def _run(self, source: CounterSource) -> None:
        try:
            for sample in source.samples():
                self._queue.put(sample)
        except _FeedStopped:
            pass
        except SymphonyError as error:
            self._queue.put(str(error.message))
        finally:
            self._queue.put(_Ended)

    def _run_lead(self) -> None:
        try:
            for number, source in enumerate(self._leads):
                self.lead, begun = source, False
                try:
                    for sample in source.samples():
                        begun = True
                        self._queue.put(sample)
                    return
                except SymphonyError as error:
                    if begun or number + 1 == len(self._leads) or self._stopping.is_set():
                        self._queue.put(error)
                        return
                    self._queue.put(str(error.message))
        finally:
            self._queue.put(self)

    def _samples(self) -> Iterator[Sample]:
        tries = 0
        while self._waiting:
            try:
                item = self._queue.get(timeout=_STOP_TIMEOUT_S / _STOP_TRIES if self._stopping.is_set() else None)
            except Empty:
                if (tries := tries + 1) == _STOP_TRIES:
                    return  # a source that does not stop is left to the end of the process
                if self._interrupted and self.lead is not None:
                    self.lead.stop()  # it had not started at the first request
                continue
            if isinstance(item, Sample):
                yield item
            elif isinstance(item, SymphonyError):
                self._stopping.set()
                raise item
            elif isinstance(item, str):
                self._note(item)
                for source in self.reserve:
                    self._begin(source)
                self.others, self.reserve = [*self.others, *self.reserve], []
            else:
                self._waiting -= 1
                if item is self:
                    self._stopping.set()


class _FeedStopped(Exception): ...
