"""Compare policies on the same scenarios: same seeds, same arrivals, same disturbances for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from symphony.baselines import BASELINES, FOR_TRAINING
from symphony.evaluation.report import Report, ScenarioMeta
from symphony.oracle.oracle import ScenarioPlanner
from symphony.policies import PLANNER, Planner, named, with_objective
from symphony.problem import topologies
from symphony.problem.errors import InputError, SymphonyWarning
from symphony.problem.objective import ObjectiveLike
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Policy, check_instance
from symphony.simulator.contention import ContentionModel
from symphony.simulator.records import RunRecord
from symphony.simulator.run import simulate
from symphony.simulator.scenario_source import Draw, chosen_seeds, compared_scenarios
from symphony.simulator.scenarios import Disturbances, Scenario, stack
from symphony.training_jobs.lengths import UnknownLengths, check_trackable

LENGTHS = ("told", "unknown")
# Built-in policies that know lengths only as the units left, which can be hidden; others also read units of graphs.
LENGTH_HIDEABLE = (*sorted(FOR_TRAINING), "fifo", "fifo-passing", "random")


def compare(
    policies: Mapping[str, Policy | ScenarioPlanner | str] | Iterable[str],
    *,
    topology: Topology | str | Path,
    workload: Workload | Draw | str,
    seeds: Iterable[int] = range(20),
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
    contention: ContentionModel | None = None,
    objective: ObjectiveLike | None = None,
    lengths: str = "told",
    baseline: str | None = None,
    command: str = "",
    progress: Callable[[str, float], None] | None = None,
) -> Report:
    """Run every policy on every seed and report.

    `policies` maps names to policies, planners (`sy.Oracle`) or names of built-in ones, or lists such names.
    `workload` is a spec such as "variant-calling?load=0.8", a function of topology and seed, or one fixed workload
    (then seeds vary the disturbances only). Training jobs are planned in rounds of six minutes unless `disturbances`
    has a `window_s`.
    `objective`: weights for learned policies, such as "mean=1,tail=0.5". `lengths="unknown"`: policies see estimates of
    how long training jobs take, from the jobs that have ended. `progress` is called with a policy's name and the share
    of its jobs that have finished.
    """
    cluster = topologies.topology(topology) if isinstance(topology, str | Path) else topology
    if not isinstance(cluster, Topology):
        raise InputError(f"the topology is {topology!r}", hint="give a name, the path of a TOML file, or a sy.Topology")
    deciding, planning = split_planners(policies, objective)
    chosen: dict[str, Policy | ScenarioPlanner] = {**deciding, **planning}
    numbers = chosen_seeds(seeds)
    if baseline is not None and baseline not in chosen:
        raise InputError(f"the baseline {baseline!r} is not compared", hint=f"choose one of {', '.join(chosen)}")
    scenarios = compared_scenarios(cluster, workload, numbers, disturbances, job_slots)
    _check_lengths(lengths, deciding, planning, scenarios[0])
    batch = stack(scenarios) if deciding else None
    runs: list[RunRecord] = []
    for index, name in enumerate(deciding):
        report_share = (lambda share, name=name: progress(name, share)) if progress else None
        policy = policy_at(index, tuple(deciding.values()), lengths)
        runs += simulate(scenarios, policy, name=name, contention=contention, progress=report_share, batch=batch)
    for name, planner in planning.items():
        # A plan is for one scenario only, and planning takes far longer than simulating it.
        for number, each in enumerate(scenarios, start=1):
            runs += simulate([each], planner.plan(each, contention), name=name, contention=contention)
            if progress:
                progress(name, number / len(scenarios))
    _warn_of_full_slots(runs, scenarios)
    return Report(
        runs,
        {s.seed: ScenarioMeta.from_scenario(s) for s in scenarios},
        cheats={name for name, policy in chosen.items() if policy.cheats},
        command=command or _call(chosen, cluster, workload, numbers, disturbances),
        baseline=baseline,
    )


def split_planners(
    policies: Mapping[str, Policy | ScenarioPlanner | str] | Iterable[str], objective: ObjectiveLike | None = None
) -> tuple[dict[str, Policy], dict[str, ScenarioPlanner]]:
    """Policies and planners by name, separately."""
    if not isinstance(policies, Mapping):
        return chosen_policies(policies, objective), {}
    planning = {
        name: x for name, x in policies.items() if isinstance(x, ScenarioPlanner) and not isinstance(x, Policy | type)
    }
    deciding = {name: x for name, x in policies.items() if name not in planning}
    return chosen_policies(deciding, objective) if deciding or not planning else {}, planning


def chosen_policies(
    policies: Mapping[str, Policy | str] | Iterable[str], objective: ObjectiveLike | None = None
) -> dict[str, Policy]:
    """Policies by name, from a mapping or from the names of built-in ones; learned ones with the `objective`."""
    if isinstance(policies, str) or not isinstance(policies, Mapping | Iterable):
        raise InputError(f"policies are {policies!r}", hint="give a list of names, or a mapping of names to policies")
    given = policies if isinstance(policies, Mapping) else {name: name for name in policies}
    chosen = {name: named(one) if isinstance(one, str) else one for name, one in given.items()}
    if not chosen:
        raise InputError("no policy to compare", hint="name at least one, for example heft")
    for name, policy in chosen.items():
        check_instance(policy, name)
    if objective is not None:
        chosen = {name: with_objective(policy, objective) for name, policy in chosen.items()}
    return chosen


def policy_at(index: int, policies: tuple[Policy, ...], lengths: str) -> Policy:
    """One of the policies, in the program of all; with unknown lengths, it is shown estimates of them."""
    chosen = OneOf(policies, jax.device_put(np.int32(index)))
    return (
        UnknownLengths(chosen, by_index=jnp.asarray(isinstance(policies[index], Planner)))
        if lengths == "unknown"
        else chosen
    )


def _check_lengths(
    lengths: str, deciding: Mapping[str, Policy], planning: Mapping[str, ScenarioPlanner], scenario: Scenario
) -> None:
    if lengths not in LENGTHS:
        raise InputError(f"lengths is {lengths!r}", hint=f"write one of {', '.join(LENGTHS)}")
    if lengths == "told":
        return
    allowed = {Planner, *(BASELINES[name] for name in LENGTH_HIDEABLE)}
    own = {name for name, policy in deciding.items() if not type(policy).__module__.startswith("symphony.")}
    seeing = [name for name, policy in deciding.items() if type(policy) not in allowed and name not in own]
    if seeing or planning:
        hint = f"with unknown lengths, compare {', '.join((PLANNER, *LENGTH_HIDEABLE))}, or policies of your own"
        raise InputError(f"the lengths of jobs cannot be hidden from {', '.join((*seeing, *planning))}", hint=hint)
    check_trackable(scenario.job_slots, max(len(graph.all_gangs) for graph in scenario.workload.graphs))


def _warn_of_full_slots(runs: list[RunRecord], scenarios: list[Scenario]) -> None:
    full = sorted({run.policy for run in runs if run.jobs_outside})
    if full:
        warnings.warn(
            f"under {', '.join(full)} all {scenarios[0].job_slots} job slots were taken at times, and jobs waited "
            "outside, where policies cannot see them; raise job_slots (--job-slots) or lower the load",
            SymphonyWarning,
            stacklevel=3,
        )


def _call(
    policies: Mapping[str, Policy | ScenarioPlanner],
    topology: Topology,
    workload: Workload | Draw | str,
    seeds: list[int],
    disturbances: Disturbances | None,
) -> str:
    """The call that made a report."""
    what = workload if isinstance(workload, str) else getattr(workload, "name", getattr(workload, "__name__", "…"))
    extra = f", disturbances={asdict(disturbances)}" if disturbances else ""
    return (
        f"sy.compare({list(policies)}, topology={topology.name!r}, workload={what!r}, "
        f"seeds={seeds[0]}…{seeds[-1]}{extra})"
    )
