"""A survey: many policies on many workloads, resumable.

A cell is one policy on one workload, all seeds. Each cell is stored in a file whose name has a digest of everything
that its results depend on. A cell whose file exists is not run again.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from symphony.evaluation.compare import chosen_policies
from symphony.evaluation.metrics import METRICS, metrics
from symphony.evaluation.report import DAGGER, Printable
from symphony.evaluation.statistics import Paired, holm, paired
from symphony.problem.errors import InfeasibleError, InputError, SymphonyError
from symphony.problem.topologies import topology
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Policy
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenario_source import chosen_seeds, compared_scenarios, scenario
from symphony.simulator.scenarios import Disturbances, Scenario, stack

SURVEY_FORMAT = "symphony.survey/1"
WINNER_ALPHA = 0.05  # error of all comparisons with the winner of a workload together


@dataclass(frozen=True)
class SurveyWorkload:
    """A workload on a topology, written `cholesky:10?jobs=5@machine`."""

    workload: str
    topology: str

    def __str__(self) -> str:
        return f"{self.workload}@{self.topology}"


@dataclass(frozen=True)
class Cell:
    """One policy on one workload: every metric of every seed, and every job's times."""

    place: SurveyWorkload
    policy: str
    cheats: bool
    seeds: tuple[int, ...]
    metrics: Mapping[str, tuple[float, ...]]  # by name, one value for each seed
    jobs: tuple[Mapping[str, list[float]], ...] = field(default=(), compare=False)  # by column, for each seed

    def values(self, metric: str) -> NDArray[np.float64]:
        """The values of a metric, one for each seed; nan where the runs have none."""
        return np.array(self.metrics.get(metric, [math.nan] * len(self.seeds)))


@dataclass(frozen=True)
class PolicyStanding:
    """The result of a policy on one workload, against the winner."""

    policy: str
    mean: float  # over the seeds
    against: Paired | None  # against the winner; None for the winner itself
    tied: bool  # the winner, or not distinguishable from it


@dataclass(frozen=True)
class Survey:
    """All cells, and their comparison."""

    cells: Sequence[Cell]
    skipped: Sequence[str]  # workloads or policies that could not be run, with the reason
    command: str

    @cached_property
    def places(self) -> tuple[SurveyWorkload, ...]:
        """Workloads, in the order of their first cell."""
        return tuple(dict.fromkeys(cell.place for cell in self.cells))

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """Policies, in the order of their first cell."""
        return tuple(dict.fromkeys(cell.policy for cell in self.cells))

    @cached_property
    def cheats(self) -> frozenset[str]:
        return frozenset(cell.policy for cell in self.cells if cell.cheats)

    @cached_property
    def cell_of(self) -> Mapping[tuple[SurveyWorkload, str], Cell]:
        return {(cell.place, cell.policy): cell for cell in self.cells}

    def standings(self, place: SurveyWorkload, metric: str = "mean_completion_s") -> list[PolicyStanding]:
        """The policies on one workload, the best first. The winner is the best that does not cheat.

        A policy is tied with the winner unless a signed-rank test, with Holm's correction, distinguishes them.
        """
        cells = [cell for cell in self.cells if cell.place == place]
        sign = -1 if METRICS[metric].better == "higher" else 1
        order = sorted(cells, key=lambda cell: _for_sorting(sign * cell.values(metric).mean()))
        winner = next((cell for cell in order if not cell.cheats), order[0])
        others = [cell for cell in order if cell is not winner]
        pairs = {cell.policy: paired(cell.values(metric), winner.values(metric)) for cell in others}
        corrected = dict(zip(pairs, holm([pair.p for pair in pairs.values()]), strict=True))
        return [
            PolicyStanding(
                cell.policy,
                float(cell.values(metric).mean()),
                pairs.get(cell.policy),
                cell is winner or corrected[cell.policy] > WINNER_ALPHA,
            )
            for cell in order
        ]

    def overall(self, metric: str = "mean_completion_s") -> dict[str, tuple[float, int, int]]:
        """For each policy: its geometric mean ratio to the winners, workloads won or tied, workloads run."""
        ratios: dict[str, list[float]] = {policy: [] for policy in self.policies}
        won = dict.fromkeys(self.policies, 0)
        for place in self.places:
            for standing in self.standings(place, metric):
                pair = standing.against
                ratio = 1.0 if pair is None else pair.ratio.value if pair.ratio is not None else math.nan
                ratios[standing.policy].append(ratio)
                won[standing.policy] += standing.tied
        return {
            policy: (float(np.exp(np.mean(np.log(values)))) if values else math.nan, won[policy], len(values))
            for policy, values in ratios.items()
        }

    def table(self, metric: str = "mean_completion_s") -> Printable:
        """Policies by their mean ratio to the winners, with their ratio on each workload."""
        overall = self.overall(metric)
        higher = METRICS[metric].better == "higher"
        order = sorted(self.policies, key=lambda p: _for_sorting(-overall[p][0] if higher else overall[p][0]))
        on = {place: {s.policy: s for s in self.standings(place, metric)} for place in self.places}
        header = [
            ("policy", ["policy"]),
            ("all", ["all\nworkloads", "won or\ntied"]),
            *((str(place), [str(place).replace("@", "\n@")]) for place in self.places),
        ]
        rows = []
        for policy in order:
            ratio, won, count = overall[policy]
            row = [Text(policy + DAGGER if policy in self.cheats else policy), _behind(ratio), Text(f"{won}/{count}")]
            rows.append(row + [_shown(on[place].get(policy)) for place in self.places])
        seeds = len(self.cells[0].seeds)
        title = f"{METRICS[metric].title}: how far behind the winner of each workload, {seeds} seeds"
        return Printable(title, header, rows, [], self.notes())

    def notes(self) -> list[str]:
        """The meaning of the colours, and caveats."""
        notes = ["Green: the winner, and policies that a signed-rank test (Holm's correction, 5%) cannot tell from it."]
        if self.cheats:
            notes.append(f"{DAGGER} cheats: sees the true state, and cannot win.")
        seeds, others = len(self.cells[0].seeds), len(self.policies) - 1
        enough = math.ceil(math.log2(2 * others / WINNER_ALPHA)) if others else 0
        if seeds < enough:
            notes.append(f"{seeds} seeds are too few to tell {others + 1} policies apart: run at least {enough}.")
        return [*notes, *(f"left out: {line}" for line in self.skipped)]

    def write(self, directory: str | Path) -> Path:
        """Write survey.html into a directory; returns its path."""
        from symphony.evaluation import survey_page  # it imports this file

        target = Path(directory) / "survey.html"
        target.write_text(survey_page.html(self), encoding="utf-8")
        return target

    def to_json(self, path: str | Path) -> None:
        """Write all metrics and the times of all jobs; compressed if the path ends in `.gz`."""
        text = json.dumps({"format": SURVEY_FORMAT, "command": self.command, "cells": [_out(c) for c in self.cells]})
        data = text.encode()
        Path(path).write_bytes(gzip.compress(data, 6, mtime=0) if str(path).endswith(".gz") else data)


