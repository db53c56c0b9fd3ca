"""The record of forecasts: how often bands held the outcome, and bands recalibrated from that (conformal).

A forecast is a band of the model that should hold `SHARE` of outcomes. The score of an outcome is its distance from the
middle, on a logarithmic scale, in units of the band's half width on that side: within the band if at most 1. Quantiles
of recent scores, instead of -1 and 1, give the ends of the bands that are shown. As long as there are few scores, those
of a model that is right count as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from symphony.training_jobs.job_forecast import Band

SHARE = 0.8  # of outcomes that recorded bands should hold
START, FINISH = "start", "finish"
HORIZONS = ((10.0, "under 10 s"), (120.0, "10 s to 2 min"), (3_600.0, "2 min to 1 h"), (math.inf, "over 1 h"))
FLOOR_S = 0.05  # added to times before logarithms: shorter ones are all "at once"
MIN_HALF_WIDTH = 0.02  # of the logarithm: a model that is sure is not
RECENT = 300  # scores that bands are calibrated from
MIN_OF_HORIZON = 60  # scores of one horizon, before they are used alone
PRIOR_SCORES = tuple(
    NormalDist().inv_cdf((n + 0.5) / 20) / NormalDist().inv_cdf((1 + SHARE) / 2) for n in range(20)
)  # of a model that is right


class Forecast(NamedTuple):
    """A forecast of a job, in seconds from when it was made."""

    job: int
    user: str
    what: str  # START or FINISH
    at_s: float  # when it was made
    model: Band  # of the model alone
    shown: Band  # as it was shown
    actual_s: float = math.nan  # what happened; NaN = not known yet


class RecordRow(NamedTuple):
    """Forecasts of a group against what happened."""

    what: str
    by: str  # all, horizon or user
    value: str
    scored: int
    coverage: float  # share of outcomes in the bands that were shown …
    model_coverage: float  # … and in those of the model alone
    width: float  # median width of bands over the time that was forecast: sharpness
    error: float  # median error of the middle, relative to what happened


def horizon(seconds: float) -> str:
    return next(name for end, name in HORIZONS if seconds < end or end == math.inf)


def holds(band: Band, actual_s: float) -> bool:
    return band.low <= actual_s <= band.high


def score(model: Band, actual_s: float) -> float:
    middle, below, above = _scale(model)
    off = math.log(max(actual_s, 0.0) + FLOOR_S) - middle
    return off / (above if off > 0 else below)


def _scale(model: Band) -> tuple[float, float, float]:
    """Middle, and half widths below and above it, of logarithms."""
    low, middle, high = (math.log(max(x, 0.0) + FLOOR_S) for x in model)
    return middle, max(middle - low, MIN_HALF_WIDTH), max(high - middle, MIN_HALF_WIDTH)


class Record:
    """Scored forecasts, the newest last."""

    def __init__(self, scored: Iterable[Forecast] = (), most: int = 20_000) -> None:
        self.scored: deque[Forecast] = deque(maxlen=most)
        self._scores: dict[tuple[str, str], deque[float]] = {}
        for one in scored:
            self.add(one)

    def add(self, one: Forecast) -> None:
        """Add a forecast whose outcome is known."""
        self.scored.append(one)
        if math.isfinite(one.model.mid):
            for key in (horizon(one.model.mid), ""):
                self._scores.setdefault((one.what, key), deque(maxlen=RECENT)).append(score(one.model, one.actual_s))

    def settle(self, forecasts: Iterable[Forecast], start_s: float, finish_s: float) -> list[Forecast]:
        """Add forecasts with what happened, in seconds from when they were made."""
        known = [one._replace(actual_s=max(start_s if one.what == START else finish_s, 0.0)) for one in forecasts]
        for one in known:
            self.add(one)
        return known

    def scores(self, what: str, seconds: float = math.inf) -> list[float]:
        """Recent scores: those of the same horizon if there are enough, else of all."""
        some = self._scores.get((what, horizon(seconds)), ())
        return list(some if len(some) >= MIN_OF_HORIZON else self._scores.get((what, ""), ()))

    def calibrated(self, what: str, model: Band, share: float = SHARE) -> Band:
        """The band to show, of the model's band for `SHARE`; unchanged where that has no finite end."""
        if not all(map(math.isfinite, model)) or model.high <= 0:
            return model
        middle, below, above = _scale(model)
        known = self.scores(what, model.mid)
        scores = sorted(known if len(known) >= MIN_OF_HORIZON else [*known, *PRIOR_SCORES])

        def end(quantile: float) -> float:
            # Conformal: the outcome is as likely between any two neighbouring scores, or beyond the last.
            place = min(max(quantile * (len(scores) + 1) - 1, 0.0), len(scores) - 1.0)
            value = float(np.interp(place, range(len(scores)), scores))
            return max(math.exp(middle + value * (above if value > 0 else below)) - FLOOR_S, 0.0)

        return Band(end((1 - share) / 2), end(0.5), end((1 + share) / 2))

    def rows(self, user: str | None = None) -> list[RecordRow]:
        """The record by horizon and by user; of one user only, if named."""
        groups: dict[tuple[str, str, str], list[Forecast]] = {}
        for one in list(self.scored):
            if user is None or one.user == user:
                ways = ("all", ""), ("horizon", horizon(one.model.mid)), ("user", one.user)
                for by, value in ways:
                    groups.setdefault((one.what, by, value), []).append(one)
        order = {name: n for n, (_, name) in enumerate(HORIZONS)}
        keys = sorted(
            groups, key=lambda key: (key[0], ("all", "horizon", "user").index(key[1]), order.get(key[2], 0), key[2])
        )
        return [_figures(key, groups[key]) for key in keys]


def _figures(key: tuple[str, str, str], some: Sequence[Forecast]) -> RecordRow:
    actual = np.asarray([one.actual_s for one in some])
    middle = np.asarray([one.shown.mid for one in some])
    width = np.asarray([one.shown.high - one.shown.low for one in some])
    return RecordRow(
        *key,
        scored=len(some),
        coverage=float(np.mean([holds(one.shown, one.actual_s) for one in some])),
        model_coverage=float(np.mean([holds(one.model, one.actual_s) for one in some])),
        width=float(np.median(width / np.maximum(middle, FLOOR_S))),
        error=float(np.median(np.abs(middle - actual) / np.maximum(actual, FLOOR_S))),
    )
