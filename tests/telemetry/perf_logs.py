"""Samples as `perf stat -I … -j` or `-x ';'` would have written them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from symphony.telemetry.samples import Sample


def lines(samples: Iterable[Sample], *, form: str = "json", precise: bool = True) -> list[str]:
    """perf prints counts scaled up, the time that they ran, and a percentage; with a clock that tells the enabled time."""
    found = []
    for sample in samples:
        time_s = sample.start_s + sample.duration_s
        enabled = float(sample.enabled_s.max())
        if precise:
            found.append(_line(form, time_s, sample.where, f"{enabled * 1e3:.6f}", "msec", "cpu-clock", enabled, 100.0))
        for column, count, running, whole in zip(
            sample.columns, sample.count, sample.running_s, sample.enabled_s, strict=True
        ):
            text = f"{count * whole / running:.0f}" if running > 0 and np.isfinite(count) else "<not counted>"
            share = 100 * running / whole if running > 0 else 0.0
            found.append(_line(form, time_s, sample.where, text, "", column.event, float(running), share))
    return found


def write(file: Path, samples: Iterable[Sample], *, form: str = "json") -> Path:
    """A log with all of them."""
    file.write_text("".join(f"{line}\n" for line in lines(samples, form=form)), encoding="utf-8")
    return file


def _line(form: str, time_s: float, where: str, value: str, unit: str, event: str, running: float, share: float) -> str:
    ran = round(running * 1e9)
    if form == "csv":
        fields = [f"{time_s:.9f}", *([where] if where else []), value, unit, event, str(ran), f"{share:.2f}", "", ""]
        return ";".join(fields)
    place = {"cpu": where.removeprefix("CPU")} if where else {}
    content = {"interval": round(time_s, 9), **place, "counter-value": value, "unit": unit, "event": event}
    return json.dumps({**content, "event-runtime": ran, "pcnt-running": round(share, 2)}, separators=(", ", " : "))
