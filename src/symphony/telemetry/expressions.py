"""Metric expressions of the kernel's listings: from text to tree.

The grammar is perf's. Loosest first:

    choice      a if condition else b        (right-associative; perf requires brackets inside calls, Symphony does not)
    |  ^  &     logical: 0 or 1
    <  >
    +  -
    *  /  %
    -a          unary minus
    leaf        number, NaN, name, #constant, (choice), min(a, b), max(a, b), d_ratio(a, b),
                source_count(name), has_event(name), strcmp_cpuid_str(id)

Other characters are skipped. In names `\\-`, `\\,` and `\\=` stand for the plain character and `@` for `/`; a `?`
stands for a number that is known when the metric is used. The longest token wins, so `1e9` is a number and `1e9x` a
name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from symphony.problem.errors import InputError

MAX_TREE_DEPTH = 250  # levels of a tree: functions on trees recurse
MAX_BRACKET_DEPTH = 50  # levels of brackets: the parser recurses, up to ten calls for each level
NOT_A_NUMBER = math.nan  # the one NaN object of all trees, so that equal trees compare equal


@dataclass(frozen=True, slots=True)
class Number:
    """A number; NaN is one."""

    value: float


@dataclass(frozen=True, slots=True)
class Name:
    """An event or a metric, without escapes."""

    text: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the machine: `#SMT_on`, `#num_packages`, …"""

    name: str


@dataclass(frozen=True, slots=True)
class NameQuery:
    """A property of an event instead of its count."""

    function: str  # one of QUERIES
    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """Unary minus."""

    of: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator or function of two values."""

    operator: str  # one of PRECEDENCE or FUNCTIONS
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Conditional:
    """`then if condition else otherwise`."""

    then: Expression
    condition: Expression
    otherwise: Expression


Expression = Number | Name | Constant | NameQuery | Negative | Binary | Conditional

PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<": 4, ">": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
BINARY_FUNCTIONS = ("min", "max", "d_ratio")
QUERIES = ("source_count", "has_event", "strcmp_cpuid_str")
_KEYWORDS = frozenset({*BINARY_FUNCTIONS, *QUERIES, "if", "else", "NaN"})

_NUMBER_TOKEN = re.compile(r"(?:[0-9]+\.?[0-9]*|[0-9]*\.?[0-9]+)(?:e-?[0-9]+)?")
_SYMBOL = re.compile(r"(?:\\[-,=]|[0-9a-zA-Z_.:@?])+")
_CONSTANT = re.compile(r"#[0-9a-zA-Z_.\-]+")
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "number", "name", "constant", "end", or the keyword or character itself
    text: str
    at: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        if constant := _CONSTANT.match(text, at):
            yield _Token("constant", constant[0], at)
            at = constant.end()
            continue
        number, symbol = _NUMBER_TOKEN.match(text, at), _SYMBOL.match(text, at)
        if number and (not symbol or number.end() >= symbol.end()):
            yield _Token("number", number[0], at)
            at = number.end()
        elif symbol:
            yield _Token(symbol[0] if symbol[0] in _KEYWORDS else "name", symbol[0], at)
            at = symbol.end()
        else:
            if text[at] in PRECEDENCE or text[at] in "(),":
                yield _Token(text[at], text[at], at)
            at += 1
    yield _Token("end", "", len(text))


class _Parser:
    """Precedence climbing over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.depth = text, _tokens(text), 0
        self.token = next(self.tokens)

    def whole(self) -> Expression:
        tree = self.choice()
        if self.token.kind != "end":
            raise self.wrong("the expression should end here")
        return tree

    def choice(self) -> Expression:
        # A loop, because chains of choices may be long: `a if p else b if q else c`.
        cases: list[tuple[Expression, Expression]] = []
        last = self.operators(0)
        while self.token.kind == "if":
            self.take("if")
            condition = self.operators(0)
            self.take("else")
            cases.append((last, condition))
            last = self.operators(0)
        for then, condition in reversed(cases):
            last = Conditional(then, condition, last)
        return last

    def operators(self, above: int) -> Expression:
        left = self.leaf()
        while (rank := PRECEDENCE.get(self.token.kind, 0)) > above:
            operator = self.take(self.token.kind).kind
            left = Binary(operator, left, self.operators(rank))
        return left

    def leaf(self) -> Expression:
        self.depth += 1  # not decremented on errors, which end the parse
        if self.depth > MAX_BRACKET_DEPTH:
            raise self.wrong(f"no more than {MAX_BRACKET_DEPTH} levels of brackets can be read")
        tree = self._leaf()
        self.depth -= 1
        return tree

    def _leaf(self) -> Expression:
        token = self.take()
        match token.kind:
            case "number":
                if math.isinf(value := float(token.text)):
                    raise self.wrong("a number below 1e308 should stand here", token)
                return Number(value)
            case "NaN":
                return Number(NOT_A_NUMBER)
            case "name":
                return Name(_unescaped(token.text))
            case "constant":
                return Constant(token.text)
            case "-":
                return Negative(self.leaf())
            case "(":
                tree = self.choice()
                self.take(")")
                return tree
            case function if function in BINARY_FUNCTIONS:
                self.take("(")
                left = self.choice()
                self.take(",")
                right = self.choice()
                self.take(")")
                return Binary(function, left, right)
            case function if function in QUERIES:
                self.take("(")
                name = self.take("name").text
                self.take(")")
                return NameQuery(function, _unescaped(name))
        raise self.wrong("a number, a name or ( should stand here", token)

    def take(self, kind: str = "") -> _Token:
        """The current token, which must be of a kind; and on to the next."""
        token = self.token
        if kind and token.kind != kind:
            raise self.wrong("a name should stand here" if kind == "name" else f"{kind} should stand here")
        if token.kind != "end":
            self.token = next(self.tokens)
        return token

    def wrong(self, what: str, token: _Token | None = None) -> InputError:
        token = token or self.token
        found = f"not {token.text}" if token.text else "but the text ends"
        return InputError(
            f"cannot read the expression at character {token.at + 1}: {what}, {found}: {self.text or '(empty)'}",
            hint="write it as in `a / (b + c) if d > 0 else max(a, 1)`",
        )


