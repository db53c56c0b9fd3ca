"""`symphony usage`: counted by a real service, for real jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from symphony.service import tokens
from tests.cli.command import symphony_here
from tests.service.kernels import fail, one, sleep
from tests.service.places import SECONDS, Place, place, wait_until


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


def test_device_time_and_jobs_are_counted_for_each_user(
    here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_URL", here.server.url)
    with here.connect("ann") as ann, here.connect("bob") as bob:
        monkeypatch.setenv("SYMPHONY_TOKEN", here.token("ann"))
        assert symphony_here("usage", folder=tmp_path).stdout == "no jobs\n"
        for job in [ann.submit(sleep, 0.2), ann.submit(one(fail, "x")), bob.submit(abs, -1)]:
            assert job.wait(SECONDS)
        between = time.time()
        running = ann.submit(sleep)
        wait_until(lambda: running.status == "running")
        time.sleep(0.1)
        mine = json.loads(symphony_here("usage", "--json", folder=tmp_path).stdout)["users"]
        assert [(one["user"], one["jobs"], one["done"], one["failed"], one["unfinished"]) for one in mine] == [
            ("ann", 3, 1, 1, 1)
        ]
        assert mine[0]["device_s"] >= 0.3  # the running one counts
        [since] = ann.usage(between).users
        assert (since.jobs, since.unfinished) == (1, 1) and since.device_s < mine[0]["device_s"] + SECONDS
        running.cancel()
        assert running.wait(SECONDS)
        refused = symphony_here("usage", "--all", folder=tmp_path)
        assert refused.returncode == 2 and "admin" in refused.stderr
        admin = here.token("root", tokens.READ, tokens.ADMIN)
        shown = symphony_here("usage", "--all", "--since", "30d", "--token", admin, folder=tmp_path)
        words = [line.split() for line in shown.stdout.splitlines()]
        assert words[0] == ["user", "device", "time", "jobs", "done", "failed", "cancelled", "unfinished"]
        assert [line[0] for line in words[1:]] == ["ann", "bob"]
        assert words[1][-5:] == ["3", "1", "1", "1", "0"] and words[2][-5:] == ["1", "1", "0", "0", "0"]
        assert "jobs that ended more than 168 h ago are not counted" in shown.stderr
    wrong = symphony_here("usage", "--since", "a week", folder=tmp_path)
    assert wrong.returncode == 2 and "--since: 'a week' is not a quantity in seconds" in wrong.stderr
