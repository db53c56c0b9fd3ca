"""The quality of gradients of beliefs: `python -m benchmarks.gradients [--quick] [--only SECTION …] [--json FILE]`.

Estimators of d E[g | evidence] / d parameters are compared with the exact gradient, on random nets of three shapes:

* chain: each variable has the previous one as its parent; the first is known, the last is queried;
* tree: pairs of variables have a common child, down to one, which is queried; the first leaf is known;
* plate: cores that share a memory, and their total, which is queried; the load of the first is known.

Tables are drawn from a flat Dirichlet distribution, g is one of the states. For each net and estimator:
cosine (of one estimate with the exact gradient: median and 5th percentile over nets and keys), bias (of the mean over
keys, less what chance explains, over the exact gradient's length), deviation (the root of the summed variance, over
the same), and us (time of one estimate in a compiled batch).

Unfair to the published estimator: it was made for counts of samples, and gradients here are by logits. Favourable to
it: only ancestors of the query are known, the only case that it covers, and its sum is over distinct values. Unfair to
`score`: it discards samples that disagree with the evidence, while `covariance` weights them. Unfair to `pathwise`: its
heat is 0.5 except in the section that varies it. Favourable to all: the influence of random tables decays quickly with
the distance to the query. Times include other load of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.belief_gradients import estimators
from benchmarks.belief_gradients.estimators import METHODS, Belief, cosine, gradient
from benchmarks.belief_gradients.nets import DiscreteNet, LinearNet
from benchmarks.common import arguments, keep

Figures = list[dict[str, Any]]
Case = tuple[DiscreteNet, dict[int, int], dict[int, int]]  # a net, the queried state and the known ones, by variable
SECTIONS = ("printed", "samples", "size", "states", "evidence", "heat", "continuous")


# --- Nets --------------------------------------------------------------------------------------------------


def chain(variables: int, states: int) -> Case:
    """A chain."""
    return DiscreteNet(((), *((v,) for v in range(variables - 1))), (states,) * variables), {variables - 1: 0}, {0: 0}


def tree(variables: int, states: int) -> Case:
    """A tree of pairs."""
    waiting = list(range((variables + 1) // 2))
    parents: list[tuple[int, ...]] = [() for _ in waiting]
    while len(parents) < variables:
        parents.append(tuple(waiting[:2]))
        waiting = [*waiting[2:], len(parents) - 1]
    return DiscreteNet(tuple(parents), (states,) * variables), {variables - 1: 0}, {0: 0}


def plate(variables: int, states: int) -> Case:
    """A memory; for each core its load, which depends on the memory, its use, and the total so far."""
    parents: list[tuple[int, ...]] = [()]
    while len(parents) + 3 <= variables:
        load = len(parents)
        before = (load - 1,) if load > 1 else ()
        parents += [(0,), (load,), (*before, load + 1)]
    return DiscreteNet(tuple(parents), (states,) * len(parents)), {len(parents) - 1: 0}, {1: 0}


SHAPES: dict[str, Callable[[int, int], Case]] = {"chain": chain, "tree": tree, "plate": plate}


# --- Measuring ---------------------------------------------------------------------------------------------


def flat(tree: Any) -> jax.Array:
    """A gradient as one vector."""
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def measured(
    beliefs: Mapping[str, Belief], net: Any, parameters: Any, query: Any, evidence: Any, samples: int, repeats: int
) -> Figures:
    """Estimators against the exact gradient; `parameters` and `evidence` are batches with one entry for each net."""

    def batched(function: Callable[[Any, Any], jax.Array]) -> tuple[np.ndarray, float]:
        """Estimates net after net, and the seconds for all; the best of several times if it was short."""
        batch = parameters, evidence
        run = jax.jit(lambda batch: jax.lax.map(lambda one: function(*one), batch)).lower(batch).compile()
        seconds: list[float] = []
        while not seconds or (sum(seconds) < 0.5 and len(seconds) < 5):
            began = time.perf_counter()
            found = np.asarray(run(batch), float)
            seconds.append(time.perf_counter() - began)
        return found, min(seconds)

    def estimates(parameters: Any, evidence: Any, belief: Belief) -> jax.Array:
        keys = jax.random.split(jax.random.key(1), repeats)
        return jax.vmap(lambda key: flat(gradient(belief)(key, net, parameters, query, evidence, samples)))(keys)

    def reference(parameters: Any, evidence: Any) -> jax.Array:
        return flat(gradient(estimators.exact)(jax.random.key(0), net, parameters, query, evidence, 0))

    exact, _ = batched(reference)  # [N, P]
    length = np.linalg.norm(exact, axis=-1)
    rows = []
    for name, belief in beliefs.items():
        found, seconds = batched(partial(estimates, belief=belief))  # [N, R, P]
        assert np.isfinite(found).all() and (length > 0).all()
        lengths = np.linalg.norm(found, axis=-1) * length[:, None]
        cosines = (found * exact[:, None]).sum(-1) / np.maximum(lengths, 1e-30)
        variance = found.var(axis=1, ddof=1).sum(-1) if repeats > 1 else np.zeros(len(found))
        off = ((found.mean(axis=1) - exact) ** 2).sum(-1) - variance / repeats
        rows.append(
            {
                "method": name,
                "cosine": float(np.median(cosines)),
                "5%": float(np.quantile(cosines, 0.05)),
                "bias": float(np.median(np.sqrt(np.maximum(off, 0)) / length)),
                "deviation": float(np.median(np.sqrt(variance) / length)),
                "us": 1e6 * seconds / (len(found) * repeats),
            }
        )
    return rows


def on_case(case: Case, beliefs: Mapping[str, Belief], samples: int, nets: int, repeats: int) -> Figures:
    """Evaluate methods on random tables of a net."""
    net, asked, known = case
    parameters = jax.vmap(net.draw_parameters)(jax.random.split(jax.random.key(0), nets))
    query = {v: jnp.eye(net.sizes[v])[state] for v, state in asked.items()}
    evidence = {v: jnp.full(nets, state) for v, state in known.items()}
    return measured(beliefs, net, parameters, query, evidence, samples, repeats)


# --- Sections ----------------------------------------------------------------------------------------------


def printed(lengths: Sequence[int], nets: int) -> Figures:
    """The published estimator with infinitely many samples, on chains of eight states."""
    rows = []
    for variables in lengths:
        for known in ({}, {0: 0}) if variables > 2 else ({},):
            net, asked, _ = chain(variables, 8)
            query = {v: jnp.eye(8)[state] for v, state in asked.items()}

            def angles(key: jax.Array, net: DiscreteNet = net, query: Any = query, known: Any = known) -> Any:
                parameters = net.draw_parameters(key)
                limit, exact = (
                    gradient(belief)(key, net, parameters, query, known, 0)
                    for belief in (estimators.literal_limit, estimators.exact)
                )
                return cosine(limit[:-1], exact[:-1]), cosine(limit, exact)

            above, everything = jax.jit(jax.vmap(angles))(jax.random.split(jax.random.key(0), nets))
            rows.append(
                {
                    "chain of": variables,
                    "known": "first" if known else "nothing",
                    "by (3): median": float(np.median(above)),
                    "by (3): 5%": float(np.quantile(above, 0.05)),
                    "all tables: median": float(np.median(everything)),
                    "all tables: 5%": float(np.quantile(everything, 0.05)),
                }
            )
    return rows


def swept(axis: str, cases: Sequence[tuple[str, int, Case, int]], nets: int, repeats: int) -> Figures:
    """Evaluate methods over a varied quantity; a case is a shape, the quantity's value, the net, and samples."""
    beliefs = {name: METHODS[name] for name in ("pathwise", "score", "covariance", "literal")}
    return [
        {"net": shape, axis: value, **row}
        for shape, value, case, samples in cases
        for row in on_case(case, beliefs, samples, nets, repeats)
    ]


