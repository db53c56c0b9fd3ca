"""What an actor does with a message, without Ray between us and it."""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symphony.engines.messages import Broke, Done, read_answers
from symphony.engines.worker import pickled, unpickled

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")

from symphony.engines.ray import actor
from symphony.engines.ray.actor import SlotActor


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> SlotActor:
    monkeypatch.setattr(actor.sys, "path", list(actor.sys.path))
    return SlotActor(("/not there",), "/not there", {})


def item(
    function: Callable[..., Any], *args: Any, inputs: tuple = (), output: tuple | None = None, job: int = 0
) -> tuple:
    code, arguments = pickled(function, lambda _: None)[0], pickled((args, {}), refer)[0]
    return job, function.__name__, code, arguments, inputs, (0, 1), None, output


class Input:
    pass


def refer(value: Any) -> int | None:
    return 0 if isinstance(value, Input) else None


def test_kernels_of_a_message_are_answered_in_order_and_fail_alone(slot: SlotActor) -> None:
    def invert(x):
        return 1 / x

    answer = slot.run(marshal.dumps([item(invert, 4), item(invert, 0), item(invert, 2)]))
    assert isinstance(answer, bytes)
    first, second, third = read_answers(answer, 3)
    assert isinstance(first, Done) and isinstance(second, Broke) and isinstance(third, Done)
    assert [unpickled(told.value[0] or b"", []) for told in (first, third)] == [0.25, 0.5]
    assert (first.cold, third.cold) == ("jax" in sys.modules, False)  # it may have compiled something
    assert (second.step, second.type) == ("call", "ZeroDivisionError")


def test_large_values_are_apart_and_read_by_place(slot: SlotActor) -> None:
    def zeros(size):
        return np.zeros(size)

    def length(array):
        return array.size

    message = marshal.dumps([item(zeros, 3), item(zeros, 5_000), item(zeros, 7_000)])
    told, made = slot.run_apart(message)
    small, *large = read_answers(told, 3)
    assert small.value[1] is None and small.value[3] == pytest.approx(200, abs=100)  # type: ignore[union-attr]
    assert [(int(one.value[1] or ""), one.value[3]) for one in large] == sizes(made)  # type: ignore[union-attr]
    both = slot.run(message)
    assert isinstance(both, tuple) and len(both[1]) == 2  # a function that was thought to make small ones
    read = slot.run(marshal.dumps([item(length, Input(), inputs=((0, 1),))]), made)
    [found] = read_answers(read, 1)  # type: ignore[arg-type]
    assert unpickled(found.value[0], []) == 7_000  # type: ignore[union-attr]


def test_a_job_does_not_find_what_the_one_before_it_changed(slot: SlotActor, monkeypatch: pytest.MonkeyPatch) -> None:
    def change():
        os.environ["LEFT_BEHIND"] = "yes"

    def found():
        return os.environ.get("LEFT_BEHIND")

    monkeypatch.setattr(os, "environ", os.environ)
    sent = [item(change, job=1), item(found, job=1), item(found, job=2)]
    _, same, other = read_answers(slot.run(marshal.dumps(sent)), 3)  # type: ignore[arg-type]
    assert [unpickled(one.value[0], []) for one in (same, other)] == ["yes", None]  # type: ignore[union-attr]


def test_what_a_kernel_writes_is_kept_where_it_can_be_and_goes_to_rays_log_elsewhere(
    slot: SlotActor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(text):
        print(text)

    places = [(str(tmp_path / "1" / "talk"), "a"), None, (str(tmp_path / "not" / "there" / "talk"), "b")]
    sent = [item(talk, f"said {number}", output=output) for number, output in enumerate(places)]
    before = sys.stdout
    slot.run(marshal.dumps(sent))
    [file] = tmp_path.rglob("0.*")
    assert file.read_text().endswith(" said 0\n") and capsys.readouterr().out == "said 1\nsaid 2\n"
    assert sys.stdout is before


def sizes(made: actor.ObjectParts) -> list[tuple[int, int]]:
    return [(n, len(head) + sum(memoryview(b).nbytes for b in buffers)) for n, (head, buffers) in enumerate(made)]


def test_the_last_words_of_a_process_are_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readlink", lambda _: str(tmp_path / "worker-own-1.err"))
    (tmp_path / "worker-ab-12.err").write_text(":job_id:1\n*** SIGBUS received at time=1 on cpu 0 ***\nmore\n")
    (tmp_path / "worker-ab-13.err").write_text("it said: *** SIGBUS received\n")
    assert [actor._signal_in_log(process) for process in (12, 13, 14)] == ["SIGBUS", "", ""]
