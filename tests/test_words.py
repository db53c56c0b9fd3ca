"""Plain words: discouraged words stay out of the docs, docstrings, comments and messages."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted({ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")})
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Each with what to write instead. Pronouns without a noun, people in place of programs, private synonyms.
DISCOURAGED = {
    r"\b[Ww]ho is told\b": "a policy that sees …",
    r"\b(is|are|was|were) told\b": "receives, is called with",
    r"\b[Ww]hoever\b": "the caller, the user, the thread that …",
    r"\b([Ss]ome|[Nn]o|[Ee]very)body\b": "name who: the user, the loop, another thread",
    r"\b[Mm]end(s|ed|ing)?\b": "fix",
    r"\btoken is none\b": "invalid token",
    r"\b\d+\. time\b": "3rd time",
    r"\b[Nn]ews\b": "event, message",
    r"\bby and by\b": "in the background",
    r"\bof late\b": "recently",
    r"\b(hear|hears|heard) (of|from|what|that)\b": "receives",
}


def texts(path: Path) -> list[tuple[int, str]]:
    """Line numbers and texts that people read: a page's lines; comments and strings of a source."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(enumerate(content.splitlines(), 1))
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return [(token.start[0], token.string) for token in tokens if token.type in kinds]


@pytest.mark.parametrize("paths", [PAGES, SOURCES], ids=["docs", "src"])
def test_discouraged_words_are_not_used(paths: list[Path]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {instead}"
        for path in paths
        for line, text in texts(path)
        for pattern, instead in DISCOURAGED.items()
        for match in re.finditer(pattern, text)
    ]
    assert found == []
