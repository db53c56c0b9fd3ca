"""Gradients of a belief: d E[g(z) | evidence; θ] / dθ, for the parameters θ of a Bayesian network.

A *belief function* estimates E[g | evidence]; the JAX gradient of its result is the estimator that its name promises.
All have one signature,

    belief(key, net, parameters, query, evidence, samples) -> scalar

so that the chain rule carries a loss that uses the belief to the parameters, and `gradient(belief)` is the estimator by
itself. Static under `jax.jit`: `net`, `samples`, and which variables a query or evidence names (their values may be
traced). No estimator loops over samples. docs/concepts/gradients.md has the equations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient

from benchmarks.belief_gradients.dependence import ParentLists, ancestors, bayes_ball, separating
from benchmarks.belief_gradients.nets import (
    DiscreteNet,
    Draws,
    Evidence,
    LinearNet,
    LinearParameters,
    Net,
    Query,
    mean_of,
    sum_over,
)
from symphony.problem.errors import InputError

MAX_REWEIGHTINGS = 100  # far more than a fixed point of a few readings needs

Belief = Callable[[Array, Any, Any, Query, Evidence, int], Array]
Estimator = Callable[[Array, Any, Any, Query, Evidence, int], Any]  # returns a pytree like its third argument


# --- Belief functions --------------------------------------------------------------------------------------


def exact(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """The reference: a sum over all states, or (`LinearNet`) a grid. Uses neither the key nor samples."""
    known = net.known(query, evidence)
    return net.exact(parameters, query, known, bayes_ball(net.graph, query, known).tables)


def pathwise(
    key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int, *, heat: float = 0.5
) -> Array:
    """Reparameterisation: the weighted mean over noise without parameters is differentiated.

    Exact in the limit for a `LinearNet`. The states of a `DiscreteNet` are relaxed to weights: the limit is the
    gradient of a smoother net. A lower `heat` (temperature) reduces the bias and increases the variance.
    """
    known = net.known(query, evidence)
    only = bayes_ball(net.graph, query, known).tables
    value, log_weight = net.reparameterised(key, parameters, query, known, samples, only, heat)
    return mean_of(jnp.broadcast_to(log_weight, (samples,)), value)


def score(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """Score function with a leave-one-out baseline, over the ancestors of query and evidence.

    Samples that disagree with the evidence are discarded, as in the published estimator. Queried variables without
    evidence below them are summed out, so that the gradient by their own tables is (2). If no sample agrees, belief and
    gradient are 0.
    """
    known, fixed = net.known(query, evidence), stop_gradient(parameters)
    if known and not isinstance(net, DiscreteNet):
        raise InputError(
            "no sample agrees with a continuous reading exactly",
            where="evidence",
            hint="use `covariance`, which weighs samples, or `pathwise`",
        )
    drawn, summed, needed = _split(net.graph, query, known)
    behind = ancestors(net.graph, [*known, *needed])
    draws = net.sample(key, fixed, samples, {}, behind)
    return _weighed(net, parameters, drawn, summed, draws, behind, _agreeing(draws, known, samples))


def covariance(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """Cov(g, Σ ∇ log f) given the evidence, with likelihood weighting, over the variables that `bayes_ball` finds.

    Queried variables without evidence below them are summed out, as in `score`.
    """
    known, fixed = net.known(query, evidence), stop_gradient(parameters)
    drawn, summed, needed = _split(net.graph, query, known)
    behind = bayes_ball(net.graph, needed, known).tables
    draws = net.sample(key, fixed, samples, known, behind)
    likelihood = net.log_density(fixed, draws, known.keys() & behind)
    weights = jax.nn.softmax(jnp.broadcast_to(likelihood, (samples,)))
    return _weighed(net, parameters, drawn, summed, draws, behind, weights)


def implicit(
    key: Array, net: LinearNet, parameters: LinearParameters, query: Query, evidence: Evidence, samples: int
) -> Array:
    """The mean at the fixed point of the filter's reweighting, differentiated there. Draws no samples.

    Weights include the posterior variance besides the residual, as in `telemetry.posterior`: the best Gaussian with
    independent weights, whose mean is near that of the posterior.
    """
    return _settled(net, parameters, query, evidence, doubt=1.0)


def implicit_map(
    key: Array, net: LinearNet, parameters: LinearParameters, query: Query, evidence: Evidence, samples: int
) -> Array:
    """The mode instead of the mean, found by reweighting and differentiated there. Draws no samples."""
    return _settled(net, parameters, query, evidence, doubt=0.0)


def none(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """The belief of `covariance`, without a gradient."""
    return stop_gradient(covariance(key, net, parameters, query, evidence, samples))


def literal(
    key: Array, net: DiscreteNet, parameters: Sequence[Array], query: Query, evidence: Evidence, samples: int
) -> Array:
    """The published estimator, equations (2) to (5) as printed, summing over distinct values."""
    known = _checked_literal(net, query, evidence)
    draws = net.sample(key, stop_gradient(parameters), samples, {}, ancestors(net.graph, query))
    agreeing = _agreeing(draws, known, samples)

    def share(variables: tuple[int, ...], conditional: bool) -> Array:
        shape = tuple(net.sizes[v] for v in variables)
        place = (
            jnp.ravel_multi_index([draws[v] for v in variables], shape, mode="clip")
            if shape
            else jnp.zeros(samples, int)
        )
        weights = agreeing if conditional else jnp.full(samples, 1 / samples)
        return jnp.zeros(math.prod(shape)).at[place].add(weights).reshape(shape)

    return _printed(net, parameters, query, known, share)


def literal_limit(
    key: Array, net: DiscreteNet, parameters: Sequence[Array], query: Query, evidence: Evidence, samples: int
) -> Array:
    """The limit of `literal` with many samples. Uses neither the key nor samples."""
    known = _checked_literal(net, query, evidence)

    def share(variables: tuple[int, ...], conditional: bool) -> Array:
        return net.marginal(stop_gradient(parameters), variables, known if conditional else {})

    return _printed(net, parameters, query, known, share)


METHODS: dict[str, Belief] = {
    "none": none,
    "exact": exact,
    "pathwise": pathwise,
    "score": score,
    "covariance": covariance,
    "implicit": implicit,
    "implicit-map": implicit_map,
    "literal": literal,
    "literal-limit": literal_limit,
}


def gradient(belief: Belief) -> Estimator:
    """The gradient of a belief function by the parameters."""
    return jax.grad(belief, argnums=2)


def cosine(a: Any, b: Any) -> Array:
    """Cosine of the angle between two gradients; 0 if one of them is 0."""
    flat = [jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (a, b)]
    norms = jnp.linalg.norm(flat[0]) * jnp.linalg.norm(flat[1])
    return jnp.where(norms > 0, flat[0] @ flat[1] / jnp.where(norms > 0, norms, 1.0), 0.0)


# --- What they share ---------------------------------------------------------------------------------------


def _only_gradient(value: Array) -> Array:
    """Zero, with the gradient of a value."""
    return value - stop_gradient(value)


def _agreeing(draws: Draws, known: Evidence, samples: int) -> Array:
    """Equal weights for the samples that agree with the evidence, 0 for the others [S]; all 0 if none agrees."""
    agrees = jnp.ones(samples)
    for v, state in known.items():
        agrees *= draws[v] == state
    return agrees / jnp.maximum(agrees.sum(), 1.0)


def _split(graph: ParentLists, query: Query, known: Iterable[int]) -> tuple[Query, Query, list[int]]:
    """The part of a query to draw, the part to sum out (no evidence below it), and the variables that both need."""
    above = ancestors(graph, known)
    drawn = {v: what for v, what in query.items() if v in above}
    summed = {v: what for v, what in query.items() if v not in above}
    return drawn, summed, [*drawn, *(parent for v in summed for parent in graph[v])]


def _weighed(
    net: Net, parameters: Any, drawn: Query, summed: Query, draws: Draws, behind: Iterable[int], weights: Array
) -> Array:
    """The weighted mean of g; its gradient is that of g plus the covariance of g with the score."""
    value = jnp.broadcast_to(net.value(drawn, draws) + net.expected(parameters, summed, draws), weights.shape)
    # With equal weights, division by 1 - Σ w² makes the baseline the mean of the other samples: no bias.
    centred = weights * (value - weights @ value) / jnp.maximum(1 - (weights**2).sum(), 1e-6)
    score = jnp.broadcast_to(net.log_density(parameters, draws, behind), weights.shape)
    return weights @ value + _only_gradient(stop_gradient(centred) @ score)


def _settled(net: LinearNet, parameters: LinearParameters, query: Query, evidence: Evidence, doubt: float) -> Array:
    """Mean at the fixed point of Student-t weights; one step of Newton's method makes it differentiable."""
    if not isinstance(net, LinearNet):
        raise InputError(
            "the most probable states of discrete variables do not move with the parameters, they jump",
            hint="use `implicit` with a LinearNet, and `covariance` with a DiscreteNet",
        )
    known = net.known(query, evidence)
    tables = bayes_ball(net.graph, query, known).tables
    latent = sorted(v for v in tables if v < len(net.parents))
    read = [v for v in latent if v + len(net.parents) in tables]
    at, index = np.array([latent.index(v) for v in read], int), np.array(read, int)
    readings = jnp.stack([known[v + len(net.parents)] for v in read]) if read else jnp.zeros(0)

    def solve(parameters: LinearParameters, weights: Array) -> tuple[Array, Array]:
        precision, pull = net.precision(parameters, latent)
        trust = weights * jnp.exp(-2 * parameters.spread[index])
        covariance = jnp.linalg.inv(precision.at[at, at].add(trust))
        return covariance @ pull.at[at].add(trust * readings), covariance

    def reweigh(parameters: LinearParameters, weights: Array) -> Array:
        mean, covariance = solve(parameters, weights)
        rest = (readings - mean[at]) ** 2 + doubt * covariance[at, at]
        freedom = jnp.exp(parameters.freedom[index])
        return (freedom + 1) / (freedom + rest * jnp.exp(-2 * parameters.spread[index]))

    fixed = stop_gradient(parameters)
    weights = jax.lax.fori_loop(0, MAX_REWEIGHTINGS, lambda _, w: reweigh(fixed, w), jnp.ones(len(read)))
    slope = jnp.eye(len(read)) - jax.jacobian(lambda w: reweigh(fixed, w))(weights)
    weights += jnp.linalg.solve(slope, reweigh(parameters, weights) - weights)
    mean, _ = solve(parameters, weights)
    return net.value(query, dict(zip(latent, mean, strict=True)))


