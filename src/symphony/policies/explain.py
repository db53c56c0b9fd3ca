"""Explanations of the learned policy's decisions: candidates, beliefs, and an ablation of the network's inputs.

    explanation = sy.policies.explain(policy, scenario, decision=40)

A score is the heuristic's (see `learned.py`) plus the network's output. Where the two prefer different actions, parts
of the network's input are set to 0, one at a time; the loss of its lead over the heuristic's choice is the effect of
that part. Parts interact, so that these effects need not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from symphony.policies.features import Features, RowColumn, trained_parts
from symphony.policies.learned import MASKED_SCORE, Learned, Memory, PolicyOutput
from symphony.problem.errors import InputError
from symphony.problem.program_cache import compiled_call
from symphony.scheduling.estimate import EstimateParts
from symphony.scheduling.holding import Holding, holding
from symphony.scheduling.indexing import BoolScalar
from symphony.scheduling.policy import Observation
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import begin, decision_due, observe, run_key, until_decision
from symphony.simulator.scenarios import Scenario, scenario_arrays

# Both programs run once: compiling them fast matters, not their speed.
STATE_OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_llvm_disable_expensive_passes": True}
EVALUATION_OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
Z_95 = 1.96  # half-width of a 95% interval in standard deviations


@dataclass(frozen=True)
class PlacementEstimate:
    """Estimate for a gang on a device, in seconds from now."""

    finish_s: float  # under the belief mean
    low_s: float  # 95% interval of the background load
    high_s: float
    queue_s: float
    fetch_s: float
    setup_s: float
    run_s: float  # in isolation
    slowdown: float  # by contention
    heuristic: float  # score
    network: float  # added to that score


@dataclass(frozen=True)
class Candidate:
    """A possible action."""

    action: str  # "place", "preempt", "configure" or "wait"
    job: str
    gang: str
    device: str
    score: float  # the policy takes the action with the highest score
    chance: float  # if actions were drawn, as in training: first whether to wait, then which gang, then where
    estimate: PlacementEstimate | None = None  # of a placement


@dataclass(frozen=True)
class RowBelief:
    """Loads of a resource row on the route of a candidate's device, as shares of its capacity."""

    resource: str
    own: float  # by Symphony's own work: known
    others: float  # by others: belief mean …
    deviation: float  # … and standard deviation


@dataclass(frozen=True)
class DecisionExplanation:
    """One decision of the learned policy."""

    number: int
    time_s: float
    candidates: tuple[Candidate, ...]  # the chosen one first, then by score
    heuristic: Candidate | None  # the placement with the highest score of the heuristic
    beliefs: dict[str, tuple[RowBelief, ...]]  # by device, of the chosen candidate and of the heuristic's
    moved: dict[str, float]  # lead over the heuristic's choice that is lost without each input; {} = same choice
    waiting: str = ""  # whether it may wait, for how long, and why (`scheduling/holding.py`)

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]


class _DecisionArrays(eqx.Module):
    """A decision as arrays."""

    features: Features
    output: PolicyOutput
    prior: Float[Array, "candidates choices"]
    parts: EstimateParts  # [candidates, choices], under the belief mean
    finish: Float[Array, "candidates choices"]
    low: Float[Array, "candidates choices"]  # finish at the lower …
    high: Float[Array, "candidates choices"]  # … and the upper end of the interval of the background
    without: dict[str, Float[Array, " actions"]]  # scores when an input is set to 0
    going: BoolScalar  # the run has not finished
    holding: Holding


