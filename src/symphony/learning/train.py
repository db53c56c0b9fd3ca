"""Training of a policy: draw scenarios, run each several times, update the weights, validate.

policy, history = sy.train(topology="paper", workload=["layered", "eeg"], rounds=100)

A round runs `scenarios` drawn scenarios `group` times each, in one compiled program, and then updates the weights. All
randomness follows from the seed and the number of the round, so a training that resumes from a checkpoint ends with the
same numbers as one without interruption.
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
import jax.numpy as jnp
import numpy as np
from jax import Array

from symphony.estimation.tuning import BeliefSlopes
from symphony.learning.beliefs import NONE, slopes
from symphony.learning.budget import TimeBudget, compiler_options
from symphony.learning.device_sharding import DeviceSharding
from symphony.learning.returns import advantages
from symphony.learning.rollouts import roll_out
from symphony.learning.update import PPO, Method, learn, optimiser, rate, training_batch
from symphony.lowering.family import workload as drawn
from symphony.policies import SUFFIX, Learned, Network, Sizes, named, save
from symphony.policies.features import graph_tables
from symphony.policies.learned import STANDARD
from symphony.problem import topologies
from symphony.problem.errors import DataError, InputError
from symphony.problem.objective import (
    ANY_OBJECTIVE,
    MEAN_ONLY,
    OBJECTIVE_NAMES,
    ObjectiveLike,
    ObjectiveWeights,
    objective_weights,
)
from symphony.problem.program_cache import keep_programs
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.contention import Bottleneck, ContentionModel
from symphony.simulator.rollout import without_arrivals
from symphony.simulator.run import compile_run, run_traces
from symphony.simulator.scenario_source import Draw, scenario, slots_for
from symphony.simulator.scenarios import Disturbances, Scenario, ScenarioArrays, pick, stack, varied

RIVALS = ("eft-belief", "dmda", "tetris")  # the best of them on each validation scenario is the reference
FIRST_VALIDATION_SEED, FIRST_POOL_SEED = 1_000_000, 2_000_000  # seeds below a million are for comparisons
MAX_STEPS_PER_DECISION = 32  # of a run, per decision kept; most are spent waiting for the other runs of the batch


@dataclass(frozen=True)
class ScenarioDistribution:
    """Training scenarios on one cluster: they take the workloads in turn, each with a drawn load."""

    topology: Topology
    workloads: tuple[str | Workload | Draw, ...]
    loads: tuple[float, float]  # range of a family's load, unless its spec sets it
    jobs: int  # of a family's scenario, unless its spec sets it
    disturbances: Disturbances | None = None  # None = drawn for each scenario

    def load(self, seed: int) -> float:
        """The load for a seed, if the workload's spec does not set it."""
        return float(np.random.default_rng([seed, 3]).uniform(*self.loads))

    def scenario(self, seed: int) -> Scenario:
        """The scenario for a seed."""
        which = self.workloads[seed % len(self.workloads)]
        if isinstance(which, str):
            options = _spec_options(which)
            which = drawn(
                which,
                self.topology,
                seed,
                jobs=None if "jobs" in options else self.jobs,
                load=None if "load" in options else self.load(seed),
            )
        made = scenario(self.topology, which, seed, self.disturbances or varied(seed))
        # Enough slots that no job waits outside the system: the objective counts the jobs in the system.
        return replace(made, job_slots=min(len(made.workload.jobs), slots_for(made.workload)))


@dataclass(frozen=True, eq=False)
class TrainingScenarios:
    """Drawn scenarios of one distribution."""

    pool: ScenarioArrays  # for training
    held: list[Scenario]  # for validation …
    validation: ScenarioArrays  # … the same, as arrays
    rivals: np.ndarray  # mean completion time of the best rival on each validation scenario
    keep: int  # decisions kept of a run
    order: np.ndarray  # i[pool]: in increasing load


@dataclass(frozen=True)
class RoundSize:
    """Sizes of training rounds and of the validation."""

    pool: int = 256  # training scenarios of each cluster
    scenarios: int = 64  # per round
    group: int = 16  # runs of each
    validation: int = 40  # validation scenarios of each cluster
    every: int = 10  # rounds between validations
    memory: float = 0.5  # see `returns.advantages`
    easy: int = 0  # rounds of a curriculum, from the least loaded quarter of the pool to all of it


