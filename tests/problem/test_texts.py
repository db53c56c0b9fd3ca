"""Text that others wrote: whatever it is, it can be encoded and printed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from symphony.problem.texts import readable


def test_what_is_harmless_stays_as_it_is() -> None:
    text = 'File "a.py", line 1\n\tжёлудь 🌰 naïve'
    assert readable(text) is text


def test_surrogates_and_control_characters_are_escaped() -> None:
    assert readable("a\ud800b\x1b[2J\x00\r\x9b\u202e\u2028") == "a\\ud800b\\x1b[2J\\x00\\x0d\\x9b\\u202e\\u2028"


def test_what_is_too_long_says_how_much_is_missing() -> None:
    found = readable("x" * 1_000, longest=100)
    assert len(found) <= 100 and found.startswith("xxx") and found.endswith("more characters)")
    kept = found.partition("…")[0]
    assert f"({1_000 - len(kept)} more" in found
    assert readable("x" * 100, longest=100) == "x" * 100


@given(st.text(st.characters(), max_size=200), st.integers(40, 300))
def test_whatever_comes_can_be_sent_and_is_not_changed_again(text: str, longest: int) -> None:
    found = readable(text, longest=longest)
    found.encode()
    assert len(found) <= longest and readable(found, longest=longest) == found
    assert all(one.isprintable() or one in "\n\t" or ord(one) > 0x9F for one in found)
