"""A policy against its targets, on scenarios that it was not trained on.

Against other policies, values are paired seed by seed: the logarithms of ratios are averaged over the workloads, and
the interval is over seeds. Against the oracle, single small graphs run on four different devices without contention,
where the optimal makespan can be proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from symphony.evaluation.metrics import METRICS
from symphony.evaluation.report import Printable
from symphony.evaluation.statistics import IntervalEstimate, paired
from symphony.evaluation.survey import Survey, SurveyWorkload, survey
from symphony.oracle.exact import cp_sat
from symphony.oracle.oracle import Oracle
from symphony.oracle.provable import four_devices
from symphony.policies import named
from symphony.simulator.run import simulate
from symphony.simulator.scenario_source import scenario
from symphony.simulator.scenarios import CALM

FIRST_HELD_OUT_SEED = 500_000  # training uses seeds from two million on
SCORECARD_JOBS = 66
# The shipped policy was trained on both clusters, and on all of these families but series-parallel.
SCORECARD_WORKLOADS = (
    *(SurveyWorkload(name, "paper") for name in ("variant-calling", "eeg", "intrusion", "layered", "fork-join")),
    SurveyWorkload("series-parallel", "paper"),
    SurveyWorkload("variant-calling", "machine"),
    SurveyWorkload("layered", "machine"),
)
PROVABLE_GRAPHS = ("layered:16", "fork-join:16", "series-parallel:16", "cholesky:4")  # few enough tasks for proofs


@dataclass(frozen=True)
class Aim:
    """The largest ratio of means over seeds to a rival that is accepted."""

    rival: str
    metric: str
    ratio: float


AIMS = (
    Aim("paragon", "p99_slowdown", 0.68),
    Aim("eft-belief", "mean_completion_s", 0.92),
    Aim("eft-exact", "mean_completion_s", 1.0),
)
SHARES = (("isolated_share", "at isolated speed", 0.63), ("worse_share", "slowed by over 20%", 0.02))


@dataclass(frozen=True)
class Score:
    """One line: a target and the result."""

    against: str
    what: str
    where: str
    reached: IntervalEstimate
    aim: float
    at_most: bool  # or at least

    @property
    def met(self) -> bool:
        """Whether the estimate, not its interval, meets the target."""
        return bool(self.reached.value <= self.aim if self.at_most else self.reached.value >= self.aim)


@dataclass(frozen=True)
class Scorecard:
    """All lines, and the runs behind them."""

    policy: str
    scores: tuple[Score, ...]
    survey: Survey
    oracle: Mapping[str, float]  # by instance: makespan over the best known, and whether that is proven in its name
    command: str = ""

    def table(self) -> Printable:
        rows = [
            [
                Text(score.against),
                Text(score.what),
                Text(score.where),
                Text(_shown(score.reached), style="green" if score.met else "red"),
                Text(f"{'≤' if score.at_most else '≥'} {score.aim:.2f}"),
                Text("reached" if score.met else "missed"),
            ]
            for score in self.scores
        ]
        header = [("", ["against", "what"]), ("where", ["where"]), ("score", ["reached (95%)", "aim", "verdict"])]
        seeds = len(self.survey.cells[0].seeds)
        return Printable(f"{self.policy}: {seeds} held-out seeds", header, rows, [], list(self.survey.skipped))

    def as_json(self) -> dict[str, Any]:
        scores = [{**asdict(score), "met": score.met} for score in self.scores]
        return {"policy": self.policy, "command": self.command, "scores": scores, "oracle": dict(self.oracle)}


def evaluate(
    policy: str,
    directory: str | Path,
    *,
    seeds: int = 20,
    jobs: int = SCORECARD_JOBS,
    places: Sequence[SurveyWorkload] = SCORECARD_WORKLOADS,
    instances: int = 20,
    oracle_s: float = 20.0,
    command: str = "",
    progress: Callable[[str, float], None] | None = None,
) -> Scorecard:
    """Run a policy and its rivals. Results are stored in the directory; the same call resumes where it was stopped.

    The oracle plans `instances` small graphs, with `oracle_s` seconds each.
    """
    if instances:
        cp_sat()  # fails before the long work if it is not installed
    share = 0.7 if instances else 1.0
    report = progress or (lambda what, share: None)
    rivals = dict.fromkeys(aim.rival for aim in AIMS)
    plain = {SurveyWorkload(_with_jobs(place.workload, jobs), place.topology): str(place) for place in places}
    run = survey(
        [policy, *(name for name in rivals if name != policy)],
        list(plain),
        directory,
        seeds=range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + seeds),
        progress=lambda what, done: report(what, share * done),
    )
    scores = []
    for aim in AIMS:
        if aim.rival != policy:
            scores.append(_against(run, policy, aim, run.places, "all workloads"))
            scores += [_against(run, policy, aim, [place], plain[place]) for place in run.places]
    for metric, what, target in SHARES:
        values = np.concatenate([run.cell_of[place, policy].values(metric) for place in run.places])
        mean, at_most = IntervalEstimate(values.mean()), METRICS[metric].better == "lower"
        scores.append(Score("no contention", f"gangs {what}", "all workloads", mean, target, at_most))
    ratios: dict[str, float] = {}
    for number in range(instances):
        name, ratio = _beside_oracle(policy, number, oracle_s)
        ratios[name] = ratio
        report("oracle", share + (1 - share) * (number + 1) / instances)
    if ratios:
        values = np.array(list(ratios.values()))
        for what, value, most in (("median", np.median(values), 1.04), ("p99", np.quantile(values, 0.99), 1.15)):
            where = f"{len(values)} graphs on four devices"
            scores.append(Score("oracle", f"makespan, {what}", where, IntervalEstimate(float(value)), most, True))
    return Scorecard(policy, tuple(scores), run, ratios, command)


def _with_jobs(spec: str, jobs: int) -> str:
    return f"{spec}{'&' if '?' in spec else '?'}jobs={jobs}"


def _against(run: Survey, policy: str, aim: Aim, places: Sequence[SurveyWorkload], where: str) -> Score:
    """Ratios to a rival, paired by seed, averaged over workloads; nan if a cell is missing."""

    def geometric_mean(name: str) -> np.ndarray:
        return np.exp(np.mean([np.log(run.cell_of[place, name].values(aim.metric)) for place in places], axis=0))

    both = [place for place in places if (place, policy) in run.cell_of and (place, aim.rival) in run.cell_of]
    if len(both) < len(places):
        return Score(aim.rival, aim.metric, where, IntervalEstimate(float("nan")), aim.ratio, True)
    ratio = paired(geometric_mean(policy), geometric_mean(aim.rival)).ratio or IntervalEstimate(float("nan"))
    return Score(aim.rival, aim.metric, where, ratio, aim.ratio, True)


def _beside_oracle(policy: str, number: int, seconds: float) -> tuple[str, float]:
    """One small graph: its name with the label of the best plan, and the makespan relative to that plan."""
    spec = PROVABLE_GRAPHS[number % len(PROVABLE_GRAPHS)] + "?jobs=1"
    one = scenario(four_devices(bus=False), spec, FIRST_HELD_OUT_SEED + number, CALM)
    solution = Oracle(time_limit_s=seconds, starts=("eft-belief", "heft", "dmdas")).solve(one)
    (run,) = simulate([one], named(policy))
    makespan = max(job.finish_s for job in run.jobs)
    return f"{spec} seed {one.seed} ({solution.label})", makespan / solution.value_s


def _shown(estimate: IntervalEstimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} … {estimate.high:.3f})"
