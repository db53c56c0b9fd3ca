"""How readings are understood: what is known of the CPU, which event a column counts, and in which unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from symphony.telemetry import catalogue, identities, machine, naming
from symphony.telemetry.evaluating import Compiled
from symphony.telemetry.events import Catalogue
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.machine import Platform
from symphony.telemetry.naming import CommonScope, kind, unit
from symphony.telemetry.posterior import Parameters

SLICE_S = 0.004  # Linux's turn of a group (perf_event_mux_interval_ms)
SECONDS, TSC = "duration_time", "tsc"  # what metrics call the time
CLOCKS = frozenset({SECONDS, "user_time", "system_time"})  # perf's own: they go on where nothing is counted


@dataclass(frozen=True)
class Model:
    """What is known of a CPU before anything is counted."""

    catalogue: Catalogue
    platform: Platform = field(default_factory=Platform)
    identities: tuple[Identity, ...] | None = None  # None: those mined from the catalogue, and the curated ones
    parameters: Parameters = field(default_factory=Parameters)
    slice_s: float = SLICE_S
    lag: int = 2  # windows that a smoothed estimate waits for
    common: CommonScope | None = field(
        default=None, repr=False
    )  # what names of columns have in common; None: not known yet

    def claims(self, events: Iterable[str]) -> tuple[Identity, ...]:
        """Identities between some events that are worth testing."""
        if self.identities is None:
            return identities.everything(self.catalogue, tuple(events))
        known = set(events)
        return tuple(identity for identity in self.identities if known.issuperset(identity.events))

    def node(self, name: str) -> str:
        """The key of the event that a column counts, or that is asked for: with modifiers that tell it apart."""
        return naming.node(self.catalogue, name, self.common or CommonScope())

    def among(self, events: Iterable[str]) -> Model:
        """The model for columns of these events. If all are of `:u`, `cycles:u` is what is meant by `cycles`."""
        if self.common is not None:
            return self
        return replace(self, common=naming.common_scope(self.catalogue, events))


def model(
    of: str | Catalogue | None = None, *, platform: Platform | None = None, parameters: Parameters | None = None
) -> Model:
    """The model of a CPU by name ("sapphirerapids"), or of the one at hand."""
    found = of if isinstance(of, Catalogue) else catalogue.load(of) if of else catalogue.at_hand()
    return Model(found, platform or machine.platform(), parameters=parameters or Parameters())


@dataclass(frozen=True, eq=False)
class Reader:
    """How names in samples are understood."""

    model: Model
    trusted: tuple[Verdict, ...] = ()  # of an earlier run, for identities that this one cannot test
    names: Mapping[str, str] = field(default_factory=dict)  # keys of events by what perf calls them

    def among(self, events: Iterable[str]) -> Reader:
        """The reader of columns of these events."""
        model = self.model.among(events)
        return self if model is self.model else replace(self, model=model)

    def node(self, event: str) -> str:
        """The key of an event."""
        found = self.names.get(event) or self.model.node(event)
        if self.names and found not in self.names.values():
            found = self.names.get(naming.bare(event), found)  # perf adds modifiers of its own
        return TSC if found == "msr/tsc/" else found

    def is_plain(self, event: str) -> bool:
        """Whether it is no business of the PMU: counted by software, and exactly."""
        return kind(event) != "hardware"

    def worth(self, event: str) -> tuple[float, str]:
        """What one count of an event stands for, and in which unit: 64 Bytes, say."""
        if self.is_plain(event):
            return 1.0, unit(event)
        listed = self.model.catalogue.find(self.node(event))
        return (listed.scale, listed.scale_unit) if listed and listed.scale_unit else (1.0, "")

    def scale(self, event: str, unit: str) -> float:
        """What one count is in the unit that the source gives it in: 64 where counts of 64 bytes are in bytes."""
        worth, own = self.worth(event)
        return worth if own and own == unit else 1.0

    @lru_cache(maxsize=64)  # noqa: B019 (a reader lives as long as the program)
    def compiled(self, metrics: tuple[str, ...], inputs: tuple[str, ...]) -> Compiled:
        """Metrics as a function of counts."""
        model = self.model
        return model.catalogue.compile(metrics, platform=model.platform, inputs=inputs)
