"""Which accounts has somebody taken over? `python -m examples.security [--size 8]`.

    events ─► tally ─┬──────────► evidence ─► believe ─► alarm
                     └─► usual ──────┘

What an account does in an hour depends on the stage of an attack that it is in, if in any. A factor graph for each
account has a variable for the stage in every hour, and one that says whether the account was taken over. Hours are tied
to the next, and all of them to that one variable, so that there are loops; loopy sum-product gives the beliefs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import symphony as sy
from examples import running
from examples.arrays import both, count, repeat

USERS, HOURS = 200, 72  # accounts in a part
TYPES = ("login", "failed login", "scan", "new program", "upload")
USUAL = np.array([2.0, 0.3, 0.2, 0.4, 1.0])  # events in an hour
# Stages: nothing, looking around, getting in, taking away. By how much each multiplies the events of each type.
STAGES = np.array([[1, 1, 1, 1, 1], [1, 3, 8, 1, 1], [1, 4, 2, 8, 1], [1, 1, 1, 2, 7]], float)
NEXT = np.array([[0.97, 0.03, 0, 0], [0.05, 0.8, 0.15, 0], [0.02, 0, 0.78, 0.2], [0.1, 0, 0, 0.9]]) + 1e-4
TAKEN = 0.02  # share of accounts
# How likely each stage is in an hour of an account that is (row 1) and that is not (row 0) taken over.
OF_ACCOUNT = np.array([[0.997, 0.001, 0.001, 0.001], [0.7, 0.1, 0.1, 0.1]])
ROUNDS, DAMPING = 20, 0.5
ROOM = 1 << 16  # events


@both
def tally(xp: Any, events: Any) -> Any:
    """Events of each account, hour and type."""
    user, hour, kind = events
    cells = (user * HOURS + hour) * len(TYPES) + kind
    return count(xp, cells, USERS * HOURS * len(TYPES)).reshape(USERS, HOURS, len(TYPES))


@both
def usual(xp: Any, tallies: Any) -> Any:
    """Events of each type in an hour, as most accounts have them."""
    means = xp.concatenate([one.mean(axis=1) for one in tallies])
    return xp.median(means, axis=0)


@both
def evidence(xp: Any, tally: Any, usual: Any) -> Any:
    """How likely what happened in each hour is in each stage [users, hours, stages]: counts are Poisson."""
    rates = usual * STAGES
    log = tally @ xp.log(rates).T - rates.sum(axis=1)
    return xp.exp(log - log.max(axis=-1, keepdims=True)) + 1e-6


@both
def believe(xp: Any, evidence: Any) -> Any:
    """Probability that each account was taken over, by messages along all edges until they have settled."""
    here = evidence
    ones = xp.ones_like(here)
    prior = np.array([1 - TAKEN, TAKEN])

    def even(message: Any) -> Any:
        return message / message.sum(axis=-1, keepdims=True)

    def said(up: Any) -> Any:
        return np.log(prior) + xp.log(up).sum(axis=1)

    def a_round(_: Any, state: Any) -> Any:
        ahead, back, down, up = state  # to an hour: from the one before, the one after, and the account; to the account
        edge = ones[:, :1]
        to_next = even((here * ahead * down) @ NEXT)
        to_last = even((here * back * down) @ NEXT.T)
        to_account = even((here * ahead * back) @ OF_ACCOUNT.T)
        others = said(up)[:, None] - xp.log(up)
        to_hour = even(xp.exp(others - others.max(axis=-1, keepdims=True)) @ OF_ACCOUNT)
        new = (
            xp.concatenate([edge, to_next[:, :-1]], axis=1),
            xp.concatenate([to_last[:, 1:], edge], axis=1),
            to_hour,
            to_account,
        )
        return tuple(DAMPING * old + (1 - DAMPING) * one for old, one in zip(state, new, strict=True))

    state = repeat(xp, ROUNDS, a_round, (ones, ones, ones, ones[..., :2]))
    log = said(state[3])
    return 1 / (1 + xp.exp(xp.clip(log[:, 0] - log[:, 1], -60, 60)))


@sy.kernel
def alarm(beliefs: list) -> dict[str, Any]:
    """Accounts that are more likely taken over than not."""
    found = np.concatenate(beliefs)
    return {"accounts": len(found), "taken": np.flatnonzero(found > 0.5)}


def sample(size: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Events of each part [account, hour and type, events], and the accounts that were taken over."""
    rng = np.random.default_rng(seed)
    users = USERS * size
    taken = rng.random(users) < TAKEN
    stage = np.zeros((users, HOURS), int)
    begins = rng.integers(0, HOURS // 2, users)
    for hour in range(1, HOURS):
        draw = (rng.random((users, 1)) > NEXT[stage[:, hour - 1]].cumsum(axis=1)).sum(axis=1).clip(0, 3)
        draw = np.where(begins == hour, 1, draw)
        stage[:, hour] = np.where(taken & (begins <= hour), draw, 0)
    counts = rng.poisson(USUAL * STAGES[stage])
    parts = []
    for part in np.split(counts, size):
        cells = rng.permutation(np.repeat(np.arange(part.size), part.reshape(-1)))
        events = np.stack(np.unravel_index(cells, part.shape)).astype(np.int32)
        # Parts of equal length: JAX compiles for each length. What fills up is of no account.
        parts.append(np.pad(events, ((0, 0), (0, -len(cells) % ROOM)), constant_values=USERS))
    return parts, np.flatnonzero(taken)


def build(size: int = 8, seed: int = 0) -> sy.Graph:
    """The graph, for so many parts of the accounts."""
    parts, _ = sample(size, seed)
    graph = sy.graph("security")
    tallies = [graph.task(tally, part) for part in parts]
    normal = graph.task(usual, tallies)
    beliefs = [graph.task(believe, graph.task(evidence, one, normal)) for one in tallies]
    graph.task(alarm, beliefs)
    return graph


if __name__ == "__main__":
    running.main(__doc__, build)
