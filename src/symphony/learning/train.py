"""Training, from top to bottom: draw scenarios, run each several times, learn from what differed, look how good it is.

policy, history = sy.train(topology="paper", workload=["layered", "eeg"], rounds=100)

A round runs `scenarios` drawn ones `group` times each, all side by side in one compiled program, and changes the
weights by what it saw in a second. Everything that is random follows from the seed and the number of the round; so a
training that was cut off and goes on from its last checkpoint ends with the same numbers as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array

from symphony.learning.beliefs import NONE, slopes
from symphony.learning.device_sharding import DeviceSharding
from symphony.learning.returns import advantages
from symphony.learning.rollouts import COMPLETION, roll_out
from symphony.learning.update import PPO, Method, learn, optimiser, rate, training_batch
from symphony.lowering.family import workload as drawn
from symphony.policies import SUFFIX, Learned, Network, Sizes, named, save
from symphony.policies.features import graph_tables
from symphony.policies.learned import STANDARD
from symphony.problem import topologies
from symphony.problem.errors import DataError, InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import without_arrivals
from symphony.simulator.run import run_traces
from symphony.simulator.scenario_source import Draw, scenario, slots_for
from symphony.simulator.scenarios import Disturbances, Scenario, ScenarioArrays, pick, stack
from symphony.telemetry.tuning import BeliefSlopes

RIVALS = ("eft-belief", "dmda", "tetris")  # the best of them on each validation scenario is what is compared with
FIRST_VALIDATION_SEED, FIRST_POOL_SEED = (
    1_000_000,
    2_000_000,
)  # first seeds; those below a million are left to whoever compares
MAX_STEPS_PER_DECISION = (
    32  # of a run for each decision that is kept, at most; side by side, most are spent waiting for others
)


@dataclass(frozen=True)
class ScenarioDistribution:
    """What is trained on, with one cluster: each scenario has one of the workloads, in turn, and a drawn load."""

    topology: Topology
    workloads: tuple[str | Workload | Draw, ...]
    loads: tuple[float, float]  # between which a family's load is drawn, unless its spec says it
    jobs: int  # of a family's scenario, unless its spec says it
    disturbances: Disturbances | None = None

    def load(self, seed: int) -> float:
        """The load that is drawn for a seed, if the workload leaves it open."""
        return float(np.random.default_rng([seed, 3]).uniform(*self.loads))

    def scenario(self, seed: int) -> Scenario:
        """The scenario of a seed."""
        which = self.workloads[seed % len(self.workloads)]
        if isinstance(which, str):
            said = _spec_options(which)
            which = drawn(
                which,
                self.topology,
                seed,
                jobs=None if "jobs" in said else self.jobs,
                load=None if "load" in said else self.load(seed),
            )
        made = scenario(self.topology, which, seed, self.disturbances)
        # No job waits outside: how many are in the system is what is to be made small.
        return replace(made, job_slots=min(len(made.workload.jobs), slots_for(made.workload)))


@dataclass(frozen=True, eq=False)
class TrainingScenarios:
    """The scenarios of a course."""

    pool: ScenarioArrays  # to learn from
    held: list[Scenario]  # to look how good it is …
    validation: ScenarioArrays  # … the same
    rivals: np.ndarray  # mean completion times there, of the best rival on each
    keep: int  # decisions of a run, at most
    order: np.ndarray  # i[pool]: from the least loaded to the most


@dataclass(frozen=True)
class RoundSize:
    """How much is run and looked at in a round."""

    pool: int = 256  # scenarios to draw from, of each cluster
    scenarios: int = 64  # of a round
    group: int = 16  # runs of each
    validation: int = 40  # scenarios of each cluster, to look how good it is
    every: int = 10  # rounds between looks
    memory: float = 0.5  # see `returns.advantages`
    easy: int = 0  # rounds of a curriculum, from the least loaded quarter of the pool to all of it


@dataclass(frozen=True)
class TrainingRound:
    """What is told after a round."""

    number: int
    seconds: float  # of training until now
    decisions: int  # learned from so far
    rate: float  # decisions for each second of this round
    stay_s: float  # seconds that a job took, on average over the scenarios of this round
    entropy: float
    against: float | None  # mean completion time over that of the best rival, on validation scenarios


DEFAULT_SIZE = RoundSize()


class TrainingState(eqx.Module):
    """Where a training stands."""

    network: Network
    optimiser: Any


def train(
    *,
    topology: Topology | str | Sequence[Topology | str],
    workload: str | Workload | Draw | Sequence[str | Workload | Draw],
    loads: tuple[float, float] = (0.5, 1.0),
    jobs: int = 24,
    disturbances: Disturbances | None = None,
    rounds: int = 200,
    minutes: float = float("inf"),
    patience: int | None = None,
    start: Learned | None = None,
    sizes: Sizes = STANDARD,
    size: RoundSize = DEFAULT_SIZE,
    method: Method = PPO,
    objective: str = COMPLETION,
    telemetry_gradient: str = NONE,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    devices: Sequence[jax.Device] | None = None,
    contention: ContentionModel | None = None,
    rivals: Sequence[str] = RIVALS,
    drawn_before: Sequence[TrainingScenarios] = (),
    tell: Callable[[TrainingRound], None] | None = None,
    look: Callable[[int, Network], None] | None = None,
) -> tuple[Learned, list[TrainingRound]]:
    """Train a policy. Returns the weights that did best on validation scenarios, and what was told of each round.

    Rounds take the clusters in turn, and scenarios the workloads; families are drawn with a load between `loads` and so
    many `jobs`, unless their specs say it (`grouped_by_jobs`: then they have rounds of their own). It ends after so
    many `rounds` or `minutes`, or `patience` looks at the validation scenarios that found nothing better; the best of
    the `rivals` on each is what is compared with.
    `checkpoint` is a folder: where it holds a training of the same settings, that goes on. Whoever trains several times
    on the same scenarios, or on other scenarios on each cluster, gives what `draw` made (`drawn_before`; rounds take
    them in turn, and one may be there several times). With a `telemetry_gradient` the loss
    reaches the filter that makes beliefs of readings, and its factors are learned, too: see `beliefs.slopes`.
    The runs of a round are shared out among `devices`: by default, all accelerators of this process.
    `tell` hears of every round, `look` of the weights at every look, with the number of rounds so far.
    """
    began = time.perf_counter()
    sloped = slopes(telemetry_gradient)
    clusters = (topology,) if isinstance(topology, str | Topology) else tuple(topology)
    several = (workload,) if isinstance(workload, str | Workload) or callable(workload) else tuple(workload)
    courses = [
        ScenarioDistribution(topologies.topology(x) if isinstance(x, str) else x, some, loads, jobs, disturbances)
        for some in grouped_by_jobs(several)
        for x in clusters
    ]
    contention = contention or Bottleneck()
    draws = list(drawn_before) or [draw(course, size, method, contention, rivals) for course in courses]
    kinds = list({id(x): x for x in draws}.values())
    position = initial_state(start.network if start is not None else Network(jax.random.key(seed), sizes), method)
    history: list[TrainingRound] = []
    best = (float("inf"), position.network)  # how good, and which
    folder = None if checkpoint is None else Path(checkpoint)
    begins = None if start is None else _digest(start.network)
    settings = _settings(courses, rounds, sizes, size, method, objective, telemetry_gradient, seed, begins)
    if folder is not None:
        position, history, best = _read_checkpoint(folder, settings, position, best)
    sharing = DeviceSharding(min(size.scenarios, size.pool) * size.group, devices)
    position = sharing.replicate(position)

    def lesson_of(number: int) -> tuple[Any, ...]:
        """What a round is called with, after where the training stands."""
        now = draws[number % len(draws)]
        batch = sharing.shard(pick(now.pool, round_scenarios(now, size, seed, number)))
        key = jax.random.fold_in(jax.random.key(seed), number)
        return batch, key, rate(method, number, rounds), contention, objective, now.keep, size, method, sloped

    def looked(network: Network) -> float:
        policy = Learned(network)
        return float(np.mean([compare_with_rivals(kind, policy, contention).mean() for kind in kinds]))

    with ThreadPoolExecutor(1) as beside:
        # Weights that are trained on are the best until something is better.
        before = beside.submit(looked, start.network) if start is not None and not history else None
        programs = _compiled([(position, *lesson_of(draws.index(kind))) for kind in kinds])
    if before is not None and start is not None:
        best = (before.result(), start.network)
    for number in range(len(history), rounds):
        if time.perf_counter() - began > 60 * minutes or _out_of_patience(history, patience):
            break
        since = time.perf_counter()
        run = programs[kinds.index(draws[number % len(draws)])]
        position, figures = run(position, *lesson_of(number))
        position = sharing.replicate(position)  # where it is, as a rule
        seen = {name: float(value) for name, value in figures.items()}
        against = None
        if (number + 1) % size.every == 0 or number + 1 == rounds:
            against = looked(network := sharing.gather(position.network))
            if against < best[0]:
                best = (against, network)
        passed = time.perf_counter() - since
        history.append(round_summary(history, passed, seen, against))
        if folder is not None and against is not None:
            _write_checkpoint(folder, settings, position, history, best)
        if look is not None and against is not None:
            look(len(history), sharing.gather(position.network))
        if tell is not None:
            tell(history[-1])
    return Learned(best[1] if best[0] < float("inf") else sharing.gather(position.network)), history


def grouped_by_jobs(workloads: Sequence[str | Workload | Draw]) -> list[tuple[str | Workload | Draw, ...]]:
    """Workloads that run side by side: those whose specs say the same number of jobs, or do not say it.

    All runs of a round take as much memory and time as the largest: few jobs of many gangs beside many jobs of few
    would take that of many jobs of many gangs.
    """
    found: dict[str | None, list[str | Workload | Draw]] = {}
    for which in workloads:
        said = _spec_options(which).get("jobs") if isinstance(which, str) else None
        found.setdefault(said, []).append(which)
    return [tuple(some) for some in found.values()]


def _spec_options(spec: str) -> dict[str, str]:
    """What a family's spec says of its jobs and their load."""
    parts = [part.partition("=") for part in spec.partition("?")[2].split("&")]
    return {name: value for name, _, value in parts}


