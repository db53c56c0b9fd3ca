"""What processes tell their engine, right and wrong."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.engines import messages as m

SHORT = m.done(7, 1.5, 0.25, True, (b"pickle", None, (), 6), 0.125)
LONG = m.done(8, 1.5, 0.25, False, (None, "w3-0", ((0, 100_000), (100_032, 64)), 100_064), math.nan)
BROKE = m.failed(9, 1.5, 0.25, "call", "LookupError", "LookupError Exception", "of course", "Traceback", b"exception")
ALL = [m.ready(""), SHORT, LONG, BROKE]


def read(data: bytes) -> list[m.Message]:
    return list(m.Inbox().feed(data))


def test_messages_come_out_as_they_went_in() -> None:
    assert read(m.ready("no driver")) == [m.Ready(0, "no driver")]
    assert read(SHORT) == [m.Done(7, 1.5, 0.25, True, (b"pickle", None, (), 6), 0.125)]
    [long] = read(LONG)
    assert isinstance(long, m.Done) and math.isnan(long.busy_s)
    assert long.value == (None, "w3-0", ((0, 100_000), (100_032, 64)), 100_064)
    assert read(BROKE) == [
        m.Broke(9, 1.5, 0.25, "call", "LookupError", "LookupError Exception", "of course", "Traceback", b"exception")
    ]
    assert read(m.failed(9, 1.5, 0.25, "result", "T", "", "", "", None))[0][-1] is None


@given(st.lists(st.sampled_from(ALL)), st.lists(st.integers(1, 40)))
def test_messages_are_complete_however_they_are_cut(frames, cuts) -> None:
    data = b"".join(frames)
    inbox, found, at = m.Inbox(), [], 0
    for cut in [*cuts, len(data)]:
        found += inbox.feed(data[at : at + cut])
        at += cut
    assert repr(found) == repr(read(data)) and len(found) == len(frames)


@given(st.binary(min_size=m.HEADER_BYTES, max_size=400))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    if not data.startswith(m.MAGIC):
        with pytest.raises(m.Malformed, match="not a valid header"):
            read(data)


@given(st.sampled_from(ALL), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_is_changed_in_a_message_it_is_read_or_refused(frame: bytes, changes) -> None:
    data = bytearray(frame)
    for at, value in changes:
        data[at % len(data)] = value
    try:
        found = read(bytes(data))
    except m.Malformed:
        return
    for one in found:
        if isinstance(one, m.Done | m.Broke):
            assert math.isfinite(one.began_s) and math.isfinite(one.seconds)
        if isinstance(one, m.Done):
            assert (one.value[0] is None) <= (one.value[1] is not None)


def test_a_huge_length_is_refused_before_anything_is_kept() -> None:
    header = struct.pack(m.HEADER, m.MAGIC, m.DONE, 0, 0xFFFF_FFFF, 1)
    with pytest.raises(m.Malformed, match=r"4,294,967,295 bytes; at most 262,144"):
        read(header)
    waits = struct.pack(m.HEADER, m.MAGIC, m.DONE, 0, m.MAX_PAYLOAD, 1)
    inbox = m.Inbox()
    assert list(inbox.feed(waits + b"x" * 1000)) == [] and len(inbox.rest) == 1000 + m.HEADER_BYTES


@pytest.mark.parametrize(
    "times", [(math.nan, 1.0), (1.0, math.inf), (-math.inf, 1.0)], ids=["nan", "infinite", "minus infinite"]
)
def test_times_that_are_no_numbers_are_refused(times) -> None:
    with pytest.raises(m.Malformed):
        read(m.done(1, *times, False, (b"x", None, (), 1), 0.0))
    with pytest.raises(m.Malformed):
        read(m.failed(1, *times, "call", "T", "", "", "", None))


def test_texts_and_values_are_bounded_where_they_are_written() -> None:
    long = "\udcff€" * 1_000_000
    frame = m.failed(1, 0.0, 0.0, "call", long, long, long, long, b"x" * m.MAX_TEXT)
    assert len(frame) < m.MAX_PAYLOAD
    [read_back] = read(frame)
    assert isinstance(read_back, m.Broke)
    for text in (read_back.type, read_back.message, read_back.traceback):
        text.encode()  # no half of a character is left
    with pytest.raises(ValueError, match="5000 buffers"):
        m.done(1, 0.0, 0.0, False, (b"x", "w0-0", ((0, 1),) * 5000, 5000), 0.0)


def test_answers_to_a_call_are_all_there_and_in_order() -> None:
    answers = [m.done(n, 0.0, 0.0, False, (b"x", None, (), 1), 0.0) for n in range(3)]
    assert [one.number for one in m.read_answers(b"".join(answers), 3)] == [0, 1, 2]
    for wrong in (
        answers[:2],
        answers[::-1],
        [*answers, answers[2]],
        [*answers, b"more"],
        [m.ready(""), *answers[1:]],
    ):
        with pytest.raises(m.Malformed):
            m.read_answers(b"".join(wrong), 3)
