"""What metrics imply for the counts that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from symphony.telemetry import linear, top_down
from symphony.telemetry.events import Catalogue, Metric
from symphony.telemetry.expressions import key
from symphony.telemetry.identities.relations import Identity, Relation, cached, made
from symphony.telemetry.machine import Platform

_DISJOINT = 2  # below this level of the top-down method, children are estimates and may overlap
_NOT_COUNTED = frozenset({"duration_time", "tsc", "system_tsc_freq"})


def of_metrics(catalogue: Catalogue, platform: Platform) -> tuple[Identity, ...]:
    found: tuple[Identity, ...] = cached(catalogue, ("metrics", platform), lambda: _from_metrics(catalogue, platform))
    return found


def _from_metrics(catalogue: Catalogue, platform: Platform) -> tuple[Identity, ...]:
    found: list[Identity] = []
    for unit in dict.fromkeys(metric.unit for metric in catalogue.metrics):
        metrics = [metric for metric in catalogue.metrics if metric.unit == unit]
        forms = linear.forms(catalogue.definitions(unit), platform)
        for claim in (*_parents(metrics, forms), *_bounded(metrics, forms)):
            relation: Relation = "=" if claim.source == "top-down" else ">="
            if terms := _terms(catalogue, claim.form):
                found += made(terms, relation, claim.source, claim.why)
    return tuple(found)


@dataclass(frozen=True)
class _Claim:
    """A form that is 0, or at least 0, according to a rule."""

    form: linear.Form
    source: str
    why: str


def _parents(metrics: Sequence[Metric], forms: Mapping[str, linear.Form]) -> Iterator[_Claim]:
    """Children of a metric, by the names of their groups, minus the metric; those of the first level, minus 1."""
    children: dict[str, dict[str, None]] = {}
    for metric in metrics:
        level = top_down.level(metric)
        above = [""] if level == 1 else top_down.parents(metric) if 1 < level <= _DISJOINT else []
        for parent in above:
            if not parent or parent in forms:
                children.setdefault(parent, {})[key(metric.name)] = None
    for parent, inside in children.items():
        if len(inside) > 1:
            whole = forms[parent] if parent else linear.fraction(linear.CONSTANT_ONE)
            difference = linear.add(linear.Form(), whole, -1.0)
            for child in inside:
                difference = linear.add(difference, forms[child])
            yield _Claim(difference, "top-down", f"{' + '.join(inside)} = {parent or 'all'}")


def _bounded(metrics: Sequence[Metric], forms: Mapping[str, linear.Form]) -> Iterator[_Claim]:
    """Metrics that cannot be negative, or more than 100%."""
    for metric in metrics:
        form = forms[key(metric.name)]
        if _mixed(form):
            yield _Claim(form, "residual", f"{metric.name} is a difference, and not negative")
        elif metric.scale_unit == "%" or metric.scale_unit.startswith("percent"):
            share = linear.add(linear.fraction(linear.CONSTANT_ONE), form, -metric.scale / 100)
            if share.number is None and _mixed(share):
                yield _Claim(share, "percentage", f"{metric.name} is at most 100%")


def _mixed(form: linear.Form) -> bool:
    whole = form.single
    return whole is None or len({value > 0 for _, value in whole[0]}) > 1


def _terms(catalogue: Catalogue, form: linear.Form) -> dict[str, float] | None:
    """Coefficients of the counts in the numerator; None if the form is not a linear claim about counts."""
    if (whole := form.single) is None:
        return None
    top, bottom = whole
    if any(value < 0 for _, value in bottom):
        return None
    for name, _ in top:
        if name == linear.CONSTANT_TERM or name.startswith(linear.OPAQUE) or name in _NOT_COUNTED:
            return None
        if "/" in name and catalogue.resolve(name) is None:
            return None
    return dict(top)
