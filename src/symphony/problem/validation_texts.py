"""What pydantic finds wrong with a value, in our own words."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

# By the type of the problem; {…} are fields of its context.
WANTED = {
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "at least {min_length} character(s) long",
    "string_too_long": "at most {max_length} characters long",
    "string_pattern_mismatch": "like {pattern}",
    "bytes_type": "bytes",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "literal_error": "one of {expected}",
    "enum": "one of {expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "below {lt}",
    "less_than_equal": "{le} or less",
    "too_short": "a list with {min_length} or more entries",
    "too_long": "a list with at most {max_length} entries",
    "json_type": "JSON",
}

PATTERNS = {  # the forms that text must have
    r"^[\w.-]*$": "letters, digits, ., _ and - only",
    r"^[\w.]+:[\w.]+$": "module:function",
    r"^[^\x00-\x1f\x7f]*$": "text on one line",
    r"^[^\x00-\x1f\x7f]+$": "text on one line, not empty",
}


def wanted(problem: Mapping[str, Any]) -> str:
    """What a value should be, after "should be": "a whole number"."""
    known = PATTERNS.get(problem.get("ctx", {}).get("pattern", ""), WANTED.get(problem["type"]))
    if known is not None:
        text = known.format(**problem.get("ctx", {})).replace("1 character(s)", "one character").replace("(s)", "s")
        return text.replace("one of '', ", "one of ")  # the empty word means "any"
    return str(problem["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")


def text_of_problem(problem: Mapping[str, Any]) -> str:
    """A problem of `ValidationError.errors()` as a sentence without its place."""
    kind = problem["type"]
    if kind == "missing":
        return "it is missing"
    if kind == "extra_forbidden":
        return "it is not known"
    if kind in ("json_invalid", "value_error", "assertion_error"):
        reason = problem.get("ctx", {}).get("error", problem["msg"])
        return f"the body is not JSON: {str(reason).lower()}" if kind == "json_invalid" else str(reason)
    if kind not in WANTED:
        return wanted(problem)
    return f"{reprlib.repr(problem.get('input'))} should be {wanted(problem)}"
