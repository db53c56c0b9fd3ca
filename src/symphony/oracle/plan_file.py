"""Plans as JSON files: devices, order and times of all gangs, enough to simulate them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from symphony.oracle.instance import Instance, instance
from symphony.oracle.planning import Planned
from symphony.oracle.replay import Plan, linear_order, shared_plan
from symphony.oracle.runs import TIME_TOLERANCE, Runs
from symphony.problem.errors import InputError
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario

PLAN_FORMAT = "symphony.plan/1"


@dataclass(frozen=True)
class Followed:
    """A plan from a file, simulated."""

    claimed_s: float  # in the file
    value_s: float  # in the simulator
    off_s: float  # largest difference of a start or a finish from the file
    run: RunRecord

    @property
    def agrees(self) -> bool:
        """Whether simulator and file agree up to rounding."""
        return max(abs(self.value_s - self.claimed_s), self.off_s) <= TIME_TOLERANCE * self.run.makespan_s


def as_json(planned: Planned, where: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the file; `where` has the fields from which the scenario can be drawn again."""
    return {
        "format": PLAN_FORMAT,
        **where,
        "objective": planned.objective,
        "value_s": planned.value_s,
        "bounds_s": dict(planned.bounds),
        "distance": planned.distance,
        "policy": planned.policy_name,
        "greedy_s": planned.greedy_s,
        "heuristics_s": dict(planned.heuristics),
        "best_sample_s": planned.best_sample_s if planned.samples_s else None,
        "curve": [{"samples": count, "best_s": best} for count, best in planned.curve],
        "rebuilt": planned.rebuilt,
        "candidates": planned.candidates,
        "sampling_s": planned.sampling_s,
        "rebuilding_s": planned.rebuilding_s,
        "search_s": planned.search_s,
        "wall_s": planned.wall_s,
        "gangs": _rows(planned),
    }


def _rows(planned: Planned) -> list[dict[str, Any]]:
    """A row for every gang, in the order of placement."""
    s, plan = planned.scenario, planned.plan
    stays = {(stay.job, stay.gang): stay for stay in planned.run.gangs if stay.outcome == "finished"}
    graphs = [s.workload.graphs[job.graph] for job in s.workload.jobs]
    who = [(job, gang) for job, graph in enumerate(graphs) for gang in range(len(graph.all_gangs))]
    rows = []
    for index in np.argsort(plan.rank):
        job, gang = who[index]
        stay = stays[job, gang]
        rows.append(
            {
                "job": job,
                "gang": gang,
                "tasks": list(graphs[job].all_gangs[gang].tasks),
                "devices": [s.topology.devices[d].name for d in plan.devices[index] if d >= 0],
                "start_s": stay.start_s,
                "finish_s": stay.finish_s,
            }
        )
    return rows


def read(path: str | Path) -> dict[str, Any]:
    """The content of a plan file. Only its format is checked: the rest needs the scenario."""
    where, hint = str(path), "name a file that symphony plan -o wrote"
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror})", where=where, hint=hint) from None
    except ValueError as error:
        raise InputError(f"it is not JSON ({error})", where=where, hint=hint) from None
    if not isinstance(content, dict) or content.get("format") != PLAN_FORMAT:
        raise InputError(f'it is not a plan: its "format" is not "{PLAN_FORMAT}"', where=where, hint=hint)
    return content


def follow(content: Mapping[str, Any], scenario: Scenario) -> Followed:
    """Simulate the plan of a file on its scenario, and compare with the times in the file."""
    i = instance(scenario)
    try:
        plan = _plan(i, content["gangs"])
        claimed_s, objective = float(content["value_s"]), content["objective"]
        claims = {(row["job"], row["gang"]): (row["start_s"], row["finish_s"]) for row in content["gangs"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a part of the plan is missing ({error!r})", hint="write it again with plan -o") from None
    with jax.enable_x64(True):
        found = Runs(i, objective, None).replay(plan, "plan")
    off = [
        max(abs(stay.start_s - claims[stay.job, stay.gang][0]), abs(stay.finish_s - claims[stay.job, stay.gang][1]))
        for stay in found.run.gangs
        if stay.outcome == "finished"
    ]
    return Followed(claimed_s, found.value_s, max(off), found.run)


def _plan(i: Instance, rows: list[Mapping[str, Any]]) -> Plan:
    """The plan of rows in order of placement, checked against the instance."""
    device = {d.name: index for index, d in enumerate(i.scenario.topology.devices)}
    devices = np.full((len(i), int(i.workers.max())), -1)
    key = np.full(len(i), np.inf)
    for turn, row in enumerate(rows):
        who = (row["job"], row["gang"])
        where = f"gang {who[1]} of job {who[0]}"
        if who not in i.index or np.isfinite(key[i.index[who]]):
            raise InputError(
                "the plan names it twice" if who in i.index else "the workload has no such gang",
                where=where,
                hint="follow a plan on the scenario that it was made for",
            )
        gang = i.index[who]
        unknown = [name for name in row["devices"] if name not in device]
        if unknown:
            raise InputError(
                f"there is no device {unknown[0]!r} in {i.scenario.topology.name!r}",
                where=where,
                hint="follow a plan on the topology that it was made for",
            )
        chosen = [device[name] for name in row["devices"]]
        if len(set(chosen)) != i.workers[gang] or not np.isfinite(i.seconds[gang, chosen]).all():
            raise InputError(
                f"it cannot run on {', '.join(row['devices']) or 'no device'}",
                where=where,
                hint=f"name {i.workers[gang]} different device(s) that can run it",
            )
        devices[gang, : len(chosen)] = chosen
        key[gang] = turn
    missing = np.flatnonzero(np.isinf(key))
    if len(missing):
        job, gang = i.who[missing[0]]
        raise InputError("the plan does not name it", where=f"gang {gang} of job {job}", hint="plan again")
    return shared_plan(devices, linear_order(i, key))
