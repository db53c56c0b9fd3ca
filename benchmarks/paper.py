"""Tables and figures of the Symphony paper, reproduced: `python -m benchmarks.paper [--quick] [--json FILE]`.

    oracle    how much longer than the best possible schedule: distribution for Symphony, without and with looking
              ahead, Paragon, Graphene and Sparrow
    classes   gangs at isolated speed, slowed by up to 10%, up to 20%, and by more
    latency   time of a decision, with the filter and with full inference from counters
    batch     the effect of decisions on several kernels at a time, where their time is charged

Training curves and the black box are in `benchmarks.ablation`.

Unfair: the cluster is simulated here, workloads are drawn after the paper's description, and Paragon, Graphene and
Sparrow are our implementations. The oracle's graphs run one at a time and without contention, where optima can be
proven; the paper's oracle tried schedules of a single application. Full inference is a Markov chain (NUTS of NumPyro)
over the filter's model of loads that jump and readings with errors, eight windows back. It is too slow for service, but
has no approximation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep
from benchmarks.decisions import STEPS, cost, middle
from symphony.evaluation.compare import compare
from symphony.evaluation.metrics import LOSS_CLASSES
from symphony.evaluation.scorecard import FIRST_HELD_OUT_SEED, PROVABLE_GRAPHS
from symphony.oracle.oracle import Oracle
from symphony.oracle.provable import four_devices
from symphony.policies import named
from symphony.scheduling.one_of import OneOf
from symphony.simulator.counters import EndedWindow, Settings, read
from symphony.simulator.run import simulate
from symphony.simulator.scenario_source import scenario
from symphony.simulator.scenarios import CALM, Disturbances
from tests.compiling import compile_quickly

RIVALS = ("symphony", "paragon", "graphene", "sparrow")
BATCHES = (1, 2, 4, 8, 16, 32)
THINKING_S = (0.0, 0.001, 0.01)
WINDOWS = 8  # windows of full inference


def oracle(quick: bool) -> dict[str, Any]:
    """Makespan over the best known, for each policy [instances]."""
    names = RIVALS[:2] if quick else (*RIVALS, "look-ahead")  # each takes seconds to compile, and the last a minute
    ratios: dict[str, list[float]] = {name: [] for name in names}
    proven = 0
    policies = tuple(named(name) for name in names)
    for number in range(1 if quick else 120):
        spec = PROVABLE_GRAPHS[number % len(PROVABLE_GRAPHS)] + "?jobs=1"
        one = scenario(four_devices(bus=False), spec, FIRST_HELD_OUT_SEED + number, CALM)
        best = Oracle(time_limit_s=1 if quick else 20, starts=("eft-belief", "heft", "dmdas")).solve(one)
        proven += best.label == "optimal"
        for index, found in enumerate(ratios.values()):
            (run,) = simulate([one], OneOf(policies, jnp.asarray(index, jnp.int32)))
            found.append(max(job.finish_s for job in run.jobs) / best.value_s)
    return {"proven": proven, "ratios": ratios}


def classes(quick: bool) -> dict[str, Any]:
    """Shares of gangs in each class of loss, and p99 of slow-down, at the paper's load."""
    work = "variant-calling?jobs=4" if quick else "variant-calling?jobs=66"
    seeds = range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + (1 if quick else 20))
    names = RIVALS[:2] if quick else RIVALS
    report = compare(names, topology="paper", workload=work, seeds=seeds)
    return {
        name: {metric: report.mean(name, metric) for metric in (*LOSS_CLASSES, "p99_slowdown", "mean_slowdown")}
        for name in names
    }


def latency(quick: bool) -> dict[str, Any]:
    """Seconds of the inference of one window, and of one decision [calls]."""
    s, world = middle("paper", "variant-calling?load=1.2", 128 if quick else STEPS)
    rows = s.topology.row_kind.shape[0]
    shape = s.topology.route_row.shape
    runs = jnp.zeros(shape[0]), jnp.zeros(shape[0]), jnp.zeros(shape, bool)  # no run has ended
    past = EndedWindow(jnp.asarray(3), world.background, 0 * world.background, *runs)
    settings = Settings.of(s)
    filtered = jax.jit(read)
    chain = _chain(rows, 10 if quick else 300)
    readings = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (WINDOWS, rows)))
    keys = jax.random.split(jax.random.key(0), 2000)
    many, few = (50, 1) if quick else (1000, 30)
    calls = {"the filter": many, "full inference": few}
    does: dict[str, Callable[[int], Any]] = {
        "the filter": lambda n: filtered(world.counters, settings, past),
        "full inference": lambda n: chain(keys[n], readings),
    }
    figures: dict[str, Any] = {"a decision": cost(named("symphony"), s, world, many)}
    for name, do in does.items():
        jax.block_until_ready(do(0))
        seconds = np.zeros(calls[name])
        for n in range(len(seconds)):
            began = time.perf_counter()
            jax.block_until_ready(do(n))
            seconds[n] = time.perf_counter() - began
        figures[name] = {"p50_s": float(np.median(seconds)), "p99_s": float(np.percentile(seconds, 99))}
    return figures


