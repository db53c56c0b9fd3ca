"""Pairs of training jobs on one GPU, measured by Gavel: which form of contention predicts held-out pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import sparse
from scipy.sparse.linalg import spsolve
from scipy.special import expit
from scipy.stats import spearmanr

from benchmarks.common import data, table
from symphony.lowering.training_family import training
from symphony.problem.topologies import topology
from symphony.simulator.contention import Bottleneck

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GPUS = ("v100", "p100", "k80")
PROBES = (0, 1, 2, 3)  # of a model that was held out


@dataclass(frozen=True)
class Pairs:
    """Two jobs on one GPU: N pairs of n jobs. A job is a model with a batch on one type of GPU."""

    jobs: tuple[tuple[str, str, str], ...]  # (gpu, model, batch)
    a: Ints  # [N]
    b: Ints  # [N]
    log_rate: Floats  # [N, 2]: log of the rate together over the rate alone, of a and of b
    features: Floats  # [n, 3 + f]: GPU, then features of the job that need no pair; mean 0, deviation 1

    @property
    def gpu(self) -> Ints:
        """Index into GPUS of each job [n]."""
        return np.array([GPUS.index(gpu) for gpu, _, _ in self.jobs])

    @property
    def model(self) -> NDArray[np.str_]:
        """Name of the model of each job [n]."""
        return np.array([model for _, model, _ in self.jobs])


def read_pairs(recommendation: bool = False) -> Pairs:
    """Gavel's pairs that fit together; by default without Recommendation, whose isolated rates are doubtful."""
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
    """Differences of two measurements of an isolated rate: a lower bound on the error of a model."""
    apart = [
        abs(float(row["steps_per_s_second_measurement"]) / float(row["steps_per_s"]) - 1)
        for row in table(data("gavel", "isolated_throughput.csv"))
        if row["model"] != "Recommendation"
        and float(row["steps_per_s_second_measurement"] or 0) * float(row["steps_per_s"] or 0) > 0
        and row["steps_per_s_second_measurement"] != row["steps_per_s"]
    ]
    return {"repeats": len(apart), "median": float(np.median(apart)), "p90": float(np.percentile(apart, 90))}


class Form(NamedTuple):
    """A model of the rates of a pair, with parameters of each job and common ones."""

    name: str
    starts: tuple[float, ...]  # of the numbers of a job
    common: tuple[float, ...]  # starts of the numbers for all jobs
    rate: Callable[[Floats, Floats, Floats, Ints], Floats]  # log rate of a beside b; theirs [N, P], common, gpu [N]


def _load(a: Floats, b: Floats) -> Floats:
    return expit(a) + expit(b)


def _overload(a: Floats, b: Floats, common: Floats, gpu: Ints) -> Floats:
    """Overload of rows with exponents: waits compose between the largest and their sum."""
    waits = np.log(np.maximum(_load(a, b), 1)) * np.minimum(np.exp(common[0]), MAX_EXPONENT)
    order = 1 + np.exp(common[1]) if len(common) > 1 else 1.0
    return -(((waits**order).sum(axis=1) + 1e-12) ** (1 / order))


MAX_EXPONENT = 8.0  # otherwise the fit diverges towards exp(-(a + b - 1) / small)
FORMS = (
    Form("Bottleneck, fitted demands", (1.0,), (), lambda a, b, c, gpu: -np.log(np.maximum(_load(a, b), 1))[:, 0]),
    Form("  and an exponent", (1.0,), (0.5,), _overload),
    Form("  and a second row, composed", (1.0, 0.0), (0.5, 0.0), _overload),
    Form("slices: a weight", (0.0,), (0.0,) * 3, lambda a, b, c, gpu: -np.log1p(np.exp(c[gpu] + b[:, 0] - a[:, 0]))),
    Form("slices: sensitivity, pressure", (0.0, 0.0), (), lambda a, b, c, gpu: -np.log1p(np.exp(a[:, 0] + b[:, 1]))),
    Form("log-additive", (0.0, 0.0), (), lambda a, b, c, gpu: a[:, 0] + b[:, 1]),
)


class Fit(NamedTuple):
    """The result of a fit."""

    log_rate: Floats  # [N, 2], of every pair, also of held-out ones
    jobs: Floats  # [n, P]
    common: Floats