Share = Callable[
    [tuple[int, ...], bool], Array
]  # how often each combination of states occurs, in all or given evidence


def _checked_literal(net: DiscreteNet, query: Query, evidence: Evidence) -> dict[int, Array]:
    if not isinstance(net, DiscreteNet):
        raise InputError(
            "the published estimator counts equal samples, and continuous ones never are",
            hint="use `pathwise`, `covariance` or `implicit`",
        )
    known = net.known(query, evidence)
    if below := [v for v in known if not all(v in ancestors(net.graph, net.graph[asked]) for asked in query)]:
        raise InputError(
            f"variable {below[0]} is known, and is no ancestor of the query",
            where="evidence",
            hint="the published equations have no other case; use `covariance`",
        )
    return known


def _printed(net: DiscreteNet, parameters: Sequence[Array], query: Query, known: Evidence, share: Share) -> Array:
    """Equations (2) to (5), written as a sum whose gradient they are."""
    sizes = dict(enumerate(net.sizes))
    done: dict[tuple[int, frozenset[int]], Array] = {}

    def given(variables: Iterable[int], condition: frozenset[int]) -> tuple[Array, tuple[int, ...]]:
        """Share of values among samples with the same condition, n(a, c, v) / n(a, c); 0 where there are none."""
        axes = tuple(sorted(condition.union(variables)))
        joint = share(axes, True)
        whole = joint.sum(tuple(number for number, v in enumerate(axes) if v not in condition), keepdims=True)
        return jnp.where(whole > 0, joint / jnp.where(whole > 0, whole, 1.0), 0.0), axes

    def chance(variable: int, condition: frozenset[int]) -> Array:
        """Stands for Pr(variable | condition, a), with axes in that order."""
        if (variable, condition) not in done:
            table, parents = jax.nn.softmax(parameters[variable]), net.parents[variable]
            axes, out = (*parents, variable), (variable, *sorted(condition))
            found = sum_over([(table, axes), given(parents, condition)], out, sizes)  # (2)
            if set(parents) - condition - known.keys():
                seldom = (share(parents, False), parents)  # n(y) / S: what the sum over distinct values has too much
                found += sum_over(
                    [(stop_gradient(table), axes), seldom, together(parents, condition)], out, sizes
                )  # (3)
            done[variable, condition] = found
        return done[variable, condition]

    def together(variables: tuple[int, ...], condition: frozenset[int]) -> tuple[Array, tuple[int, ...]]:
        """Stands for Pr(variables | condition, a): (4), and by the product rule (5)."""
        axes = tuple(sorted(condition.union(variables)))
        apart = separating(net.graph, variables, condition.union(known))
        within = condition | apart
        weight = given(apart, condition)
        total = jnp.zeros(tuple(net.sizes[v] for v in axes))
        for v in variables:
            if v not in within and v not in known:
                others = [given((u,), within) for u in variables if u != v]
                total += sum_over([weight, (chance(v, within), (v, *sorted(within))), *others], axes, sizes)
        return total, axes

    each = (chance(v, frozenset()) @ jnp.asarray(table) for v, table in query.items() if v not in known)
    gradients = sum(each, jnp.zeros(()))
    belief = sum((share((v,), True) @ jnp.asarray(table) for v, table in query.items()), jnp.zeros(()))
    return belief + _only_gradient(gradients)
