"""An engine whose news is kept before it is told: still an engine, and nothing is told too early."""

from __future__ import annotations

from concurrent.futures import Future

import symphony as sy
from symphony.engines.engine import Finished, Function, Pickled, Work
from symphony.engines.local import LocalEngine
from symphony.engines.worker import pickled
from symphony.service.recorder import JournalingEngine
from tests.runtime.machines import machine


def test_it_is_an_engine_like_any_other() -> None:
    engine = JournalingEngine(LocalEngine(machine()))
    engine.record = lambda event: _kept()
    try:
        sy.testing.check_engine(engine)
    finally:
        engine.close()


def _kept() -> Future[None]:
    found: Future[None] = Future()
    found.set_result(None)
    return found


def test_news_waits_until_it_is_kept_and_keeps_its_order() -> None:
    engine = JournalingEngine(LocalEngine(machine(slots=1)))
    kept: dict[int, Future[None]] = {}

    def record(event):
        return kept.setdefault(event.number, Future())

    engine.record = record
    try:
        code = engine.put(Pickled(*pickled(lambda: 1, lambda _: None)))
        nothing = engine.put(Pickled(*pickled(((), {}))))
        engine.dispatch([Work(n, 0, Function("f", "f", code), nothing) for n in (1, 2)])
        heard: list = []
        while len(kept) < 2:
            heard += engine.poll(0.1)
        assert heard == []
        kept[2].set_result(None)
        assert engine.poll(0.0) == []
        kept[1].set_result(None)
        found = engine.poll(5.0)
        assert [(type(event), event.number) for event in found] == [(Finished, 1), (Finished, 2)]
    finally:
        engine.close()
