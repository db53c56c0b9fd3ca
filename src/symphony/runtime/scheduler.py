"""The scheduler of a running cluster: it owns the core and takes turns.

If the policy raises an exception, exceeds its time limit, breaks a rule or leaves all devices idle, its turn is
discarded, and a heuristic takes the turn from the same state. Such fallbacks are logged and counted.

Policies decide in a compiled program (`programs.py`). The heuristic and the learned policy decide in plain Python
(`plain_turn.py`, `plain_network.py`), which needs no program; on large clusters they are compiled, too.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symphony.baselines import EftBelief
from symphony.estimation.kernels import clipped_mean
from symphony.policies.budgeted import Budgeted
from symphony.policies.late_binding import LateBinding
from symphony.policies.learned import Learned, first_come
from symphony.problem.errors import PolicyError
from symphony.problem.topology import Topology
from symphony.problem.units import show
from symphony.runtime.background_load import RowLoads
from symphony.runtime.budget import Budget, DecisionCounts
from symphony.runtime.live_workload import LiveWorkload, Shapes, enlarged_core
from symphony.runtime.native import NativeNetwork
from symphony.runtime.packing import Packed
from symphony.runtime.plain_network import PlainNetwork
from symphony.runtime.plain_turn import MAX_DEVICES, PlainCore, suits
from symphony.runtime.profiles import Profiles
from symphony.runtime.programs import TurnProgram, TurnResult
from symphony.runtime.turn import EVENTS_PER_TURN, SchedulerEvent, TurnCommands
from symphony.scheduling import state
from symphony.scheduling.policy import Policy, check_instance
from symphony.scheduling.state import Core
from symphony.training_jobs.live.speed_beliefs import SpeedBeliefs

log = logging.getLogger("symphony.runtime")
HEURISTIC = EftBelief()
MAX_PLAIN_EVENTS = 1024  # of a turn in plain Python, after which its commands are carried out
MAX_LATENCIES = 4096  # kept for quantiles
HANDLING_AVERAGE_STARTS = 256  # starts over which handling times are averaged: how busy a machine is changes


@dataclass
class Statistics:
    """Counts since the scheduler was made."""

    turns: int = 0
    decisions: int = 0
    refused: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)  # turns that the heuristic took, by reason
    deciders: dict[str, DecisionCounts] = field(default_factory=dict)  # under a time budget: who decided
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))  # of turns with decisions
    # From an engine event to the dispatch of a kernel that it allowed to start, without decisions (`handling_time.py`).
    handling_s: deque[float] = field(default_factory=lambda: deque(maxlen=HANDLING_AVERAGE_STARTS))

    def __str__(self) -> str:
        p50, p99 = (show(float(f"{self.latency_quantile(share):.3g}"), "seconds") for share in (0.5, 0.99))
        times = f"; a turn takes {p50} (p50), {p99} (p99)" if self.latency_s else ""
        fallbacks = ", ".join(f"{reason}: {turns}" for reason, turns in self.fallbacks.items()) or "none"
        counts = f"{self.turns} turns, {self.decisions} decisions, {self.refused} refused"
        by = "".join(f"; {name}: {found}" for name, found in self.deciders.items())
        return f"{counts}{times}{by}; turns of the heuristic: {fallbacks}"

    __repr__ = __str__

    def latency_quantile(self, share: float) -> float:
        """Quantile of the seconds that a turn with decisions took; NaN before the first."""
        return float(np.quantile(np.asarray(self.latency_s), share)) if self.latency_s else float("nan")

    @property
    def mean_handling_s(self) -> float:
        """Seconds for which a slot waits for the loop, without decisions; 0 before the first start."""
        return clipped_mean(tuple(self.handling_s.copy()))  # a copy: the loop's thread may add to it


class Scheduler:
    """Core, live workload and policy. Used by one thread."""

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
                f"policy {policy.name} needs the true background load, which real machines do not show",
                hint='choose another policy, such as "eft-belief"',
            )
        self.workload = LiveWorkload(topology, profiles, shapes or Shapes(), speeds)
        self.policy, self.timeout_s = first_come(policy), timeout_s
        self.statistics = Statistics()
        self._has_plain_turns = suits(self.workload.t)
        self._budget = _budget(policy, len(self.workload.t.device_kind)) if self._has_plain_turns else None
        if self._budget is not None:
            self._budget.network.prepare(self.workload)
            self._budget.fall_back = self._fall_back
            self.statistics.deciders = self._budget.counts
        # Whether a compiled program decides. False also if that does not compile.
        self._asks_policy = self._budget is None and type(policy) is not type(HEURISTIC)
        self._programs: dict[bool, TurnProgram] = {}  # of the policy (True) and of the heuristic (False)
        self._states: dict[bool, Any] = {}
        self._pending: Future | None = None  # the policy's latest turn; runs on if its time limit has passed
        self._thread: ThreadPoolExecutor | None = None
        self._load()
        self._set(state.empty(self.workload.t, self.workload.w, self.workload.shapes.jobs, np))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def grow(self, shapes: Shapes) -> None:
        """Enlarge the arrays. Compiles the policy's program again."""
        before, old = self.workload.shapes, self.core
        self.workload = self.workload.enlarged(shapes)
        self._programs.clear()
        self._load()
        empty = state.empty(self.workload.t, self.workload.w, shapes.jobs, np)
        self._set(enlarged_core(old, empty, before, shapes))

    @property
    def core(self) -> Core:
        """The state, as NumPy arrays."""
        return self._core.core() if isinstance(self._core, PlainCore) else self._any.unpacked(self._core)

    def _set(self, core: Core) -> None:
        """Set the state, in the form that the next turn needs."""
        plain = self._has_plain_turns and not self._asks_policy
        self._core: PlainCore | Packed = (
            PlainCore(self.workload, core, self._budget) if plain else self._any.packed(core)
        )

    def refresh_beliefs(self) -> None:
        self.workload.refresh_beliefs()

    def allow(self, gang: int, kinds: int) -> None:
        """Change the device kinds (as bits) that may run a gang."""
        core = self.core
        core.runs_on[gang] = kinds
        self._set(core)

    def prioritise(self, priorities: Mapping[int, int]) -> None:
        """Change the priorities of jobs, by their slots in the core."""
        core = self.core
        for slot, priority in priorities.items():
            core.priority[slot] = priority
        self._set(core)

    def turn(self, events: list[SchedulerEvent], now_s: float, others: RowLoads | None = None) -> TurnCommands:
        """Take a turn with at most `events_per_turn` events. `others`: belief about the load by others."""
        began = time.perf_counter()
        if isinstance(self._core, PlainCore):
            commands = self._core.turn(events, now_s, others)
        else:
            commands = self._compiled_turn(self._core, events, now_s, others)
        statistics = self.statistics
        statistics.turns += 1
        statistics.decisions += commands.decisions
        statistics.refused += commands.refused
        if commands.decisions:
            statistics.latency_s.append(time.perf_counter() - began)
        return commands

    def decided(self, gang: int) -> tuple[str, float]:
        """What placed a gang, and the seconds that this took; nothing ("") without a time budget."""
        return ("", 0.0) if self._budget is None else self._budget.placed.get(gang, ("", 0.0))

    @property
    def is_plain(self) -> bool:
        """Whether turns are taken in plain Python: they accept early events again at any time."""
        return isinstance(self._core, PlainCore)

    @property
    def events_per_turn(self) -> int:
        """How many events a turn takes at most."""
        return MAX_PLAIN_EVENTS if isinstance(self._core, PlainCore) else EVENTS_PER_TURN

    def queued(self) -> Iterable[tuple[int, int]]:
        """Gangs that wait only for free slots, in queue order, each with the device of its first worker."""
        return self._core.queue() if isinstance(self._core, PlainCore) else self._any.queued(self._core)

    @property
    def _any(self) -> TurnProgram:
        return next(iter(self._programs.values()))

    def _load(self) -> None:
        """Compile the policy's program, or the heuristic's if that fails."""
        if self._asks_policy:
            try:
                self._program(True)
                return
            except Exception as error:
                self._asks_policy = False
                self._fall_back("raised", f"{type(error).__name__}: {error}")
        if not self._has_plain_turns:
            self._program(False)

    def _program(self, by_policy: bool) -> TurnProgram:
        if by_policy not in self._programs:
            program = TurnProgram(self.policy if by_policy else HEURISTIC, self.workload)
            self._programs[by_policy] = program
            self._states.setdefault(by_policy, program.begin(self.workload))
        return self._programs[by_policy]

    def _take(self, by_policy: bool, events: list[SchedulerEvent], now_s: float, others: RowLoads | None) -> TurnResult:
        assert not isinstance(self._core, PlainCore)
        return self._program(by_policy).take(self.workload, self._core, self._states[by_policy], events, now_s, others)

    def _compiled_turn(
        self, core: Packed, events: list[SchedulerEvent], now_s: float, others: RowLoads | None
    ) -> TurnCommands:
        result = self._policy_turn(events, now_s, others) if self._asks_policy else None
        if result is None and self._has_plain_turns:
            plain = PlainCore(self.workload, self._any.unpacked(core))
            commands = plain.turn(events, now_s, others)
            self._core = self._any.packed(plain.core())
            return commands
        by_policy = result is not None
        if result is None:
            result = self._take(False, events, now_s, others)
        self._core, self._states[by_policy] = result.core, result.policy_state
        return result.commands

    def _policy_turn(self, events: list[SchedulerEvent], now_s: float, others: RowLoads | None) -> TurnResult | None:
        """None if the policy failed to take the turn."""
        if self._pending is not None and not self._pending.done():
            self.statistics.fallbacks["late"] += 1
            return None
        self._thread = self._thread or ThreadPoolExecutor(1, "symphony-policy")
        self._pending = self._thread.submit(self._take, True, events, now_s, others)
        try:
            result = self._pending.result(self.timeout_s)
        except TimeoutError:
            self._fall_back("late", f"no answer within {self.timeout_s:g} s")
            return None
        except Exception as error:
            self._fall_back("raised", f"{type(error).__name__}: {error}")
            return None
        commands = result.commands
        if commands.refused:
            self._fall_back("refused", f"{commands.refused} actions broke a rule")
            return None
        if commands.stuck:
            self._fall_back("stuck", "nothing runs, and it waits although a gang could be placed")
            return None
        return result

    def _fall_back(self, reason: str, text: str) -> None:
        """Count a fallback; log the first of each reason."""
        if not self.statistics.fallbacks[reason]:
            log.warning("policy %s: %s; the heuristic decides instead", self.policy.name, text)
        self.statistics.fallbacks[reason] += 1


def _budget(policy: Policy, devices: int) -> Budget | None:
    """Of a policy whose network can decide in plain turns. One without a time budget decides everything."""
    inner: Any = policy.policy if type(policy) is Budgeted else policy
    learned = inner.learned if type(inner) is LateBinding else inner
    if type(learned) is not Learned or (inner is policy and learned.draws):
        return None
    native = NativeNetwork.suits(inner)
    if devices > MAX_DEVICES and not native:  # in NumPy it would take longer than the compiled program
        return None
    network = NativeNetwork(inner) if native else PlainNetwork(inner)
    return Budget(network, 0.0) if inner is policy else Budget(network)
