"""Samples of several sources as they arrive, each source read by its own thread.

The *lead* determines the duration. When its command is about to begin, the other sources begin, and the command waits
for their first reads. When the command ends, they read for the last time. What their first and last windows have beyond
the command is cut off, in proportion. If a lead cannot start (because counting is not permitted, for example), the next
candidate replaces it, and the sources held in reserve are read as well.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread

from symphony.problem.errors import InputError, SymphonyError
from symphony.telemetry.samples import CounterSource, Problem, Sample
from symphony.telemetry.sources.perf import PerfSource

_STOP_TIMEOUT_S, _STOP_TRIES = 5.0, 25  # for a source to stop
_FIRST_READ_TIMEOUT_S = 1.0  # for which a command waits for the sources
_Ended = object()


class CommandLead:
    """Runs a command and counts nothing: the lead if perf cannot be used."""

    problems: Sequence[Problem] = ()
    cuts = False

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self.exit_status: int | None = None
        self.first_read_s: float | None = None
        self.began_s: float | None = None  # monotonic
        self.ended_s: float | None = None
        self.on_begin: Callable[[], None] = lambda: None  # as `PerfSource`'s
        self.on_end: Callable[[], None] = lambda: None

    def samples(self) -> Iterator[Sample]:
        """No samples; returns when the command has ended."""
        self.on_begin()
        self.began_s = time.monotonic()
        try:
            self._process = subprocess.Popen(self._command)
        except OSError as error:
            raise InputError(
                f"{self._command[0]!r} cannot be started: {error.strerror or error}",
                hint="give its path, or install it",
            ) from None
        self.exit_status = self._process.wait()
        self.ended_s = time.monotonic()
        self.on_end()
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
    cuts = False
    first_read_s = began_s = ended_s = None

    def __init__(self) -> None:
        self._stopped = Event()
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None

    def samples(self) -> Iterator[Sample]:
        """No samples; returns when it is stopped."""
        self.on_begin()
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
        self._lock = Lock()  # of `_waiting`
        self._read_once: dict[Thread, Event] = {}  # by the thread of a source
        self._stopping = Event()
        self._interrupted = False
        self.lead: Lead | None = None
        self.lead_counted = False  # whether the lead had a sample

    @property
    def sources(self) -> tuple[CounterSource, ...]:
        """The sources that are, or were, in use."""
        return (*([self.lead] if self.lead else []), *self.others)

    def __iter__(self) -> Iterator[Sample]:
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

    @property
    def elapsed_s(self) -> float | None:
        """The duration of the lead's command; None if there is none, or it has not ended."""
        if self.lead is None or self.lead.began_s is None or self.lead.ended_s is None:
            return None
        return self.lead.ended_s - self.lead.began_s

    def pause(self, seconds: float) -> None:
        """A `sleep` for polling sources: it returns early when the feed stops, for one last, short window."""
        self._note_first_read()
        if self._stopping.is_set():
            raise _FeedStopped
        self._stopping.wait(seconds)

    def pause_whole(self, seconds: float) -> None:
        """A `sleep` for sources that need complete windows: it raises when the feed stops."""
        self._note_first_read()
        if self._stopping.wait(seconds):
            raise _FeedStopped

    def _note_first_read(self) -> None:
        if done := self._read_once.get(current_thread()):
            done.set()

    def _begin_others(self) -> None:
        """Start the other sources, and wait until they have read once."""
        for source in self.others:
            with self._lock:
                self._waiting += 1
            thread = Thread(target=self._run, args=(source,), daemon=True)
            self._read_once[thread] = Event()
            thread.start()
        for done in self._read_once.values():
            done.wait(_FIRST_READ_TIMEOUT_S)

    def _run(self, source: CounterSource) -> None:
        try:
            for sample in source.samples():
                self._put(source, sample)
        except _FeedStopped:
            pass
        except SymphonyError as error:
            self._queue.put(str(error.message))
        finally:
            self._note_first_read()
            self._queue.put(_Ended)

    def _put(self, source: CounterSource, sample: Sample) -> None:
        """Pass on the part of a window that lies within the time of the command."""
        lead, first_s = self.lead, getattr(source, "first_read_s", None)
        if lead is None or lead.began_s is None or first_s is None:
            self._queue.put(sample)
            return
        start_s = first_s + sample.start_s
        within_s = max(start_s, lead.began_s), min(start_s + sample.duration_s, lead.ended_s or math.inf)
        share = (within_s[1] - within_s[0]) / sample.duration_s
        if share > 0:
            cut = {name: getattr(sample, name) * share for name in ("count", "running_s", "enabled_s")}
            start_s, duration_s = within_s[0] - lead.began_s, within_s[1] - within_s[0]
            self._queue.put(replace(sample, start_s=start_s, duration_s=duration_s, **cut))

    def _run_lead(self) -> None:
        try:
            for number, source in enumerate(self._leads):
                self.lead, begun = source, False
                source.on_begin, source.on_end = self._begin_others, self._stopping.set
                try:
                    for sample in source.samples():
                        begun = self.lead_counted = True
                        if source.cuts:
                            self._put(source, sample)
                        else:
                            self._queue.put(sample)
                    return
                except SymphonyError as error:
                    if begun or number + 1 == len(self._leads) or self._stopping.is_set():
                        self._queue.put(error)
                        return
                    self._queue.put(str(error.message))
                    self.others, self.reserve = [*self.others, *self.reserve], []
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
            else:
                with self._lock:
                    self._waiting -= 1
                if item is self:
                    self._stopping.set()


class _FeedStopped(Exception): ...
