"""The scheduler of a running cluster: it owns a core, and takes turns.

A policy that raises, takes too long, breaks a rule or waits for ever is not asked again in that turn: the turn is taken
from the same state by the heuristic instead. That is logged and counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symphony.baselines import EftBelief
from symphony.problem.errors import PolicyError
from symphony.problem.topology import Topology
from symphony.runtime.background_load import RowLoads
from symphony.runtime.live_workload import LiveWorkload, Shapes, enlarged_core
from symphony.runtime.packing import Packed
from symphony.runtime.profiles import Profiles
from symphony.runtime.programs import TurnProgram, TurnResult
from symphony.runtime.timing import clipped_mean
from symphony.runtime.turn import EVENTS_PER_TURN, SchedulerEvent, TurnCommands
from symphony.scheduling import state
from symphony.scheduling.policy import Policy, check_instance
from symphony.training_jobs.live.speed_beliefs import SpeedBeliefs

log = logging.getLogger("symphony.runtime")
HEURISTIC = EftBelief()
MAX_LATENCIES = 4096  # latencies
HANDLING_AVERAGE_STARTS = 256  # starts over which the time that they took us is averaged: how busy a machine is changes


@dataclass
class Statistics:
    """What a scheduler has done so far."""

    turns: int = 0
    decisions: int = 0
    refused: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)  # turns that the heuristic took, by reason
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))  # of turns with decisions
    # From when something was heard until a kernel that it let start was sent, less one decision if there were any.
    handling_s: deque[float] = field(default_factory=lambda: deque(maxlen=HANDLING_AVERAGE_STARTS))

    def latency_quantile(self, share: float) -> float:
        """Seconds that a turn with decisions took, for this share of turns or less; NaN if there was none."""
        return float(np.quantile(np.asarray(self.latency_s), share)) if self.latency_s else float("nan")

    @property
    def mean_handling_s(self) -> float:
        """Seconds for which a slot waits for us, beyond a decision; 0 before anything started."""
        return clipped_mean(tuple(self.handling_s.copy()))  # a copy: the loop may add to it meanwhile


class Scheduler:
    """A core, the books of what it knows, and the policy that decides. Used by one thread."""

    def __init__(
        self,
        topology: Topology,
        profiles: Profiles,
        policy: Policy,
        *,
        timeout_s: float,
        shapes: Shapes | None = None,
        speeds: SpeedBeliefs | None = None,
    ) -> None:
        check_instance(policy)
        if policy.cheats:
            raise PolicyError(
                f"{policy.name} wants to see the true background, which no real machine shows",
                hint='choose another policy, such as "eft-belief"',
            )
        self.books = LiveWorkload(topology, profiles, shapes or Shapes(), speeds)
        self.policy, self.timeout_s = policy, timeout_s
        self.statistics = Statistics()
        self._own = type(policy) is type(HEURISTIC)
        self._programs: dict[bool, TurnProgram] = {}  # of the policy (True) and of the heuristic (False)
        self._states: dict[bool, Any] = {}
        self._broken = ""  # why the policy is not asked any more
        self._late: Future | None = None  # a turn that was given up, and still runs
        self._thread: ThreadPoolExecutor | None = None
        self._load()
        self._core: Packed = self._any.empty(self.books)

    def close(self) -> None:
        """Let go of the policy's thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def grow(self, shapes: Shapes) -> None:
        """Make room for something larger; compiles again."""
        before, old = self.books.shapes, self._any.unpacked(self._core)
        self.books = self.books.enlarged(shapes)
        self._programs.clear()
        self._load()
        empty = state.empty(self.books.t, self.books.w, shapes.jobs, np)
        self._core = self._any.packed(enlarged_core(old, empty, before, shapes))

    def refresh_beliefs(self) -> None:
        """Go by what is believed of training jobs now."""
        self.books.refresh_beliefs()

    def allow(self, gang: int, kinds: int) -> None:
        """Change the device kinds (as bits) that may run a gang."""
        core = self._any.unpacked(self._core)
        core.runs_on[gang] = kinds
        self._core = self._any.packed(core)

    def turn(self, events: list[SchedulerEvent], now_s: float, others: RowLoads | None = None) -> TurnCommands:
        """Take a turn, with at most `EVENTS_PER_TURN` events; `others`: what is believed of their loads."""
        assert len(events) <= EVENTS_PER_TURN
        began = time.perf_counter()
        result, by_policy = None, not self._own and not self._broken
        if by_policy:
            result = self._ask(events, now_s, others)
        if result is None:
            result, by_policy = self._take(False, events, now_s, others), False
        answer = result.answer
        self._core = result.core
        self._states[by_policy] = result.policy_state
        counted = self.statistics
        counted.turns += 1
        counted.decisions += answer.decisions
        counted.refused += answer.refused
        if answer.decisions:
            counted.latency_s.append(time.perf_counter() - began)
        return answer

    def queued(self) -> list[tuple[int, int]]:
        """Gangs that wait for nothing but free slots, in order, each with the device of its first worker."""
        return self._any.queued(self._core)

    @property
    def _any(self) -> TurnProgram:
        return next(iter(self._programs.values()))

    def _load(self) -> None:
        """Compile what is needed first: the policy's program, or the heuristic's if it has none that compiles."""
        if not self._own and not self._broken:
            try:
                self._program(True)
                return
            except Exception as error:
                self._broken = f"{type(error).__name__}: {error}"
                self._fall_back("raised", self._broken)
        self._program(False)

    def _program(self, policys: bool) -> TurnProgram:
        if policys not in self._programs:
            program = TurnProgram(self.policy if policys else HEURISTIC, self.books)
            self._programs[policys] = program
            self._states.setdefault(policys, program.begin(self.books))
        return self._programs[policys]

    def _take(self, policys: bool, events: list[SchedulerEvent], now_s: float, others: RowLoads | None) -> TurnResult:
        return self._program(policys).take(self.books, self._core, self._states[policys], events, now_s, others)

    def _ask(self, events: list[SchedulerEvent], now_s: float, others: RowLoads | None) -> TurnResult | None:
        """The policy's turn; None if it is not to be had."""
        if self._late is not None and not self._late.done():
            self.statistics.fallbacks["late"] += 1
            return None
        self._thread = self._thread or ThreadPoolExecutor(1, "symphony-policy")
        self._late = self._thread.submit(self._take, True, events, now_s, others)
        try:
            result = self._late.result(self.timeout_s)
        except TimeoutError:
            self._fall_back("late", f"no answer within {self.timeout_s:g} s")
            return None
        except Exception as error:
            self._fall_back("raised", f"{type(error).__name__}: {error}")
            return None
        answer = result.answer
        if answer.refused:
            self._fall_back("refused", f"{answer.refused} actions were against the rules")
        elif answer.stuck:
            self._fall_back("stuck", "nothing runs, and it waits though a gang could be placed")
        return None if answer.refused or answer.stuck else result

    def _fall_back(self, reason: str, text: str) -> None:
        if not self.statistics.fallbacks[reason]:
            log.warning("policy %s: %s; the heuristic decides instead", self.policy.name, text)
        self.statistics.fallbacks[reason] += 1