def explain(
    policy: Learned, scenario: Scenario, decision: int = 0, contention: ContentionModel | None = None
) -> DecisionExplanation:
    """Run a scenario until the policy is about to make a decision (numbered from 0), and explain that decision."""
    if not isinstance(policy, Learned):
        raise InputError(f"{policy!r} is not a learned policy", hint='use a trained one, for example "symphony"')
    if decision < 0:
        raise InputError(f"the number of the decision is {decision}", hint="decisions are numbered from 0")
    s = jax.device_put(scenario_arrays(scenario))
    seed = jax.device_put(np.uint32(scenario.seed))
    number = jnp.asarray(decision) if decision else None
    memory, observation, going = compiled_call(
        _state_at_decision, policy, s, seed, contention or Bottleneck(), number, options=STATE_OPTIONS
    )
    arrays = compiled_call(_evaluate_decision, policy, memory, observation, going, options=EVALUATION_OPTIONS)
    if not bool(arrays.going):
        raise InputError(
            f"the run ends before decision {decision}",
            where=f"seed {scenario.seed}, {int(observation.core.decisions)} decisions",
            hint=f"choose a decision from 0 to {int(observation.core.decisions) - 1}",
        )
    arrays, observation = jax.device_get((arrays, observation))
    return _explanation(arrays, observation, scenario)


def _state_at_decision(
    policy: Learned, s: Any, seed: Array, contention: ContentionModel, number: Array | None
) -> tuple[Memory, Observation, Array]:
    carry = until_decision(begin(s, policy, run_key(seed)), s, policy, contention, number)
    return carry.policy_state, observe(carry.world, s, policy.cheats, carry.prepared), decision_due(carry.world, s)


def _evaluate_decision(policy: Learned, memory: Memory, shown: Observation, going: Array) -> _DecisionArrays:
    network, sizes = policy.network, policy.network.sizes
    seen = policy.features(shown)
    nodes = shown.prepared.nodes

    def output(seen: Features, nodes: Array, memory: Memory) -> PolicyOutput:
        embedded = network.embed(shown.topology, nodes, seen)
        return network.score_actions(seen, embedded, network.remember(memory, embedded.scene).hidden)

    def estimates(background: Array) -> EstimateParts:
        def on(gang: Array, device: Array) -> EstimateParts:
            return jax.tree.map(lambda x: x.at[device].get(mode="clip"), trained_parts(shown, gang, background))

        return jax.vmap(on)(seen.gangs.number, seen.device)

    def without_rows(*columns: RowColumn) -> Features:
        return eqx.tree_at(lambda x: x.rows, seen, seen.rows.at[..., columns].set(0))

    # Each input is set to 0 in one entry of a batch, so that the network is compiled once.
    variants = {
        "": (seen, nodes, memory),
        "load by others": (without_rows(RowColumn.BACKGROUND, RowColumn.BACKGROUND_STD), nodes, memory),
        "uncertainty of that load": (without_rows(RowColumn.BACKGROUND_STD), nodes, memory),
        "task graph": (seen, jnp.zeros_like(nodes), memory),
        "earlier decisions": (seen, nodes, jax.tree.map(jnp.zeros_like, memory)),
    }
    outputs = jax.vmap(output)(*jax.tree.map(lambda *x: jnp.stack(x), *variants.values()))
    mean, std = shown.background, shown.background_std
    parts = jax.vmap(estimates)(jnp.stack([mean, jnp.maximum(mean - Z_95 * std, 0), mean + Z_95 * std]))
    return _DecisionArrays(
        features=seen,
        output=jax.tree.map(lambda x: x[0], outputs),
        prior=network.prior(seen) if sizes.prior else jnp.zeros(seen.allowed.shape),
        parts=jax.tree.map(lambda x: x[0], parts),
        **dict(zip(("finish", "low", "high"), parts.finish, strict=True)),
        without={name: outputs.scores[number] for number, name in enumerate(variants) if name},
        going=going,
        holding=holding(shown),
    )