@dataclass(frozen=True)
class TrainingRound:
    """Summary of a round."""

    number: int
    seconds: float  # of training so far
    decisions: int  # learned from so far
    rate: float  # decisions per second in this round
    stay_s: float  # mean completion time of a job in this round
    entropy: float
    against: float | None  # mean completion time over the best rival's, on validation scenarios; None = not validated
    initial: float | None = None  # the same of the weights that the training began with; None = random weights


DEFAULT_SIZE = RoundSize()


class TrainingState(eqx.Module):
    """Weights, and the state of the optimiser."""

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
    objective: ObjectiveLike = MEAN_ONLY,
    telemetry_gradient: str = NONE,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    devices: Sequence[jax.Device] | None = None,
    contention: ContentionModel | None = None,
    rivals: Sequence[str] = RIVALS,
    drawn_before: Sequence[TrainingScenarios] = (),
    tell: Callable[[TrainingRound], None] | None = None,
    look: Callable[[int, Network], None] | None = None,
    phase: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Learned, list[TrainingRound]]:
    """Train a policy. Returns the policy that did best on validation scenarios, and a summary of each round.

    Rounds take the clusters in turn, and scenarios the workloads. Families are drawn with a load between `loads` and
    with `jobs` jobs, unless their specs set these (`grouped_by_jobs`: then they have rounds of their own). Training
    ends after `rounds`, or after `patience` validations without improvement, against the best of the `rivals` on each
    validation scenario, or before the next round would exceed `minutes`, in which compilation counts. If they are over
    before the first round, the history is empty and the weights are the initial ones.

    `start`: a policy to begin with, instead of random weights of these `sizes`. `checkpoint`: a folder; a training of
    the same settings in it is resumed. `objective`: weights of mean, tail, makespan and fairness ("tail",
    "mean=1,tail=0.5", a mapping), or "any": drawn for each scenario, so that users can choose at run time. Validation
    compares mean completion times, whatever the objective. `drawn_before`: results of `draw`, to train several times on
    the same scenarios, or on different ones on each cluster; rounds take them in turn. `telemetry_gradient`: also train
    the factors of the telemetry filter (`beliefs.slopes`). The runs of a round are divided among `devices`: by default,
    all accelerators of this process. `tell` is called after every round, `look` after every validation with the number
    of rounds so far and the weights, `phase` with a description of each part before it begins. `clock` returns seconds.
    """
    budget = TimeBudget(60 * minutes, clock)
    show_phase = phase or (lambda _: None)
    keep_programs()
    sloped = slopes(telemetry_gradient)
    clusters = (topology,) if isinstance(topology, str | Topology) else tuple(topology)
    several = (workload,) if isinstance(workload, str | Workload) or callable(workload) else tuple(workload)
    courses = [
        ScenarioDistribution(topologies.topology(x) if isinstance(x, str) else x, some, loads, jobs, disturbances)
        for some in grouped_by_jobs(several)
        for x in clusters
    ]
    contention = contention or Bottleneck()
    state = initial_state(start.network if start is not None else Network(jax.random.key(seed), sizes), method)
    history: list[TrainingRound] = []
    best = (float("inf"), state.network)  # validation result, and weights
    folder = None if checkpoint is None else Path(checkpoint)
    begins = None if start is None else _digest(start.network)
    fixed = None if objective == ANY_OBJECTIVE else objective_weights(objective)
    settings = _settings(courses, rounds, sizes, size, method, fixed or objective, telemetry_gradient, seed, begins)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        state, history, best = _read_checkpoint(folder, settings, state, best)

    def policy(network: Network) -> Learned:
        return Learned(network, objective=jnp.asarray(fixed or MEAN_ONLY, float))

    draws = list(drawn_before)
    for course in [] if drawn_before else courses:
        if not budget.fits("draw"):
            return policy(best[1]), history
        show_phase(f"drawing scenarios, running {', '.join(rivals)}")
        with budget.part("draw"):
            draws.append(draw(course, size, method, contention, rivals))
    distinct = list({id(x): x for x in draws}.values())
    sharding = DeviceSharding(min(size.scenarios, size.pool) * size.group, devices)
    state = sharding.replicate(state)

    def round_arguments(number: int) -> tuple[Any, ...]:
        """Arguments of `one_round` after the state."""
        now = draws[number % len(draws)]
        batch = sharding.shard(pick(now.pool, round_scenarios(now, size, seed, number)))
        key = jax.random.fold_in(jax.random.key(seed), number)
        weights = jnp.asarray(round_objectives(fixed, size, seed, number))
        return batch, key, rate(method, number, rounds), contention, weights, now.keep, size, method, sloped

    def validate(network: Network) -> float:
        with budget.part("validate"):
            return float(np.mean([compare_with_rivals(one, policy(network), contention).mean() for one in distinct]))

    def first_validation() -> float | None:
        """Compile the validation. If there are initial weights, they are the best until others are better."""
        network = sharding.gather(state.network)
        for one in distinct:
            compile_run(one.validation, one.held, policy(network), contention, compiler_options())
        return validate(network) if start is not None and not history else None

    if not budget.fits():
        return policy(best[1]), history

    def compiled() -> tuple[list[RoundProgram], float | None]:
        with ThreadPoolExecutor(1) as thread:
            validated = thread.submit(first_validation)
            return _compiled([(state, *round_arguments(draws.index(one))) for one in distinct]), validated.result()

    show_phase("compiling")
    try:
        programs, initial = budget.within(compiled)
    except TimeoutError:
        return policy(best[1]), history
    if initial is not None and start is not None:
        best = (initial, start.network)
    elif history:
        initial = history[-1].initial

    last = not budget.fits("round", "validate")
    for number in range(len(history), rounds):
        if last or _out_of_patience(history, patience):
            break
        show_phase(f"round {number + 1}")
        since = clock()
        run = programs[distinct.index(draws[number % len(draws)])]
        with budget.part("round"):
            state, figures = run(state, *round_arguments(number))
            state = sharding.replicate(state)  # usually a no-op
            numbers = {name: float(value) for name, value in figures.items()}
        against = None
        # The last round is validated too: otherwise what was learned since the last validation would be lost.
        last = number + 1 == rounds or not budget.fits("round", "validate")
        if last or (number + 1) % size.every == 0:
            show_phase("validating")
            against = validate(network := sharding.gather(state.network))
            if against < best[0]:
                best = (against, network)
        history.append(round_summary(history, clock() - since, numbers, against, initial))
        if folder is not None and against is not None:
            _write_checkpoint(folder, settings, state, history, best)
        if look is not None and against is not None:
            look(len(history), sharding.gather(state.network))
        if tell is not None:
            tell(history[-1])
    return policy(best[1]), history


