"""Files of trained networks: a header line in JSON, then the arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from symphony.policies.learned import Learned, Network, Sizes
from symphony.problem.errors import DataError, InputError

POLICY_FORMAT = "symphony.policy/1"
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


def load(path: str | Path) -> tuple[Learned, dict[str, Any]]:
    """A policy and its model card."""
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            head = json.loads(file.readline())
            if not isinstance(head, dict) or head.get("format") != POLICY_FORMAT:
                raise ValueError("the header line is missing")
            blank = eqx.filter_eval_shape(Network, jax.random.key(0), Sizes(**head["sizes"]))
            network = eqx.tree_deserialise_leaves(file, blank)
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
    return Learned(network), dict(head["card"])
