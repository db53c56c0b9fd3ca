"""Curated identities: the lines of `curated/*.toml`, which no listing states."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import product
from typing import Any

from symphony.problem.errors import DataError, InputError
from symphony.telemetry import evaluating, linear
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import key, names, parse
from symphony.telemetry.identities.relations import Identity, Relation, identity
from symphony.telemetry.machine import Platform


def curated(catalogue: Catalogue, events: Sequence[str] | None = None) -> tuple[Identity, ...]:
    """Curated identities between some events (default: all that the catalogue has or its metrics use)."""
    if events is None:
        used = {key(name) for metric in catalogue.metrics for name in names(metric.tree)}
        inside = {key(event.name) for event in catalogue.events} | used
    else:
        inside = {key(name) for name in events}
    return tuple(
        line.identity
        for line in _lines()
        if re.fullmatch(line.catalogues, catalogue.name) and inside.issuperset(line.identity.events)
    )


@dataclass(frozen=True)
class _Line:
    catalogues: str  # a regular expression
    identity: Identity


@lru_cache(maxsize=1)
def _lines() -> tuple[_Line, ...]:
    folder = resources.files("symphony.telemetry") / "curated"
    found: list[_Line] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            found += read_curated(file.read_text(encoding="utf-8"), file.name)
    return tuple(found)


def read_curated(text: str, file: str) -> list[_Line]:
    """The lines of a curated file. Placeholders (`{x}`) are replaced by each of the values under their names."""
    hint = 'write [[identity]] with says = "total = part + part" and why = "…", as in the other files'
    try:
        content = tomllib.loads(text)
        found = []
        for entry in content["identity"]:
            choices = entry.get("for", {})
            for values in product(*choices.values()):
                says = str(entry["says"])
                for name, value in zip(choices, values, strict=True):
                    says = says.replace(f"{{{name}}}", value)
                found.append(_Line(content["catalogues"], _identity(says, entry, file)))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the file is not a list of identities: {error}", where=file, hint=hint) from None
    except InputError as error:
        raise DataError(error.message, where=file, hint=hint) from None
    return found


def _identity(says: str, entry: Mapping[str, Any], file: str) -> Identity:
    relation: Relation = ">=" if ">=" in says else "="
    left, _, right = says.partition(relation)
    form = evaluating.apply(parse(f"({left}) - ({right})"), linear.LinearArithmetic(), {}, Platform())
    whole = form.single
    terms = dict(whole[0]) if whole and whole[1] == linear.CONSTANT_ONE else {}
    order = {key(name): at for at, name in enumerate((*names(parse(left)), *names(parse(right))))}
    if any(name not in order for name in terms):
        raise InputError(f"{says!r} is not linear in counts", hint="write sums of events, each times a number")
    sorted_terms = {name: terms[name] for name in sorted(terms, key=order.__getitem__)}
    source, why = f"curated: {file}", str(entry["why"])
    found = identity(sorted_terms, relation, source, why, float(entry.get("tolerance", 0.01)))
    if found is None:
        raise InputError(f"{says!r} relates nothing", hint="write a total on one side and its parts on the other")
    return found
