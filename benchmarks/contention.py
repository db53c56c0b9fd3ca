"""How well contention is modelled: `python -m benchmarks.contention [--quick] [--json FILE]`.

Three sets of measurements that nobody here made: pairs of training jobs on one GPU (Gavel), pairs of genomics kernels
on the threads of a core (Symphony's supplement, figure 2), and training steps by placement (Pollux). A model is judged
on what it was not fitted to: whole job families, kernels or models are held out, and may be probed a few times.

Unfair to the table look-up: asked of a pair that it does not hold, it must fall back on means. Unfair to the models:
co-run rates on V100 are cut at the isolated rate in the published table, and every isolated rate has an error of its
own (see the noise line). Errors are of relative speed, |predicted / measured - 1|.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import sparse
from scipy.optimize import least_squares
from scipy.sparse.linalg import spsolve
from scipy.stats import spearmanr

from benchmarks.common import arguments, keep
from symphony.lowering import applications
from symphony.lowering.training_jobs import training
from symphony.problem.errors import DataError
from symphony.problem.topologies import topology
from symphony.simulator.contention import Bottleneck

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GPUS = ("v100", "p100", "k80")
PROBES = (0, 1, 2, 3)


def data(*parts: str) -> Path:
    """A file of the shared data."""
    root = Path(os.environ.get("SYMPHONY_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = root.joinpath(*parts)
    if not path.exists():
        raise DataError(f"{path} is missing", hint="set SYMPHONY_DATA to the folder that holds it")
    return path


def table(path: Path) -> list[dict[str, str]]:
    """The records of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------------------------------- pairs of training jobs


@dataclass(frozen=True)
class Pairs:
    """Two jobs on one GPU: N pairs of n jobs, a job being a model with its batch on one type of GPU."""

    jobs: tuple[tuple[str, str, str], ...]  # (gpu, model, batch)
    a: Ints  # [N]
    b: Ints  # [N]
    log_rate: Floats  # [N, 2]: log of the rate together over the rate alone, of a and of b
    features: Floats  # [n, 3 + f]: which GPU, then what is known of a job without a pair; mean 0, deviation 1

    @property
    def gpu(self) -> Ints:
        """Index into GPUS of each job [n]."""
        return np.array([GPUS.index(gpu) for gpu, _, _ in self.jobs])

    @property
    def model(self) -> NDArray[np.str_]:
        """Name of the model of each job [n]."""
        return np.array([model for _, model, _ in self.jobs])


def read_pairs(recommendation: bool = False) -> Pairs:
    """Gavel's pairs that fit together. Those of Recommendation, whose isolated rates are doubtful, if asked for."""
    alone = {
        (row["gpu"], row["model"], row["batch_size"]): float(row["steps_per_s"])
        for row in table(data("gavel", "isolated_throughput.csv"))
        if row["num_gpus"] == "1" and row["placement"] == "consolidated"
    }
    rows = [
        row
        for row in table(data("gavel", "colocated_pairs.csv"))
        if row["fits_together"] == "1" and (recommendation or "Recommendation" not in (row["model_a"], row["model_b"]))
    ]
    sides = {side: [(row["gpu"], row[f"model_{side}"], row[f"batch_{side}"]) for row in rows] for side in "ab"}
    jobs = tuple(sorted({*sides["a"], *sides["b"]}))
    # The table lists each pair once. If it did not, a pair would count as two observations.
    assert len({(*sorted(pair),) for pair in zip(sides["a"], sides["b"], strict=True)}) == len(rows)
    index = {job: i for i, job in enumerate(jobs)}
    rates = [[float(row[f"steps_per_s_{side}"]) / float(row[f"isolated_{side}"]) for side in "ab"] for row in rows]
    seconds = -np.log([alone[job] for job in jobs])
    gpu = np.eye(len(GPUS))[[GPUS.index(job[0]) for job in jobs]]
    scaled = (seconds - seconds.mean()) / seconds.std()
    return Pairs(
        jobs,
        np.array([index[job] for job in sides["a"]]),
        np.array([index[job] for job in sides["b"]]),
        np.log(rates),
        np.column_stack([gpu, scaled]),
    )


