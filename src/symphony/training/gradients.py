"""Gradients of a belief: d E[g(z) | evidence; θ] / dθ, for the parameters θ of a Bayesian network.

A *belief function* estimates E[g | evidence] and can be differentiated: the gradient of the number that it returns is
the estimator that its name promises. All have one signature,

    belief(key, net, parameters, query, evidence, samples) -> scalar

so that a loss which uses the belief reaches the parameters of the net by the chain rule, and `gradient(belief)` is the
estimator by itself. `net` and `samples` are static under `jax.jit`, as are the variables that a query or evidence
names; what they say of them may be traced. Nothing loops over samples. docs/concepts/gradients.md has the equations.

Two kinds of net are known: `DiscreteNet`, whose variables have a few states, and `LinearNet`, whose variables are
Gaussian, linear in their parents, and read with Student-t errors, as those of `telemetry.posterior` are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient

from symphony.problem.errors import InputError

GRID = {1: 2001, 2: 301, 3: 91}  # points for each dimension, by the number of dimensions
REACH = 8.0  # of the grid, in deviations
ROUNDS = 100  # of reweighting: far more than a fixed point of a few readings needs

Graph = tuple[tuple[int, ...], ...]  # parents of each variable, all of them before it
Query = Mapping[int, Any]  # what is asked of a variable; g is the sum over them. See the nets for what a value is
Evidence = Mapping[int, Any]  # what is known of a variable
Draws = dict[int, Array]  # samples of variables, [S] each
Belief = Callable[[Array, Any, Any, Query, Evidence, int], Array]
Estimator = Callable[[Array, Any, Any, Query, Evidence, int], Any]  # returns a pytree as its third argument is


class Net(Protocol):
    """What the estimators that sample ask of a net."""

    @property
    def graph(self) -> Graph:
        """Parents of each variable; readings are variables, too."""

    def known(self, query: Query, evidence: Evidence) -> dict[int, Array]:
        """The variables that the evidence fixes, and at what; complains of a query or evidence that makes no sense."""

    def sample(
        self,
        key: Array,
        parameters: Any,
        samples: int,
        known: Evidence | None = None,
        only: Iterable[int] | None = None,
    ) -> Draws:
        """Samples of some variables, each drawn after its parents; the known ones are held."""

    def log_density(self, parameters: Any, draws: Draws, only: Iterable[int] | None = None) -> Array:
        """log p of some variables given their parents, summed [S]."""

    def value(self, query: Query, draws: Draws) -> Array:
        """g [S]."""

    def expected(self, parameters: Any, query: Query, draws: Draws) -> Array:
        """g [S], given not the variables asked for but their parents."""

    def reparameterised(
        self, key: Array, parameters: Any, query: Query, known: Evidence, samples: int, only: Iterable[int], heat: float
    ) -> tuple[Array, Array]:
        """g [S] and log-likelihood of what is known [S], both differentiable, from noise that has no parameters."""

    def exact(self, parameters: Any, query: Query, known: Evidence, only: Iterable[int]) -> Array:
        """E[g | known], differentiable, without sampling."""


# --- What depends on what ----------------------------------------------------------------------------------


class Ball(NamedTuple):
    """What a Bayes ball met (Shachter, 1998)."""

    tables: frozenset[int]  # variables whose own parameters the answer depends on
    linked: frozenset[int]  # variables that are not independent of the query, given what is known


def bayes_ball(graph: Graph, query: Iterable[int], known: Iterable[int]) -> Ball:
    """Which variables matter to a query, given the known ones."""
    known = frozenset(known)
    children: list[list[int]] = [[] for _ in graph]
    for variable, parents in enumerate(graph):
        for parent in parents:
            children[parent].append(variable)
    top: set[int] = set()
    bottom: set[int] = set()
    coming = [(variable, True) for variable in query]  # as if from a child of theirs
    while coming:
        variable, from_child = coming.pop()
        # What is known stops a ball from a child and returns one from a parent; what is not does not.
        if variable not in top and from_child != (variable in known):
            top.add(variable)
            coming += [(parent, True) for parent in graph[variable]]
        if variable not in bottom and variable not in known:
            bottom.add(variable)
            coming += [(child, False) for child in children[variable]]
    return Ball(frozenset(top), frozenset(bottom))


def ancestors(graph: Graph, of: Iterable[int]) -> frozenset[int]:
    """Some variables and all that they descend from."""
    found: set[int] = set()
    coming = list(of)
    while coming:
        variable = coming.pop()
        if variable not in found:
            found.add(variable)
            coming += graph[variable]
    return frozenset(found)


def _checked(graph: Graph) -> None:
    for variable, parents in enumerate(graph):
        if not all(0 <= parent < variable for parent in parents) or len(set(parents)) < len(parents):
            raise InputError(
                f"parents are {parents}",
                where=f"variable {variable}",
                hint="number the variables so that each comes after its parents, and name each parent once",
            )


def _named(query: Query, evidence: Evidence, count: int) -> None:
    if not query:
        raise InputError("nothing is asked", where="query", hint="give g for at least one variable: {variable: g}")
    for what, variables in (("query", query), ("evidence", evidence)):
        if missing := [variable for variable in variables if variable not in range(count)]:
            raise InputError(
                f"there is no variable {missing[0]}", where=what, hint=f"the variables are 0 to {count - 1}"
            )


# --- Nets --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiscreteNet:
    """Variables with a few states each. A query gives g for each state of a variable; evidence is a state."""

    parents: Graph
    sizes: tuple[int, ...]  # how many states

    def __post_init__(self) -> None:
        _checked(self.parents)
        if len(self.sizes) != len(self.parents) or min(self.sizes, default=1) < 1:
            raise InputError(
                f"sizes are {self.sizes} for {len(self.parents)} variables",
                hint="give each variable a number of states, at least 1",
            )

    @property
    def graph(self) -> Graph:
        """Parents of each variable."""
        return self.parents

    def shape(self, variable: int) -> tuple[int, ...]:
        """Of a variable's table of logits: states of its parents, then its own."""
        return tuple(self.sizes[v] for v in (*self.parents[variable], variable))

    def draw_parameters(self, key: Array) -> tuple[Array, ...]:
        """Logits of tables that are drawn evenly from all there are (a flat Dirichlet), one for each variable."""
        keys = jax.random.split(key, len(self.sizes))
        return tuple(jnp.log(jax.random.exponential(keys[v], self.shape(v))) for v in range(len(self.sizes)))

    def known(self, query: Query, evidence: Evidence) -> dict[int, Array]:
        """The evidence, as arrays."""
        _named(query, evidence, len(self.sizes))
        for variable, table in query.items():
            if jnp.shape(table) != (self.sizes[variable],):
                raise InputError(
                    f"g has shape {jnp.shape(table)}",
                    where=f"query of variable {variable}",
                    hint=f"give one number for each of its {self.sizes[variable]} states",
                )
        return {variable: jnp.asarray(state) for variable, state in evidence.items()}

    def sample(
        self,
        key: Array,
        parameters: Sequence[Array],
        samples: int,
        known: Evidence | None = None,
        only: Iterable[int] | None = None,
    ) -> Draws:
        """States [S] of some variables (all, if not said), each drawn after its parents; the known ones are held."""
        only = sorted(range(len(self.sizes)) if only is None else only)
        draws = {v: jnp.broadcast_to(state, (samples,)) for v, state in (known or {}).items()}
        for level, v in zip(jax.random.uniform(key, (len(only), samples)), only, strict=True):
            if v not in draws:
                heights = jnp.cumsum(jnp.exp(self._rows(parameters, draws, v)), -1)[..., :-1]
                draws[v] = (level[:, None] > heights).sum(-1)
        return draws

    def log_density(self, parameters: Sequence[Array], draws: Draws, only: Iterable[int] | None = None) -> Array:
        """log p of some variables (all, if not said) given their parents, summed [S]."""
        each = [
            jax.nn.log_softmax(parameters[v])[tuple(draws[u] for u in (*self.parents[v], v))]
            for v in sorted(range(len(self.sizes)) if only is None else only)
        ]
        return sum(each, jnp.zeros(()))

    def value(self, query: Query, draws: Draws) -> Array:
        """g [S]."""
        return sum((jnp.asarray(table)[draws[v]] for v, table in query.items()), jnp.zeros(()))

    def expected(self, parameters: Sequence[Array], query: Query, draws: Draws) -> Array:
        """g [S], summed over the states of the variables asked for, given those of their parents."""
        each = (jnp.exp(self._rows(parameters, draws, v)) @ jnp.asarray(table) for v, table in query.items())
        return sum(each, jnp.zeros(()))

    def reparameterised(
        self,
        key: Array,
        parameters: Sequence[Array],
        query: Query,
        known: Evidence,
        samples: int,
        only: Iterable[int],
        heat: float,
    ) -> tuple[Array, Array]:
        """With every state replaced by weights of all states (Gumbel-softmax): what comes out is biased."""
        only = sorted(only)
        batch = len(self.sizes)  # the axis of samples, in sums that name axes by variables
        soft = {
            v: jnp.broadcast_to(jax.nn.one_hot(state, self.sizes[v]), (samples, self.sizes[v]))
            for v, state in known.items()
        }
        noise = jax.random.gumbel(key, (len(only), samples, max(self.sizes)))
        log_weight = jnp.zeros(samples)
        for bumps, v in zip(noise, only, strict=True):
            table = (jax.nn.softmax(parameters[v]), (*self.parents[v], v))
            mixed = _sum([table, *((soft[u], (batch, u)) for u in self.parents[v])], (batch, v), {batch: samples})
            if v in known:
                log_weight += jnp.log((mixed * soft[v]).sum(-1))
            else:
                soft[v] = jax.nn.softmax((jnp.log(mixed) + bumps[:, : self.sizes[v]]) / heat)
        return sum((soft[v] @ jnp.asarray(table) for v, table in query.items()), jnp.zeros(())), log_weight

    def exact(self, parameters: Sequence[Array], query: Query, known: Evidence, only: Iterable[int]) -> Array:
        """E[g | known], with all other variables summed out, in an order that keeps the tables small."""
        only = tuple(only)
        answers = (self.marginal(parameters, (v,), known, only) @ jnp.asarray(table) for v, table in query.items())
        return sum(answers, jnp.zeros(()))

    def marginal(
        self,
        parameters: Sequence[Array],
        variables: Sequence[int],
        known: Evidence,
        only: Iterable[int] | None = None,
    ) -> Array:
        """p(variables | known), as a table with an axis for each. `only` names the tables that matter, if known."""
        only = ancestors(self.parents, (*variables, *known)) if only is None else only
        tables = [(jax.nn.softmax(parameters[v]), (*self.parents[v], v)) for v in sorted(only)]
        tables += [(jax.nn.one_hot(state, self.sizes[v]), (v,)) for v, state in known.items()]
        joint = _sum(tables, variables, dict(enumerate(self.sizes)))
        return joint / joint.sum()

    def _rows(self, parameters: Sequence[Array], draws: Draws, variable: int) -> Array:
        """log p of each state of a variable [S, K], or [K] if it has no parents."""
        return jax.nn.log_softmax(parameters[variable])[tuple(draws[u] for u in self.parents[variable])]


