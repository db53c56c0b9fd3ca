"""`symphony demo`: its jobs come and go in a real service."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import symphony as sy
from symphony.cli import demo
from tests.service.places import place, wait_until


def test_the_applications_run_in_a_service_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SIZE", 1)
    stop = threading.Event()
    with place(tmp_path) as here:
        token, jobs = here.token("ann"), here.service.state.jobs
        arguments = here.server.url, token, demo.applications(), stop
        thread = threading.Thread(target=demo.keep_busy, args=arguments, daemon=True)
        thread.start()
        wait_until(lambda: sum(job.status == "done" for job in list(jobs.values())) >= 3)
        stop.set()
        thread.join()
        assert {job.name.partition("-")[0] for job in jobs.values()} >= set(demo.APPLICATIONS)
        assert {job.status for job in jobs.values()} <= {"done", "waiting"}
        assert len(here.service.state.open) <= demo.OPEN_JOBS


def test_without_the_sources_it_says_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "a" / "b" / "c" / "demo.py"))
    with pytest.raises(sy.SymphonyError, match="sources") as error:
        demo.applications()
    assert "clone" in error.value.hint
