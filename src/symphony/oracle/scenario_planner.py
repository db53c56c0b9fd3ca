"""What plans instead of deciding: it is given a whole scenario, and answers with a policy made for that scenario."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from symphony.scheduling.policy import Policy
from symphony.simulator.contention import ContentionModel
from symphony.simulator.scenarios import Scenario


@runtime_checkable
class ScenarioPlanner(Protocol):
    """Knows a scenario before it begins, arrivals and disturbances included, and is marked as a cheat for that."""

    cheats: ClassVar[bool]

    def plan(self, scenario: Scenario, contention: ContentionModel | None = None) -> Policy:
        """The policy to run on this scenario, and on no other."""
        ...