def repeats() -> dict[str, float]:
    """How far two measurements of one isolated rate are apart: no model can be expected to be nearer."""
    apart = [
        abs(float(row["steps_per_s_second_measurement"]) / float(row["steps_per_s"]) - 1)
        for row in table(data("gavel", "isolated_throughput.csv"))
        if row["model"] != "Recommendation"
        and float(row["steps_per_s_second_measurement"] or 0) * float(row["steps_per_s"] or 0) > 0
        and row["steps_per_s_second_measurement"] != row["steps_per_s"]
    ]
    return {"repeats": len(apart), "median": float(np.median(apart)), "p90": float(np.percentile(apart, 90))}


class Form(NamedTuple):
    """A model of what a pair does, with numbers for each job and a few for all."""

    name: str
    starts: tuple[float, ...]  # of the numbers of a job
    common: tuple[float, ...]  # starts of the numbers for all jobs
    rate: Callable[[Floats, Floats, Floats, Ints], Floats]  # log rate of a beside b; theirs [N, P], common, gpu [N]


def _load(a: Floats, b: Floats) -> Floats:
    return _sigmoid(a) + _sigmoid(b)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _overload(a: Floats, b: Floats, common: Floats, gpu: Ints) -> Floats:
    """Of rows with exponents: waits for rows compose between the largest and their sum."""
    waits = np.log(np.maximum(_load(a, b), 1)) * np.minimum(np.exp(common[0]), MAX_EXPONENT)
    order = 1 + np.exp(common[1]) if len(common) > 1 else 1.0
    return -(((waits**order).sum(axis=1) + 1e-12) ** (1 / order))


MAX_EXPONENT = 8.0  # the fit would go on for ever, towards exp(-(a + b - 1) / small)
FORMS = (
    Form("Bottleneck, fitted demands", (1.0,), (), lambda a, b, c, gpu: -np.log(np.maximum(_load(a, b), 1))[:, 0]),
    Form("  and an exponent", (1.0,), (0.5,), _overload),
    Form("  and a second row, composed", (1.0, 0.0), (0.5, 0.0), _overload),
    Form("slices: a weight", (0.0,), (0.0,) * 3, lambda a, b, c, gpu: -np.log1p(np.exp(c[gpu] + b[:, 0] - a[:, 0]))),
    Form("slices: sensitivity, pressure", (0.0, 0.0), (), lambda a, b, c, gpu: -np.log1p(np.exp(a[:, 0] + b[:, 1]))),
    Form("log-additive", (0.0, 0.0), (), lambda a, b, c, gpu: a[:, 0] + b[:, 1]),
)


class Fit(NamedTuple):
    """What a fit found."""

    log_rate: Floats  # [N, 2], of every pair, fitted to or not
    jobs: Floats  # [n, P]
    common: Floats


