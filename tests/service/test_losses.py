"""An engine that loses values, as one of many machines may: what is in the journal is not lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import symphony as sy
from symphony.engines.engine import LOST, EngineEvent, Failed, Finished, Pickled, Stored
from symphony.engines.local import LocalEngine
from symphony.problem.errors import EngineError
from tests.runtime.machines import machine
from tests.service.kernels import note, one, wait_for, zeros
from tests.service.places import SECONDS, place, wait_until


class Forgetful(LocalEngine):
    """Forgets when it is told to: the next runs that find no inputs, and the next values that cannot be had."""

    dead = False

    def __init__(self) -> None:
        super().__init__(machine())
        self.no_inputs: list[bool] = []
        self.no_value: list[bool] = []

    def poll(self, timeout_s: float) -> list[EngineEvent]:
        """What has finished may say instead that it could not begin."""
        if self.dead:
            raise EngineError("the engine has died")
        return [self._doubted(event) for event in super().poll(timeout_s)]

    def _doubted(self, event: EngineEvent) -> EngineEvent:
        if isinstance(event, Finished) and self.no_inputs and self.no_inputs.pop(0):
            return Failed(event.number, LOST, "an input was lost with the machine that stored it")
        return event

    def get(self, value: Stored) -> Pickled:
        """A value, unless it is gone."""
        if self.no_value and self.no_value.pop(0):
            raise EngineError("a value was lost with the machine that stored it")
        return super().get(value)


def test_what_an_engine_has_lost_is_read_from_the_journal_or_made_again(tmp_path: Path) -> None:
    engine, ran = Forgetful(), tmp_path / "ran"
    with place(tmp_path / "state", engine=lambda: engine) as found, found.connect("ann") as ann:
        engine.no_value = [True]  # before it is in the journal: it is made again
        assert ann.submit(one(note, str(ran), "made")).result(SECONDS) == "made"
        engine.no_value = [False, True]  # when it is there already
        assert ann.submit(one(note, str(ran), "kept")).result(SECONDS) == "kept"

        graph = sy.graph("reads")
        graph.task(note, str(ran), "again", graph.task(zeros, 20_000))
        engine.no_inputs = [False, True]
        assert ann.submit(graph).result(SECONDS) == "again"
        assert ran.read_text().splitlines() == ["made", "made", "kept", "again", "again"]

        engine.no_inputs = [False, True, True, True]  # as often as that, it has failed
        with pytest.raises(sy.WorkerDiedError, match="an input was lost"):
            ann.submit(graph).result(SECONDS)
        engine.no_value = [True, True, True]  # so has what is gone whenever it was made
        with pytest.raises(sy.WorkerDiedError, match="a value was lost"):
            ann.submit(one(note, str(ran), "never")).result(SECONDS)
        assert ran.read_text().splitlines()[5:] == ["again"] * 3 + ["never"] * 3
        assert not found.service.failed.is_set()


def test_what_was_made_before_a_restart_is_not_lost_with_the_machine_that_kept_it(tmp_path: Path) -> None:
    graph = sy.graph("reads")
    graph.task(wait_for, str(tmp_path / "gate"), graph.task(zeros, 20_000))
    with place(tmp_path / "state") as found, found.connect("ann") as ann:
        job = ann.submit(graph).id
        wait_until(lambda: found.service.state.jobs[job].finished == 1)
    engine = Forgetful()
    engine.no_inputs = [True]
    (tmp_path / "gate").touch()
    with place(tmp_path / "state", engine=lambda: engine) as found, found.connect("ann") as ann:
        assert ann.job(job).result(SECONDS) == "came"


def test_a_service_whose_engine_dies_says_so_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Though nothing ran at the time; and a job that came just then is not to blame."""
    engine = Forgetful()
    with place(tmp_path / "state", engine=lambda: engine) as found, found.connect("ann") as ann:
        engine.dead = True
        engine.wake()
        assert found.service.failed.wait(SECONDS)
        job = ann.submit(one(note, str(tmp_path / "ran"), "later")).id
        wait_until(lambda: found.service.ledger.idle)
        assert ann.job(job).status == "waiting"
    with place(tmp_path / "state") as found, found.connect("ann") as ann:
        assert ann.job(job).result(SECONDS) == "later"