def _explanation(a: _DecisionArrays, shown: Observation, scenario: Scenario) -> DecisionExplanation:
    device_names = tuple(device.name for device in scenario.topology.devices)
    row_names = tuple(row.name for row in scenario.topology.resources)
    seen, scores = a.features, np.asarray(a.output.scores)
    chances = np.exp(np.asarray(a.output.log_probs))
    prior = np.asarray(a.prior)
    pairs, count = seen.device.size, seen.device.shape[1]
    tasks = shown.workload.kernel.shape[1]

    def gang_names(number: int) -> tuple[str, str]:
        job = scenario.workload.jobs[int(shown.core.job[number // tasks])]
        graph = scenario.workload.graphs[job.graph]
        return f"{graph.name} #{int(shown.core.job[number // tasks])}", graph.all_gangs[number % tasks].name

    def weight(index: int) -> tuple[float, float]:
        return float(scores[index]), float(chances[index])

    def pair(index: int) -> Candidate:
        k, m = divmod(index, count)
        at = jax.tree.map(lambda x: float(x[k, m]), a.parts)
        estimate = PlacementEstimate(
            finish_s=float(a.finish[k, m]),
            low_s=float(a.low[k, m]),
            high_s=float(a.high[k, m]),
            queue_s=at.queue,
            fetch_s=at.fetch,
            setup_s=at.setup,
            run_s=at.run,
            slowdown=at.slow,
            heuristic=float(prior[k, m]),
            network=float(scores[index] - prior[k, m]),
        )
        device = device_names[int(seen.device[k, m])]
        return Candidate("place", *gang_names(int(seen.gangs.number[k])), device, *weight(index), estimate)

    def other(index: int) -> Candidate:
        x = index - pairs
        if index == scores.size - 1:
            return Candidate("wait", "", "", "", *weight(index))
        action = "preempt" if bool(seen.other_actions.saves[x]) else "configure"
        device = device_names[int(seen.other_actions.device[x])]
        return Candidate(action, *gang_names(int(seen.other_actions.gangs.number[x])), device, *weight(index))

    order = [int(i) for i in np.argsort(-scores, kind="stable") if scores[i] > MASKED_SCORE / 2]
    candidates = tuple(pair(i) if i < pairs else other(i) for i in order)
    allowed = np.asarray(seen.allowed).reshape(-1)
    heuristic, moved = None, {}
    if allowed.any():
        best = int(np.where(allowed, prior.reshape(-1), -np.inf).argmax())
        heuristic = pair(best)
        if best != order[0]:
            lead = scores[order[0]] - scores[best]
            moved = {
                name: float(lead - (np.asarray(x)[order[0]] - np.asarray(x)[best])) for name, x in a.without.items()
            }
    devices = {x.device for x in (candidates[0], heuristic) if x is not None and x.device}
    return DecisionExplanation(
        number=int(shown.core.decisions),
        time_s=float(shown.now.whole) + float(shown.now.part),
        candidates=candidates,
        heuristic=heuristic,
        beliefs={name: _beliefs(shown, device_names.index(name), row_names) for name in sorted(devices)},
        moved=moved,
        waiting=_waiting(a, lambda gang: " ".join(gang_names(gang)), device_names),
    )


def _waiting(a: _DecisionArrays, name: Callable[[int], str], devices: tuple[str, ...]) -> str:
    """Whether waiting is allowed, for how long, and because of which gang."""
    hold = jax.tree.map(np.asarray, a.holding)
    if not bool(a.features.may_wait):
        if not hold.overdue.any():
            return "may not wait: a gang is partly placed or would be first in a queue, or nothing is running"
        gang = int(np.flatnonzero(hold.overdue)[hold.gain_s[hold.overdue].argmin()])
        could = f"may not wait: {name(gang)} could start on {devices[hold.here[gang]]} now"
        gain_s = hold.gain_s[gang]
        if gain_s > 0:
            return f"{could}, and has been held for the {gain_s:.3g} s that waiting could gain"
        return f"{could}, and would finish earlier on no other device"
    if not hold.held.any():
        return "may wait for the next event: no ready gang could start now"
    gang = int(hold.left_s.argmin())
    there = devices[hold.there[gang]]
    if hold.there[gang] == hold.here[gang]:
        there += " later, with less contention"
    gain = f"{name(gang)} would finish {hold.gain_s[gang]:.3g} s earlier on {there}"
    return f"may wait at most {hold.left_s[gang]:.3g} s: {gain}"


def _beliefs(shown: Observation, device: int, resources: tuple[str, ...]) -> tuple[RowBelief, ...]:
    rows = [int(row) for row in np.asarray(shown.topology.route_row)[device] if int(row) < len(resources)]
    return tuple(
        RowBelief(
            resources[row],
            float(shown.own_load[row]),
            float(shown.background[row]),
            float(shown.background_std[row]),
        )
        for row in dict.fromkeys(rows)
    )