def fit(form: Form, pairs: Pairs, weight: Floats) -> Fit:
    """Fit to the pairs with weight: numbers of a job are a line in its features plus a deviation of its own.

    How far deviations are held near zero follows from the data (their variance against that of the residuals), so that
    a job without pairs gets what its features say, and one with few something between. Levenberg-Marquardt.
    """
    f, count, columns = pairs.features, len(form.starts), pairs.features.shape[1]
    jobs, gpu = len(pairs.jobs), pairs.gpu[pairs.a]
    sides = ((pairs.a, pairs.b), (pairs.b, pairs.a))
    # What is searched for, x: the lines, the deviations, the common numbers. The numbers of the jobs are linear in it.
    spread = sparse.hstack([np.kron(f, np.eye(count)), sparse.eye(jobs * count)])
    spread = sparse.block_diag([spread, sparse.eye(len(form.common))], format="csr")
    lines = np.zeros((columns, count))
    lines[: len(GPUS)] = form.starts
    x = np.concatenate([lines.ravel(), np.zeros(jobs * count), form.common])
    deviations = slice(columns * count, (columns + jobs) * count)
    seen = np.unique(np.concatenate([pairs.a[weight > 0], pairs.b[weight > 0]]))

    def parts(x: Floats) -> tuple[Floats, Floats]:
        numbers = spread @ x
        return numbers[: jobs * count].reshape(jobs, count), numbers[jobs * count :]

    def predict(theta: Floats, common: Floats) -> Floats:
        return np.stack([form.rate(theta[own], theta[other], common, gpu) for own, other in sides], axis=1)

    def slopes(x: Floats) -> sparse.csr_matrix:
        (theta, common), step = parts(x), 1e-6
        entries: list[tuple[Floats, Ints, Ints]] = []  # value, row, column
        for side, (own, other) in enumerate(sides):
            row, a, b = 2 * np.arange(len(gpu)) + side, theta[own], theta[other]
            for p, unit in enumerate(step * np.eye(count)):
                by_own = form.rate(a + unit, b, common, gpu) - form.rate(a - unit, b, common, gpu)
                by_other = form.rate(a, b + unit, common, gpu) - form.rate(a, b - unit, common, gpu)
                entries += [(by_own, row, own * count + p), (by_other, row, other * count + p)]
            for p, unit in enumerate(step * np.eye(len(common))):
                by_common = form.rate(a, b, common + unit, gpu) - form.rate(a, b, common - unit, gpu)
                entries.append((by_common, row, np.full(len(gpu), jobs * count + p)))
        value, row, column = (np.concatenate(each) for each in zip(*entries, strict=True))
        return sparse.csr_matrix((value / (2 * step), (row, column)), shape=(2 * len(gpu), spread.shape[0])) @ spread

    def cost(x: Floats, hold: Floats) -> float:
        return float((weight[:, None] * (predict(*parts(x)) - pairs.log_rate) ** 2).sum() + (hold * x**2).sum())

    tight, damping = 0.1, 1e-3
    for _ in range(3):
        of_line = np.repeat(np.where(np.arange(columns) < len(GPUS), 0.0, 0.01 * tight), count)
        hold = np.concatenate([of_line, np.full(jobs * count, tight), np.full(len(form.common), 1e-3)])
        now = cost(x, hold)
        for _ in range(8):
            j, each = slopes(x), np.repeat(weight, 2)
            residual = (predict(*parts(x)) - pairs.log_rate).ravel()
            square = (j.T @ j.multiply(each[:, None])).tocsc()
            gradient = j.T @ (each * residual) + hold * x
            for _ in range(6):
                wanted = square + sparse.diags(hold + 1e-9 + damping * (square.diagonal() + 1e-6), format="csc")
                step = x - spsolve(wanted, gradient)
                then = cost(step, hold)
                if then <= now:
                    break
                damping *= 10
            else:
                break
            settled = now - then < 1e-6 * now
            x, now, damping = step, then, max(damping / 10, 1e-9)
            if settled:
                break
        errors = np.average((predict(*parts(x)) - pairs.log_rate) ** 2, axis=0, weights=weight).mean()
        deviation = (x[deviations].reshape(jobs, count)[seen] ** 2).mean()
        tight = float(np.clip(errors / max(deviation, 1e-4), 1e-3, 100.0))
    return Fit(predict(*parts(x)), *parts(x))


_OWN_ROWS = ("compute", "device_memory")  # rows of a GPU itself; its link is far from full with these models


