"""The pages, as the server sends them: what is on them, for whom, and that nothing on them is a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from symphony.service import wire
from symphony.service.dashboard import pages
from symphony.service.futures import Futures
from tests.service.dashboard.places import Visitor, visitor
from tests.service.kernels import add, one, rave, wait_for
from tests.service.places import SECONDS, Place, place

EVIL = "<script>window.hacked=1</script>\"'><img src=x onerror=hacked=1>"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Job 1 has failed with a hostile text, job 2 is done, job 3 waits for a file."""
    folder = tmp_path_factory.mktemp("pages")
    with place(folder) as found, found.connect("ann") as ann:
        failed = sy.graph(EVIL)
        failed.task(rave, EVIL)
        done = sy.graph("sum")
        done.task(add, done.task(add, 1), done.task(add, 2))
        jobs = [ann.submit(graph) for graph in (failed, done, one(wait_for, str(folder / "go")))]
        for job in jobs[:2]:
            assert job.wait(SECONDS)
        yield found
        jobs[2].cancel()


@pytest.fixture(scope="module")
def ann(here: Place) -> Visitor:
    return visitor(here, "ann")


def test_hostile_names_output_and_errors_are_text(ann: Visitor) -> None:
    for path in ("/ui/", "/ui/jobs", "/ui/jobs/1", "/ui/jobs/1/log", "/ui/learning", "/ui/timeline"):
        text = ann.get(path)
        assert "<script>w" not in text and "<img" not in text
    assert "&lt;script&gt;" in ann.get("/ui/jobs") and "&lt;script&gt;" in ann.get("/ui/jobs/1/log")


def test_templates_have_no_inline_scripts_or_styles() -> None:
    """The policy of the pages would block them."""
    for path in (pages.FOLDER / "templates").iterdir():
        text = path.read_text()
        assert not re.search(r"<script(?! src=| type=\"application/json\")|<style|\son\w+=|\sstyle=|javascript:", text)
        assert not re.search(r"(src|href|action|hx-\w+)=\"(https?:)?//", text), path  # nothing from elsewhere


def test_a_job_shows_its_graph_tasks_and_why(ann: Visitor) -> None:
    text = ann.get("/ui/jobs/2")
    assert text.count('class="s-done"') == 3 and text.count('class="edge"') == 2
    assert "done after" in text and "add-2" in text and "Cancel" not in text
    assert "Cancel" in ann.get("/ui/jobs/3") and "Cancel" not in visitor(ann.here, "ann", "read").get("/ui/jobs/3")
    assert "LookupError" in ann.get("/ui/jobs/1")


