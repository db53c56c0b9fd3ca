"""Why, when and what if over HTTP, on a service with real work: to whom what is told, and how it is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import symphony as sy
from symphony.problem.errors import BusyError, InputError, ScopeError, UnknownJobError
from symphony.service.futures import Futures
from symphony.service.wire import AskWhatIf
from tests.cli.command import symphony_here
from tests.service.places import Place, place, wait_until


@sy.kernel(device="cpu")
def stays(path):
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.01)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("served") / "state") as found:
        yield found


def graph(path: Path, name: str = "stays") -> sy.Graph:
    made = sy.graph(name)
    made.task(stays, str(path))
    return made


def test_a_user_is_told_of_own_jobs_and_forecasts_are_scored(
    served: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    with served.connect("ann") as ann, served.connect("bob") as bob, served.connect("root", "read", "admin") as root:
        running = [bob.submit(graph(go)) for _ in range(2)]  # on both slots of the machine
        for job in running:
            wait_until(lambda job=job: job.view().status == "running")
        mine = ann.submit(graph(go))
        last = ann.submit(graph(go), after=[mine])
        found = ann.when(mine.id)
        assert found.start_s.low is not None and found.finish_s.high is not None and found.start_s.mid is not None
        assert found.finish_s.low is not None and 0 <= found.start_s.mid < found.finish_s.high
        assert found.start_s.low <= found.start_s.mid and f"job {mine.id} is expected to start in" in found.text
        assert found.calibrated == 0 and found.draws == 32
        why = ann.why(mine.id)
        assert [(one.reason, one.count) for one in why.reasons] == [("device", 1)]
        assert [one.job for one in why.ahead] == [0] and "other users" in why.text  # bob's jobs are not named
        assert {one.job for one in root.why(mine.id).ahead} == {job.id for job in running}
        assert any("1 more small" in one.change for one in why.helps), why
        assert [one.reason for one in ann.why(last.id).reasons] == ["after"]
        for ask in (ann.when, ann.why):
            with pytest.raises(UnknownJobError):
                ask(running[0].id)

        for wrong, match in (
            (AskWhatIf(without=["nowhere"]), "no machine or device"),
            (AskWhatIf(more=["0×small"]), "K×KIND"),
            (AskWhatIf(more=["2×gpu9"]), "gpu9"),
            (AskWhatIf(policy="no-such"), "no-such"),
            (AskWhatIf(policy="eft-exact"), "no real cluster"),
            (AskWhatIf(), "nothing is changed"),
            (AskWhatIf(policy="fifo", since_s=1e-3), "is done"),
        ):
            with pytest.raises(InputError, match=match) as error:
                ann.what_if(wrong)
            assert error.value.hint
        with pytest.raises(UnknownJobError):
            ann.what_if(AskWhatIf(priority={running[0].id: 3}))
        more = ann.what_if(AskWhatIf(more=["2×small"]))
        assert more.jobs == 2 and {row.job for row in more.rows} == {mine.id, last.id}
        mean = next(one for one in more.measures if one.name == "mean_wait_s")
        assert mean.change.mid is not None and mean.change.mid < 0  # they would not wait for bob's
        less = ann.what_if(AskWhatIf(without=["here"]))
        assert less.stranded == [mine.id, last.id] and "could not run" in less.text
        one_more = ann.what_if(AskWhatIf(), graph(go, "another"))
        assert one_more.start_s is not None and one_more.finish_s is not None and "would start" in one_more.text

        monkeypatch.setenv("SYMPHONY_URL", served.server.url)
        monkeypatch.setenv("SYMPHONY_TOKEN", served.token("ann"))
        assert "is expected to start in" in symphony_here("when", str(mine.id), folder=tmp_path).stdout
        assert "what would help" in symphony_here("why", str(mine.id), folder=tmp_path).stdout
        said = symphony_here("whatif", "--with", "2×small", "--json", "-q", folder=tmp_path).stdout
        assert json.loads(said)["jobs"] == 2
        assert "no forecast has an outcome yet" in symphony_here("record", folder=tmp_path).stdout
        for words in (("whatif",), ("whatif", "--policy", "heft", "--since", "6 weeks"), ("when", "1", "--share", "2")):
            failed = symphony_here(*words, folder=tmp_path)
            assert failed.returncode == 2 and "hint" in failed.stderr, words

        assert ann.record().scored == 0 and ann.record().forecasts >= 3 and bob.record().forecasts == 0
        go.touch()
        for job in (*running, mine, last):
            job.result(60.0)
        wait_until(lambda: ann.record().scored >= 3)
        scored = ann.record()
        kinds = {(row.what, row.by) for row in scored.rows}
        assert kinds >= {("start", "all"), ("finish", "horizon"), ("finish", "user")}
        assert {row.value for row in scored.rows if row.by == "user"} == {"ann"} and bob.record().scored == 0
        with pytest.raises(ScopeError):
            ann.record(everybody=True)
        assert root.record(everybody=True).scored == scored.scored
        with pytest.raises(InputError, match=f"job {mine.id} has ended"):
            ann.what_if(AskWhatIf(priority={mine.id: 1}))
        assert ann.when(mine.id).finish_s.mid is None and "done" in ann.when(mine.id).text
        assert "took" in ann.why(mine.id).text
        again = root.what_if(AskWhatIf(policy="eft-belief", since_s=3600.0))  # the past, played again
        assert again.jobs == 4 and again.left_out == 0 and again.measures[0].now.mid is not None
        text = root._ask("GET", "/metrics").decode()
        assert 'symphony_forecast_coverage{what="finish"}' in text and "symphony_forecasts_scored_total" in text


def test_users_take_turns_in_what_is_played(tmp_path: Path) -> None:
    """A newcomer's first job comes before the later ones of a user with many."""
    go = tmp_path / "go"
    with place(tmp_path / "state") as here, here.connect("ann") as ann, here.connect("bob") as bob:
        jobs = [ann.submit(graph(go)) for _ in range(5)] + [bob.submit(graph(go)) for _ in range(2)]
        for job in jobs[:2]:
            wait_until(lambda job=job: job.view().status == "running")
        futures = Futures(here.service)
        wait_until(lambda: _answered(lambda: futures.when(here.service.state.jobs[jobs[-1].id], 0.8)))
        found = futures._played(here.service.state.jobs[jobs[-1].id])
        futures.close()
        go.touch()
        for job in jobs:
            job.result(60.0)
    starts = found.outcome.start_s[:, [found.index[job.id] for job in jobs]]
    assert (np.diff(starts[:, :5]) >= 0).all() and (np.diff(starts[:, 5:]) >= 0).all()
    assert (starts[:, 5] <= starts[:, 3]).all() and (starts[:, 6] <= starts[:, 4]).all()


def _answered(ask: Callable[[], object]) -> bool:
    """Whether it is answered yet: the first play may have to be compiled."""
    try:
        ask()
    except BusyError:
        return False
    return True