def _chain(rows: int, samples: int) -> Callable[[Any, Any], Any]:
    """Mean loads by a Markov chain, over all rows and the last windows at once."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(readings: Any) -> None:
        step = numpyro.sample("step", dist.HalfNormal(0.2).expand([rows]).to_event(1))
        error = numpyro.sample("error", dist.HalfNormal(0.4).expand([rows]).to_event(1))
        first = numpyro.sample("first", dist.HalfNormal(1.0).expand([rows]).to_event(1))
        moves = numpyro.sample("moves", dist.StudentT(3.0).expand([WINDOWS - 1, rows]).to_event(2))
        loads = jnp.concatenate([first[None], first + jnp.cumsum(step * moves, axis=0)])
        numpyro.sample("read", dist.StudentT(4.0, loads, error + 0.01).to_event(2), obs=readings)
        numpyro.deterministic("last", loads[-1])

    mcmc = MCMC(NUTS(model, max_tree_depth=6), num_warmup=samples, num_samples=samples, progress_bar=False)

    def run(key: Any, readings: Any) -> Any:
        mcmc.run(key, readings)
        return mcmc.get_samples()["last"].mean(axis=0)

    return run


def batch(quick: bool) -> dict[str, Any]:
    """Mean completion time in seconds, by the time of a decision and the size of a batch."""
    sizes, thoughts = (BATCHES[:2], THINKING_S[1:2]) if quick else (BATCHES, THINKING_S)
    work = f"intrusion?jobs={4 if quick else 200}"
    figures = {}
    for thinking in thoughts:
        report = compare(
            [f"symphony:{size}" for size in sizes],
            topology="paper",
            workload=work,
            seeds=range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + (1 if quick else 20)),
            disturbances=Disturbances(latency_s=thinking),
        )
        figures[f"{thinking:g}"] = {
            size: report.values(f"symphony:{size}", "mean_completion_s").tolist() for size in sizes
        }
    return figures


SECTIONS = {"oracle": oracle, "classes": classes, "latency": latency, "batch": batch}


def show(name: str, got: dict[str, Any]) -> Table:
    """The table of a section."""
    if name == "oracle":
        table = Table("policy", "median", "p90", "p99", title=f"makespan over the best, {got['proven']} proven")
        for policy, ratios in got["ratios"].items():
            table.add_row(policy, *(f"{np.quantile(ratios, q):.3f}" for q in (0.5, 0.9, 0.99)))
    elif name == "classes":
        table = Table("policy", *LOSS_CLASSES, "p99 slow-down", title="gangs by loss, variant calling on `paper`")
        for policy, row in got.items():
            table.add_row(policy, *(f"{row[metric]:.1%}" for metric in LOSS_CLASSES), f"{row['p99_slowdown']:.2f}")
    elif name == "latency":
        table = Table("what", "p50", "p99", title="milliseconds, one call")
        for what, row in got.items():
            table.add_row(what, f"{1e3 * row['p50_s']:.2f}", f"{1e3 * row['p99_s']:.2f}")
    else:
        sizes = list(next(iter(got.values())))
        table = Table(
            "a thought takes", *(f"batch {size}" for size in sizes), title="mean completion time over batch 1"
        )
        for thinking, row in got.items():
            one = np.mean(row[sizes[0]])
            table.add_row(f"{float(thinking) * 1e3:g} ms", *(f"{np.mean(row[size]) / one:.3f}" for size in sizes))
    return table


def draw(figures: dict[str, Any], folder: Path) -> None:
    """The paper's two figures with curves: distances to the oracle, and batches."""
    from symphony.evaluation.plots import blank  # imported here: measuring does not need Matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    if "oracle" in figures:
        drawn, axes = blank(6.0, 4.0)
        for name, ratios in figures["oracle"]["ratios"].items():
            axes.step(np.sort(ratios), np.arange(1, len(ratios) + 1) / len(ratios), where="post", label=name)
        axes.set_xlabel("makespan over the best")
        axes.set_ylabel("share of graphs")
        axes.legend(frameon=False)
        drawn.savefig(folder / "oracle.png", dpi=150)
    if "batch" in figures:
        drawn, axes = blank(6.0, 4.0)
        for thinking, row in figures["batch"].items():
            sizes = [int(size) for size in row]
            means = np.array([np.mean(values) for values in row.values()])
            axes.plot(
                sizes, means / means[0], marker="o", markersize=3, label=f"{float(thinking) * 1e3:g} ms a thought"
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("kernels placed in one look, at most")
        axes.set_ylabel("mean completion time")
        axes.legend(frameon=False)
        drawn.savefig(folder / "batch.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="run only these sections")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the curves")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures")
    given = parser.parse_args()
    if given.quick:
        compile_quickly()  # most of the time is compilation
    figures: dict[str, Any] = {}
    console = Console()
    for name in given.only:
        figures[name] = SECTIONS[name](given.quick)
        console.print(show(name, figures[name]))
        keep(given.json, figures=figures)
    if given.plots is not None:
        draw(figures, given.plots)


if __name__ == "__main__":
    main()
