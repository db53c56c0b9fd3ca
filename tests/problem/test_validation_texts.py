"""Problems that pydantic finds are told in our own words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from symphony.problem.validation_texts import text_of_problem


class Inner(BaseModel):
    x: int


class Everything(BaseModel):
    model_config = ConfigDict(extra="forbid")
    whole: int = 1
    number: float = Field(1.0, allow_inf_nan=False, gt=0)
    text: Annotated[str, StringConstraints(min_length=1, max_length=3, pattern="^a")] = "a"
    words: list[str] = Field(["a"], min_length=1, max_length=2)
    names: dict[str, int] = {}
    yes: bool = True
    status: Literal["waiting", "done"] = "done"
    inner: Inner | None = None
    least: int = Field(1, ge=1, le=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"whole": "x"}, "'x' should be a whole number"),
        ({"whole": 1.5}, "1.5 should be a whole number"),
        ({"number": "x"}, "'x' should be a number"),
        ({"number": float("inf")}, "inf should be a finite number"),
        ({"number": 0}, "0 should be above 0.0"),
        ({"text": 3}, "3 should be text"),
        ({"text": ""}, "'' should be at least one character long"),
        ({"text": "aaaa"}, "'aaaa' should be at most 3 characters long"),
        ({"text": "b"}, "'b' should be like ^a"),
        ({"words": "ls -l"}, "'ls -l' should be a list"),
        ({"words": []}, "[] should be a list with 1 or more entries"),
        ({"names": 3}, "3 should be a table"),
        ({"yes": "perhaps"}, "'perhaps' should be true or false"),
        ({"status": "lost"}, "'lost' should be one of 'waiting' or 'done'"),
        ({"inner": {}}, "it is missing"),
        ({"other": 1}, "it is not known"),
        ({"least": 0}, "0 should be 1 or more"),
        ({"least": 9}, "9 should be 5 or less"),
    ],
)
def test_every_kind_of_problem_has_words_of_ours(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Everything.model_validate(given)
    assert text_of_problem(raised.value.errors()[0]) == said
