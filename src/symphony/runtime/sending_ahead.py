"""Which queued tasks are sent to the engine before the core has started them, so that no process waits for a decision.

A device receives tasks ahead while all of its kernels are short: one for each slot, or as many as take `MAX_AHEAD_S`
together. The first task of its queue that is not short ends that. Where many are sent, the next are sent when half of
them have ended, so that one message has several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from symphony.problem.topology import Topology
from symphony.runtime.jobs import TaskRun, size_of
from symphony.runtime.profiles import Profiles

SHORT_KERNEL_S = 5e-3  # kernels with less expected time may be sent ahead: one for each slot, …
MAX_AHEAD_S, MAX_AHEAD_TASKS = 1e-3, 64  # … or as many as take this time together, up to this number
MIN_BATCH = 4  # sent ahead for each slot: if there may be more, they are sent when half of them have ended
MAX_EXPECTATIONS = 4096  # kept by `SendingAhead.expectation`


class SendingAhead:
    """Used by the loop's thread."""

    def __init__(self, topology: Topology, profiles: Profiles) -> None:
        self._profiles = profiles
        self._kinds = [device.kind for device in topology.devices]
        self._slots = [topology.kind_of[kind].slots for kind in self._kinds]
        self._long: list[set[TaskRun]] = [set() for _ in self._kinds]  # runs on each device that are not short
        self._enough = [math.inf] * len(self._kinds)  # with as many runs on it, a device receives no more now
        self._expected: dict[tuple[str, str, int], tuple[int, float, float]] = {}  # see `expectation`

    def sent(self, run: TaskRun, devices: Sequence[int]) -> None:
        for device in devices:
            if self._seconds(run, device) >= SHORT_KERNEL_S:
                self._long[device].add(run)

    def ended(self, run: TaskRun, devices: Sequence[int]) -> None:
        for device in devices:
            self._long[device].discard(run)

    def choose(self, counts: Sequence[int], queued: Iterable[tuple[TaskRun, int]]) -> Iterator[tuple[TaskRun, int]]:
        """Tasks to send now, with their devices. `counts`: runs on each device. `queued`: tasks that were not sent."""
        sent, enough = list(counts), self._enough
        open_devices = {n for n, count in enumerate(sent) if 0 < count < enough[n] and not self._long[n]}
        if not open_devices:
            return
        for run, device in queued:
            options = run.kernel.options
            if device not in open_devices or options.workers > 1 or options.cores > 1 or options.memory:
                continue
            seconds, slots = self._seconds(run, device), self._slots[device]
            per_slot = min(max(MAX_AHEAD_S / seconds, 1.0), MAX_AHEAD_TASKS)
            if seconds < SHORT_KERNEL_S and sent[device] < slots * (1 + per_slot):
                sent[device] += 1
                yield run, device
                continue
            enough[device] = slots * (1 + per_slot / 2) if per_slot >= MIN_BATCH else math.inf
            open_devices.discard(device)
            if not open_devices:
                return
        for device in open_devices:  # their queues are empty
            enough[device] = math.inf

    def expectation(self, run: TaskRun, device: int) -> tuple[int, float, float]:
        """Runs that were learned from, expected seconds, and the standard deviation of their logarithm."""
        key = run.kernel.key, self._kinds[device], size_of(run)
        timing = self._profiles.timing(key[0], key[1])
        found = self._expected.get(key)
        if found is None or found[0] != timing.runs:
            if len(self._expected) > MAX_EXPECTATIONS:
                self._expected.clear()
            found = self._expected[key] = timing.runs, timing.seconds(key[2]), timing.spread(key[2])
        return found

    def _seconds(self, run: TaskRun, device: int) -> float:
        """Expected run time; inf if it is unknown, or for a training job."""
        if run.kernel.options.training is not None:
            return math.inf
        runs, seconds, _ = self.expectation(run, device)
        return seconds if runs else math.inf
