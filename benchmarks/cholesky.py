"""One large graph: `python -m benchmarks.cholesky [--policies P …] [--plan SECONDS] [--quick] [--json FILE]`.

Tiled Cholesky of 10 and 16 tiles (220 and 816 tasks) on two machines with StarPU's measured profiles: the makespan of
each policy (median of runs whose kernel times vary by 1%), and that of `dmdas` in StarPU's own simulator. `--policies`
takes names, also files that `symphony train` wrote. `--plan` adds a plan for the whole graph (devices and order), made
from the profiles in the given time and followed in the same runs. Results of other policies in the file are kept.

Unfair to the learned policy: it was trained on neither machine, nor on graphs of this size. Unfair to StarPU: the two
simulators differ by up to 12% (docs/lab/fidelity-starpu.md), so ratios are to our `dmdas`. Unfair to online policies: a
plan has seconds of computation, and the simulator to evaluate candidates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, parser
from benchmarks.fidelity import DRAWS, STARPU, TOUCH, cholesky
from symphony.oracle.planning import plan
from symphony.policies import named
from symphony.scheduling.policy import Policy
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import CALM, Scenario, draw

RIVAL = "dmdas"
POLICIES = (RIVAL, "heft", "eft-belief", "symphony")
PLAN = "plan"
CASES = (("mirage", 10), ("mirage", 16), ("sirocco", 10), ("sirocco", 16))  # machine, tiles


def makespans_ms(drawn: Sequence[Scenario], policy: Policy) -> list[float]:
    """Makespans of some runs, sorted."""
    return sorted(1e3 * simulate([scenario], policy)[0].makespan_s for scenario in drawn)


def planned(machine: str, tiles: int, seconds: float) -> tuple[Policy, dict[str, Any]]:
    """A policy that follows a plan, and figures of the planning. Sampling is left out: it compiles for minutes."""
    made = plan(draw(*cholesky(machine, tiles), 0, CALM, job_slots=1), seconds=seconds, samples=0)
    figures = {
        "seconds": seconds,
        "wall_s": made.wall_s,
        "undisturbed_ms": 1e3 * made.value_s,
        "heuristics_ms": {name: 1e3 * value_s for name, value_s in made.heuristics.items()},
        "greedy_ms": 1e3 * made.greedy_s,
        "bounds_ms": {name: 1e3 * bound_s for name, bound_s in made.bounds.items()},
        "rebuilt": made.rebuilt,
        "candidates": made.candidates,
    }
    return made.policy, figures


def kept(path: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """The cases in a file, by machine and tiles."""
    cases = json.loads(path.read_text())["cases"] if path is not None and path.exists() else []
    return {(case["machine"], case["tiles"]): case for case in cases}


def main() -> None:
    arguments = parser((__doc__ or "").splitlines()[0], tuple(dict.fromkeys(machine for machine, _ in CASES)))
    arguments.add_argument("--policies", nargs="+", default=[], metavar="P", help=f"policies to compare with {RIVAL}")
    arguments.add_argument("--plan", type=float, metavar="SECONDS", help="add a plan, made in so many seconds")
    given = arguments.parse_args()
    policies = list(dict.fromkeys((RIVAL, *given.policies))) if given.policies else list(POLICIES)
    shown = [*policies, *([PLAN, "bound"] if given.plan else [])]
    table = Table("machine, tasks", f"{RIVAL} of StarPU", *shown, title=f"makespan in ms (against {RIVAL})")
    cases = kept(given.json)
    machines = given.only[:1] if given.quick else given.only
    for machine, tiles in CASES:
        theirs = STARPU[machine, tiles]
        if machine not in machines or (given.quick and tiles > 10):
            continue
        topology, workload = cholesky(machine, tiles)
        drawn = [draw(topology, workload, seed, TOUCH, job_slots=1) for seed in range(1 if given.quick else DRAWS)]
        runs = {name: makespans_ms(drawn, named(name)) for name in policies}
        case = cases.setdefault((machine, tiles), {"machine": machine, "tiles": tiles, "runs_ms": {}})
        case["starpu_ms"] = theirs[RIVAL]
        bound = []
        if given.plan:
            policy, case[PLAN] = planned(machine, tiles, given.plan)
            runs[PLAN] = makespans_ms(drawn, policy)
            bound = [f"{max(case[PLAN]['bounds_ms'].values()):.0f}"]
        case["runs_ms"].update(runs)
        middle = {name: float(np.median(lengths)) for name, lengths in runs.items()}
        tasks = tiles * (tiles + 1) * (tiles + 2) // 6
        against = [f"{ms:.0f} ({ms / middle[RIVAL] - 1:+.1%})" for ms in middle.values()]
        table.add_row(f"{machine}, {tasks}", f"{theirs[RIVAL]:.0f}", *against, *bound)
        keep(given.json, cases=list(cases.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