def _behind(ratio: float) -> Text:
    return Text("–" if not math.isfinite(ratio) else f"{ratio - 1:+.1%}".replace("-", "−"))


def _shown(standing: PolicyStanding | None) -> Text:
    if standing is None:
        return Text("")
    if standing.against is None:
        return Text("best", style="bold green")
    text = _behind(math.nan if standing.against.ratio is None else standing.against.ratio.value)
    text.stylize("green" if standing.tied else "")
    return text


def survey(
    policies: Mapping[str, Policy] | Iterable[str],
    places: Sequence[SurveyWorkload],
    directory: str | Path,
    *,
    seeds: Sequence[int] = range(20),
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
    command: str = "",
    progress: Callable[[str, float], None] | None = None,
    suits: Callable[[str, Scenario], bool] = lambda name, scenario: True,
) -> Survey:
    """Run the cells that are not in the directory yet, and return all.

    `suits` says whether to run a policy on a scenario. `progress` is called with a description and the share of all
    cells that are complete.
    """
    chosen = chosen_policies(policies)
    numbers = chosen_seeds(seeds)
    if not places:
        raise InputError("no workload to compare on", hint="name at least one, for example eeg")
    folder = Path(directory) / "cells"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "name a directory that can be written"
        raise InputError(f"it cannot be created ({error.strerror})", where=str(folder), hint=hint) from None
    cells: list[Cell] = []
    skipped: list[str] = []
    feasible = []
    for place in dict.fromkeys(places):
        try:  # misspelt names are found before the long work
            scenario(topology(place.topology), place.workload, numbers[0], disturbances, job_slots)
            feasible.append(place)
        except InfeasibleError as error:
            skipped.append(f"{place}: {error}")
    for index, place in enumerate(feasible):

        def report(what: str, share: float, index: int = index) -> None:
            if progress is not None:
                progress(what, (index + share) / len(feasible))

        report(str(place), 0.0)
        cluster = topology(place.topology)
        scenarios = compared_scenarios(cluster, place.workload, numbers, disturbances, job_slots)
        suitable = {name: policy for name, policy in chosen.items() if suits(name, scenarios[0])}
        cells += _cells(place, suitable, scenarios, folder, report, skipped)
    if not cells:
        raise InputError(f"no workload could be run: {skipped[0]}", hint="name a topology that can run the workloads")
    return Survey(cells, skipped, command)


