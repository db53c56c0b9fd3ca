"""Expressions: from text to tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.problem.errors import InputError
from symphony.telemetry.expressions import (
    MAX_BRACKET_DEPTH,
    MAX_TREE_DEPTH,
    Binary,
    Conditional,
    Constant,
    Expression,
    Name,
    NameQuery,
    Negative,
    Number,
    key,
    names,
    parse,
)

A, B, C, D = (Name(letter) for letter in "abcd")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1e9", Number(1e9)),
        ("1e-3", Number(1e-3)),
        (".5", Number(0.5)),
        ("2.", Number(2.0)),
        ("1e9x", Name("1e9x")),
        ("0x1f", Name("0x1f")),
        ("1e+9", Binary("+", Name("1e"), Number(9.0))),  # as perf has it: its numbers know no plus
        ("a.b:k", Name("a.b:k")),
        (r"cpu@E\,cmask\=1@", Name("cpu@E,cmask=1@")),
        (r"topdown\-retiring-a", Binary("-", Name("topdown-retiring"), A)),
        ("#SMT_on", Constant("#SMT_on")),
        ("has_event(a)", NameQuery("has_event", "a")),
        ("minimum", Name("minimum")),
        ("a - b - c", Binary("-", Binary("-", A, B), C)),
        ("a + b * c", Binary("+", A, Binary("*", B, C))),
        ("a / b % c", Binary("%", Binary("/", A, B), C)),
        ("a | b ^ c & d", Binary("|", A, Binary("^", B, Binary("&", C, D)))),
        ("a & b > c", Binary("&", A, Binary(">", B, C))),
        ("a < b + c", Binary("<", A, Binary("+", B, C))),
        ("-a * b", Binary("*", Negative(A), B)),
        ("--a", Negative(Negative(A))),
        ("a if b else c if d else a", Conditional(A, B, Conditional(C, D, A))),
        ("(a if b else c) + d", Binary("+", Conditional(A, B, C), D)),
        ("a + b if c else d", Conditional(Binary("+", A, B), C, D)),
        ("min(a, max(b, c))", Binary("min", A, Binary("max", B, C))),
        ("d_ratio(a if b else c, d)", Binary("d_ratio", Conditional(A, B, C), D)),
        ("a $ + ! b\n", Binary("+", A, B)),
    ],
)
def test_parse(text: str, tree: Expression) -> None:
    assert parse(text) == tree


def test_not_a_number_equals_itself_in_trees() -> None:
    assert parse("NaN + a") == parse("NaN+a")
    assert parse("NAN") == Name("NAN")


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("", 1, "but the text ends: (empty)"),
        ("a +", 4, "a number, a name or ( should stand here"),
        ("(a", 3, ") should stand here"),
        ("a b", 3, "the expression should end here, not b"),
        ("min(a)", 6, ", should stand here"),
        ("has_event(3)", 11, "a name should stand here, not 3"),
        ("a if b", 7, "else should stand here"),
        ("1e999", 1, "a number below 1e308"),
        ("(" * (MAX_BRACKET_DEPTH + 1) + "a", MAX_BRACKET_DEPTH + 1, "levels of brackets"),
        ("-" * 5000 + "a", MAX_BRACKET_DEPTH + 1, "levels of brackets"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, at: int, what: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert f"at character {at}:" in caught.value.message and what in caught.value.message
    assert caught.value.hint


def test_long_sums_are_read_up_to_a_bound() -> None:
    assert len(names(parse("+".join(f"e{i}" for i in range(MAX_TREE_DEPTH))))) == MAX_TREE_DEPTH
    with pytest.raises(InputError, match="levels"):
        parse("+".join("a" * (MAX_TREE_DEPTH + 1)))


@given(st.text(alphabet="ab01.e-+*/%()<>&|^,@\\=#?:if els min_x", max_size=30))
def test_any_text_is_a_tree_or_an_input_error(text: str) -> None:
    try:
        parse(text)
    except InputError as error:
        assert "character" in error.message or "levels" in error.message


def test_names_are_those_whose_counts_matter() -> None:
    tree = parse(r"a / b + a if has_event(c) else source_count(d) + x\-y + #slots")
    assert names(tree) == ("a", "b", "d", "x-y")


def test_key_ignores_case_and_the_two_ways_to_write_a_slash() -> None:
    assert key("cpu@L2.MISS,cmask=1@") == key("CPU/l2.miss,CMASK=1/")
