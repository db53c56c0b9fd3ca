"""Kernels that run again after they raised, on a service: journalled, explained, and through restarts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import symphony as sy
from symphony.engines.engine import DIED, RAISED, Failed
from symphony.service.graph_file import load
from symphony.service.wire import Submit
from tests.service.handmade import ANN, Handmade
from tests.service.kernels import one
from tests.service.places import SECONDS, place, wait_until
from tests.whole_system.clients import Sender
from tests.whole_system.virtual_time import Clock, keeping_time


@sy.kernel(retries=3, retry_on=ConnectionError, retry_delay_s=0.2)
def flaky(path, times):
    """Raises the first times that it is called; returns the number of calls."""
    import pathlib

    with open(path, "a") as file:
        file.write(".")
    calls = len(pathlib.Path(path).read_text())
    if calls <= times:
        raise ConnectionResetError(f"call {calls}")
    return calls


TOML = """
name = "flaky"
[[task]]
name = "fetch"
call = "tests.service.test_retries:flaky"
args = [{path!r}, 1]
retry_on = ["ConnectionError"]
retry_delay_s = 0.1
"""


def test_retries_are_in_the_log_and_in_the_explanation(tmp_path: Path) -> None:
    with place(tmp_path / "service") as here, here.connect("ann") as ann:
        job = ann.submit(flaky, str(tmp_path / "x"), 2)
        assert job.result(SECONDS) == 3
        texts = [line.text for line in job.logs().lines]
        assert "flaky-0: raised ConnectionResetError: call 1, on here/cpu; it is retried (1 of 3) in 200 ms" in texts
        assert "flaky-0: raised ConnectionResetError: call 2, on here/cpu; it is retried (2 of 3) in 200 ms" in texts
        lines = job.explain().splitlines()
        assert sum("raised ConnectionResetError" in line for line in lines) == 2 and len(lines) == 4
        with pytest.raises(sy.KernelError, match=r"call 4 \(4 times\)"):
            ann.submit(flaky, str(tmp_path / "y"), 9).result(SECONDS)
        (tmp_path / "graph.toml").write_text(TOML.format(path=str(tmp_path / "z")))
        assert ann.submit(load(str(tmp_path / "graph.toml"), {})).result(SECONDS) == 2


def test_retries_and_delays_survive_a_restart(tmp_path: Path) -> None:
    slow = sy.kernel(retries=2, retry_on=ConnectionError, retry_delay_s=2.0)(flaky._first)
    with place(tmp_path / "service") as before, before.connect("ann") as ann:
        job = ann.submit(slow, str(tmp_path / "x"), 9)
        quick = ann.submit(slow, str(tmp_path / "y"), 1)
        wait_until(lambda: all("is tried again (1 of 2 retries) in" in one.explain() for one in (job, quick)))
    with place(tmp_path / "service") as after, after.connect("ann") as ann:
        with pytest.raises(sy.KernelError, match=r"call 3 \(3 times\)"):  # not four, and not from the beginning
            ann.job(job.id).result(SECONDS)
        assert ann.job(quick.id).result(SECONDS) == 2
        assert (tmp_path / "x").read_text() == "..."
        runs = ann.job(quick.id).detail().tasks[0].runs
        assert runs[0].retry_at_s is not None and runs[1].began_s is not None
        assert runs[1].began_s >= runs[0].retry_at_s - 0.01  # the clocks of two services


RAISES = Failed(0, RAISED, "no", 0.0, 1.0, type="ConnectionError", classes=frozenset({"ConnectionError"}))
KILLED = Failed(0, DIED, "its process was ended by SIGKILL", 0.0, 1.0, signal=signal.SIGKILL)


@pytest.mark.parametrize(("failure", "delay_s"), [(RAISES, 2.0), (KILLED, 0.0)])
def test_a_clock_that_is_set_back_does_not_prolong_a_delay(tmp_path: Path, failure: Failed, delay_s: float) -> None:
    """The time of the next attempt is journalled by the wall clock."""
    kernel, clock = sy.kernel(retries=1, retry_on=ConnectionError, retry_delay_s=2.0)(flaky._first), Clock()
    with keeping_time(clock):
        here = Handmade(tmp_path / "one")
        body = Sender().bytes_of(one(kernel, "x", 1), 0, "")
        here.service.submit(ANN, Submit.model_validate_json(body), body, "")
        here.drive()
        here.engine.news = [failure]
        here.drive()
        folder = here.die(tmp_path / "two")
        clock.ahead -= 86_400.0
        here = Handmade(folder)
        assert bool(here.engine.sent) is (delay_s == 0.0)
        clock.now += delay_s + 0.1
        here.drive()
        assert len(here.engine.sent) == 1
        here.service.close()