def with_evidence(counts: Sequence[int], samples: int, nets: int, repeats: int) -> Figures:
    """A chain of eight hidden variables with a reading each, more and more of them known; the last is queried."""
    hidden, states = 8, 3
    net = DiscreteNet(((), *((v,) for v in range(hidden - 1)), *((v,) for v in range(hidden))), (states,) * 2 * hidden)
    keys = jax.random.split(jax.random.key(0), nets)
    parameters = jax.vmap(net.draw_parameters)(keys)
    truth = jax.jit(jax.vmap(lambda key, parameters: net.sample(key, parameters, 1)))(keys, parameters)
    beliefs = {name: METHODS[name] for name in ("pathwise", "score", "covariance")}
    query = {hidden - 1: jnp.eye(states)[0]}
    rows: Figures = []
    for count in counts:
        evidence = {v: truth[v][:, 0] for v in range(2 * hidden - count, 2 * hidden)}
        found = measured(beliefs, net, parameters, query, evidence, samples, repeats)
        rows += [{"readings": count, **row} for row in found]
    return rows


def continuous(freedoms: Sequence[float], samples: Sequence[int], nets: int, repeats: int) -> Figures:
    """Three Gaussian variables, two with readings with Student-t errors; the mean of the third is queried."""
    net = LinearNet(((), (0,), (0, 1)))
    keys = jax.random.split(jax.random.key(0), nets)
    drawing = {name: METHODS[name] for name in ("pathwise", "covariance")}
    settling = {name: METHODS[name] for name in ("implicit", "implicit-map")}
    rows: Figures = []
    for freedom in freedoms:
        parameters = jax.vmap(partial(net.draw_parameters, freedom=freedom))(keys)
        truth = jax.jit(jax.vmap(lambda key, parameters: net.sample(key, parameters, 1)))(keys, parameters)
        evidence = {v: truth[v + 3][:, 0] for v in (0, 2)}
        for count in (*samples, 0):
            beliefs = drawing if count else settling
            found = measured(beliefs, net, parameters, {1: 1.0}, evidence, count, repeats if count else 1)
            rows += [{"freedom": freedom, "samples": count or "none", **row} for row in found]
    return rows


