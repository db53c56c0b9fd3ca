"""The page: self-contained, bounded in size, true to the records, and safe whatever things are called."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from symphony.evaluation import page
from symphony.evaluation.report import Report
from tests.evaluation import synthetic
from tests.service.dashboard.browser import program
from tests.waiting import SECONDS

EVIL = '</script><img src=x onerror="document.title=1"><!-- & \u2028 {{data}}'


class Parsed(HTMLParser):
    """Tags, texts and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(dict(attrs).get("id") or tag)

    def handle_data(self, data: str) -> None:
        key = self.inside[-1] if self.inside else ""
        self.texts[key] = self.texts.get(key, "") + data


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def report() -> Report:
    return synthetic.report(seeds=range(5), jobs=10)


def test_nothing_is_fetched_from_elsewhere(report: Report) -> None:
    text = page.html(report)
    tags = Parsed(text).tags
    assert not [tag for tag, _ in tags if tag in ("link", "img", "iframe", "object", "embed", "base")]
    assert not [attributes for _, attributes in tags if {"src", "href"} & set(attributes)]
    addresses = set(re.findall(r"https?://[^\s\"'`]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert "default-src 'none'" in text and "@import" not in text and "url(" not in text
    assert not re.search(r"\{\{\w+\}\}", text)  # no part of the template is left empty


def test_names_cannot_become_markup() -> None:
    odd = synthetic.report(seeds=range(2), jobs=3, policies=((EVIL, 0.3), ("b", 0.9)), cheats=frozenset({EVIL}))
    text = page.html(Report(odd.runs, odd.scenarios, odd.cheats, EVIL, EVIL))
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.tags if tag == "script"] == ["script", "script"]
    assert not [tag for tag, _ in parsed.tags if tag == "img"]
    assert text.count("</script") == 2
    assert "<!--" not in text
    assert EVIL in parsed.texts["h1"] and parsed.texts["command"].strip() == EVIL
    data = data_of(text)
    assert data["policies"][0]["name"] == EVIL


def test_the_script_never_makes_markup_of_data() -> None:
    script = (Path(page.__file__).parent / "report.js").read_text(encoding="utf-8")
    for danger in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "</script",
    ):
        assert danger not in script


def test_schedules_decode_to_the_records(report: Report) -> None:
    data = data_of(page.html(report))
    for plan in data["schedules"]:
        for index, drawn in enumerate(plan["runs"]):
            run = report.run_of[report.policies[index], plan["seed"]]
            stays = sorted(run.gangs, key=lambda s: (s.start_s, s.finish_s))
            tick = plan["tick"]
            starts = [start * tick for start in accumulate(drawn["start"])]
            assert starts == pytest.approx([s.start_s for s in stays], abs=tick)
            assert [n * tick for n in drawn["length"]] == pytest.approx(
                [s.finish_s - s.start_s for s in stays], abs=tick
            )
            assert [n * tick for n in drawn["queued"]] == pytest.approx(
                [s.start_s - s.placed_s for s in stays], abs=tick
            )
            assert [n / 1000 for n in drawn["stretch"]] == pytest.approx([s.slowdown for s in stays], abs=1e-3)
            assert drawn["job"] == [s.job for s in stays]
            graph = report.scenarios[plan["seed"]].graphs[0]
            assert [plan["names"][n] for n in drawn["gang"]] == [graph.gangs[s.gang] for s in stays]
            assert [plan["names"][n] for n in drawn["kernel"]] == [graph.kernels[s.gang] for s in stays]
            assert drawn["workers"] == [len(s.devices) for s in stays]
            assert drawn["bar_device"] == [d for s in stays for d in s.devices]
            assert drawn["cut"] == {str(i): s.outcome for i, s in enumerate(stays) if s.outcome != "finished"}


def test_every_metric_of_every_seed_and_every_pair_is_there(report: Report) -> None:
    data = data_of(page.html(report))
    assert [m["name"] for m in data["metrics"]] == [m.name for m in report.metrics]
    slowdown = next(m for m in data["metrics"] if m["name"] == "p99_slowdown")
    assert slowdown["values"][1] == pytest.approx(list(report.values("eft-belief", "p99_slowdown")), rel=1e-5)
    ratio = report.paired("eft-belief", "p99_slowdown", "eft-exact").ratio
    assert ratio is not None
    kind, value, low, high, _, answer = slowdown["paired"][2][1]
    assert (kind, answer) == (1, report.verdict("eft-belief", "p99_slowdown", "eft-exact"))
    assert (value, low, high) == pytest.approx((ratio.value, ratio.low, ratio.high), rel=1e-5)
    assert slowdown["paired"][0][0] is None


def test_the_embedded_seeds_are_the_middle_and_the_extremes(report: Report) -> None:
    ratio = dict(
        zip(
            report.seeds,
            report.values("eft-belief", "mean_completion_s") / report.values("fifo", "mean_completion_s"),
            strict=True,
        )
    )
    order = sorted(ratio, key=ratio.__getitem__)
    assert [seed for seed, _ in page.scheduled_seeds(report)] == [order[2], order[0], order[4]]


def test_schedules_are_cut_to_what_the_page_may_hold(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BARS", 60)
    (plan,) = data_of(page.html(report))["schedules"]
    for drawn in plan["runs"]:
        assert sum(drawn["workers"]) <= 20
        assert drawn["left_out"] + len(drawn["job"]) >= 60
    monkeypatch.setattr(page, "MAX_BARS", 450)
    assert len(data_of(page.html(report))["schedules"]) == 2


def test_a_full_page_stays_below_three_megabytes(report: Report) -> None:
    empty, one = (len(page.for_script(page.payload(r))) for r in (synthetic.report(range(3), 1), report))
    bars = sum(page._bars(report, seed) for seed, _ in page.scheduled_seeds(report))
    assert (one - empty) / bars * page.MAX_BARS < 2.5e6


def test_stalled_runs_leave_strict_json() -> None:
    odd = synthetic.report(seeds=range(3), jobs=3)
    runs = [
        replace(r, stalled=True, jobs=(replace(r.jobs[0], finish_s=float("inf")), *r.jobs[1:])) for r in odd.runs[:1]
    ]
    data = data_of(page.html(replace(odd, runs=[*runs, *odd.runs[1:]])))
    mean = next(m for m in data["metrics"] if m["name"] == "mean_completion_s")
    assert mean["values"][0][0] is None and mean["means"][0] is None
    assert data["distributions"]["slow-down"][0][-1] is None


def test_the_script_draws_the_tables_and_charts(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page.html(report), encoding="utf-8")
    command = [
        program(),
        "--headless",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        path.as_uri(),
    ]
    if os.geteuid() == 0:  # its sandbox refuses to run as root
        command.insert(1, "--no-sandbox")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    drawn = Parsed(done.stdout)
    assert sum(tag == "tr" for tag, _ in drawn.tags) == 2 + len(report.policies) + 1 + len(report.metrics)
    assert sum(tag == "polyline" for tag, _ in drawn.tags) == len(report.policies)
    assert sum(tag == "canvas" for tag, _ in drawn.tags) == 2
    assert "eft-belief" in done.stdout and "seeds" in drawn.texts["schedule-about"]