def current(pairs: Pairs) -> Floats:
    """Log rates under `Bottleneck` with the demands that the family of training jobs has, whatever the batch."""
    cluster = topology("gpu24")
    kernels, _ = training(np.random.default_rng(0), cluster, graphs=256, workers=1, minutes=1.0, spread=1.0)
    named = {"LM" if kernel.name == "LanguageModel" else kernel.name: kernel for kernel in kernels}
    row_of = {resource.name: resource for resource in cluster.resources}
    routes = {device.kind: [row_of[hop.resource] for hop in device.route] for device in cluster.devices}
    own = {(gpu, row.kind): row.capacity for gpu in GPUS for row in routes[gpu] if row.kind in _OWN_ROWS}
    demand = np.array(
        [
            [named[model].implementations[gpu].demand[row] / own[gpu, row] for row in _OWN_ROWS]
            for gpu, model, _ in pairs.jobs
        ]
    )
    shares = Bottleneck().share(demand[pairs.a] + demand[pairs.b])
    return np.repeat(np.log(np.asarray(Bottleneck().compose(shares, shares > 0)))[:, None], 2, axis=1)


def look_up(pairs: Pairs, weight: Floats) -> Floats:
    """Log rates from the pairs with weight: of another pair, the mean of what is known of its first job; else of what
    others did beside its second; else of the GPU."""
    known = weight > 0
    own = np.concatenate([pairs.a[known], pairs.b[known]])
    other = np.concatenate([pairs.b[known], pairs.a[known]])
    value = pairs.log_rate[known].T.ravel()

    def means(group: Ints) -> Floats:
        count = np.bincount(group, minlength=len(pairs.jobs))
        return np.where(count > 0, np.bincount(group, value, len(pairs.jobs)) / np.maximum(count, 1), np.nan)

    by_own, by_other, by_gpu = means(own), means(other), means(pairs.gpu[own])[pairs.gpu]

    def rate(a: Ints, b: Ints) -> Floats:
        guess = np.where(np.isnan(by_own[a]), by_other[b], by_own[a])
        return np.where(np.isnan(guess), by_gpu[a], guess)

    means_of = np.stack([rate(pairs.a, pairs.b), rate(pairs.b, pairs.a)], axis=1)
    return np.where(known[:, None], pairs.log_rate, means_of)


Predictor = Callable[[Pairs, Floats], Floats]  # (pairs, weight of those that may be used) -> log rates of all


def predictors() -> dict[str, Predictor]:
    """All that are compared, by name."""

    def fitted(form: Form) -> Predictor:
        return lambda pairs, weight: fit(form, pairs, weight).log_rate

    return {
        "no interference": lambda pairs, weight: np.zeros_like(pairs.log_rate),
        "Bottleneck, demands as they are": lambda pairs, weight: current(pairs),
        "table look-up, else means": look_up,
        **{form.name: fitted(form) for form in FORMS},
    }


def equal_rates(pairs: Pairs) -> Floats:
    """The best log rates that are the same for both jobs of a pair, knowing the answer: the lower of the two."""
    return np.repeat(pairs.log_rate.min(axis=1), 2).reshape(-1, 2)


class Held(NamedTuple):
    """What was predicted of pairs that a fit had not seen."""

    fold: Ints  # [N]: which fold
    gpu: Ints  # [N]
    predicted: Floats  # [N, 2], logs
    measured: Floats

    @property
    def error(self) -> Floats:
        """Of each pair: the mean of its two errors [N]."""
        return np.abs(np.exp(self.predicted - self.measured) - 1).mean(axis=1)


def hold_out_pairs(pairs: Pairs, predict: Predictor, seed: int, folds: int = 5) -> Held:
    """A fifth of the pairs at a time."""
    fold = np.random.default_rng(seed).permutation(len(pairs.a)) % folds
    predicted = np.empty_like(pairs.log_rate)
    for k in range(folds):
        predicted[fold == k] = predict(pairs, (fold != k).astype(float))[fold == k]
    return Held(fold, pairs.gpu[pairs.a], predicted, pairs.log_rate)


