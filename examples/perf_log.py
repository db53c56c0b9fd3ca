"""A log as `perf stat -I 100 -j` writes it, of a simulated program on a CPU with two counters for six events.

    python -m examples.perf_log && symphony stat --replay perf.json --cpu amdzen4 --explain

The program changes what it does every 20 ms, so that scaled-up counts are wrong. The true counts are known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 0.1
SLICES_PER_WINDOW = 25
SLICES = 20 * SLICES_PER_WINDOW
SLICES_PER_PHASE = 5
CYCLES_PER_SLICE = 1e7 * np.array([0.2, 1.0, 3.0])  # in each of three phases
SLOT_SHARES = np.array([[2, 1, 6, 3], [5, 2, 2, 3], [1, 0.5, 0.5, 10]]) / 12  # front end, wrong path, back end, retired
SLOTS_PER_CYCLE = 6


def true_counts() -> dict[str, NDArray[np.float64]]:
    """What happened in each slice, by event of AMD's Zen 4."""
    rng = np.random.default_rng(3)
    phase = np.repeat(rng.integers(0, 3, SLICES // SLICES_PER_PHASE), SLICES_PER_PHASE)
    cycles = CYCLES_PER_SLICE[phase] * rng.lognormal(0, 0.05, SLICES)
    front, wrong_path, back, retired = SLOTS_PER_CYCLE * cycles * SLOT_SHARES[phase].T
    return {
        "de_no_dispatch_per_slot.no_ops_from_frontend": front,
        "de_no_dispatch_per_slot.backend_stalls": back,
        "de_no_dispatch_per_slot.smt_contention": 0 * back,
        "de_src_op_disp.all": wrong_path + retired,
        "ex_ret_ops": retired,
        "ls_not_halted_cyc": cycles,
    }


def write(path: str | Path) -> None:
    """Write the log: pairs of events take turns on two counters, a slice each."""
    truth = true_counts()
    with Path(path).open("w", encoding="utf-8") as log:
        for window in range(SLICES // SLICES_PER_WINDOW):
            slices = SLICES_PER_WINDOW * window + np.arange(SLICES_PER_WINDOW)
            readings = [("cpu-clock", 1e3 * WINDOW_S, "msec", WINDOW_S)]
            for number, (event, counts) in enumerate(truth.items()):
                own = slices[slices % 3 == number // 2]  # in which the event's pair has the counters
                running_s = WINDOW_S * len(own) / SLICES_PER_WINDOW
                readings.append((event, counts[own].sum() * WINDOW_S / running_s, "", running_s))
            for event, value, unit, running_s in readings:
                line = {"interval": round(WINDOW_S * (window + 1), 9), "counter-value": f"{value:.6f}"}
                line |= {"unit": unit, "event": event, "event-runtime": round(running_s * 1e9)}
                print(json.dumps(line | {"pcnt-running": round(100 * running_s / WINDOW_S, 2)}), file=log)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="perf.json", help="the file to write")
    write(parser.parse_args().output)