def draw(
    course: ScenarioDistribution,
    size: RoundSize,
    method: Method,
    contention: ContentionModel,
    rivals: Sequence[str] = RIVALS,
    each: Callable[..., Iterable[Scenario]] = map,
) -> TrainingScenarios:
    """Draw the scenarios of a course (by `each`: `map`, or that of a pool of processes), and run the rivals on those
    that are not learned from."""
    pool = list(each(course.scenario, range(FIRST_POOL_SEED, FIRST_POOL_SEED + size.pool)))
    order = np.argsort([course.load(FIRST_POOL_SEED + number) for number in range(size.pool)], kind="stable")
    held = list(each(course.scenario, range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + size.validation)))
    gangs = max(sum(len(s.workload.graphs[job.graph].all_gangs) for job in s.workload.jobs) for s in pool)
    validation = stack(held)
    best = np.min([_mean_completion_s(held, validation, named(name), contention) for name in rivals], axis=0)
    # A third more than there are gangs: for those that are preempted, and for waiting.
    return TrainingScenarios(
        stack(pool), held, validation, best, -(-int(1.3 * gangs) // method.unroll) * method.unroll, order
    )


def round_summary(
    history: Sequence[TrainingRound], seconds: float, figures: Mapping[str, float], against: float | None
) -> TrainingRound:
    """What is told of the round that followed those, and took so long."""
    last = history[-1] if history else None
    return TrainingRound(
        number=len(history),
        seconds=(last.seconds if last else 0.0) + seconds,
        decisions=(last.decisions if last else 0) + int(figures["decisions"]),
        rate=figures["decisions"] / seconds,
        stay_s=figures["stay_s"],
        entropy=figures["entropy"],
        against=against,
    )


def round_scenarios(now: TrainingScenarios, size: RoundSize, seed: int, number: int) -> np.ndarray:
    """Which scenarios of the pool a round runs [runs], each as often as a group is large."""
    many = min(size.scenarios, size.pool)
    known = now.order[: _open_pool_size(number, size)]
    chosen = np.random.default_rng([seed, number, 4]).choice(known, many, replace=len(known) < many)
    return np.repeat(chosen, size.group)


def initial_state(network: Network, method: Method) -> TrainingState:
    """A training before its first round. Without weak types, which would make the second round compile again."""
    position = TrainingState(network, optimiser(method).init(eqx.filter(network, eqx.is_inexact_array)))
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_array(x) else x, position)


