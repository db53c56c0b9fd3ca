"""What training jobs of a service may expect, over HTTP: to whom it is told, and in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from symphony.problem.errors import InputError
from tests.cli.command import symphony_here
from tests.service.places import Place, place, wait_until


@sy.training(steps=1000, kind="waiting", checkpoint_s=0.5)
def stays(job, path):
    import pathlib
    import time

    for step in job.steps():
        time.sleep(0.25 if step == 10 else 0)  # so that it says so
        while step > 10 and not pathlib.Path(path).exists():
            time.sleep(0.01)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("served") / "state") as found:
        yield found


def test_one_is_told_of_ones_own_jobs_and_of_others_only_what_they_cost(
    served: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    graph = sy.graph("stays")
    graph.task(stays, str(go))
    with served.connect("ann") as ann, served.connect("bob") as bob:
        assert ann.forecasts() == []
        mine, other = ann.submit(graph), bob.submit(graph)
        for job in (mine, other):
            wait_until(lambda job=job: (told := job.view().training) is not None and told.step >= 10)
        [one] = ann.forecasts()
        assert one.job == mine.id and one.task == "stays-0" and one.runs and one.devices == ["here/cpu"]
        assert one.kind == "small" and one.steps_left == 990
        assert one.finish_s.low is not None and one.finish_s.mid is not None and one.finish_s.high is not None
        assert 0 < one.finish_s.low < one.finish_s.mid < one.finish_s.high and one.start_s.high == 0
        assert [loss.job for loss in one.loses] == [0] and not one.loses[0].task  # somebody is beside it
        assert one.samples.newest_s is None  # no round has ended
        assert one.evidence.guess_only and one.evidence.signature == 0  # the same names as of a cluster of this process
        [half] = ann.forecasts(share=0.5)
        assert half.finish_s.high is not None and half.finish_s.high < one.finish_s.high
        text = mine.explain()
        assert "stays-0  expected to end in" in text and "to another user" in text and "a guess" in text
        monkeypatch.setenv("SYMPHONY_URL", served.server.url)
        monkeypatch.setenv("SYMPHONY_TOKEN", served.token("ann"))
        shown = symphony_here("forecast", "--live", folder=tmp_path).stdout
        assert "stays-0" in shown and "here/cpu" in shown and "another user" in shown and "guess only" in shown
        said = json.loads(symphony_here("forecast", "--live", "--json", "-", folder=tmp_path).stdout)
        assert said["format"] == "symphony.forecast/1" and [job["job"] for job in said["jobs"]] == [mine.id]
        assert said["jobs"][0]["finish_s"].keys() == {"low", "mid", "high"}
        with pytest.raises(InputError, match="below 1"):
            ann.forecasts(share=2.0)
        go.touch()
        mine.result(60.0)
        other.result(60.0)
        assert ann.forecasts() == [] and "expected to end" not in mine.explain()
        assert "no training jobs" in symphony_here("forecast", "--live", folder=tmp_path).stdout
