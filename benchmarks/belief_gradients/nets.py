"""Bayesian networks with differentiable parameters, and the operations that estimators of beliefs need.

`DiscreteNet`: variables with a few states. `LinearNet`: Gaussian variables, linear in their parents, with Student-t
readings, as in `symphony.telemetry.posterior`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.belief_gradients.dependence import ParentLists, ancestors, checked
from symphony.problem.errors import InputError

GRID_POINTS = {1: 2001, 2: 301, 3: 91}  # points per dimension, by the number of dimensions
GRID_DEVIATIONS = 8.0  # half-width of the grid

Query = Mapping[int, Any]  # g is the sum over variables; the nets define the values
Evidence = Mapping[int, Any]  # by variable
Draws = dict[int, Array]  # samples of variables, [S] each


class Net(Protocol):
    """The operations of a net that estimators use."""

    @property
    def graph(self) -> ParentLists:
        """Parents of each variable; readings are variables too."""

    def known(self, query: Query, evidence: Evidence) -> dict[int, Array]:
        """Values of the variables that the evidence fixes; raises InputError for an invalid query or evidence."""

    def sample(
        self,
        key: Array,
        parameters: Any,
        samples: int,
        known: Evidence | None = None,
        only: Iterable[int] | None = None,
    ) -> Draws:
        """Samples of some variables, each drawn after its parents; known ones are fixed."""

    def log_density(self, parameters: Any, draws: Draws, only: Iterable[int] | None = None) -> Array:
        """log p of some variables given their parents, summed [S]."""

    def value(self, query: Query, draws: Draws) -> Array:
        """g [S]."""

    def expected(self, parameters: Any, query: Query, draws: Draws) -> Array:
        """Expectation of g [S] given the parents of the queried variables."""

    def reparameterised(
        self, key: Array, parameters: Any, query: Query, known: Evidence, samples: int, only: Iterable[int], heat: float
    ) -> tuple[Array, Array]:
        """g [S] and the log-likelihood of the evidence [S], differentiable, from noise without parameters."""

    def exact(self, parameters: Any, query: Query, known: Evidence, only: Iterable[int]) -> Array:
        """E[g | known], differentiable, without sampling."""


@dataclass(frozen=True)
class DiscreteNet:
    """Variables with a few states. A query gives g for each state of a variable; evidence is a state."""

    parents: ParentLists
    sizes: tuple[int, ...]  # how many states

    def __post_init__(self) -> None:
        checked(self.parents)
        if len(self.sizes) != len(self.parents) or min(self.sizes, default=1) < 1:
            raise InputError(
                f"sizes are {self.sizes} for {len(self.parents)} variables",
                hint="give each variable a number of states, at least 1",
            )

    @property
    def graph(self) -> ParentLists:
        """Parents of each variable."""
        return self.parents

    def shape(self, variable: int) -> tuple[int, ...]:
        """Shape of a variable's table of logits: states of its parents, then its own."""
        return tuple(self.sizes[v] for v in (*self.parents[variable], variable))

    def draw_parameters(self, key: Array) -> tuple[Array, ...]:
        """Logits of tables drawn from a flat Dirichlet distribution, one for each variable."""
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
        """States [S] of some variables (default: all), each drawn after its parents; known ones are fixed."""
        only = sorted(range(len(self.sizes)) if only is None else only)
        draws = {v: jnp.broadcast_to(state, (samples,)) for v, state in (known or {}).items()}
        for level, v in zip(jax.random.uniform(key, (len(only), samples)), only, strict=True):
            if v not in draws:
                heights = jnp.cumsum(jnp.exp(self._rows(parameters, draws, v)), -1)[..., :-1]
                draws[v] = (level[:, None] > heights).sum(-1)
        return draws

    def log_density(self, parameters: Sequence[Array], draws: Draws, only: Iterable[int] | None = None) -> Array:
        """log p of some variables (default: all) given their parents, summed [S]."""
        each = [
            jax.nn.log_softmax(parameters[v])[tuple(draws[u] for u in (*self.parents[v], v))]
            for v in sorted(range(len(self.sizes)) if only is None else only)
        ]
        return sum(each, jnp.zeros(()))

    def value(self, query: Query, draws: Draws) -> Array:
        """g [S]."""
        return sum((jnp.asarray(table)[draws[v]] for v, table in query.items()), jnp.zeros(()))

    def expected(self, parameters: Sequence[Array], query: Query, draws: Draws) -> Array:
        """Expectation of g [S] over the queried variables, given their parents."""
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
        """With states relaxed to weights (Gumbel-softmax), which is biased."""
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
            mixed = sum_over([table, *((soft[u], (batch, u)) for u in self.parents[v])], (batch, v), {batch: samples})
            if v in known:
                log_weight += jnp.log((mixed * soft[v]).sum(-1))
            else:
                soft[v] = jax.nn.softmax((jnp.log(mixed) + bumps[:, : self.sizes[v]]) / heat)
        return sum((soft[v] @ jnp.asarray(table) for v, table in query.items()), jnp.zeros(())), log_weight

    def exact(self, parameters: Sequence[Array], query: Query, known: Evidence, only: Iterable[int]) -> Array:
        """E[g | known], by variable elimination."""
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
        """p(variables | known), a table with an axis for each. `only`: the variables whose tables matter."""
        only = ancestors(self.parents, (*variables, *known)) if only is None else only
        tables = [(jax.nn.softmax(parameters[v]), (*self.parents[v], v)) for v in sorted(only)]
        tables += [(jax.nn.one_hot(state, self.sizes[v]), (v,)) for v, state in known.items()]
        joint = sum_over(tables, variables, dict(enumerate(self.sizes)))
        return joint / joint.sum()

    def _rows(self, parameters: Sequence[Array], draws: Draws, variable: int) -> Array:
        """log p of each state of a variable [S, K], or [K] if it has no parents."""
        return jax.nn.log_softmax(parameters[variable])[tuple(draws[u] for u in self.parents[variable])]