def _cells(
    place: SurveyWorkload,
    policies: Mapping[str, Policy],
    scenarios: Sequence[Scenario],
    folder: Path,
    report: Callable[[str, float], None],
    skipped: list[str],
) -> list[Cell]:
    """The cells of one workload; those that have no file yet are run. Failures are added to `skipped`."""
    files = {name: _file(folder, place, name, policy, scenarios) for name, policy in policies.items()}
    cells = {name: cell for name, path in files.items() if (cell := _load(path)) is not None}
    missing = [name for name in policies if name not in cells]
    group = tuple(policies[name] for name in missing)
    batch = stack(list(scenarios)) if missing else None
    for number, name in enumerate(missing):

        def report_share(share: float, name: str = name, done: int = len(policies) - len(missing) + number) -> None:
            report(f"{place}: {name}", (done + share) / len(policies))

        try:
            policy = OneOf(group, jnp.asarray(number, jnp.int32))
            runs = simulate(scenarios, policy, name=name, progress=report_share, batch=batch)
        except SymphonyError as error:
            skipped.append(f"{place}: {name}: {error}")
            continue
        cells[name] = _cell(place, name, policies[name].cheats, runs)
        _save(cells[name], files[name])
    return [cells[name] for name in policies if name in cells]


def _for_sorting(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _cell(place: SurveyWorkload, name: str, cheats: bool, runs: Sequence[RunRecord]) -> Cell:
    values = [metrics(run) for run in runs]
    names = dict.fromkeys(key for one in values for key in one)
    return Cell(
        place,
        name,
        cheats,
        tuple(run.seed for run in runs),
        {key: tuple(one.get(key, math.nan) for one in values) for key in names},
        tuple(_columns(run) for run in runs),
    )


def _columns(run: RunRecord) -> dict[str, list[float]]:
    fields = ("job", "graph", "arrival_s", "finish_s", "isolated_s", "priority")
    return {name: [float(getattr(job, name)) for job in run.jobs] for name in fields}


def _file(folder: Path, place: SurveyWorkload, name: str, policy: Policy, scenarios: Sequence[Scenario]) -> Path:
    """The file of a cell. Its name has a digest of the topology, workloads, policy and simulator, by content.

    The content of a policy is its arrays and the source file of its class.
    """
    digest = hashlib.sha256()
    for part in _identity(policy, scenarios):
        digest.update(part.encode())
    work, policy_name = (re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[-60:] for text in (f"{place}", name))
    return folder / f"{work}.{policy_name}.{digest.hexdigest()[:12]}.json.gz"


@cache
def _code_digest() -> str:
    """A digest of the code that results depend on."""
    root = Path(__file__).parents[1]
    folders = ("problem", "scheduling", "simulator", "baselines", "policies")
    files = [root / "telemetry" / "posterior.py", *(file for name in folders for file in (root / name).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def _identity(policy: Policy, scenarios: Sequence[Scenario]) -> Iterator[str]:
    yield f"{SURVEY_FORMAT} {_code_digest()}"
    numbers, structure = jax.tree.flatten(policy)
    yield f"{structure} {[np.asarray(x).tolist() for x in numbers]}"
    try:
        yield inspect.getsource(sys.modules[type(policy).__module__])
    except (OSError, TypeError, KeyError):  # defined at a prompt: there is no file
        yield type(policy).__qualname__
    yield repr(scenarios[0].topology)
    for one in scenarios:
        yield repr((one.workload, one.seed, one.disturbances, one.job_slots))


def _out(cell: Cell) -> dict[str, Any]:
    return {
        "workload": cell.place.workload,
        "topology": cell.place.topology,
        "policy": cell.policy,
        "cheats": cell.cheats,
        "seeds": list(cell.seeds),
        "metrics": {k: [float(x) if math.isfinite(x) else str(x) for x in v] for k, v in cell.metrics.items()},
        "jobs": cell.jobs,
    }


def _save(cell: Cell, path: Path) -> None:
    text = json.dumps({"format": SURVEY_FORMAT, **_out(cell)}, separators=(",", ":"))
    # Written under another name first: a file of the final name is complete.
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_bytes(gzip.compress(text.encode(), 6, mtime=0))
    unfinished.replace(path)


def _load(path: Path) -> Cell | None:
    if not path.exists():
        return None
    try:
        document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        return Cell(
            SurveyWorkload(document["workload"], document["topology"]),
            document["policy"],
            document["cheats"],
            tuple(document["seeds"]),
            {name: tuple(float(x) for x in values) for name, values in document["metrics"].items()},
            tuple(document["jobs"]),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        hint = "remove it; the cell will be run again"
        raise InputError(f"it is not a complete cell of a survey ({error!r})", where=str(path), hint=hint) from None
