"""Destroy and repair: a search over plans of hundreds of gangs, evaluated in the sketch.

A round removes a part of the current plan, an interval of time or random gangs, in a batch of different ways. The
removed gangs are inserted in a slightly different order, each on the device where it finishes first, or on the class of
devices that the area bound assigns it: so that long gangs without urgent successors run on slow devices, which earliest
finish time seldom does. A second pass moves gangs that became ready late behind those that were ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from symphony.oracle.bounds import Objective, spread
from symphony.oracle.instance import Instance
from symphony.oracle.replay import Plan, shared_plan
from symphony.oracle.search import MAX_STALE_ROUNDS, chunks
from symphony.oracle.sketch import Sketch

SKETCH_BATCH = 128  # candidates that are evaluated at once
REBUILD_TEMPERATURE = 0.01  # at first, a candidate worse by this fraction may replace the current plan
MAX_RETURNED_PLANS = 16  # the best and those on the way to it
TWO_CHAIN_TIME_SHARE = 0.4  # share of the time with two chains: from the best given plan, and the best constructed one
MIN_SECOND_PASS_RATE = 0.1  # least share of rounds with a second pass, which doubles the cost of a round
MIN_SUCCESSOR_GAP_S = 1e-9  # least difference between the keys of a gang and its parents


@dataclass(frozen=True)
class SketchPlan:
    """A plan in the sketch."""

    value_s: float
    devices: np.ndarray  # i[N]
    start_s: np.ndarray  # f[N]
    finish_s: np.ndarray  # f[N]


@dataclass
class _Chain:
    """A search from one start."""

    found: list[SketchPlan]  # the best, after some of those on the way to it
    current: SketchPlan
    stale: int = 0  # rounds without a new best

    def take(self, other: SketchPlan, temperature: float) -> None:
        """Continue from another plan unless it is too much worse; after MAX_STALE_ROUNDS, from the best."""
        self.stale += 1
        if other.value_s < self.current.value_s * (1 + temperature):
            self.current = other
        if self.current.value_s < self.found[-1].value_s:
            self.found, self.stale = [*self.found[1 - MAX_RETURNED_PLANS :], self.current], 0
        elif self.stale >= MAX_STALE_ROUNDS:
            self.current, self.stale = self.found[-1], 0


class Rebuilder:
    """Makes candidates for one instance whose gangs have one worker each."""

    def __init__(self, i: Instance, objective: Objective, rng: np.random.Generator) -> None:
        self.i, self.objective, self.rng, self.sketch = i, objective, rng, Sketch(i)
        self.candidates, self.second_pass_gain = 0, 0.5  # so far; recent share of second passes that helped
        level = np.zeros(len(i), int)
        for gang in i.order:
            level[gang] = max((level[parent] + 1 for parent in i.parents[gang]), default=0)
        self.levels = [np.flatnonzero(level == number) for number in range(1, level.max() + 1)]
        self.parents = np.full((len(i), max(1, *map(len, i.parents))), len(i))
        for gang, parents in enumerate(i.parents):
            self.parents[gang, : len(parents)] = parents
        share = spread(i).share  # [N, kinds]
        kind_of = np.unique([device.kind for device in i.scenario.topology.devices], return_inverse=True)[1]
        class_of = self.sketch.class_of
        of_class = np.zeros((len(i), class_of.max() + 1))
        for kind in range(share.shape[1]):
            of_class[:, class_of[np.flatnonzero(kind_of == kind)[0]]] += share[:, kind]
        self.until = np.cumsum(of_class, axis=1)[:, :-1]  # f[N, classes - 1]: where a draw falls into the next class

    def order(self, key: np.ndarray) -> np.ndarray:
        """Gangs in order of their keys, each after its parents [B, N]."""
        padded = self._padded(key, -np.inf)
        for some in self.levels:
            padded[:, some] = np.maximum(
                padded[:, some], padded[:, self.parents[some]].max(axis=2) + MIN_SUCCESSOR_GAP_S
            )
        return np.argsort(padded[:, :-1], axis=1, kind="stable")

    def ready(self, finish: np.ndarray) -> np.ndarray:
        """When the last parent of each gang finishes [B, N]."""
        return self._padded(finish, 0.0)[:, self.parents].max(axis=2)

    def _padded(self, values: np.ndarray, none: float) -> np.ndarray:
        return np.concatenate([values, np.full((len(values), 1), none)], axis=1)

    def best(self, key: np.ndarray, choice: np.ndarray) -> SketchPlan:
        """The best of the candidates; in some rounds after a second pass, with late gangs moved back."""
        passes = [self.sketch(self.order(key), choice)]
        if self.rng.random() < max(self.second_pass_gain, MIN_SECOND_PASS_RATE):
            ready = self.ready(passes[0][2])
            passes.append(self.sketch(self.order(np.maximum(key, ready)), choice))
        self.candidates += len(passes) * len(key)
        values = [self._value(finish) for _, _, finish in passes]
        if len(passes) > 1:
            self.second_pass_gain += 0.1 * (float(values[1].min() < values[0].min()) - self.second_pass_gain)
        devices, start, finish = passes[int(np.argmin([value.min() for value in values]))]
        first = int(min(values, key=np.min).argmin())
        return SketchPlan(float(min(map(np.min, values))), devices[first], start[first], finish[first])

    def constructed(self) -> SketchPlan:
        """The best of a batch with gangs in order of their longest path to the end, with noise."""
        rank = np.zeros(len(self.i))
        for gang in reversed(self.i.order):
            rank[gang] = self.i.best_s[gang] + max((rank[child] for child in self.i.children[gang]), default=0.0)
        noise = np.linspace(0, 0.1, SKETCH_BATCH)[:, None] * self.rng.normal(size=(SKETCH_BATCH, len(self.i)))
        choice = np.full(noise.shape, self.sketch.anywhere)
        return self.best(self.i.arrival_s + (rank.max() - rank * (1 + noise)), choice)

    def decoded(self, plans: Sequence[Plan]) -> SketchPlan:
        """The best of at most a batch of plans, evaluated in the sketch."""
        filled = [*plans, *[plans[-1]] * (SKETCH_BATCH - len(plans))]
        key = MIN_SUCCESSOR_GAP_S * np.stack([plan.rank for plan in filled])
        return self.best(key, np.stack([plan.devices[:, 0] for plan in filled]))

    def _value(self, finish: np.ndarray) -> np.ndarray:
        if self.objective == "makespan":
            return finish.max(axis=1)
        job_of = np.asarray([job for job, _ in self.i.who])
        jobs = self.i.scenario.workload.jobs
        ends = [finish[:, job_of == job].max(axis=1) - jobs[job].arrival_s for job in range(len(jobs))]
        return np.mean(ends, axis=0)

    def neighbours(self, plan: SketchPlan) -> tuple[np.ndarray, np.ndarray]:
        """Keys and device choices [B, N] of a batch of candidates."""
        gangs, end = len(self.i), float(plan.finish_s.max())

        def size(least: float, most: float) -> np.ndarray:  # log-uniform
            return np.exp(self.rng.uniform(np.log(least), np.log(most), (SKETCH_BATCH, 1)))

        middle = (plan.start_s + plan.finish_s) / 2
        stretch = np.abs(middle - end * self.rng.random((SKETCH_BATCH, 1))) < end * size(0.02, 0.5)
        share = np.where(
            self.rng.random((SKETCH_BATCH, 1)) < 0.7, stretch * size(0.02, 1.0), size(min(1 / gangs, 0.1), 0.1)
        )
        out = self.rng.random((SKETCH_BATCH, gangs)) < share
        slower = self.rng.random((SKETCH_BATCH, gangs)) < self.rng.choice([0.0, 0.05, 0.3, 1.0], (SKETCH_BATCH, 1))
        choice = np.where(slower, self.drawn(), self.sketch.anywhere)
        stays = self.rng.random((SKETCH_BATCH, gangs)) < self.rng.choice([0.0, 0.0, 0.5], (SKETCH_BATCH, 1))
        choice = np.where(out & ~stays, choice, plan.devices)
        shift = end * size(0.001, 0.1) * self.rng.normal(size=(SKETCH_BATCH, gangs))
        return plan.start_s + np.where(out, shift, 0.0), choice

    def drawn(self) -> np.ndarray:
        """A class of devices for each gang, drawn by its shares in the area bound [B, N]."""
        number = (self.rng.random((SKETCH_BATCH, len(self.i), 1)) > self.until).sum(axis=2)
        return len(self.i.slots) + number


def rebuild(
    i: Instance,
    objective: Objective,
    plans: Sequence[Plan],
    *,
    time_s: float,
    rounds: int | None = None,
    seed: int = 0,
    progress: Callable[[float, float], None] | None = None,
) -> tuple[list[Plan], int, float]:
    """The best plans of the search from `plans`, the best first; number of candidates; seconds without compilation.

    Plans were evaluated in the sketch only: in the simulator, none need be better than the given plans.
    """
    rng = np.random.default_rng(seed)
    rebuilding = Rebuilder(i, objective, rng)
    given = min(map(rebuilding.decoded, chunks(plans, SKETCH_BATCH)), key=lambda built: built.value_s)
    chains = [_Chain([given], given), _Chain([made := rebuilding.constructed()], made)]
    began, turn = time.perf_counter(), 0
    while (rounds is None or turn < rounds) and (elapsed := (time.perf_counter() - began) / time_s) < 1:
        elapsed = elapsed if rounds is None else turn / rounds
        if elapsed > TWO_CHAIN_TIME_SHARE:
            chains = [min(chains, key=lambda chain: chain.found[-1].value_s)]
        chain = chains[turn % len(chains)]
        chain.take(
            rebuilding.best(*rebuilding.neighbours(chain.current)), REBUILD_TEMPERATURE * (1 - elapsed) * rng.random()
        )
        turn += 1
        if progress is not None:
            progress(elapsed, min(chain.found[-1].value_s for chain in chains))
    found = min(chains, key=lambda chain: chain.found[-1].value_s).found
    best = [
        shared_plan(built.devices[:, None], np.argsort(rebuilding.order(built.start_s[None])[0]))
        for built in reversed(found)
    ]
    return best, rebuilding.candidates, time.perf_counter() - began
