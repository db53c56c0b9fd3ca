"""What users want of a learned policy: weights of four objectives, given at run time.

mean      time of jobs in the system
tail      the same, weighted by each job's slow-down so far: the longest delayed count most
makespan  time until the last job is done
fairness  slow-down: every job counts relative to its own length
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from symphony.problem.errors import InputError


class ObjectiveWeights(NamedTuple):
    """Weights, which sum to 1."""

    mean: float = 0.0
    tail: float = 0.0
    makespan: float = 0.0
    fairness: float = 0.0


OBJECTIVE_NAMES = ObjectiveWeights._fields
ANY_OBJECTIVE = "any"  # in training: weights are drawn for each scenario
MEAN_ONLY = ObjectiveWeights(mean=1.0)
ObjectiveLike = str | Mapping[str, float] | ObjectiveWeights
_HINT = f"write weights of {', '.join(OBJECTIVE_NAMES)}, such as mean=1,tail=0.5"


def objective_weights(objective: ObjectiveLike) -> ObjectiveWeights:
    """Weights from a name (`tail`), a text (`mean=1,tail=0.5`) or a mapping, scaled to the sum 1."""
    given: dict[str, float | str]
    if isinstance(objective, str):
        parts = [part.partition("=") for part in objective.split(",")]
        given = {name.strip(): value if equals else "1" for name, equals, value in parts}
        if len(given) < len(parts):
            raise InputError(f"a weight is given twice in the objective {objective!r}", hint=_HINT)
    else:
        given = {**(objective._asdict() if isinstance(objective, ObjectiveWeights) else objective)}
    weights = {}
    for name, value in given.items():
        if name not in OBJECTIVE_NAMES:
            raise InputError(f"unknown objective {name!r}", hint=_HINT)
        try:
            weights[name] = float(value)
        except (TypeError, ValueError):
            weights[name] = math.nan
        if not (math.isfinite(weights[name]) and weights[name] >= 0):
            raise InputError(f"the weight of {name} is {value!r}, and should be a number of 0 or more", hint=_HINT)
    total = sum(weights.values())
    if total <= 0:
        raise InputError("all weights of the objective are 0", hint=_HINT)
    return ObjectiveWeights(**{name: value / total for name, value in weights.items()})
