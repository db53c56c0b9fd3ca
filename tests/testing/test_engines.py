"""The public check of engines finds what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.engines.engine import EngineEvent, Failed, Finished, Pickled, Stopped, Work
from symphony.engines.local import LocalEngine
from symphony.engines.worker import pickled
from symphony.testing import engines
from tests.runtime.machines import machine


@pytest.fixture(scope="module")
def good() -> Iterator[LocalEngine]:
    engine = LocalEngine(machine())
    yield engine
    engine.close()


class Wrapped:
    """Delegates to another engine, except for what a test breaks."""

    def __init__(self, engine: LocalEngine, **broken: Any) -> None:
        self._engine, self._broken = engine, broken

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return (lambda *args: self._broken[name](found, *args)) if name in self._broken else found


def changing(kind: Any, change: Any) -> dict[str, Any]:
    """Events of a kind are changed on their way to a list of others."""

    def poll(found: Any, timeout_s: float) -> list[EngineEvent]:
        return [new for event in found(timeout_s) for new in (change(event) if isinstance(event, kind) else [event])]

    return {"poll": poll}


def without_last_words() -> dict[str, Any]:
    """What a training function has said of steps since it saved is lost."""
    folders: set[Path] = set()

    def dispatch(found: Any, work: list[Work]) -> None:
        folders.update(Path(one.resumes.folder) for one in work if one.resumes is not None)
        found(work)

    def poll(found: Any, timeout_s: float) -> list[EngineEvent]:
        events = found(timeout_s)
        for file in (folder / "progress" for folder in folders if (folder / "progress").exists()):
            file.write_text(json.dumps({**(told := json.loads(file.read_text())), "step": told["saved"]}))
        return events

    return {"dispatch": dispatch, "poll": poll}


def test_an_engine_that_keeps_its_contract_passes(good: LocalEngine) -> None:
    sy.testing.check_engine(Wrapped(good))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"inventory": lambda found: "two CPUs"}, "inventory.. returns str"),
        ({"get": lambda found, value: Pickled(*pickled(0))}, "get returns another value"),
        (changing(Finished, lambda event: []), "no event arrived"),
        (without_last_words(), "of four steps, 3 were reported"),
        ({"dispatch": lambda found, work: found([replace(one, resumes=None) for one in work])}, "from step 0"),
        (changing(Finished, lambda event: [event, event]), "ended twice"),
        (changing(Finished, lambda event: [Stopped(event.number)]), "not in Finished"),
        (changing(Finished, lambda event: [replace(event, seconds=-1.0)]), "took -1 s"),
        (changing(Failed, lambda event: [replace(event, why="raised")]), "should have failed as 'unsendable'"),
        (changing(Failed, lambda event: [replace(event, traceback="")]), "exception of a kernel is not reported"),
        ({"cancel": lambda found, number: None}, "no event arrived for _s"),
    ],
    ids=["inventory", "values", "lost", "told", "training", "twice", "stopped", "times", "why", "traceback", "cancel"],
)
def test_what_is_wrong_is_said(broken: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "ENGINE_TIMEOUT_S", 2.0)
    engine = LocalEngine(machine())
    try:
        with pytest.raises(sy.InputError, match=said):
            sy.testing.check_engine(Wrapped(engine, **broken))
    finally:
        engine.close()


def test_what_is_no_engine_is_said_to_be_none() -> None:
    with pytest.raises(sy.InputError, match="lacks inventory, put"):
        sy.testing.check_engine(object())  # type: ignore[arg-type]
