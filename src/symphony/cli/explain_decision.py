"""One decision of the learned policy: `symphony explain` without a job."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from symphony.policies import Learned, named
from symphony.policies.explain import Candidate, DecisionExplanation, explain
from symphony.problem import topologies
from symphony.simulator.scenario_source import scenario

CANDIDATE_TABLE_COLUMNS = 132  # minimum width of the table of candidates
SHOWN_CANDIDATES = 8


def explain_decision(policy: str, topology: str, workload: str, seed: int, decision: int) -> DecisionExplanation:
    """One decision of a learned policy in a scenario, with its candidates and reasons."""
    chosen = named(policy)
    assert isinstance(chosen, Learned)  # `check_learned` has refused others
    return explain(chosen, scenario(topologies.topology(topology), workload, seed), decision)


def show(console: Console, explanation: DecisionExplanation) -> None:
    """Print the candidates, the beliefs about resources, and the features that decided."""
    console.print(f"decision {explanation.number}, at {explanation.time_s:.4g} s: the highest score is taken (▶)")
    table = Table(box=None, pad_edge=False)
    for name in ("", "gang", "device"):
        table.add_column(name, overflow="fold")
    for name in ("finish, s (95%)", "wait", "run", "heuristic", "+ network", "= score"):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in explanation.candidates[:SHOWN_CANDIDATES]:
        mark = "▶" if candidate is explanation.chosen else "h" if candidate == explanation.heuristic else ""
        table.add_row(mark, *_cells(candidate))
    # A narrow terminal breaks long lines; Rich would leave names out.
    console.width = max(console.width, CANDIDATE_TABLE_COLUMNS)
    console.print(table)
    hidden = len(explanation.candidates) - SHOWN_CANDIDATES
    if hidden > 0:
        console.print(f"… and {hidden} more (--json lists all)")
    if explanation.waiting:
        console.print(escape(explanation.waiting), soft_wrap=True)
    for device, rows in explanation.beliefs.items():
        loads = ", ".join(
            f"{escape(x.resource)} {x.own:.0%} own + {x.others:.0%} ± {x.deviation:.0%} by others" for x in rows
        )
        console.print(f"resources of {escape(device)}: {loads}", soft_wrap=True)
    if explanation.heuristic is None or explanation.heuristic == explanation.chosen:
        console.print("The heuristic decides the same.")
        return
    console.print(
        f"The heuristic (h) would place {escape(explanation.heuristic.gang)} of {escape(explanation.heuristic.job)} on "
        f"{escape(explanation.heuristic.device)}. Part of the chosen candidate's lead that is lost without:",
        soft_wrap=True,
    )
    for name, share in sorted(explanation.moved.items(), key=lambda item: -abs(item[1])):
        console.print(f"  {share:+.2f}  {name}")


def _cells(c: Candidate) -> list[str]:
    gang = f"{c.gang} of {c.job}" if c.gang else ""
    cells = [escape(gang if c.action == "place" else f"{c.action} {gang}".strip()), escape(c.device)]
    score = f"{c.score:+.2f}"
    if c.estimate is None:
        return [*cells, "", "", "", "", "", score]
    e = c.estimate
    return [
        *cells,
        f"{e.finish_s:.3g} ({e.low_s:.3g} … {e.high_s:.3g})",
        f"{max(e.queue_s, e.fetch_s) + e.setup_s:.3g}",
        f"{e.run_s:.3g} × {e.slowdown:.2f}",
        f"{e.heuristic:+.2f}",
        f"{e.network:+.2f}",
        score,
    ]