def test_a_large_graph_is_summarised_and_paged(ann: Visitor, here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_DRAWN_TASKS", 2)
    monkeypatch.setattr(pages, "TASKS_ON_A_PAGE", 2)
    text = ann.get("/ui/jobs/2?at=2")
    assert "<svg" not in text and "page 2 of 2" in text and "add-2" in text and "add-1" not in text


def test_forecasts_are_of_open_jobs_that_one_may_see(
    here: Place, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    band = wire.BandView(low=5.0, mid=10.0, high=600.0)
    view = wire.When.model_construct(status="waiting", share=0.8, text="", start_s=band, finish_s=band)
    monkeypatch.setattr(Futures, "when", lambda futures, job, share: view.model_copy(update={"job": job.id}))
    text = ann.get("/ui/forecasts")
    assert "10 s (5 s to 10 min)" in text and "/ui/jobs/3" in text and "/ui/jobs/2" not in text
    eve = visitor(here, "eve")
    assert "No job waits or runs" in eve.get("/ui/forecasts") and "/ui/jobs/3" not in eve.get("/ui/forecasts?all=true")


def test_differences_of_times_are_in_words() -> None:
    found = pages.PAGES.get_template("answer.html").render(
        what={
            "state": "done",
            "error": None,
            "answer": {
                "text": "shorter",
                "measures": [
                    {
                        "name": "makespan_s",
                        "text": "the end",
                        "now": {"low": 1.0, "mid": 20_000.0, "high": 4e5},
                        "then": {"low": 1.0, "mid": 5_000.0, "high": 1e4},
                        "change": {"low": -3.9e5, "mid": -15_000.0, "high": -370.0},
                    }
                ],
                "rows": [],
            },
        }
    )
    assert "-4.2 h (-110 h to -6.2 min)" in found and "ends in, now" not in found


def test_lists_are_paged(ann: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "JOBS_ON_A_PAGE", 2)
    first = ann.get("/ui/jobs")
    assert "job-3" in first and "job-2" in first and "job-1" not in first and "before=2" in first
    second = ann.get("/ui/jobs?before=2")
    assert "job-1" in second and "job-2" not in second and "newest" in second
    assert "job-2" in ann.get("/ui/jobs?status=done") and "job-1" not in ann.get("/ui/jobs?status=done")


def test_other_users_see_neither_jobs_nor_names(here: Place) -> None:
    eve, admin = visitor(here, "eve"), visitor(here, "root", "read", "admin")
    for path in ("/ui/jobs/1", "/ui/jobs/1/log", "/ui/jobs/1/trace.json", "/ui/events?job=1"):
        assert eve.ask("GET", path)[0] == 404
    assert "job-" not in eve.get("/ui/jobs") and eve.ask("GET", "/ui/jobs?all=true")[0] == 403
    assert "job-1" in admin.get("/ui/jobs?all=true") and admin.ask("GET", "/ui/jobs/1")[0] == 200
    assert "rave" not in eve.get("/ui/trace.json") and "rave" in admin.get("/ui/trace.json")
    assert "kernels.add" not in eve.get("/ui/learning") and "kernels.add" in admin.get("/ui/learning")
    runs = json.loads(eve.get("/ui/timeline/runs"))
    assert {run[2] for run in runs["ended"] + runs["under_way"]} == {"another user's"}


def test_nonsense_and_oversized_requests_are_refused_in_words(here: Place, ann: Visitor) -> None:
    long = "x" * 500
    for path in ("/ui/jobs/0", "/ui/jobs/x", "/ui/jobs?before=-1", "/ui/jobs?status=no", f"/ui/row?name={long}"):
        status, _, text = ann.ask("GET", path)
        assert status == 422 and "That did not work" in text, path
    assert ann.ask("GET", "/ui/row?name=no")[0] == 404 and ann.ask("GET", "/ui/jobs/77")[0] == 404
    assert ann.ask("GET", "/ui/nothing")[0] == 404 and ann.ask("GET", "/ui/static/../pages.py")[0] == 404
    for form in ({"job": "x"},):
        status, _, text = ann.ask("POST", "/ui/whatif", form, origin=here.server.url, hx_request="true")
        assert 400 <= status < 500 and "That did not work" in text, form
    assert ann.ask("GET", "/ui/whatif/999")[0] == 404
    big = {"token": "x" * (pages.MAX_FORM_BYTES + 1)}
    assert Visitor(here).ask("POST", "/ui/login", big, origin=here.server.url)[0] == 413


def test_the_log_goes_on_where_it_was(ann: Visitor) -> None:
    text = ann.get("/ui/jobs/3/log")
    assert "accepted" in text and "data-next" in text
    rest = re.search(r"data-next=\"([^\"]+)\"", text)
    assert rest is not None and "accepted" not in ann.get(rest[1])
    assert "data-next" not in ann.get("/ui/jobs/2/log")  # it has ended


def test_every_static_file_is_there(ann: Visitor) -> None:
    for path in set(re.findall(r"/ui/static/[\w.-]+", ann.get("/ui/"))):
        ann.get(path)
    licences = ann.get("/ui/static/LICENSES.txt")
    vendored = [path.name for path in Path(pages.FOLDER / "static").glob("*.min.*")]
    assert len(vendored) == 3 and all(name in licences for name in vendored)