@lru_cache(maxsize=1 << 15)
def parse(text: str) -> Expression:
    """The tree of an expression; raises `InputError` with the position if perf could not read the text."""
    tree = _Parser(text).whole()
    if _depth(tree) > MAX_TREE_DEPTH:
        raise InputError(
            f"the expression has more than {MAX_TREE_DEPTH} levels: {text}",
            hint="define parts of it as separate metrics",
        )
    return tree


def children(tree: Expression) -> tuple[Expression, ...]:
    match tree:
        case Negative(of):
            return (of,)
        case Binary(_, left, right):
            return left, right
        case Conditional(then, condition, otherwise):
            return then, condition, otherwise
    return ()


def walk(tree: Expression) -> Iterator[Expression]:
    """Every subexpression, the whole first."""
    stack = [tree]
    while stack:
        part = stack.pop()
        yield part
        stack.extend(reversed(children(part)))


def names(tree: Expression) -> tuple[str, ...]:
    """Names whose counts (or number of sources) an expression uses, each once, in order."""
    found: dict[str, None] = {}
    for part in walk(tree):
        if isinstance(part, Name):
            found[part.text] = None
        elif isinstance(part, NameQuery) and part.function == "source_count":
            found[part.name] = None
    return tuple(found)


def key(name: str) -> str:
    """The form in which names are compared: lower case, `/` for `@`."""
    return name.lower().replace("@", "/")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _depth(tree: Expression) -> int:
    level, deepest = [tree], 0
    while level:
        level, deepest = [child for part in level for child in children(part)], deepest + 1
    return deepest
