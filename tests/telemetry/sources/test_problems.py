"""Problems are counted by kind, so that a source that runs for weeks stays small."""

from __future__ import annotations

from symphony.telemetry.samples import Problem
from symphony.telemetry.sources.problems import MAX_PROBLEM_KINDS, Problems


def test_the_first_of_each_kind_is_kept_and_the_rest_counted() -> None:
    problems = Problems()
    for line in (3, 5, 9):
        problems.add(f"perf.json, line {line}", "cycles was not counted")
    problems.add("perf.json, line 7", "garbage 'a'", kind="garbage")
    problems.add("perf.json, line 8", "garbage 'b'", kind="garbage")
    assert [str(problem) for problem in problems] == [
        "perf.json, line 3: cycles was not counted (and 2 more like it)",
        "perf.json, line 7: garbage 'a' (and 1 more like it)",
    ]
    assert problems[-1] == Problem("perf.json, line 7", "garbage 'a' (and 1 more like it)") and len(problems[:1]) == 1


def test_there_is_an_end_to_kinds() -> None:
    problems = Problems()
    for line in range(3 * MAX_PROBLEM_KINDS):
        problems.add(f"line {line}", f"garbage {line}")
    assert len(problems) == MAX_PROBLEM_KINDS + 1
    assert (
        problems[-1].where == f"line {MAX_PROBLEM_KINDS}"
        and f"and {2 * MAX_PROBLEM_KINDS - 1} more" in problems[-1].what
    )
