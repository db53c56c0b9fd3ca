"""Snapshots of a cluster, for `counterfactuals`: jobs as they are, and what is believed of their kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from symphony.counterfactuals.snapshot import KernelBelief, SnapshotTask
from symphony.estimation.kernels import Timing
from symphony.problem.speeds import PACKED
from symphony.runtime.jobs import JobState, TaskRun, size_of
from symphony.runtime.kernels import RunnableKernel
from symphony.runtime.live_workload import LiveWorkload
from symphony.runtime.profiles import Profiles

MIN_KNOWN_KERNELS = 3  # from whose times those of a kernel that never ran are guessed
MIN_GUESS_STD = 0.7  # of the logarithm of such a guess


class TaskSketch(NamedTuple):
    """A task with its kernel, before kernels are numbered."""

    kernel: RunnableKernel
    now: SnapshotTask  # its `kernel` and `workers` are filled in by `KernelTable.tasks`


class KernelTable:
    """Numbers kernels, and collects what is believed of them. For one thread."""

    def __init__(self, workload: LiveWorkload, handling_s: float) -> None:
        """`workload`: of which only methods that read profiles are used. `handling_s`: the runtime's own time."""
        self._workload, self._handling_s = workload, handling_s
        self._numbers: dict[tuple[str, str], int] = {}
        self.beliefs: list[KernelBelief] = []
        known = [timing.mean[0] for timing in _known(workload.profiles)]
        self._guess = (float(np.median(known)), max(float(np.std(known)), MIN_GUESS_STD)) if known else None

    def tasks(self, sketches: Sequence[TaskSketch]) -> tuple[SnapshotTask, ...]:
        return tuple(
            one.now._replace(kernel=self._number(one.kernel), workers=one.kernel.options.workers) for one in sketches
        )

    def _number(self, kernel: RunnableKernel) -> int:
        key = kernel.key, repr(kernel.options)
        if key not in self._numbers:
            self._numbers[key] = len(self.beliefs)
            self.beliefs.append(self._belief(kernel))
        return self._numbers[key]

    def _belief(self, kernel: RunnableKernel) -> KernelBelief:
        w, made = self._workload, self._workload.profiled(kernel, kernel.name, self._handling_s)
        belief, noise = {}, {}
        for kind in w.kinds_of(kernel):
            device = w.topology.kinds[kind].name
            if kernel.options.training is not None:
                belief[device] = float(
                    w.speeds.beliefs_about([kernel], 1, len(w.topology.kinds)).unit_std[0, kind, PACKED]
                )
                noise[device] = 0.0
                continue
            timing = w.profiles.believed(kernel.key, device)
            noise[device] = timing.noise_std
            belief[device] = math.sqrt(max(timing.spread(0.0) ** 2 - timing.noise_std**2, 0.0))
            if not timing.runs and self._guess is not None:
                profile = made.implementations[device]
                guessed = replace(profile, fixed_s=math.exp(self._guess[0]), per_work_s=0.0)
                made = replace(made, implementations={**made.implementations, device: guessed})
                belief[device] = self._guess[1]
        return KernelBelief(made, belief, noise)


def _known(profiles: Profiles) -> list[Timing]:
    """Timings of kernels that have run; none if there are too few to guess from."""
    found = [timing for key in profiles if (timing := profiles.get(key)) is not None and timing.runs]
    return found if len(found) >= MIN_KNOWN_KERNELS else []


def sketches(job: JobState, devices: Mapping[str, int], now_s: float) -> list[TaskSketch]:
    """The unfinished tasks of a job. Called by the loop's thread."""
    left = [run for run in job.runs if run.value is None]
    new = {run.index: n for n, run in enumerate(left)}
    return [_sketch(run, tuple(new[x] for x in run.call.reads if x in new), devices, now_s) for run in left]


def _sketch(run: TaskRun, reads: tuple[int, ...], devices: Mapping[str, int], now_s: float) -> TaskSketch:
    attempt = run.attempts[-1] if run.number >= 0 and run.attempts else None
    runs = attempt is not None and not attempt.ahead
    training = run.kernel.options.training
    units = 1.0
    if training is not None:
        units = max(training.steps - (run.progress.step if run.progress is not None else 0), 1)
    return TaskSketch(
        run.kernel,
        SnapshotTask(
            kernel=-1,
            reads=reads,
            size=float(size_of(run)),
            units=float(units),
            devices=tuple(devices[name] for name in attempt.devices) if attempt is not None and runs else (),
            elapsed_s=0.0 if attempt is None or not runs or training is not None else max(now_s - attempt.sent_s, 0.0),
            delay_s=max(run.retry_s - now_s, 0.0),
        ),
    )