class Linear(NamedTuple):
    """Parameters of a `LinearNet`. Scales and degrees of freedom are logarithms."""

    bias: Array  # f[V]
    weights: tuple[Array, ...]  # for each variable, f[parents]
    scale: Array  # f[V]: deviation of a variable, given its parents
    spread: Array  # f[V]: scale of the error of its reading
    freedom: Array  # f[V]: degrees of freedom of that error


@dataclass(frozen=True)
class LinearNet:
    """Gaussian variables, linear in their parents, with Student-t readings.

    A query gives a factor for a variable; evidence is a reading of it. In `graph`, readings come after all variables:
    that of variable v is number v + V.
    """

    parents: Graph

    def __post_init__(self) -> None:
        _checked(self.parents)

    @property
    def graph(self) -> Graph:
        """Parents of each variable, then of each reading."""
        return (*self.parents, *((v,) for v in range(len(self.parents))))

    def draw_parameters(self, key: Array, freedom: float = 4.0) -> Linear:
        """Weights and biases about 1, deviations about 0.5."""
        count = len(self.parents)
        keys = jax.random.split(key, 4 + count)
        return Linear(
            1.0 + 0.3 * jax.random.normal(keys[0], (count,)),
            tuple(
                jax.random.normal(keys[4 + v], (len(parents),)) / math.sqrt(max(len(parents), 1))
                for v, parents in enumerate(self.parents)
            ),
            jnp.log(0.5) + 0.2 * jax.random.normal(keys[1], (count,)),
            jnp.log(0.5) + 0.2 * jax.random.normal(keys[2], (count,)),
            jnp.log(freedom) + 0.2 * jax.random.normal(keys[3], (count,)),
        )

    def known(self, query: Query, evidence: Evidence) -> dict[int, Array]:
        """The readings, by their own numbers."""
        _named(query, evidence, len(self.parents))
        return {len(self.parents) + v: jnp.asarray(reading) for v, reading in evidence.items()}

    def sample(
        self,
        key: Array,
        parameters: Linear,
        samples: int,
        known: Evidence | None = None,
        only: Iterable[int] | None = None,
    ) -> Draws:
        """Values [S] of some variables and readings (all, if not said); the known ones are held."""
        count = len(self.parents)
        only = sorted(range(2 * count) if only is None else only)
        below, above = jax.random.split(key)
        draws = {v: jnp.broadcast_to(reading, (samples,)) for v, reading in (known or {}).items()}
        latent = [v for v in only if v < count]
        noise = jax.random.normal(below, (len(latent), samples))
        draws |= self._moved(parameters, dict(zip(latent, noise, strict=True)))
        for v in only:
            if v not in draws:
                error = jax.random.t(jax.random.fold_in(above, v), jnp.exp(parameters.freedom[v - count]), (samples,))
                draws[v] = draws[v - count] + jnp.exp(parameters.spread[v - count]) * error
        return draws

    def log_density(self, parameters: Linear, draws: Draws, only: Iterable[int] | None = None) -> Array:
        """log p of some variables and readings (all, if not said) given their parents, summed [S]."""
        count = len(self.parents)
        total = jnp.zeros(())
        for v in range(2 * count) if only is None else only:
            if v < count:
                scale = jnp.exp(parameters.scale[v])
                total += jax.scipy.stats.norm.logpdf(draws[v], self._centre(parameters, draws, v), scale)
            else:
                w, freedom = v - count, jnp.exp(parameters.freedom[v - count])
                total += jax.scipy.stats.t.logpdf(draws[v], freedom, draws[w], jnp.exp(parameters.spread[w]))
        return total

    def value(self, query: Query, draws: Draws) -> Array:
        """g [S]."""
        return sum((factor * draws[v] for v, factor in query.items()), jnp.zeros(()))

    def expected(self, parameters: Linear, query: Query, draws: Draws) -> Array:
        """g [S], in the mean over the variables asked for, given their parents."""
        return sum((factor * self._centre(parameters, draws, v) for v, factor in query.items()), jnp.zeros(()))

    def reparameterised(
        self,
        key: Array,
        parameters: Linear,
        query: Query,
        known: Evidence,
        samples: int,
        only: Iterable[int],
        heat: float,
    ) -> tuple[Array, Array]:
        """As it is: values are smooth in parameters and noise, so `heat` is not needed."""
        draws = self.sample(key, parameters, samples, known, only)
        return self.value(query, draws), self.log_density(parameters, draws, known.keys() & set(only))

    def exact(self, parameters: Linear, query: Query, known: Evidence, only: Iterable[int]) -> Array:
        """E[g | known], integrated over a grid of the noise of up to three variables."""
        only = set(only)
        latent = sorted(v for v in only if v < len(self.parents))
        if len(latent) > max(GRID):
            raise InputError(
                f"the query depends on {len(latent)} variables, too many for a grid",
                hint=f"ask for what depends on {max(GRID)} at most, or use `pathwise` with many samples",
            )
        points = jnp.linspace(-REACH, REACH, GRID[len(latent)])
        grid = [axis.ravel() for axis in jnp.meshgrid(*[points] * len(latent))]
        draws = self._moved(parameters, dict(zip(latent, grid, strict=True)))
        draws |= {v: jnp.broadcast_to(reading, grid[0].shape) for v, reading in known.items()}
        log_weight = self.log_density(parameters, draws, known.keys() & only) - 0.5 * sum(axis**2 for axis in grid)
        return _mean(log_weight, self.value(query, draws))

    def precision(self, parameters: Linear, latent: Sequence[int]) -> tuple[Array, Array]:
        """Inverse covariance of variables before any reading [L, L], and that times their mean [L]."""
        place = {v: number for number, v in enumerate(latent)}
        rows = jnp.eye(len(latent))
        for v in latent:
            for weight, parent in zip(parameters.weights[v], self.parents[v], strict=True):
                rows = rows.at[place[v], place[parent]].add(-weight)
        index = jnp.array(latent)
        pulled = rows.T * jnp.exp(-2 * parameters.scale[index])
        return pulled @ rows, pulled @ parameters.bias[index]

    def _centre(self, parameters: Linear, draws: Draws, variable: int) -> Array:
        parts = zip(parameters.weights[variable], self.parents[variable], strict=True)
        return sum((weight * draws[parent] for weight, parent in parts), parameters.bias[variable])

    def _moved(self, parameters: Linear, noise: Draws) -> Draws:
        """Values of variables, from standard normal noise."""
        draws: Draws = {}
        for v in sorted(noise):
            draws[v] = self._centre(parameters, draws, v) + jnp.exp(parameters.scale[v]) * noise[v]
        return draws