def hold_out_models(pairs: Pairs, predict: Predictor, probes: int, seed: int) -> Held:
    """A whole model at a time, with all its batches on all GPUs; each of its jobs meets `probes` known partners."""
    parts = []
    for k, model in enumerate(np.unique(pairs.model)):
        of_a, of_b = pairs.model[pairs.a] == model, pairs.model[pairs.b] == model
        weight = np.where(of_a | of_b, 0.0, 1.0)
        rng = np.random.default_rng([seed, k])
        for job in np.flatnonzero(pairs.model == model):
            partners = np.flatnonzero((of_a != of_b) & ((pairs.a == job) | (pairs.b == job)))
            weight[rng.permutation(partners)[:probes]] = 1.0
        hidden = weight == 0
        predicted = predict(pairs, weight)[hidden]
        gpu = pairs.gpu[pairs.a][hidden]
        parts.append(Held(np.full(hidden.sum(), k), gpu, predicted, pairs.log_rate[hidden]))
    return join(parts)


def join(parts: Sequence[Held]) -> Held:
    """Several as one."""
    return Held(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def score(held: Held, seed: int = 0) -> dict[str, float]:
    """Mean error with a 95% interval from drawing folds (models) anew; median and 90th percentile; rank correlation."""
    error, rng = held.error, np.random.default_rng(seed)
    folds = np.unique(held.fold)
    sums, counts = (np.array([by(error[held.fold == k]) for k in folds]) for by in (np.sum, np.size))
    drawn = rng.integers(len(folds), size=(2000, len(folds)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    each = np.abs(np.exp(held.predicted - held.measured) - 1)
    constant = np.ptp(held.predicted) == 0
    return {
        "predictions": len(error),
        "mean": float(error.mean()),
        "low": float(low),
        "high": float(high),
        "median": float(np.median(each)),
        "p90": float(np.percentile(each, 90)),
        "rank": 0.0 if constant else float(spearmanr(held.predicted.ravel(), held.measured.ravel()).statistic),
    }


def of_gpu(held: Held, gpu: int) -> Held:
    """What concerns one type of GPU."""
    return Held(*(column[held.gpu == gpu] for column in held))


def pairs_section(console: Console, quick: bool) -> Iterator[tuple[str, Any]]:
    """Pairs of training jobs on one GPU."""
    pairs, noise = read_pairs(), repeats()
    yield "noise", noise
    draws = 1 if quick else 5
    main = Table(
        title="Pairs of training jobs on one GPU (Gavel): mean error of the speed together, %", title_justify="left"
    )
    for column in ("model", "new pairs", "new model", *(f"{k} probe{'s' * (k > 1)}" for k in PROBES[1:])):
        main.add_column(column, justify="left" if column == "model" else "right")
    detail = Table(title="The same by GPU: new model, 3 probes", title_justify="left")
    for column in ("model", "GPU", "mean, % [95%]", "median", "p90", "rank corr."):
        detail.add_column(column, justify="left" if column in ("model", "GPU") else "right")
    for name, predict in predictors().items():
        new_pairs = hold_out_pairs(pairs, predict, 0)
        new_models = {k: join([hold_out_models(pairs, predict, k, seed) for seed in range(draws)]) for k in PROBES}
        got: dict[str, Any] = {
            "new_pairs": score(new_pairs),
            "new_model": {k: score(held) for k, held in new_models.items()},
            "by_gpu": {gpu: score(of_gpu(new_models[3], g)) for g, gpu in enumerate(GPUS)},
        }
        yield name.strip(), got
        main.add_row(name, f"{100 * got['new_pairs']['mean']:.0f}", *(_interval(got["new_model"][k]) for k in PROBES))
        for gpu in GPUS:
            one = got["by_gpu"][gpu]
            detail.add_row(name if gpu == GPUS[0] else "", gpu, _interval(one), f"{100 * one['median']:.0f}",
                           f"{100 * one['p90']:.0f}", f"{one['rank']:.2f}")  # fmt: skip
    floor = Held(pairs.a, pairs.gpu[pairs.a], equal_rates(pairs), pairs.log_rate)
    best = {gpu: score(of_gpu(floor, g)) for g, gpu in enumerate(GPUS)}
    yield "equal rates, knowing the answer", best
    main.add_section()
    main.add_row("equal rates, knowing the answer", f"{100 * score(floor)['mean']:.0f}", *(4 * ["the same"]))
    main.add_row("noise: repeats of a rate alone", f"{100 * noise['median']:.0f}", *(4 * ["median"]))
    console.print(main, detail)
    for gpu in GPUS:
        console.print(f"  equal rates, knowing the answer, {gpu}: {100 * best[gpu]['mean']:.0f}%")
    every = read_pairs(recommendation=True)
    with_all = {
        name.strip(): score(hold_out_models(every, predict, 3, 0))
        for name, predict in predictors().items()
        if not name.startswith("Bottleneck, demands")  # they have no such model
    }
    yield "with Recommendation, 3 probes", with_all
    console.print(
        "With Recommendation, 3 probes: " + "; ".join(f"{n} {100 * s['mean']:.0f}%" for n, s in with_all.items())
    )
    yield "parameters", parameters(pairs)


def parameters(pairs: Pairs) -> dict[str, Any]:
    """What fits to all pairs give: the demands for `Bottleneck`, and the weights and overlap of slices."""
    everything = np.ones(len(pairs.a))
    bottleneck, exponent, slices = (fit(form, pairs, everything) for form in (FORMS[0], FORMS[1], FORMS[3]))
    weights = slices.jobs[:, 0] - np.array([slices.jobs[pairs.gpu == g, 0].mean() for g in range(len(GPUS))])[pairs.gpu]
    return {
        "exponent": min(float(np.exp(exponent.common[0])), MAX_EXPONENT),
        "overlap": dict(zip(GPUS, np.round(np.exp(slices.common), 3).tolist(), strict=True)),
        "jobs": {
            " ".join(filter(None, job)): {
                "demand": round(float(_sigmoid(bottleneck.jobs[i, 0])), 3),
                "weight": round(float(np.exp(weights[i])), 3),
            }
            for i, job in enumerate(pairs.jobs)
        },
    }


def _interval(one: Mapping[str, float]) -> str:
    return f"{100 * one['mean']:.0f} [{100 * one['low']:.0f}, {100 * one['high']:.0f}]"


# ---------------------------------------------------------------------------------------- pairs of genomics kernels

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
    """A model of two kernels on one core, with numbers for each kernel [K, R]."""

    name: str
    rows: int
    speed: Callable[[Floats], Floats]  # from the numbers of both, added up [N, R]
    bounded: bool = True  # the numbers are demands, in [0, 1]


RULES = (
    Rule("Bottleneck, 1 row", 1, lambda load: 1 / np.maximum(load, 1).max(axis=1)),
    Rule("Bottleneck, 2 rows", 2, lambda load: 1 / np.maximum(load, 1).max(axis=1)),
    Rule("Bottleneck, 3 rows", 3, lambda load: 1 / np.maximum(load, 1).max(axis=1)),
    Rule("Serial, 3 rows", 3, lambda load: 1 / np.maximum(load, 1).prod(axis=1)),
    Rule("log-additive", 1, lambda load: np.exp(-np.maximum(load, 0)[:, 0]), bounded=False),
)


def shipped() -> Floats:
    """The demands that the application families have [K, 3]."""
    rows = [applications._KERNELS[name] for name in CORUN]
    return np.array([(row.compute, row.memory, row.cache) for row in rows])


def fit_kernels(rule: Rule, used: NDArray[np.bool_], starts: int, begin: Floats | None = None) -> Floats:
    """Numbers of each kernel [K, R] from the pairs used; the best of several starts, as there are many minima."""
    kernels = len(CORUN)

    def numbers(x: Floats) -> Floats:
        return _sigmoid(x.reshape(kernels, rule.rows)) if rule.bounded else x.reshape(kernels, rule.rows)

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
    """The same numbers, but those of one kernel from a few of its pairs and the mean of the others."""
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


# ---------------------------------------------------------------------------------------- exchange between workers


class Steps(NamedTuple):
    """Training steps of several workers, by placement."""

    model: NDArray[np.str_]  # [N]
    batch: Ints
    placement: NDArray[np.str_]
    workers: Floats
    machines: Floats
    crowd: Floats  # most workers on one machine
    alone: Floats  # seconds of a step on one GPU with the same batch, without exchange
    step: Floats  # seconds of a step as measured


def read_steps() -> Steps:
    """Pollux's steps of more than one worker, with batches that were measured on one GPU too, or lie between such."""
    rows = table(data("pollux", "placements.csv"))
    alone: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["gpus"] == "1":
            seconds = float(row["step_time_s"]) - float(row["sync_time_s"])
            alone.setdefault(row["model"], []).append((int(row["local_batch"]), seconds))
    batches = {model: np.array(sorted(known)) for model, known in alone.items()}
    kept = []
    for row in rows:
        known, batch, per = batches[row["model"]], int(row["local_batch"]), [int(digit) for digit in row["placement"]]
        if sum(per) > 1 and known[0, 0] <= batch <= known[-1, 0]:
            own = float(np.interp(batch, known[:, 0], known[:, 1]))
            kept.append(
                (row["model"], batch, row["placement"], sum(per), len(per), max(per), own, float(row["step_time_s"]))
            )
    columns = [np.array(column) for column in zip(*kept, strict=True)]
    return Steps(*columns[:3], *(column.astype(float) for column in columns[3:]))


GRADIENT = {"bert": 440e6, "cifar10": 45e6, "imagenet": 102e6, "yolov3": 248e6}  # bytes; the others' are not published
_VOLUME = 1.5  # of the gradient, as the training family has it


class Exchange(NamedTuple):
    """A model of the seconds of a step."""

    name: str
    common: tuple[float, ...]
    step: Callable[[Steps, Floats, Floats], Floats]  # steps, seconds of exchange where nothing is shared [N], common


def _simulated(s: Steps, exchange: Floats, common: Floats) -> Floats:
    """docs/concepts/simulation.md: each worker loads its machine's link by exchange / (alone + exchange)."""
    load = np.where(s.machines > 1, s.crowd, 1) * exchange / (s.alone + exchange)
    return s.alone + exchange * np.maximum(load, 1)


def _late(s: Steps, exchange: Floats, common: Floats) -> Floats:
    """And a latency of the span for each further worker."""
    return _simulated(s, exchange, common) + np.exp(common)[(s.machines > 1).astype(int)] * (s.workers - 1)


def _overlapped(s: Steps, exchange: Floats, common: Floats) -> Floats:
    crowded = exchange * np.where(s.machines > 1, s.crowd ** common[0], 1)
    order = 1 + np.exp(min(common[1], 3.0))
    return (s.alone**order + crowded**order) ** (1 / order)


EXCHANGES = (
    Exchange("no exchange", (), lambda s, exchange, common: s.alone),
    Exchange("bytes / bandwidth of the span", (), lambda s, exchange, common: s.alone + exchange),
    Exchange("  and links are shared: the simulator's", (), _simulated),
    Exchange("  and a latency for each worker", (-7.0, -7.0), _late),
    Exchange("  or it overlaps with compute", (0.3, 0.0), _overlapped),
)


def fit_exchange(form: Exchange, s: Steps, used: NDArray[np.bool_], sizes: bool) -> tuple[Floats, dict[str, Any]]:
    """Seconds of each step, and what was found: seconds of exchange per model and span, or (`sizes`) two bandwidths."""
    models = np.unique(s.model)
    index, far = np.searchsorted(models, s.model), (s.machines > 1).astype(int)
    size = np.array([_VOLUME * GRADIENT.get(model, np.nan) for model in models])

    def seconds(x: Floats) -> Floats:
        exchange = (
            size[index] / np.exp(x[:2])[far] if sizes else np.exp(x[: 2 * len(models)]).reshape(-1, 2)[index, far]
        )
        return form.step(s, exchange, x[len(x) - len(form.common) :])

    start = np.log([5e9, 1e9]) if sizes else np.log(np.tile([0.05, 0.2], len(models)))
    start = np.concatenate([start, form.common])

    def residual(x: Floats) -> Floats:
        return np.concatenate([np.log(seconds(x)[used] / s.step[used]), 1e-3 * (x - start)])

    got = least_squares(residual, start, loss="soft_l1", f_scale=0.1).x
    head = np.exp(got[: len(got) - len(form.common)])
    found = {"common": got[len(head) :].tolist()}
    if sizes:
        return seconds(got), found | {"bandwidth_near": head[0], "bandwidth_far": head[1]}
    return seconds(got), found | {model: head.reshape(-1, 2)[i].tolist() for i, model in enumerate(models)}


def exchange_section(console: Console, quick: bool) -> Iterator[tuple[str, Any]]:
    """Steps of several workers, by placement."""
    s = read_steps()
    shown = Table(
        title="Training steps by placement (Pollux): mean error of a step's time, % (median, p90)", title_justify="left"
    )
    for column in (
        "model",
        "fitted to all",
        "one machine",
        "several",
        "new, a probe a span",
        "new, its bytes",
    ):
        shown.add_column(column, justify="left" if column == "model" else "right")
    sized = np.isin(s.model, list(GRADIENT))
    of_size = Steps._make(column[sized] for column in s)
    for form in EXCHANGES:
        predicted, found = fit_exchange(form, s, np.ones(len(s.step), bool), False)
        error = np.abs(predicted / s.step - 1)
        probed, unseen = [], []
        for model in np.unique(s.model):
            mine = s.model == model
            probes = np.zeros_like(mine)
            for span in (s.machines == 1, s.machines == 2):
                here = np.flatnonzero(mine & span & (s.workers == np.where(s.machines == 1, 3, 2)))
                # Exchange shows most where there is least to compute.
                probes[here[np.argmin(s.batch[here])]] = True
            predicted, _ = fit_exchange(form, s, ~mine | probes, False)
            probed.append(np.abs(predicted / s.step - 1)[mine & ~probes])
            if model in GRADIENT:
                mine = of_size.model == model
                predicted, _ = fit_exchange(form, of_size, ~mine, True)
                unseen.append(np.abs(predicted / of_size.step - 1)[mine])
        columns = {
            "all": error, "one_machine": error[s.machines == 1], "several": error[s.machines > 1],
            "probed": np.concatenate(probed), "bytes": np.concatenate(unseen),
        }  # fmt: skip
        got: dict[str, Any] = {
            name: {"steps": len(e), "mean": e.mean(), "median": np.median(e), "p90": np.percentile(e, 90)}
            for name, e in columns.items()
        }
        if form.name != "no exchange":
            _, two = fit_exchange(form, of_size, np.ones(sized.sum(), bool), True)
            got |= {"found": found, "found_with_bytes": two}
        yield form.name.strip(), got
        cells = (got[name] for name in columns)
        shown.add_row(
            form.name, *(f"{100 * e['mean']:.0f} ({100 * e['median']:.0f}, {100 * e['p90']:.0f})" for e in cells)
        )
    console.print(shown)


def _rounded(got: Any) -> Any:
    if isinstance(got, Mapping):
        return {str(name): _rounded(one) for name, one in got.items()}
    if isinstance(got, list):
        return [_rounded(one) for one in got]
    return float(f"{got:.4g}") if isinstance(got, float) else got


def main() -> None:
    """Fit, print, keep."""
    sections = {"pairs": pairs_section, "kernels": kernels_section, "exchange": exchange_section}
    args = arguments("How well contention is modelled.", tuple(sections))
    console = Console(width=120)
    figures: dict[str, dict[str, Any]] = {}
    for section in args.only:
        # Kept after every figure, so that a run that is cut short loses nothing.
        for name, got in sections[section](console, args.quick):
            figures.setdefault(section, {})[name] = _rounded(got)
            keep(args.json, **figures)


if __name__ == "__main__":
    main()
