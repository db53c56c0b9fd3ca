"""Files of trained networks: a header line in JSON, then the arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
import jax
import numpy as np

from symphony.policies.learned import Learned, Network, Sizes, with_objective
from symphony.problem.errors import DataError, InputError

POLICY_FORMAT = "symphony.policy/2"
WITHOUT_OBJECTIVE = "symphony.policy/1"  # from before `Network.objective`
SUFFIX = ".policy"


def save(path: str | Path, network: Network, card: Mapping[str, Any] | None = None) -> None:
    """Write a network with its model card (training data, scores). Replaces an existing file atomically."""
    head = {"format": POLICY_FORMAT, "sizes": asdict(network.sizes), "card": dict(card or {})}
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    with partial.open("wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        eqx.tree_serialise_leaves(file, network)
    partial.replace(target)


def mean(networks: Sequence[Network]) -> Network:
    """Mean of the weights of several networks, such as checkpoints of one training."""
    numbers = [eqx.filter(network, eqx.is_inexact_array) for network in networks]
    return eqx.combine(jax.tree.map(lambda *x: sum(x) / len(x), *numbers), networks[0])


def _objective(network: Network) -> Any:
    return network.objective


def _read_array(file: BinaryIO, like: Any) -> Any:
    """The next array of a file. `eqx.tree_deserialise_leaves` would compile a program for every shape."""
    array = np.load(file)
    if (array.shape, array.dtype) != (like.shape, like.dtype):
        raise ValueError(f"it has {array.dtype}{list(array.shape)} in place of {like.dtype}{list(like.shape)}")
    return jax.device_put(array)


def load(path: str | Path) -> tuple[Learned, dict[str, Any]]:
    """A policy and its model card."""
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            head = json.loads(file.readline())
            if not isinstance(head, dict) or head.get("format") not in (POLICY_FORMAT, WITHOUT_OBJECTIVE):
                raise ValueError("the header line is missing")
            sizes = Sizes(**head["sizes"])
            blank = eqx.filter_eval_shape(lambda: Network(jax.random.key(0), sizes))
            shape, old = blank.objective.shape, head["format"] == WITHOUT_OBJECTIVE
            like = eqx.tree_at(_objective, blank, None) if old else blank
            network = jax.tree.map(partial(_read_array, file), like)
            if old:
                zeros = jax.device_put(np.zeros(shape, np.float32))
                network = eqx.tree_at(_objective, network, zeros, is_leaf=lambda x: x is None)
    except OSError as error:
        raise InputError(
            f"the file cannot be read ({error.strerror})", where=where, hint="name a file written by symphony train"
        ) from None
    except (ValueError, TypeError, KeyError, EOFError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"the file is not a policy of this version ({reason})",
            where=where,
            hint="train it again: symphony train --help",
        ) from None
    card = dict(head["card"])
    learned = Learned(network)
    return (with_objective(learned, card["objective"]) if "objective" in card else learned), card