def grouped_by_jobs(workloads: Sequence[str | Workload | Draw]) -> list[tuple[str | Workload | Draw, ...]]:
    """Workloads grouped for rounds: those whose specs set the same number of jobs, or set none.

    All runs of a round are padded to the largest: few jobs of many gangs together with many jobs of few gangs would
    cost as much as many jobs of many gangs.
    """
    groups: dict[str | None, list[str | Workload | Draw]] = {}
    for which in workloads:
        count = _spec_options(which).get("jobs") if isinstance(which, str) else None
        groups.setdefault(count, []).append(which)
    return [tuple(some) for some in groups.values()]


def _spec_options(spec: str) -> dict[str, str]:
    """The options in a family's spec."""
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
    """Draw training and validation scenarios, and run the rivals on the latter.

    `each`: `map`, or the `map` of a pool of processes.
    """
    pool = list(each(course.scenario, range(FIRST_POOL_SEED, FIRST_POOL_SEED + size.pool)))
    order = np.argsort([course.load(FIRST_POOL_SEED + number) for number in range(size.pool)], kind="stable")
    held = list(each(course.scenario, range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + size.validation)))
    gangs = max(sum(len(s.workload.graphs[job.graph].all_gangs) for job in s.workload.jobs) for s in pool)
    validation = stack(held)
    best = np.min([_mean_completion_s(held, validation, named(name), contention) for name in rivals], axis=0)
    # A third more decisions than gangs, for preempted gangs and for waiting; a multiple of the segment length.
    keep = -(-int(1.3 * gangs) // method.unroll) * method.unroll
    return TrainingScenarios(stack(pool), held, validation, best, keep, order)


def round_summary(
    history: Sequence[TrainingRound],
    seconds: float,
    figures: Mapping[str, float],
    against: float | None,
    initial: float | None = None,
) -> TrainingRound:
    """The summary of the round after `history`."""
    last = history[-1] if history else None
    return TrainingRound(
        number=len(history),
        seconds=(last.seconds if last else 0.0) + seconds,
        decisions=(last.decisions if last else 0) + int(figures["decisions"]),
        rate=figures["decisions"] / max(seconds, 1e-9),
        stay_s=figures["stay_s"],
        entropy=figures["entropy"],
        against=against,
        initial=initial,
    )


def round_scenarios(now: TrainingScenarios, size: RoundSize, seed: int, number: int) -> np.ndarray:
    """Indices of the scenarios that a round runs [runs], each repeated `group` times."""
    many = min(size.scenarios, size.pool)
    pool = now.order[: _curriculum_pool_size(number, size)]
    chosen = np.random.default_rng([seed, number, 4]).choice(pool, many, replace=len(pool) < many)
    return np.repeat(chosen, size.group)


def round_objectives(fixed: ObjectiveWeights | None, size: RoundSize, seed: int, number: int) -> np.ndarray:
    """Weights of objectives for each run of a round [runs, objectives], the same for all runs of a scenario.

    None: drawn for each scenario, half of them with one objective alone, the mean as often as the others together.
    """
    many = min(size.scenarios, size.pool)
    if fixed is not None:
        return np.tile(np.asarray(fixed, np.float32), (many * size.group, 1))
    rng, count = np.random.default_rng([seed, number, 5]), len(OBJECTIVE_NAMES)
    alone = np.eye(count)[rng.choice(count, many, p=[0.5, *[0.5 / (count - 1)] * (count - 1)])]
    mixed = rng.dirichlet(np.ones(count), many)
    weights = np.where(rng.random(many)[:, None] < 0.5, alone, mixed)
    return weights.repeat(size.group, axis=0).astype(np.float32)


def initial_state(network: Network, method: Method) -> TrainingState:
    """The state before the first round. Without weak types, which would make the second round compile again."""
    state = TrainingState(network, optimiser(method).init(eqx.filter(network, eqx.is_inexact_array)))
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_array(x) else x, state)


