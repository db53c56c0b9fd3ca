"""Text for messages: text from outside (exceptions, output, names) made safe to show, and suggestions for typos."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_TEXT = 64 << 10  # characters of a multi-line text, such as a traceback
# Lone surrogates, which UTF-8 cannot encode; control characters except newline and tab, which terminals execute; line
# and paragraph separators; and characters that change the direction of writing, which can disguise a text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def readable(text: str, *, longest: int | None = None) -> str:
    """`text` with unsafe characters as backslash escapes, and at most `longest` characters (40 or more).

    A text that is cut ends in "… (N more characters)". Idempotent.
    """
    if _UNSAFE.search(text) is not None:
        text = _UNSAFE.sub(_escaped, text)
    if longest is None or len(text) <= longest:
        return text
    kept = longest - len(f"… ({len(text)} more characters)")
    return f"{text[:kept]}… ({len(text) - kept} more characters)"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint, with a space at its end, that suggests the closest known word; "" if none is close.

    Letters count as equal in either case.
    """
    spelled = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), spelled, n=1)
    return f"did you mean {spelled[close[0]]!r}? " if close else ""