def compare_with_rivals(now: TrainingScenarios, policy: Learned, contention: ContentionModel) -> np.ndarray:
    """Mean completion time over that of the best rival, on each validation scenario."""
    return _mean_completion_s(now.held, now.validation, policy, contention) / now.rivals


def _open_pool_size(number: int, size: RoundSize) -> int:
    """How many scenarios of the pool, the least loaded first, a round draws from."""
    if number >= size.easy:
        return size.pool
    return max(1, int(size.pool * (0.25 + 0.75 * number / size.easy)))


def _out_of_patience(history: list[TrainingRound], patience: int | None) -> bool:
    """Whether that many looks have passed since the best."""
    looks = [told.against for told in history if told.against is not None]
    return patience is not None and len(looks) > patience and min(looks[-patience:]) > min(looks)


def one_round(
    position: TrainingState,
    batch: ScenarioArrays,
    key: Array,
    rate: Array,
    contention: ContentionModel,
    objective: str,
    keep: int,
    size: RoundSize,
    method: Method,
    sloped: BeliefSlopes | None,
    axis: str | None = None,
) -> tuple[TrainingState, dict[str, Array]]:
    """Run, judge, learn. `axis`: of trainings side by side, see `roll_out`."""
    runs = batch.phases.shape[0]
    first, second = jax.random.split(key)
    keys = jax.random.split(first, runs)
    policy = Learned(position.network, draws=True, slopes=sloped)
    decisions, _ = roll_out(batch, policy, keys, contention, objective, keep, MAX_STEPS_PER_DECISION * keep, axis)
    each = jax.tree.map(lambda x: x[:: size.group], batch.workload)
    told = jax.vmap(lambda w: graph_tables(batch.topology, without_arrivals(w)))(each)
    judged = advantages(decisions, told.scale.repeat(size.group), size.group, size.memory, method.baseline)
    stretches = training_batch(decisions, judged.advantage, judged.target, method.unroll, size.group)
    network, state, figures = learn(
        position.network, position.optimiser, batch.topology, told, stretches, second, method, rate
    )
    figures |= {"decisions": decisions.count.sum(), "stay_s": decisions.stay_s.mean()}
    return TrainingState(network, state), figures