def compare_with_rivals(now: TrainingScenarios, policy: Learned, contention: ContentionModel) -> np.ndarray:
    """Mean completion time over the best rival's, on each validation scenario."""
    return _mean_completion_s(now.held, now.validation, policy, contention) / now.rivals


def _curriculum_pool_size(number: int, size: RoundSize) -> int:
    """The number of scenarios, the least loaded first, that a round draws from."""
    if number >= size.easy:
        return size.pool
    return max(1, int(size.pool * (0.25 + 0.75 * number / size.easy)))


def _out_of_patience(history: list[TrainingRound], patience: int | None) -> bool:
    """Whether the last `patience` validations were all worse than the best."""
    results = [one.against for one in history if one.against is not None]
    return patience is not None and len(results) > patience and min(results[-patience:]) > min(results)


def one_round(
    state: TrainingState,
    batch: ScenarioArrays,
    key: Array,
    rate: Array,
    contention: ContentionModel,
    objective: Array,
    keep: int,
    size: RoundSize,
    method: Method,
    sloped: BeliefSlopes | None,
    axis: str | None = None,
) -> tuple[TrainingState, dict[str, Array]]:
    """Run the scenarios, compute advantages, update the weights. `objective`, `axis`: see `roll_out`."""
    runs = batch.phases.shape[0]
    first, second = jax.random.split(key)
    keys = jax.random.split(first, runs)
    policy = Learned(state.network, draws=True, slopes=sloped)
    decisions, _ = roll_out(batch, policy, keys, contention, objective, keep, MAX_STEPS_PER_DECISION * keep, axis)
    each = jax.tree.map(lambda x: x[:: size.group], batch.workload)
    graphs = jax.vmap(lambda w: graph_tables(batch.topology, without_arrivals(w)))(each)
    judged = advantages(decisions, graphs.scale.repeat(size.group), size.group, size.memory, method.baseline)
    segments = training_batch(decisions, judged.advantage, judged.target, method.unroll, size.group)
    network, optimiser_state, figures = learn(
        state.network, state.optimiser, batch.topology, graphs, segments, second, method, rate
    )
    figures |= {"decisions": decisions.count.sum(), "stay_s": decisions.stay_s.mean()}
    return TrainingState(network, optimiser_state), figures


