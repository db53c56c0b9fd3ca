"""All rules together."""

from __future__ import annotations

from collections.abc import Sequence

from symphony.telemetry.events import Catalogue, Event
from symphony.telemetry.expressions import key
from symphony.telemetry.identities.curated_file import curated
from symphony.telemetry.identities.masks import cycle_bounds, families
from symphony.telemetry.identities.metrics import of_metrics
from symphony.telemetry.identities.names import aliases, counterparts
from symphony.telemetry.identities.relations import Identity, independent
from symphony.telemetry.machine import Platform
from symphony.telemetry.naming import scope


def mine(
    catalogue: Catalogue, events: Sequence[str] | None = None, *, platform: Platform | None = None
) -> tuple[Identity, ...]:
    """Identities between some events (default: all, those of each unit among themselves) that the listing implies."""
    wanted = _wanted(catalogue, events)
    implied = of_metrics(catalogue, platform or Platform())
    scopes: dict[tuple[str, str], dict[str, Event]] = {}
    for name, event in wanted.items():
        if event:
            scopes.setdefault(scope(catalogue, name), {})[name] = event
    by_mask = [families(catalogue, listed) for listed in scopes.values()]
    found = [
        *(one for listed in scopes.values() for one in aliases(listed)),
        *(one for some in by_mask for family, members in some for one in family.sums(members)),
        *(one for listed in scopes.values() for one in counterparts(listed)),
        *(one for one in implied if events is None or wanted.keys() >= set(one.events)),
        *(one for some in by_mask for family, members in some for one in family.bounds(members)),
        *(one for listed in scopes.values() for one in cycle_bounds(listed)),
    ]
    return independent(found)


def _wanted(catalogue: Catalogue, events: Sequence[str] | None) -> dict[str, Event | None]:
    """Events by key; None for events that are not listed. If several units have a name, it means the core's."""
    if events is None:
        return {key(event.name): event for event in catalogue.events if catalogue.event(event.name) is event}
    return {key(name): catalogue.resolve(name) for name in events}


def everything(
    catalogue: Catalogue, events: Sequence[str] | None = None, *, platform: Platform | None = None
) -> tuple[Identity, ...]:
    """Mined and curated identities, without those that others imply."""
    return independent((*mine(catalogue, events, platform=platform), *curated(catalogue, events)))
