"""One large graph: `python -m benchmarks.cholesky [--policies P …] [--quick] [--json FILE]`.

Tiled Cholesky of 10 and 16 tiles (220 and 816 tasks) on two machines that StarPU has measured, with its profiles: the
makespan of each policy, the median of runs whose kernels take 1% more or less, beside what StarPU's own simulator says
of `dmdas`. Policies may be weights: names, or files that `symphony train` wrote.

Unfair to the learned policy: it has seen neither machine, nor graphs of such a size. Unfair to StarPU: its `dmdas` runs
in its simulator, ours in ours, and they are up to 12% apart (docs/concepts/fidelity.md); so the ratio is to ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import keep, parser
from benchmarks.fidelity import DRAWS, STARPU, TOUCH, cholesky
from symphony.policies import named
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import draw

RIVAL = "dmdas"
POLICIES = (RIVAL, "heft", "eft-belief", "symphony")


def makespans_ms(machine: str, tiles: int, policy: str, draws: int) -> list[float]:
    """Of a few runs, in order of length."""
    topology, workload = cholesky(machine, tiles)
    drawn = [draw(topology, workload, seed, TOUCH, job_slots=1) for seed in range(draws)]
    return sorted(1e3 * simulate([scenario], named(policy))[0].makespan_s for scenario in drawn)


def main() -> None:
    """Run the cases."""
    arguments = parser((__doc__ or "").splitlines()[0], tuple(dict.fromkeys(machine for machine, _ in STARPU)))
    arguments.add_argument("--policies", nargs="+", default=[], metavar="P", help=f"beside {RIVAL}")
    given = arguments.parse_args()
    policies = list(dict.fromkeys((RIVAL, *given.policies))) if given.policies else list(POLICIES)
    table = Table("machine, tasks", f"{RIVAL} of StarPU", *policies, title=f"makespan in ms (against {RIVAL})")
    cases: list[dict[str, Any]] = []
    for (machine, tiles), theirs in STARPU.items():
        if machine not in given.only or (given.quick and tiles > 10):
            continue
        runs = {name: makespans_ms(machine, tiles, name, 1 if given.quick else DRAWS) for name in policies}
        middle = {name: float(np.median(lengths)) for name, lengths in runs.items()}
        cases.append({"machine": machine, "tiles": tiles, "starpu_ms": theirs[RIVAL], "runs_ms": runs})
        tasks = tiles * (tiles + 1) * (tiles + 2) // 6
        against = [f"{ms:.0f} ({ms / middle[RIVAL] - 1:+.1%})" for ms in middle.values()]
        table.add_row(f"{machine}, {tasks}", f"{theirs[RIVAL]:.0f}", *against)
        keep(given.json, cases=cases)
    Console().print(table)


if __name__ == "__main__":
    main()
