"""A run of `symphony stat`: samples of several places become spans of intervals, and totals.

A `PlaceTracker` (for a CPU, a socket, a program) takes samples and yields a `Span` for each window, `lag` windows
later. Spans are added up to the printed intervals and to the whole run, in constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.estimates import Posterior
from symphony.telemetry.gate import Verdict
from symphony.telemetry.inference import Tracker, infer
from symphony.telemetry.reading import Reader
from symphony.telemetry.samples import Recording, Sample
from symphony.telemetry.spans import Span

MAX_COVARIANCES = 2e7  # entries of covariances that a whole recording may hold in memory


class PlaceTracker:
    """Turns the samples of one place into spans, one for each window."""

    def __init__(self, reader: Reader, first: Sample) -> None:
        self._tracker = Tracker(reader, first.columns)
        self._whole: Posterior | None = None  # of a whole recording

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (self._whole or self._tracker).verdicts

    @property
    def net(self) -> BayesNet | None:
        """The network in use; None if nothing is inferred."""
        net = (self._whole or self._tracker).net
        return net if net.events else None

    def update(self, sample: Sample) -> Iterator[Span]:
        """Process a window; yields the window that is now complete, if any."""
        self._tracker.update(sample)
        if self._tracker.ready:
            yield from self._tracker.smoothed().spans

    def finish(self) -> Iterator[Span]:
        """Yields the remaining windows at the end of a run."""
        if self._whole is None:
            yield from self._tracker.rest().spans
            self._tracker.check_identities()  # the final verdicts use all windows

    def spans(self, recording: Recording) -> Iterator[Span]:
        """Yields the windows of a whole recording, each estimated from all of them."""
        if len(recording) * len(self._tracker.net.free) ** 2 > MAX_COVARIANCES:
            for sample in recording.samples():
                yield from self.update(sample)
            return
        self._whole = infer(self._tracker.reader, recording)
        yield from self._whole.spans


class StatRun:
    """All places of a run: takes samples, yields spans of `every` windows, and keeps the totals."""

    def __init__(self, reader_of: Callable[[Sample], Reader], every: int = 1) -> None:
        self._reader_of, self._every = reader_of, every
        self.places: dict[str, PlaceTracker] = {}
        self.totals: dict[str, Span] = {}
        self._open: dict[str, Span] = {}

    @property
    def windows(self) -> int:
        """The largest number of windows of any place."""
        return max((span.windows for span in self.totals.values()), default=0)

    def update(self, sample: Sample) -> Iterator[Span]:
        """Process a window; yields the spans that are now complete."""
        if sample.where not in self.places:
            self.places[sample.where] = PlaceTracker(self._reader_of(sample), sample)
        yield from self._take(self.places[sample.where].update(sample))

    def replay(self, recording: Recording) -> Iterator[Span]:
        """Process all windows of a place at once."""
        if not len(recording):
            return
        first = next(recording.samples())
        self.places[recording.where] = PlaceTracker(self._reader_of(first), first)
        yield from self._take(self.places[recording.where].spans(recording))

    def finish(self) -> Iterator[Span]:
        """Yields the remaining spans."""
        for place in self.places.values():
            yield from self._take(place.finish())
        yield from (span for span in self._open.values() if span.windows)
        self._open = {}

    def _take(self, spans: Iterable[Span]) -> Iterator[Span]:
        for span in spans:
            for sums in (self.totals, self._open):
                if span.where in sums:
                    sums[span.where].add(span)
                else:
                    sums[span.where] = empty = Span(span.reader, span.where, span.start_s)
                    empty.add(span)
            if self._open[span.where].windows >= self._every:
                yield self._open.pop(span.where)
