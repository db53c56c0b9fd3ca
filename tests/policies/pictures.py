"""Pictures of small clusters, by hand: what a planner is shown, without a simulator."""

from __future__ import annotations

import numpy as np

from symphony.scheduling.state import FREE
from symphony.training_jobs.round_planning import RUNS, WAITS, PlanInputs


def picture(
    left: list[float],
    rate: list[list[float]],
    kinds: list[int],
    *,
    slots: int = 1,
    workers: list[int] | None = None,
    on: dict[int, int] | None = None,
    machines: list[int] | None = None,
    beside: np.ndarray | None = None,
    std: float = 0.0,
    boundary: bool = True,
    moving_s: float = 0.0,
    waited_s: list[float] | None = None,
    priority: list[int] | None = None,
) -> PlanInputs:
    """Jobs with units `left` and rates on each kind, each with a kernel of its own; devices of `kinds`.

    `on`: who runs on which device. `beside` [N, N, Y]: what is kept; None = nothing is told.
    """
    m, y, d = len(left), len(rate[0]), len(kinds)
    on = on or {}
    lane_device = np.repeat(np.arange(d), slots)
    holder = np.full(d * slots, FREE)
    for row, device in on.items():
        holder[np.flatnonzero((lane_device == device) & (holder == FREE))[0]] = row
    told = beside is not None
    speeds = np.asarray(rate, float)
    return PlanInputs(
        boundary=np.asarray(boundary),
        seed=np.asarray(0),
        windows=np.asarray(1),
        now_s=np.asarray(360.0),
        since_s=np.asarray(360.0),
        gang=np.arange(m),
        job=np.arange(m),
        kernel=np.arange(m),
        priority=np.asarray(priority or [0] * m),
        workers=np.asarray(workers or [1] * m),
        standing=np.asarray([RUNS if row in on else WAITS for row in range(m)]),
        left=np.asarray(left, float),
        age_s=np.full(m, 360.0),
        ran_s=np.zeros(m),
        rate=speeds,
        moving_s=np.full(m, moving_s),
        need=np.zeros((m, y, 0)),
        beside=beside if told else np.zeros((0, 0, y)),
        beside_std=np.full((m, m, y), std) if told else np.zeros((0, 0, y)),
        unit_s=np.stack([1 / speeds, 1.25 / speeds], axis=-1) if told else np.zeros((0, y, 2)),
        unit_std=np.full((m, y, 2), std) if told else np.zeros((0, y, 2)),
        crowding=np.asarray(0.0),
        holder=holder,
        queued=np.zeros(d, int),
        up=np.ones(d, bool),
        kind=np.asarray(kinds),
        machine=np.asarray(machines if machines else range(d)),
        lane_device=lane_device,
        lane_exists=np.ones(d * slots, bool),
        old_gang=np.full(m, -1),
        old_job=np.full(m, -1),
        old_plan=np.full(d * slots, -1),
        book=np.asarray(waited_s or [0.0] * m, float)[:, None],
        memo=np.zeros(1),
    )
