"""`symphony forecast`: what it refuses before the work. (Its work: `tests/training_jobs/test_closed_loop.py`.)"""

from __future__ import annotations

import math
from pathlib import Path

from symphony.cli.forecast_table import times, within
from symphony.training_jobs.job_forecast import Band
from tests.cli.command import symphony_here


def test_mistakes_are_found_before_the_work(tmp_path: Path) -> None:
    for wrong in (("--share", "1.5"), ("--json", "no/f.json"), ("-w", "cholesky:4"), ("--at", "-3"),
                  ("--tables", "nowhere")):  # fmt: skip
        done = symphony_here("forecast", *wrong, folder=tmp_path)
        assert done.returncode == 2 and "hint" in done.stderr and not done.stdout, wrong


def test_times_are_bands_from_now_on() -> None:
    band = Band(160.0, 7300.0, 10_900.0)
    assert times(band, 100.0) == "2 h (0.0167 to 3)"
    assert times(band._replace(high=math.inf), 100.0) == "2 h (0.0167 to never)"
    assert times(Band(130.0, math.inf, math.inf), 100.0) == "30 s or never"
    assert times(Band(math.inf, math.inf, math.inf), 100.0) == "never"
    assert times(Band(100.0, 864_100.0, 8.64e9 + 100), 100.0) == "10 d (0 to 100,000)"
    assert within(band, 160.0) and within(band._replace(high=math.inf), 1e9) and not within(band, 100.0)
