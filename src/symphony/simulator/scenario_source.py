"""Scenarios from what users name: a topology, a workload (a spec, a function, or one fixed workload) and seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace

from symphony.lowering import family
from symphony.problem import limits
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.scenarios import Disturbances, Scenario, draw

Draw = Callable[[Topology, int], Workload]  # a workload generator: topology and seed -> workload
ROUND_S = 360.0  # of training jobs: the time after which policies may plan again
GANGS_AT_ONCE = 2048  # the default number of job slots has room for about this many gangs


def scenario(
    topology: Topology,
    workload: Workload | Draw | str,
    seed: int,
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
) -> Scenario:
    """One scenario; its workload and its disturbances are drawn with the same seed."""
    if isinstance(workload, str):
        drawn = family.workload(workload, topology, seed)
    elif callable(workload) and not isinstance(workload, Workload):
        drawn = workload(topology, seed)
    else:
        drawn = workload
    if not isinstance(drawn, Workload):
        raise InputError(
            f"the workload is {type(drawn).__name__}",
            hint="give a spec such as 'eeg', a sy.Workload, or a function of topology and seed that returns one",
        )
    return draw(topology, drawn, seed, disturbances or Disturbances(), job_slots=job_slots or slots_for(drawn))


def compared_scenarios(
    topology: Topology,
    workload: Workload | Draw | str,
    seeds: Sequence[int],
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
) -> list[Scenario]:
    """A scenario for each seed, in which policies are compared.

    Jobs that can be preempted are planned in rounds: unless `window_s` is given, windows take ROUND_S, and a decision
    is offered at the end of each. (Windows as long as a typical gang would be rounds of hours.)
    """
    drawn = [scenario(topology, workload, seed, disturbances, job_slots) for seed in seeds]
    given = disturbances or Disturbances()
    if given.window_s is not None or not any(one.workload.preemptible for one in drawn):
        return drawn
    rounds = replace(given, window_s=ROUND_S, offer_at_windows=True)
    return [draw(one.topology, one.workload, one.seed, rounds, job_slots=one.job_slots) for one in drawn]


def slots_for(workload: Workload) -> int:
    """Job slots that are enough not to delay jobs at usual loads, and few enough to simulate fast."""
    largest = max(len(graph.all_gangs) for graph in workload.graphs)
    return limits.bucket(min(len(workload.jobs), max(16, min(256, GANGS_AT_ONCE // largest))))


def chosen_seeds(seeds: Iterable[int]) -> list[int]:
    """The distinct seeds, in order. Their number is checked before a list of them is made."""
    if not isinstance(seeds, Iterable):
        raise InputError(f"seeds are {seeds!r}", hint=f"give several, for example range({seeds})")
    if isinstance(seeds, Sized):
        limits.check("number of seeds", len(seeds), limits.SEEDS)
    numbers = list(dict.fromkeys(int(seed) for seed in itertools.islice(seeds, limits.SEEDS + 1)))
    limits.check("number of seeds", len(numbers), limits.SEEDS)
    if not numbers or min(numbers) < 0:
        raise InputError(f"seeds are {numbers[:5]}", hint="give at least one seed, 0 or more")
    return numbers