def shown(console: Console, title: str, rows: Figures) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    args = arguments("How good gradients of beliefs are.", SECTIONS)
    console = Console(width=140)
    quick = args.quick
    nets, repeats = (20, 8) if quick else (200, 8)
    few = nets // 4
    shapes = ("chain",) if quick else tuple(SHAPES)
    counts = (64, 1024) if quick else (16, 64, 256, 1024, 4096)
    sizes = (16,) if quick else (4, 8, 16, 32, 64)
    domains = (8,) if quick else (2, 4, 8, 16)
    loopy = ("plate",) if quick else ("chain", "plate")
    heats = (0.2, 1.0) if quick else (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    figures: dict[str, Any] = {}

    def section(name: str, title: str, measure: Callable[[], Figures]) -> None:
        if name in args.only:
            figures[name] = measure()
            shown(console, title, figures[name])
            keep(args.json, **figures)

    section(
        "printed",
        f"The published estimator, infinitely many samples, 8 states, {200 if quick else 5_000} nets",
        lambda: printed((3,) if quick else (2, 3, 4, 6, 8), 200 if quick else 5_000),
    )
    section(
        "samples",
        f"Against samples: 10 variables, 4 states, {nets} nets",
        lambda: swept("samples", [(s, n, SHAPES[s](10, 4), n) for s in shapes for n in counts], nets, repeats),
    )
    section(
        "size",
        f"Against the number of variables: 3 states, 1,024 samples, {few} nets",
        lambda: swept("variables", [(s, n, SHAPES[s](n, 3), 1024) for s in shapes for n in sizes], few, repeats),
    )
    section(
        "states",
        f"Against the number of states: 7 variables, 1,024 samples, {few} nets",
        lambda: swept("states", [(s, k, SHAPES[s](7, k), 1024) for s in loopy for k in domains], few, repeats),
    )
    section(
        "evidence",
        f"Against readings below the query: 16 variables, 3 states, 1,024 samples, {nets} nets",
        lambda: with_evidence((4,) if quick else (0, 1, 2, 4, 8), 1024, nets, repeats),
    )
    section(
        "heat",
        f"Relaxed states against their heat: plate of 10 variables, 4 states, 1,024 samples, {nets} nets",
        lambda: [
            {"heat": heat, **row}
            for heat in heats
            for row in on_case(plate(10, 4), {"pathwise": partial(estimators.pathwise, heat=heat)}, 1024, nets, repeats)
        ],
    )
    section(
        "continuous",
        "Gaussian variables, Student-t readings, against integration over a grid",
        lambda: continuous((3.0,) if quick else (3.0, 30.0), (1024,) if quick else counts, 5 if quick else 50, repeats),
    )
    keep(args.json, **figures)


if __name__ == "__main__":
    main()
