"""Pairs of genomics kernels on the threads of a core (figure 2 of the supplement)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares
from scipy.special import expit

from benchmarks.contention.pairs import PROBES, Floats, Ints
from symphony.lowering import applications

# Speed together over speed alone, in %, of two kernels on the threads of a core; symmetric, read off a figure (±1):
# Banerjee et al., ICML 2020, supplement, figure 2. Two more kernels, GenomeDiff and Genotype, are at 99 with all.
CORUN = {
    "KMerSearch": (63, 72, 72, 86, 98, 98, 96, 96, 68, 80, 92),
    "LandauVishkin": (85, 88, 99, 99, 75, 99, 62, 62, 87, 80),
    "LV-CIGAR": (85, 100, 100, 100, 96, 62, 67, 89, 80),
    "FilterPairs": (86, 89, 93, 88, 83, 86, 89, 83),
    "Entropy": (86, 98, 93, 90, 99, 98, 100),
    "Gaussian": (99, 100, 64, 73, 61, 82),
    "Thresholding": (99, 96, 98, 92, 96),
    "PairHMM": (63, 93, 97, 99),
    "KMerConst": (63, 69, 87),
    "DeBruijn": (82, 74),
    "SmithWaterman": (88,),
}
FIRST, SECOND = np.triu_indices(len(CORUN))
SPEED = np.array([speed for row in CORUN.values() for speed in row]) / 100


class Rule(NamedTuple):
    """A model of two kernels on one core, with parameters of each kernel [K, R]."""

    name: str
    rows: int
    speed: Callable[[Floats], Floats]  # from the sum of both kernels' parameters [N, R]
    bounded: bool = True  # parameters are demands, in [0, 1]


RULES = (
    Rule("Bottleneck, 1 row", 1, lambda load: 1 / np.maximum(load, 1).max(axis=1)),
    Rule("Bottleneck, 2 rows", 2, lambda load: 1 / np.maximum(load, 1).max(axis=1)),
    Rule("Bottleneck, 3 rows", 3, lambda load: 1 / np.maximum(load, 1).max(axis=1)),
    Rule("Serial, 3 rows", 3, lambda load: 1 / np.maximum(load, 1).prod(axis=1)),
    Rule("log-additive", 1, lambda load: np.exp(-np.maximum(load, 0)[:, 0]), bounded=False),
)


def shipped() -> Floats:
    """The demands in the application families [K, 3]."""
    rows = [applications._KERNELS[name] for name in CORUN]
    return np.array([(row.compute, row.memory, row.cache) for row in rows])


def fit_kernels(rule: Rule, used: NDArray[np.bool_], starts: int, begin: Floats | None = None) -> Floats:
    """Parameters of each kernel [K, R] from the pairs used; the best of several starts, as there are many minima."""
    kernels = len(CORUN)

    def numbers(x: Floats) -> Floats:
        return expit(x.reshape(kernels, rule.rows)) if rule.bounded else x.reshape(kernels, rule.rows)

    def residual(x: Floats) -> Floats:
        q = numbers(x)
        errors = rule.speed(q[FIRST] + q[SECOND])[used] - SPEED[used]
        apart = x.reshape(kernels, rule.rows) - x.reshape(kernels, rule.rows).mean(axis=0)
        return np.concatenate([errors, 0.01 * apart.ravel(), 0.001 * x])

    rng = np.random.default_rng(0)
    first = [np.log(begin / (1 - begin)).ravel()] if begin is not None else []
    offset = 0.0 if rule.bounded else 0.1
    tries = first + [offset + rng.normal(0, 1.0 if rule.bounded else 0.05, kernels * rule.rows) for _ in range(starts)]
    return numbers(min((least_squares(residual, x, max_nfev=60) for x in tries), key=lambda got: float(got.cost)).x)


def probe_kernel(rule: Rule, q: Floats, kernel: int, probes: Ints) -> Floats:
    """The same parameters, but those of one kernel from a few of its pairs and the mean of the others."""
    others = np.delete(q, kernel, axis=0).mean(axis=0)
    grid = np.random.default_rng(0).uniform(0, 1 if rule.bounded else 0.5, (400, rule.rows))
    grid = np.concatenate([others[None], grid])
    partner = np.where(kernel == FIRST, SECOND, FIRST)[probes]
    misses = np.zeros(len(grid))
    for other, index in zip(partner, probes, strict=True):
        misses += (rule.speed(grid + q[other]) - SPEED[index]) ** 2
    best = grid[np.argmin(misses + 0.001 * ((grid - others) ** 2).sum(axis=1))]
    return np.concatenate([q[:kernel], best[None], q[kernel + 1 :]])


def kernels_section(console: Console, quick: bool) -> Iterator[tuple[str, Any]]:
    """Pairs of genomics kernels on one core."""
    starts, everything = (1 if quick else 8), np.ones(len(SPEED), bool)
    shown = Table(
        title="Pairs of 11 genomics kernels on one core: mean error of the speed together, %", title_justify="left"
    )
    for column in (
        "model",
        "numbers",
        "fitted to all",
        "new pairs",
        "new kernel",
        *(f"{k} probe{'s' * (k > 1)}" for k in PROBES[1:]),
    ):
        shown.add_column(column, justify="left" if column == "model" else "right")

    def error(speed: Floats, where: NDArray[np.bool_] | Ints) -> Floats:
        return np.abs(speed / SPEED - 1)[where]

    none = {"all": float(error(np.ones_like(SPEED), everything).mean())}
    yield "no interference", none
    shown.add_row("no interference", "0", f"{100 * none['all']:.1f}")
    mean = {"all": float(error(np.full_like(SPEED, SPEED.mean()), everything).mean())}
    yield "the mean of all", mean
    shown.add_row("the mean of all", "1", f"{100 * mean['all']:.1f}")
    now = RULES[2].speed(shipped()[FIRST] + shipped()[SECOND])
    asis = {"all": float(error(now, everything).mean()), "rmse": float(np.sqrt(((now - SPEED) ** 2).mean()))}
    yield "Bottleneck, demands as they are", asis
    shown.add_row("Bottleneck, demands as they are", "33", f"{100 * asis['all']:.1f}")
    for rule in RULES:
        q = fit_kernels(rule, everything, starts, np.clip(shipped(), 0.02, 0.98) if rule.rows == 3 else None)
        fitted = rule.speed(q[FIRST] + q[SECOND])
        fold = np.random.default_rng(0).permutation(len(SPEED)) % 6
        new_pairs = []
        for k in range(6):
            hidden = np.flatnonzero(fold == k)
            p = fit_kernels(rule, ~np.isin(np.arange(len(SPEED)), hidden), starts)
            new_pairs.append(error(rule.speed(p[FIRST] + p[SECOND]), hidden))
        new_kernel: dict[int, list[Floats]] = {k: [] for k in PROBES}
        for kernel in range(len(CORUN)):
            mine = np.equal(FIRST, kernel) | np.equal(SECOND, kernel)
            base = fit_kernels(rule, ~mine, starts)
            order = np.random.default_rng(kernel).permutation(np.flatnonzero(mine & (FIRST != SECOND)))
            for k in PROBES:
                p = probe_kernel(rule, base, kernel, order[:k])
                hidden = np.setdiff1d(np.flatnonzero(mine), order[:k])
                new_kernel[k].append(error(rule.speed(p[FIRST] + p[SECOND]), hidden))
        got: dict[str, Any] = {
            "all": float(error(fitted, everything).mean()),
            "rmse": float(np.sqrt(((fitted - SPEED) ** 2).mean())),
            "new_pairs": float(np.concatenate(new_pairs).mean()),
            "new_kernel": {k: float(np.concatenate(errors).mean()) for k, errors in new_kernel.items()},
            "numbers": {name: np.round(q[i], 2).tolist() for i, name in enumerate(CORUN)},
        }
        yield rule.name, got
        cells = (got["all"], got["new_pairs"], *got["new_kernel"].values())
        shown.add_row(rule.name, str(rule.rows * len(CORUN)), *(f"{100 * cell:.1f}" for cell in cells))
    console.print(shown)
