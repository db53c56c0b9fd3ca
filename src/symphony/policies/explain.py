"""Why the learned policy decides as it does: what it chose among, what it believed, and what moved it.

    explanation = sy.policies.explain(policy, scenario, decision=40)

A score is the heuristic's (see `learned.py`) plus what the network says. Where the two disagree, parts of what the
network is told are taken away, one at a time; how much less it then prefers its own choice to the heuristic's is what
that part did. Parts act together, so that these numbers need not add up.
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

from symphony.policies.features import Features, extract_features
from symphony.policies.learned import MASKED_SCORE, Learned, Memory, PolicyOutput
from symphony.problem.errors import InputError
from symphony.scheduling.estimate import EstimateParts, estimate_parts
from symphony.scheduling.holding import Holding, holding
from symphony.scheduling.policy import Observation
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import begin, decision_due, observe, until_decision
from symphony.simulator.scenarios import Scenario, pick, stack

Z_95 = 1.96  # deviations to either side of a mean: 95%


@dataclass(frozen=True)
class PlacementEstimate:
    """What placing a gang on a device would bring. Seconds from now."""

    finish_s: float  # as believed …
    low_s: float  # … and with as little, or as much, going on as may well be
    high_s: float
    queue_s: float
    fetch_s: float
    setup_s: float
    run_s: float  # alone
    slowdown: float  # by what else goes on
    heuristic: float  # score
    network: float  # what the network adds to it


@dataclass(frozen=True)
class Candidate:
    """One thing that could be done."""

    action: str  # "place", "preempt", "configure" or "wait"
    job: str
    gang: str
    device: str
    chance: float  # probability, if choices were drawn
    estimate: PlacementEstimate | None = None  # of what is placed


@dataclass(frozen=True)
class RowBelief:
    """A shared part on the way of a candidate: loads as shares of its capacity."""

    resource: str
    own: float  # by what Symphony placed: known
    others: float  # by others: inferred
    deviation: float


@dataclass(frozen=True)
class DecisionExplanation:
    """One decision."""

    number: int
    time_s: float
    candidates: tuple[Candidate, ...]  # the chosen one first, then by score
    heuristic: Candidate | None  # what the heuristic would have placed
    beliefs: dict[str, tuple[RowBelief, ...]]  # by device, of the chosen candidate and of the heuristic's
    moved: dict[str, float]  # what of the lead over the heuristic's choice is lost without each part; {} = they agree
    waiting: str = ""  # whether it may wait, for how long, and why (`scheduling/holding.py`)

    @property
    def chosen(self) -> Candidate:
        """What is done."""
        return self.candidates[0]


class _DecisionArrays(eqx.Module):
    """A decision in arrays: M devices for each of K gangs, X asides."""

    features: Features
    output: PolicyOutput
    prior: Array  # f[K, M]
    parts: EstimateParts  # each f[K, M]: as believed …
    low: Array  # f[K, M]: … and finishes with as little, …
    high: Array  # … or as much background
    without: dict[str, Array]  # scores when a part is taken away
    going: Array  # bool[]: the run is not over
    holding: Holding


def explain(
    policy: Learned, scenario: Scenario, decision: int = 0, contention: ContentionModel | None = None
) -> DecisionExplanation:
    """Run a scenario until the policy is about to make a decision (they are numbered from 0), and explain that."""
    if not isinstance(policy, Learned):
        raise InputError(f"{policy!r} is no learned policy", hint='use one that was trained, for example "symphony"')
    if decision < 0:
        raise InputError(f"the decision is number {decision}", hint="they are numbered from 0")
    s = pick(stack([scenario]), 0)
    key = jax.random.fold_in(jax.random.key(scenario.seed), 1)  # as `simulate` does
    asked_, observation = _state_at_decision(policy, s, key, contention or Bottleneck(), jnp.asarray(decision))
    if not bool(asked_.going):
        raise InputError(
            f"the run is over before decision {decision}",
            where=f"seed {scenario.seed}, {int(observation.core.decisions)} decisions",
            hint=f"ask for one from 0 to {int(observation.core.decisions) - 1}",
        )
    return _explanation(asked_, observation, scenario)


@eqx.filter_jit
def _state_at_decision(
    policy: Learned, s: Any, key: Array, contention: ContentionModel, number: Array
) -> tuple[_DecisionArrays, Observation]:
    carry = until_decision(begin(s, policy, key), s, policy, contention, number)
    shown = observe(carry.world, s, policy.cheats, carry.prepared)
    return _evaluate_decision(policy, carry.policy_state, shown, decision_due(carry.world, s)), shown


def _evaluate_decision(policy: Learned, memory: Memory, shown: Observation, going: Array) -> _DecisionArrays:
    network, sizes = policy.network, policy.network.sizes
    seen = extract_features(shown, sizes.gangs, sizes.devices, sizes.preempts, sizes.configures)
    nodes = shown.prepared.nodes

    def said(seen: Features, nodes: Array, memory: Memory) -> PolicyOutput:
        embedded = network.embed(shown.topology, nodes, seen)
        return network.score_actions(seen, embedded, network.remember(memory, embedded.scene).hidden)

    def on(gang: Array, device: Array, background: Array) -> EstimateParts:
        return jax.tree.map(lambda x: x.at[device].get(mode="clip"), estimate_parts(shown, gang, background))

    def each(background: Array) -> EstimateParts:
        return jax.vmap(lambda gang, device: on(gang, device, background))(seen.gangs.number, seen.device)

    mean, deviation = shown.background, shown.background_std
    nothing = jax.tree.map(jnp.zeros_like, memory)
    blind = eqx.tree_at(lambda x: x.rows, seen, seen.rows.at[..., 1:].set(0))
    certain = eqx.tree_at(lambda x: x.rows, seen, seen.rows.at[..., -1].set(0))
    return _DecisionArrays(
        features=seen,
        output=said(seen, nodes, memory),
        prior=network.prior(seen) if sizes.prior else jnp.zeros(seen.allowed.shape),
        parts=each(mean),
        low=each(jnp.maximum(mean - Z_95 * deviation, 0)).finish,
        high=each(mean + Z_95 * deviation).finish,
        without={
            "the load of others": said(blind, nodes, memory).scores,
            "how sure that is": said(certain, nodes, memory).scores,
            "the task graph": said(seen, jnp.zeros_like(nodes), memory).scores,
            "what happened before": said(seen, nodes, nothing).scores,
        },
        going=going,
        holding=holding(shown),
    )


def _explanation(a: _DecisionArrays, shown: Observation, scenario: Scenario) -> DecisionExplanation:
    """In words and plain numbers."""
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

    def pair(index: int) -> Candidate:
        k, m = divmod(index, count)
        at = jax.tree.map(lambda x: float(x[k, m]), a.parts)
        estimate = PlacementEstimate(
            finish_s=float(a.parts.finish[k, m]),
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
        return Candidate("place", *gang_names(int(seen.gangs.number[k])), device, float(chances[index]), estimate)

    def other(index: int) -> Candidate:
        x = index - pairs
        if index == scores.size - 1:
            return Candidate("wait", "", "", "", float(chances[index]))
        action = "preempt" if bool(seen.other_actions.saves[x]) else "configure"
        device = device_names[int(seen.other_actions.device[x])]
        return Candidate(action, *gang_names(int(seen.other_actions.gangs.number[x])), device, float(chances[index]))

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
    """Whether waiting is allowed, until when, and for whose sake."""
    hold = jax.tree.map(np.asarray, a.holding)
    if not bool(a.features.may_wait):
        if not hold.overdue.any():
            return "may not wait: a gang is partly placed, or nothing is under way"
        who = int(np.flatnonzero(hold.overdue)[hold.gain_s[hold.overdue].argmin()])
        could = f"may not wait: {name(who)} could start on {devices[hold.here[who]]} now"
        gain_s = hold.gain_s[who]
        if gain_s > 0:
            return f"{could}, and was held for as long as that could gain it ({gain_s:.3g} s)"
        return f"{could}, and would finish earlier nowhere"
    if not hold.held.any():
        return "may wait for the next event: no ready gang could start now"
    who = int(hold.left_s.argmin())
    there = devices[hold.there[who]]
    if hold.there[who] == hold.here[who]:
        there += ", with less beside it"
    gain = f"{name(who)} would finish {hold.gain_s[who]:.3g} s earlier on {there}"
    return f"may wait at most {hold.left_s[who]:.3g} s: {gain}"


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
