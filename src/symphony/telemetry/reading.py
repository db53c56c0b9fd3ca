"""How readings are interpreted: the model of the CPU, the event of each column, and its unit."""

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

SLICE_S = 0.004  # time slice of a group of events in Linux (perf_event_mux_interval_ms)
SMOOTHING_LAG = 2  # windows that a smoothed estimate waits for
SECONDS, TSC = "duration_time", "tsc"  # the names of time in metrics
# perf's own clocks: they advance even if the program does not run
CLOCKS = frozenset({SECONDS, "user_time", "system_time"})


@dataclass(frozen=True)
class Model:
    """What is known about a CPU before anything is counted."""

    catalogue: Catalogue
    platform: Platform = field(default_factory=Platform)
    identities: tuple[Identity, ...] | None = None  # None: mined from the catalogue, and curated
    parameters: Parameters = field(default_factory=Parameters)
    # modifiers that all columns share; None: not known yet
    common: CommonScope | None = field(default=None, repr=False)

    def claims(self, events: Iterable[str]) -> tuple[Identity, ...]:
        """Identities between some events, to be tested."""
        if self.identities is None:
            return identities.everything(self.catalogue, tuple(events), platform=self.platform)
        known = set(events)
        return tuple(identity for identity in self.identities if known.issuperset(identity.events))

    def node(self, name: str) -> str:
        """The key of the event that a column counts, or that a user names."""
        return naming.node(self.catalogue, name, self.common or CommonScope())

    def among(self, events: Iterable[str]) -> Model:
        """The model for a log of these events. If all have the modifier `:u`, `cycles` means `cycles:u`."""
        if self.common is not None:
            return self
        return replace(self, common=naming.common_scope(self.catalogue, events))


def model(
    of: str | Catalogue | None = None, *, platform: Platform | None = None, parameters: Parameters | None = None
) -> Model:
    """The model of a CPU by name ("sapphirerapids") or catalogue; by default of this machine's CPU."""
    found = of if isinstance(of, Catalogue) else catalogue.load(of) if of else catalogue.at_hand()
    return Model(found, platform or machine.platform(), parameters=parameters or Parameters())


@dataclass(frozen=True, eq=False)
class Reader:
    """How names of events in samples are interpreted."""

    model: Model
    trusted: tuple[Verdict, ...] = ()  # of an earlier run, for identities that this run cannot test
    names: Mapping[str, str] = field(default_factory=dict)  # keys of events by perf's names

    def among(self, events: Iterable[str]) -> Reader:
        model = self.model.among(events)
        return self if model is self.model else replace(self, model=model)

    def node(self, event: str) -> str:
        found = self.names.get(event) or self.model.node(event)
        if self.names and found not in self.names.values():
            found = self.names.get(naming.bare(event), found)  # perf may add modifiers
        return TSC if found == "msr/tsc/" else found

    def is_plain(self, event: str) -> bool:
        """Whether the event is counted by software, exactly, without the PMU."""
        return kind(event) != "hardware"

    def worth(self, event: str) -> tuple[float, str]:
        """The value and unit of one count of an event: 64 and "Bytes", for example."""
        if self.is_plain(event):
            return 1.0, unit(event)
        listed = self.model.catalogue.find(self.node(event))
        return (listed.scale, listed.scale_unit) if listed and listed.scale_unit else (1.0, "")

    def scale(self, event: str, unit: str) -> float:
        """The value of one count in the unit of the source: 64 if counts of 64 bytes are given in bytes."""
        worth, own = self.worth(event)
        return worth if own and own == unit else 1.0

    @lru_cache(maxsize=64)  # noqa: B019 (a reader lives as long as the program)
    def compiled(self, metrics: tuple[str, ...], inputs: tuple[str, ...]) -> Compiled:
        model = self.model
        return model.catalogue.compile(metrics, platform=model.platform, inputs=inputs)
