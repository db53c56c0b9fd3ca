"""The public check of contention models. (That of policies is tested in tests/conformance.)"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.problem.errors import InputError
from symphony.simulator.contention import Bottleneck, ContentionModel, Serial
from symphony.testing import check_contention_model


class Fine(ContentionModel):
    """Keeps its contract; others change one thing."""

    def share(self, load: Any) -> Any:
        return jnp.minimum(1, jnp.maximum(load, 1) ** -1.5)

    def compose(self, shares: Any, used: Any) -> Any:
        return jnp.where(used, shares, 1).min(axis=-1)


@pytest.mark.parametrize("model", [Bottleneck(), Serial(), Fine()])
def test_models_that_keep_the_contract_pass(model: ContentionModel) -> None:
    assert sy.testing.check_contention_model(model) is None  # type: ignore[func-returns-value]


def where(used: Any, shares: Any) -> Any:
    return jnp.where(used, shares, 1)


def dip(share: Any) -> Any:
    return jnp.where((share >= 0.5) & (share < 1), 0.2, share)


calls = count()
SHARES = {
    "not in (0, 1]": lambda load: 1 - load / 8,
    "an idle row is 0.5": lambda load: 0.5 / jnp.maximum(load, 1),
    "rises with the load (from": lambda load: jnp.where((load > 2) & (load < 3), 0.2, 1 / jnp.maximum(load, 1)),
    "could not be traced": lambda load: 1.0 if load[0] < 1 else 1 / load,
    "has shape ()": lambda load: 1 / jnp.maximum(load, 1).max(),
    "returns int32": lambda load: jnp.ones_like(load, dtype=jnp.int32),
    "different results for equal arguments": lambda load: 1 / jnp.maximum(load, 1) ** (1 + next(calls)),
}
COMPOSITIONS = {
    "not 1 where no row is used": lambda shares, used: where(used, shares).min(axis=-1) * 0.9,
    "not 1 where every used row has": lambda shares, used: where(used, shares).min(axis=-1) * 0.99 ** used.sum(axis=-1),
    "exceeds the smallest used share": lambda shares, used: where(used, shares).mean(axis=-1),
    "rows that are not used": lambda shares, used: jnp.where(
        used.any(axis=-1), jnp.broadcast_to(shares, used.shape).prod(axis=-1), 1
    ),
    "order of rows": lambda shares, used: (where(used, shares) ** jnp.arange(1, 7)).prod(axis=-1),
    "rises when shares fall": lambda shares, used: dip(where(used, shares).min(axis=-1)),
    "not (64, 5)": lambda shares, used: where(used, shares).min(),
}


def complaint(model: ContentionModel) -> str:
    with pytest.raises(InputError) as caught:
        check_contention_model(model)
    assert caught.value.hint, "an error says what to do"
    assert caught.value.where == f"contention model {type(model).__name__}"
    return caught.value.message


@pytest.mark.parametrize("says", SHARES)
def test_shares_that_break_the_contract_are_told_how(says: str) -> None:
    class Broken(Fine):
        def share(self, load: Any) -> Any:
            return SHARES[says](load)

    assert says in complaint(Broken())


@pytest.mark.parametrize("says", COMPOSITIONS)
def test_compositions_that_break_the_contract_are_told_how(says: str) -> None:
    class Broken(Fine):
        def compose(self, shares: Any, used: Any) -> Any:
            return COMPOSITIONS[says](shares, used)

    assert says in complaint(Broken())


def test_the_check_asks_as_the_simulator_does() -> None:
    """Shares of a device's rows are broadcast against what each span crosses: shapes need not be equal."""

    class Strict(Fine):
        def compose(self, shares: Any, used: Any) -> Any:
            assert shares.shape == used.shape
            return jnp.where(used, shares, 1).min(axis=-1)

    assert "could not be traced" in complaint(Strict())
    assert np.asarray(Strict().compose(jnp.ones((2, 3)), jnp.ones((2, 3), bool))).tolist() == [1, 1]


def test_the_model_in_the_documentation_keeps_its_contract() -> None:
    page = Path(__file__).parents[1] / "docs" / "concepts" / "contention.md"
    snippet = re.search(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert snippet and "check_contention_model" in snippet[1]
    exec(snippet[1], {})