RoundProgram = Callable[..., tuple[TrainingState, dict[str, Array]]]
_round: Any = eqx.filter_jit(one_round)


def _compile_round(call: tuple[Any, ...]) -> RoundProgram:
    return _round.lower(*call).compile(compiler_options=compiler_options())


def _compiled(calls: Sequence[tuple[Any, ...]]) -> list[RoundProgram]:
    """A program for each call of `one_round`. Different ones are compiled in parallel: each may take a minute."""
    forms = [str(jax.tree.map(lambda x: x.shape if eqx.is_array(x) else x, call)) for call in calls]
    several = dict(zip(forms, calls, strict=True))
    if len(several) == 1:
        return [_compile_round(calls[0])] * len(calls)
    with ThreadPoolExecutor(len(several)) as threads:
        programs = dict(zip(several, threads.map(_compile_round, several.values()), strict=True))
    return [programs[form] for form in forms]


def _mean_completion_s(
    held: list[Scenario], batch: ScenarioArrays, policy: Any, contention: ContentionModel
) -> np.ndarray:
    traces, _ = run_traces(
        batch, held, policy, contention=contention, record_log=False, compiler_options=compiler_options()
    )
    worlds = [trace.carry.world for trace in traces]
    return np.asarray([float(w.completion_sum.total) / max(int(w.core.jobs_done), 1) for w in worlds])


def _settings(courses: list[ScenarioDistribution], *others: Any) -> str:
    """What a training must have in common with the one that it resumes."""
    course = courses[0]
    what = [x if isinstance(x, str) else repr(x)[:200] for each in courses for x in each.workloads]
    names = [x.topology.name for x in courses]
    parts = (names, what, course.loads, course.jobs, course.disturbances, *others)
    return json.dumps([asdict(x) if hasattr(x, "__dataclass_fields__") else x for x in parts], sort_keys=True)


def _digest(network: Network) -> str:
    """A hash of the initial weights, which are part of the settings."""
    leaves = jax.tree.leaves(eqx.filter(network, eqx.is_array))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


def _write_checkpoint(
    folder: Path, settings: str, state: TrainingState, history: list[TrainingRound], best: tuple[float, Network]
) -> None:
    """Write a checkpoint, and replace the old one atomically."""
    head = {"settings": settings, "best": best[0], "history": [asdict(x) for x in history]}
    partial = folder / "training.part"
    with partial.open("wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        eqx.tree_serialise_leaves(file, (state, best[1]))
    partial.replace(folder / "training")
    save(folder / f"best{SUFFIX}", best[1], {"against the best rival": best[0], "rounds": len(history)})


def _read_checkpoint(
    folder: Path, settings: str, state: TrainingState, best: tuple[float, Network]
) -> tuple[TrainingState, list[TrainingRound], tuple[float, Network]]:
    """The contents of a checkpoint; the arguments if there is none."""
    path = folder / "training"
    if not path.exists():
        return state, [], best
    with path.open("rb") as file:
        try:
            head = json.loads(file.readline())
            if head["settings"] != settings:
                raise InputError(
                    "the folder holds a training with other settings",
                    where=str(folder),
                    hint="name another folder, or remove this one",
                )
            state, network = eqx.tree_deserialise_leaves(file, (state, best[1]))
        except (ValueError, KeyError, TypeError, EOFError, RuntimeError) as error:
            hint = "remove it to start again"
            raise DataError(f"not a checkpoint ({error})", where=str(path), hint=hint) from None
    return state, [TrainingRound(**x) for x in head["history"]], (head["best"], network)