# --- Belief functions --------------------------------------------------------------------------------------


def exact(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """The reference: every state summed over, or (`LinearNet`) a grid. Uses neither the key nor samples."""
    known = net.known(query, evidence)
    return net.exact(parameters, query, known, bayes_ball(net.graph, query, known).tables)


def pathwise(
    key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int, *, heat: float = 0.5
) -> Array:
    """Noise without parameters goes in, and the weighted mean of what comes out is differentiated.

    Exact in the limit for a `LinearNet`. The states of a `DiscreteNet` are relaxed to weights: the limit is the
    gradient of another, smoother net, the nearer the lower `heat`, while the variance grows as heat falls.
    """
    known = net.known(query, evidence)
    only = bayes_ball(net.graph, query, known).tables
    value, log_weight = net.reparameterised(key, parameters, query, known, samples, only, heat)
    return _mean(jnp.broadcast_to(log_weight, (samples,)), value)


def score(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """Score function with a leave-one-out baseline, over what the query and the evidence descend from.

    Samples that do not agree with the evidence are thrown away, as the published estimator's counts do. Variables asked
    for that have no evidence below them are summed out, which makes the gradient by their own tables that of (2). If no
    sample agrees, nothing is known: belief and gradient are 0.
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
    """Cov(g, Σ ∇ log f) given the evidence, over samples weighted by its likelihood, of what the ball met only.

    Variables asked for that have no evidence below them are summed out, as in `score`.
    """
    known, fixed = net.known(query, evidence), stop_gradient(parameters)
    drawn, summed, needed = _split(net.graph, query, known)
    behind = bayes_ball(net.graph, needed, known).tables
    draws = net.sample(key, fixed, samples, known, behind)
    likelihood = net.log_density(fixed, draws, known.keys() & behind)
    weights = jax.nn.softmax(jnp.broadcast_to(likelihood, (samples,)))
    return _weighed(net, parameters, drawn, summed, draws, behind, weights)


def implicit(key: Array, net: LinearNet, parameters: Linear, query: Query, evidence: Evidence, samples: int) -> Array:
    """The mean at which the filter's reweighting would settle, differentiated at that point. Draws no samples.

    Weights count the doubt about a value beside its residual, as in `telemetry.posterior`; this is the best Gaussian
    with independent weights, whose mean is near that of the posterior.
    """
    return _settled(net, parameters, query, evidence, doubt=1.0)


def implicit_map(
    key: Array, net: LinearNet, parameters: Linear, query: Query, evidence: Evidence, samples: int
) -> Array:
    """The most probable values instead of the mean, found by reweighting and differentiated there. Draws no samples."""
    return _settled(net, parameters, query, evidence, doubt=0.0)


def none(key: Array, net: Net, parameters: Any, query: Query, evidence: Evidence, samples: int) -> Array:
    """The belief of `covariance`, through which no gradient passes."""
    return stop_gradient(covariance(key, net, parameters, query, evidence, samples))


def literal(
    key: Array, net: DiscreteNet, parameters: Sequence[Array], query: Query, evidence: Evidence, samples: int
) -> Array:
    """The published estimator, equations (2) to (5) as printed, summing over distinct values. For comparison only."""
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
    """What `literal` tends to as samples are added. Uses neither the key nor samples."""
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
    """Of the angle between two gradients; 0 if one of them is 0."""
    flat = [jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (a, b)]
    norms = jnp.linalg.norm(flat[0]) * jnp.linalg.norm(flat[1])
    return jnp.where(norms > 0, flat[0] @ flat[1] / jnp.where(norms > 0, norms, 1.0), 0.0)


# --- What they share ---------------------------------------------------------------------------------------


def _mean(log_weight: Array, value: Array) -> Array:
    return (jax.nn.softmax(log_weight) * value).sum()


def _only_gradient(value: Array) -> Array:
    """Zero, with the gradient of a value."""
    return value - stop_gradient(value)


def _agreeing(draws: Draws, known: Evidence, samples: int) -> Array:
    """Equal weights for the samples that are as is known, and none for the others [S]; all 0 if there are no such."""
    agrees = jnp.ones(samples)
    for v, state in known.items():
        agrees *= draws[v] == state
    return agrees / jnp.maximum(agrees.sum(), 1.0)


def _split(graph: Graph, query: Query, known: Iterable[int]) -> tuple[Query, Query, list[int]]:
    """The part of a query that must be drawn, the part that can be summed out (nothing known descends from it), and
    the variables that have to be there for both."""
    above = ancestors(graph, known)
    drawn = {v: what for v, what in query.items() if v in above}
    summed = {v: what for v, what in query.items() if v not in above}
    return drawn, summed, [*drawn, *(parent for v in summed for parent in graph[v])]


def _weighed(
    net: Net, parameters: Any, drawn: Query, summed: Query, draws: Draws, behind: Iterable[int], weights: Array
) -> Array:
    """The weighted mean of g, whose gradient is that of g and its covariance with the score."""
    value = jnp.broadcast_to(net.value(drawn, draws) + net.expected(parameters, summed, draws), weights.shape)
    # With equal weights, dividing by 1 - Σ w² makes the mean that of the other samples, which leaves no bias.
    centred = weights * (value - weights @ value) / jnp.maximum(1 - (weights**2).sum(), 1e-6)
    score = jnp.broadcast_to(net.log_density(parameters, draws, behind), weights.shape)
    return weights @ value + _only_gradient(stop_gradient(centred) @ score)


def _sum(tables: Sequence[tuple[Array, Sequence[int]]], out: Sequence[int], sizes: Mapping[int, int]) -> Array:
    """Product of tables whose axes are named by numbers, summed over all axes but those of `out`."""
    there = {axis for _, axes in tables for axis in axes}
    ones = [(jnp.ones(sizes[axis]), (axis,)) for axis in out if axis not in there]
    operands = [part for array, axes in (*tables, *ones) for part in (array, list(axes))]
    return jnp.einsum(*operands, list(out), precision="highest") if operands else jnp.ones(())


def _settled(net: LinearNet, parameters: Linear, query: Query, evidence: Evidence, doubt: float) -> Array:
    """Mean at the fixed point of Student-t weights, which one step of Newton's method makes differentiable."""
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

    def solve(parameters: Linear, weights: Array) -> tuple[Array, Array]:
        precision, pull = net.precision(parameters, latent)
        trust = weights * jnp.exp(-2 * parameters.spread[index])
        covariance = jnp.linalg.inv(precision.at[at, at].add(trust))
        return covariance @ pull.at[at].add(trust * readings), covariance

    def reweigh(parameters: Linear, weights: Array) -> Array:
        mean, covariance = solve(parameters, weights)
        rest = (readings - mean[at]) ** 2 + doubt * covariance[at, at]
        freedom = jnp.exp(parameters.freedom[index])
        return (freedom + 1) / (freedom + rest * jnp.exp(-2 * parameters.spread[index]))

    fixed = stop_gradient(parameters)
    weights = jax.lax.fori_loop(0, ROUNDS, lambda _, w: reweigh(fixed, w), jnp.ones(len(read)))
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
            found = _sum([(table, axes), given(parents, condition)], out, sizes)  # (2)
            if set(parents) - condition - known.keys():
                seldom = (share(parents, False), parents)  # n(y) / S: what the sum over distinct values has too much
                found += _sum([(stop_gradient(table), axes), seldom, together(parents, condition)], out, sizes)  # (3)
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
                total += _sum([weight, (chance(v, within), (v, *sorted(within))), *others], axes, sizes)
        return total, axes

    each = (chance(v, frozenset()) @ jnp.asarray(table) for v, table in query.items() if v not in known)
    gradients = sum(each, jnp.zeros(()))
    belief = sum((share((v,), True) @ jnp.asarray(table) for v, table in query.items()), jnp.zeros(()))
    return belief + _only_gradient(gradients)


def separating(graph: Graph, variables: Sequence[int], known: Iterable[int]) -> frozenset[int]:
    """The fewest (then the earliest) further variables that, once known, make some variables independent."""
    known = frozenset(known)
    candidates = sorted(ancestors(graph, variables) - known)
    for count in range(len(candidates) + 1):
        for chosen in combinations(candidates, count):
            condition = known.union(chosen)
            if all(v not in bayes_ball(graph, (u,), condition).linked for u, v in combinations(variables, 2)):
                return frozenset(chosen)
    raise AssertionError("variables that are all known are independent")
