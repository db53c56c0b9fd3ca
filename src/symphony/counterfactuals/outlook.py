"""When a job starts and ends: the answer, and its forecasts for the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from symphony.counterfactuals.record import FINISH, SHARE, START, Forecast, Record
from symphony.counterfactuals.snapshot import SnapshotJob
from symphony.training_jobs.job_forecast import Band, spelled

if TYPE_CHECKING:
    from symphony.counterfactuals.futures import PlayedTimes

NOW = Band(0.0, 0.0, 0.0)
MIN_POSSIBLE = 8  # draws of which a band is made


class Outlook(NamedTuple):
    """Bands in seconds from now; inf = unknown or never."""

    start_s: Band
    finish_s: Band
    text: str


def band(values: np.ndarray, share: float = SHARE) -> Band:
    """Median and central interval of draws, some of which may be inf."""
    ranked = np.sort(values)
    # An outcome is as likely between any two neighbouring draws, or beyond the last.
    places = np.asarray([(1 - share) / 2, 0.5, (1 + share) / 2]) * (len(ranked) + 1) - 1
    places = np.clip(places, 0, len(ranked) - 1)
    below, above = ranked[np.floor(places).astype(int)], ranked[np.ceil(places).astype(int)]
    with np.errstate(invalid="ignore"):
        between = np.where(below == above, below, below + (places % 1) * (above - below))
    return Band(*(float(x) for x in between))


def _from_now(drawn: np.ndarray, age_s: float) -> np.ndarray:
    """Draws of a play `age_s` ago, from now on: without those that have not come true, if others are left."""
    left = drawn - age_s
    possible = left[left > 0]
    return possible if len(possible) >= MIN_POSSIBLE else np.maximum(left, 0.0)


def outlook_of(
    record: Record,
    played: PlayedTimes,
    number: int,
    job: SnapshotJob,
    at_s: float,
    share: float = SHARE,
    age_s: float = 0.0,
) -> tuple[Outlook, list[Forecast]]:
    """The outlook of a job and its forecasts. `age_s`: seconds since the play; `at_s`: now."""
    made, bands = [], {}
    for what, drawn in ((START, played.start_s[:, number]), (FINISH, played.finish_s[:, number])):
        if job.runs and what == START:
            bands[what] = NOW
            continue
        model = band(_from_now(drawn, age_s))
        made.append(Forecast(job.job, job.user, what, at_s, model, record.calibrated(what, model)))
        bands[what] = record.calibrated(what, model, share)
    return outlook(job.job, bands[START], bands[FINISH], job.runs), made


def outlook(job: int, start_s: Band, finish_s: Band, runs: bool) -> Outlook:
    begin = "runs, and" if runs else f"is expected to start {spelled(start_s)} and"
    return Outlook(start_s, finish_s, f"job {job} {begin} is expected to end {spelled(finish_s)}")