def fit(form: Form, pairs: Pairs, weight: Floats) -> Fit:
    """Fit to the pairs with weight. Parameters of a job are linear in its features, plus a deviation of its own.

    The ridge on deviations follows from the data (their variance over that of the residuals): a job without pairs has
    the parameters that its features predict, one with few pairs is in between. Levenberg-Marquardt.
    """
    f, count, columns = pairs.features, len(form.starts), pairs.features.shape[1]
    jobs, gpu = len(pairs.jobs), pairs.gpu[pairs.a]
    sides = ((pairs.a, pairs.b), (pairs.b, pairs.a))
    # x: coefficients of the features, deviations, common parameters. The parameters of jobs are linear in x.
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
    """Log rates under `Bottleneck` with the demands of the training family, which do not depend on the batch."""
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
    """Log rates from the pairs with weight. For another pair: the mean over pairs of its first job, else of jobs beside
    its second, else of the GPU."""
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
    """All predictors, by name."""

    def fitted(form: Form) -> Predictor:
        return lambda pairs, weight: fit(form, pairs, weight).log_rate

    return {
        "no interference": lambda pairs, weight: np.zeros_like(pairs.log_rate),
        "Bottleneck, demands as they are": lambda pairs, weight: current(pairs),
        "table look-up, else means": look_up,
        **{form.name: fitted(form) for form in FORMS},
    }


def equal_rates(pairs: Pairs) -> Floats:
    """The best prediction with equal log rates for both jobs of a pair, from the true rates: the lower of the two."""
    return np.repeat(pairs.log_rate.min(axis=1), 2).reshape(-1, 2)


class Held(NamedTuple):
    """Predictions for held-out pairs."""

    fold: Ints  # [N]: which fold
    gpu: Ints  # [N]
    predicted: Floats  # [N, 2], logs
    measured: Floats

    @property
    def error(self) -> Floats:
        """The mean of the two errors of each pair [N]."""
        return np.abs(np.exp(self.predicted - self.measured) - 1).mean(axis=1)


def hold_out_pairs(pairs: Pairs, predict: Predictor, seed: int, folds: int = 5) -> Held:
    """Hold out a fifth of the pairs at a time."""
    fold = np.random.default_rng(seed).permutation(len(pairs.a)) % folds
    predicted = np.empty_like(pairs.log_rate)
    for k in range(folds):
        predicted[fold == k] = predict(pairs, (fold != k).astype(float))[fold == k]
    return Held(fold, pairs.gpu[pairs.a], predicted, pairs.log_rate)


def hold_out_models(pairs: Pairs, predict: Predictor, probes: int, seed: int) -> Held:
    """Hold out one model at a time, with all its batches and GPUs; `probes` pairs of each of its jobs are known."""
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
    """Concatenate predictions."""
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
    """The part about one type of GPU."""
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
        if not name.startswith("Bottleneck, demands")  # the others lack the model
    }
    yield "with Recommendation, 3 probes", with_all
    console.print(
        "With Recommendation, 3 probes: " + "; ".join(f"{n} {100 * s['mean']:.0f}%" for n, s in with_all.items())
    )
    yield "parameters", parameters(pairs)


def parameters(pairs: Pairs) -> dict[str, Any]:
    """Parameters fitted to all pairs: demands for `Bottleneck`, and weights and overlap of slices."""
    everything = np.ones(len(pairs.a))
    bottleneck, exponent, slices = (fit(form, pairs, everything) for form in (FORMS[0], FORMS[1], FORMS[3]))
    weights = slices.jobs[:, 0] - np.array([slices.jobs[pairs.gpu == g, 0].mean() for g in range(len(GPUS))])[pairs.gpu]
    return {
        "exponent": min(float(np.exp(exponent.common[0])), MAX_EXPONENT),
        "overlap": dict(zip(GPUS, np.round(np.exp(slices.common), 3).tolist(), strict=True)),
        "jobs": {
            " ".join(filter(None, job)): {
                "demand": round(float(expit(bottleneck.jobs[i, 0])), 3),
                "weight": round(float(np.exp(weights[i])), 3),
            }
            for i, job in enumerate(pairs.jobs)
        },
    }


def _interval(one: Mapping[str, float]) -> str:
    return f"{100 * one['mean']:.0f} [{100 * one['low']:.0f}, {100 * one['high']:.0f}]"