_round: Any = eqx.filter_jit(one_round)  # compiled once for all rounds, and for all trainings of this shape


def _compiled(calls: Sequence[tuple[Any, ...]]) -> list[Callable[..., tuple[TrainingState, dict[str, Array]]]]:
    """A program for each call of a round. Several are compiled side by side: on an accelerator, each takes a minute."""
    forms = [str(jax.tree.map(lambda x: x.shape if eqx.is_array(x) else x, call)) for call in calls]
    several = dict(zip(forms, calls, strict=True))
    if len(several) == 1:
        return [_round] * len(calls)
    with ThreadPoolExecutor(len(several)) as threads:
        made = threads.map(lambda call: _round.lower(*call).compile(), several.values())
        programs = dict(zip(several, made, strict=True))
    return [programs[form] for form in forms]


def _mean_completion_s(
    held: list[Scenario], batch: ScenarioArrays, policy: Any, contention: ContentionModel
) -> np.ndarray:
    """Mean completion time of each scenario."""
    traces, _ = run_traces(batch, held, policy, contention=contention, record_log=False)
    worlds = [trace.carry.world for trace in traces]
    return np.asarray([float(w.completion_sum.total) / max(int(w.core.jobs_done), 1) for w in worlds])


def _settings(courses: list[ScenarioDistribution], *others: Any) -> str:
    """What a training must have in common with one whose checkpoint it goes on from."""
    course = courses[0]
    what = [x if isinstance(x, str) else repr(x)[:200] for each in courses for x in each.workloads]
    names = [x.topology.name for x in courses]
    parts = (names, what, course.loads, course.jobs, course.disturbances, *others)
    return json.dumps([asdict(x) if hasattr(x, "__dataclass_fields__") else x for x in parts], sort_keys=True)


def _digest(network: Network) -> str:
    """Of weights: whoever starts from others has another training."""
    leaves = jax.tree.leaves(eqx.filter(network, eqx.is_array))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


def _write_checkpoint(
    folder: Path, settings: str, position: TrainingState, history: list[TrainingRound], best: tuple[float, Network]
) -> None:
    """Write a checkpoint: all of it beside the old one, which then makes way."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"settings": settings, "best": best[0], "history": [asdict(x) for x in history]}
    partial = folder / "training.part"
    with partial.open("wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        eqx.tree_serialise_leaves(file, (position, best[1]))
    partial.replace(folder / "training")
    save(folder / f"best{SUFFIX}", best[1], {"against the best rival": best[0], "rounds": len(history)})


def _read_checkpoint(
    folder: Path, settings: str, position: TrainingState, best: tuple[float, Network]
) -> tuple[TrainingState, list[TrainingRound], tuple[float, Network]]:
    """What a checkpoint holds, or what is given if there is none."""
    path = folder / "training"
    if not path.exists():
        return position, [], best
    with path.open("rb") as file:
        try:
            head = json.loads(file.readline())
            if head["settings"] != settings:
                raise InputError(
                    "it holds a training with other settings",
                    where=str(folder),
                    hint="name another folder, or remove this one",
                )
            position, network = eqx.tree_deserialise_leaves(file, (position, best[1]))
        except (ValueError, KeyError, TypeError, EOFError, RuntimeError) as error:
            raise DataError(
                f"it is no checkpoint ({error})", where=str(path), hint="remove it to start afresh"
            ) from None
    return position, [TrainingRound(**x) for x in head["history"]], (head["best"], network)
