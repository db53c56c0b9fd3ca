"""The report: what it says first, what it says of each policy, and what it refuses."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from symphony.evaluation.metrics import METRICS
from symphony.evaluation.report import Report
from symphony.problem.errors import InputError
from tests.evaluation import synthetic


@pytest.fixture(scope="module")
def report() -> Report:
    return synthetic.report(seeds=range(6), jobs=20)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def changed(report: Report, change: Callable[[Report], dict[str, object]]) -> Report:
    return dataclasses.replace(report, **change(report))  # type: ignore[arg-type]


def test_the_headline_gives_the_difference_and_its_interval(report: Report) -> None:
    ratio = report.paired("eft-belief", "mean_completion_s").ratio
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    low, value, high = (f"{1 - x:.1%}" for x in (ratio.high, ratio.value, ratio.low))
    assert report.headline() == (
        f"The mean completion time of eft-belief is {value} lower than that of fifo "
        f"(95% confidence interval: {low} to {high} lower; 6 seeds)."
    )


def test_the_headline_never_boasts_with_a_cheat_nor_with_a_loss(report: Report) -> None:
    assert report.best == "eft-belief" and report.ranking[0] == "eft-exact"
    assert report.headline("eft-belief").startswith("No policy beats eft-belief. The mean completion time of fifo is")
    assert "higher than that of eft-belief" in report.headline("eft-belief")


def test_the_headline_of_one_seed_one_policy_or_equals() -> None:
    assert "on a single seed" in synthetic.report(seeds=(4,), jobs=5).headline()
    alone = synthetic.report(seeds=range(2), jobs=5, policies=(("only", 0.5),))
    assert alone.headline().startswith("only has a mean completion time of")
    twins = synthetic.report(seeds=range(2), jobs=5, policies=(("a", 0.5), ("b", 0.5)))
    assert twins.headline() == "b and a have the same mean completion time on every seed."


def test_unfairness_comes_first(report: Report) -> None:
    first = str(report.summary()).splitlines()[0]
    assert first == (
        "Unfair: eft-exact† sees the true state, which no real scheduler can; "
        "deciding takes no simulated time, however slow a policy is."
    )
    assert str(report.table("makespan_s")).splitlines()[0] == first


def test_a_fair_comparison_says_so(report: Report) -> None:
    charged = {
        seed: dataclasses.replace(meta, disturbances={**meta.disturbances, "latency_s": 0.01})
        for seed, meta in report.scenarios.items()
    }
    fair = changed(report, lambda r: {"scenarios": charged, "cheats": set()})
    assert fair.unfairness() == "Every policy has the same information, on the same seeds."


def test_the_summary_has_every_policy_in_order_and_marks_the_cheat(report: Report) -> None:
    text = str(report.summary())
    rows = [line for line in text.splitlines() if line.startswith(("fifo", "eft-"))]
    assert [row.split()[0] for row in rows] == ["eft-exact†", "eft-belief", "fifo"]
    assert "better" in rows[1] and "baseline" in rows[2]
    assert f"{report.mean('fifo', 'p99_slowdown'):.2f}" in rows[2]
    assert f"{report.mean('fifo', 'worse_share'):.0%}" in rows[2]
    assert "† cheats" in text


def test_the_baseline_can_be_chosen(report: Report) -> None:
    rows = str(report.summary("eft-exact")).splitlines()
    assert any(row.startswith("fifo") and "worse" in row for row in rows)
    assert any(row.startswith("eft-exact†") and "baseline" in row for row in rows)


def test_a_table_of_one_metric_is_sorted_by_it(report: Report) -> None:
    text = str(report.table("isolated_share", relative_to="eft-exact"))
    assert METRICS["isolated_share"].definition in text.replace("\n", " ")
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(("fifo", "eft-"))]
    by_share = sorted(report.policies, key=lambda policy: -report.mean(policy, "isolated_share"))
    assert rows == [report.label(policy) for policy in by_share]
    assert " pp (" in text  # shares differ by percentage points
    assert "minus fifo" in str(report.table("p99_completion_s")) and " s (" in str(report.table("p99_completion_s"))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_gets_several_tables_and_no_cut_cells(report: Report, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(report.summary())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    assert "…)" not in text.replace(" … ", "")
    assert text.count("policy ") > 1
    for piece in ("isolated", "better", "p99", "per s"):
        assert piece in text


def test_names_with_markup_are_printed_as_they_are() -> None:
    name = "[red]bold[/red] [link=x]"
    odd = synthetic.report(seeds=range(2), jobs=4, policies=((name, 0.4), ("b", 0.9)))
    assert name in str(odd.summary())


def test_stalled_and_refused_are_said_and_ranked_last(report: Report) -> None:
    runs = [
        dataclasses.replace(r, stalled=r.seed == 2, refused=5) if r.policy == "eft-belief" else r for r in report.runs
    ]
    bad = changed(report, lambda r: {"runs": runs})
    assert bad.ranking[-1] == "eft-belief"
    assert bad.verdict("eft-belief", "mean_completion_s") == "not comparable"
    text = str(bad.summary())
    assert "never" in text
    assert "eft-belief stalled in 1 of 6 runs" in text and "tried 30 actions that break the rules" in text
    assert "cannot be compared" in changed(bad, lambda r: {"cheats": {"fifo", "eft-exact"}}).headline()


def test_json_reads_back_equal(report: Report, tmp_path: Path) -> None:
    report.to_json(tmp_path / "r.json.gz")
    again = Report.from_json(tmp_path / "r.json.gz")
    assert again == report
    assert str(again.summary()) == str(report.summary())


def test_write_makes_the_page_the_plots_and_the_records(report: Report, tmp_path: Path) -> None:
    page = report.write(tmp_path / "new" / "directory")
    assert page.name == "report.html"
    names = {path.name for path in page.parent.iterdir()}
    plots = {"slowdown_cdf.png", "loss_classes.png", "paired_ratios.png", "utilisation.png", "gantt.png"}
    assert names == {"report.html", "records.json.gz"} | plots
    assert Report.from_json(page.parent / "records.json.gz") == report


def test_write_into_a_file_is_an_error_of_input(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="it cannot be created"):
        report.write(tmp_path / "file")


def test_unknown_names_are_answered_with_the_nearest(report: Report) -> None:
    with pytest.raises(InputError, match="unknown policy 'eft-beleif'\nhint: use eft-belief"):
        report.summary("eft-beleif")
    with pytest.raises(InputError, match="unknown metric 'p99_slow'\nhint: use p99_slowdown"):
        report.table("p99_slow")
    with pytest.raises(InputError, match="unknown policy 'x'\nhint: use fifo, eft-belief or eft-exact"):
        changed(report, lambda r: {"baseline": "x"})


def test_runs_that_do_not_pair_up_are_refused(report: Report) -> None:
    cases: dict[str, Callable[[Report], dict[str, object]]] = {
        "there is no run": lambda r: {"runs": []},
        "'fifo' has 2 runs of seed 0": lambda r: {"runs": [*r.runs, r.runs[0]]},
        "'eft-exact' has no run of seed 5": lambda r: {"runs": r.runs[:-1]},
        "there is no scenario for seed 3": lambda r: {"scenarios": {s: r.scenarios[s] for s in (0, 1, 2, 4, 5)}},
    }
    for message, change in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            changed(report, change)
        assert caught.value.hint


def test_rounds_are_named() -> None:
    shown = synthetic.report(seeds=range(2), jobs=4)
    assert not any("round" in note for note in shown.notes())
    in_rounds = {"offer_at_windows": True, "window_s": 360.0, "job_slots": 64}
    metas = {
        seed: dataclasses.replace(meta, disturbances={**meta.disturbances, **in_rounds})
        for seed, meta in shown.scenarios.items()
    }
    again = Report(shown.runs, metas, set(), shown.command, shown.baseline)
    assert again.notes()[0] == "Jobs are planned again after every round of 360 s; up to 64 of them are known."
