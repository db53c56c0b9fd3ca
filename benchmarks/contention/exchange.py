"""Training steps by placement, measured by Pollux: the time of the exchange between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

from benchmarks.common import data, table
from benchmarks.contention.pairs import Floats, Ints


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
    """Pollux's steps of several workers, with batches within the range that was measured on one GPU."""
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


GRADIENT = {
    "bert": 440e6,
    "cifar10": 45e6,
    "imagenet": 102e6,
    "yolov3": 248e6,
}  # bytes; others are not published
_VOLUME = 1.5  # of the gradient, as in the training family


class Exchange(NamedTuple):
    """A model of the seconds of a step."""

    name: str
    common: tuple[float, ...]
    step: Callable[[Steps, Floats, Floats], Floats]  # steps, seconds of exchange where nothing is shared [N], common


def _simulated(s: Steps, exchange: Floats, common: Floats) -> Floats:
    """As in docs/concepts/simulation.md: a worker loads its machine's link by exchange / (alone + exchange)."""
    load = np.where(s.machines > 1, s.crowd, 1) * exchange / (s.alone + exchange)
    return s.alone + exchange * np.maximum(load, 1)


def _late(s: Steps, exchange: Floats, common: Floats) -> Floats:
    """The same, with a latency of the span for each further worker."""
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
    """Seconds of each step, and the fitted values: exchange per model and span, or two bandwidths (`sizes`)."""
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
                # The exchange is the largest share of steps with little computation.
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