class LinearParameters(NamedTuple):
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

    parents: ParentLists

    def __post_init__(self) -> None:
        checked(self.parents)

    @property
    def graph(self) -> ParentLists:
        """Parents of each variable, then of each reading."""
        return (*self.parents, *((v,) for v in range(len(self.parents))))

    def draw_parameters(self, key: Array, freedom: float = 4.0) -> LinearParameters:
        """Random parameters: weights and biases about 1, deviations about 0.5."""
        count = len(self.parents)
        keys = jax.random.split(key, 4 + count)
        return LinearParameters(
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
        """The readings, by their numbers in `graph`."""
        _named(query, evidence, len(self.parents))
        return {len(self.parents) + v: jnp.asarray(reading) for v, reading in evidence.items()}

    def sample(
        self,
        key: Array,
        parameters: LinearParameters,
        samples: int,
        known: Evidence | None = None,
        only: Iterable[int] | None = None,
    ) -> Draws:
        """Values [S] of some variables and readings (default: all); known ones are fixed."""
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

    def log_density(self, parameters: LinearParameters, draws: Draws, only: Iterable[int] | None = None) -> Array:
        """log p of some variables and readings (default: all) given their parents, summed [S]."""
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

    def expected(self, parameters: LinearParameters, query: Query, draws: Draws) -> Array:
        """Expectation of g [S] over the queried variables, given their parents."""
        return sum((factor * self._centre(parameters, draws, v) for v, factor in query.items()), jnp.zeros(()))

    def reparameterised(
        self,
        key: Array,
        parameters: LinearParameters,
        query: Query,
        known: Evidence,
        samples: int,
        only: Iterable[int],
        heat: float,
    ) -> tuple[Array, Array]:
        """Exact: values are smooth in parameters and noise. `heat` is not used."""
        draws = self.sample(key, parameters, samples, known, only)
        return self.value(query, draws), self.log_density(parameters, draws, known.keys() & set(only))

    def exact(self, parameters: LinearParameters, query: Query, known: Evidence, only: Iterable[int]) -> Array:
        """E[g | known], integrated over a grid of the noise of up to three variables."""
        only = set(only)
        latent = sorted(v for v in only if v < len(self.parents))
        if len(latent) > max(GRID_POINTS):
            raise InputError(
                f"the query depends on {len(latent)} variables, too many for a grid",
                hint=f"ask for what depends on {max(GRID_POINTS)} at most, or use `pathwise` with many samples",
            )
        points = jnp.linspace(-GRID_DEVIATIONS, GRID_DEVIATIONS, GRID_POINTS[len(latent)])
        grid = [axis.ravel() for axis in jnp.meshgrid(*[points] * len(latent))]
        draws = self._moved(parameters, dict(zip(latent, grid, strict=True)))
        draws |= {v: jnp.broadcast_to(reading, grid[0].shape) for v, reading in known.items()}
        log_weight = self.log_density(parameters, draws, known.keys() & only) - 0.5 * sum(axis**2 for axis in grid)
        return mean_of(log_weight, self.value(query, draws))

    def precision(self, parameters: LinearParameters, latent: Sequence[int]) -> tuple[Array, Array]:
        """Prior precision of variables [L, L], and its product with their mean [L]."""
        place = {v: number for number, v in enumerate(latent)}
        rows = jnp.eye(len(latent))
        for v in latent:
            for weight, parent in zip(parameters.weights[v], self.parents[v], strict=True):
                rows = rows.at[place[v], place[parent]].add(-weight)
        index = jnp.array(latent)
        pulled = rows.T * jnp.exp(-2 * parameters.scale[index])
        return pulled @ rows, pulled @ parameters.bias[index]

    def _centre(self, parameters: LinearParameters, draws: Draws, variable: int) -> Array:
        parts = zip(parameters.weights[variable], self.parents[variable], strict=True)
        return sum((weight * draws[parent] for weight, parent in parts), parameters.bias[variable])

    def _moved(self, parameters: LinearParameters, noise: Draws) -> Draws:
        """Values of variables, from standard normal noise."""
        draws: Draws = {}
        for v in sorted(noise):
            draws[v] = self._centre(parameters, draws, v) + jnp.exp(parameters.scale[v]) * noise[v]
        return draws


def _named(query: Query, evidence: Evidence, count: int) -> None:
    """Raise InputError for variables that do not exist."""
    if not query:
        raise InputError("the query is empty", where="query", hint="give g for at least one variable: {variable: g}")
    for what, variables in (("query", query), ("evidence", evidence)):
        if missing := [variable for variable in variables if variable not in range(count)]:
            raise InputError(
                f"there is no variable {missing[0]}", where=what, hint=f"the variables are 0 to {count - 1}"
            )


def sum_over(tables: Sequence[tuple[Array, Sequence[int]]], out: Sequence[int], sizes: Mapping[int, int]) -> Array:
    """Product of tables whose axes are named by numbers, summed over all axes but those of `out`."""
    there = {axis for _, axes in tables for axis in axes}
    ones = [(jnp.ones(sizes[axis]), (axis,)) for axis in out if axis not in there]
    operands = [part for array, axes in (*tables, *ones) for part in (array, list(axes))]
    return jnp.einsum(*operands, list(out), precision="highest") if operands else jnp.ones(())


def mean_of(log_weight: Array, value: Array) -> Array:
    """The weighted mean of a value."""
    return (jax.nn.softmax(log_weight) * value).sum()
