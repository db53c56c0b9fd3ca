"""Scenarios by name: a topology and a workload; every seed gives a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

import jax
import numpy as np

from symphony.problem import topologies
from symphony.problem.errors import InputError
from symphony.problem.topology import Topology
from symphony.problem.workload import Workload
from symphony.simulator.scenario_source import Draw, chosen_seeds, scenario
from symphony.simulator.scenarios import Disturbances, Scenario, ScenarioArrays, scenario_arrays, stack_arrays

FIRST_TRAINING_SEED = 1_000_000  # this project evaluates on seeds below it
SHAPE_SEEDS = range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 8)  # scenarios that determine the shapes of arrays


@dataclass(frozen=True)
class Named:
    topology: str
    workload: str
    about: str


SCENARIOS: Mapping[str, Named] = {
    "tiny": Named("machine", "layered:6?jobs=6", "six small random graphs on one machine: for tests"),
    "graphs": Named("machine", "layered:8?jobs=20&load=0.9", "random graphs on one machine: CPUs, GPUs, an FPGA"),
    "genomics": Named("paper", "variant-calling?jobs=20", "variant calling on the cluster of the Symphony paper"),
    "factorisations": Named("machine", "cholesky:6?jobs=6", "tiled Cholesky factorisations on one machine"),
    "security": Named("paper", "intrusion?jobs=40", "many short kernels on the cluster of the Symphony paper"),
}


def parts_of(name: str) -> tuple[str, str]:
    """Topology and workload of a name: one of `SCENARIOS`, or `TOPOLOGY/WORKLOAD` as in `sy.compare`."""
    if name in SCENARIOS:
        return SCENARIOS[name].topology, SCENARIOS[name].workload
    end = name.find(".toml/")  # the path of a topology may have slashes of its own
    cut = name.find("/") if end < 0 else end + len(".toml")
    if cut > 0 and name[cut + 1 :]:
        return name[:cut], name[cut + 1 :]
    close = get_close_matches(name, SCENARIOS, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise InputError(
        f"unknown scenario {name!r}",
        hint=f"{meant}The named ones are {', '.join(SCENARIOS)}; or write TOPOLOGY/WORKLOAD, such as "
        "paper/variant-calling?jobs=20",
    )


class ScenarioSource:
    """Draws scenarios of one topology and workload, by seed, as arrays of equal shapes.

    The first seeds determine the shapes. A later scenario that is larger enlarges the arrays of all after it.
    """

    def __init__(
        self,
        topology: Topology | str,
        workload: Workload | Draw | str,
        *,
        name: str = "",
        disturbances: Disturbances | None = None,
        job_slots: int | None = None,
    ) -> None:
        self.topology = topologies.topology(topology) if isinstance(topology, str) else topology
        self.workload, self.disturbances, self.job_slots = workload, disturbances, job_slots
        self.name = name or f"{self.topology.name}/{getattr(workload, 'name', workload)}"
        self._template: ScenarioArrays | None = None

    @property
    def template(self) -> ScenarioArrays:
        """A scenario with the present shapes, as NumPy arrays."""
        if self._template is None:
            self.stack(SHAPE_SEEDS)
        assert self._template is not None
        return self._template

    def draw(self, seed: int) -> Scenario:
        """The scenario of a seed, equal to that of `sy.compare`."""
        return scenario(self.topology, self.workload, seed, self.disturbances, self.job_slots)

    def stack(self, seeds: Iterable[int]) -> ScenarioArrays:
        before = [] if self._template is None else [self._template]
        drawn = [scenario_arrays(self.draw(seed)) for seed in chosen_seeds(seeds)]
        batch = stack_arrays([*before, *drawn])
        self._template = replace(_rows(batch, 0), topology=jax.tree.map(np.asarray, batch.topology))
        return jax.device_put(replace(_rows(batch, slice(len(before), None)), topology=batch.topology))


def _rows(batch: ScenarioArrays, which: int | slice) -> ScenarioArrays:
    """Index a batch with NumPy, which compiles nothing."""
    return jax.tree.map(lambda x: np.asarray(x)[which], replace(batch, topology=None))


def scenario_source(
    name: str,
    topology: Topology | str | None,
    workload: Workload | Draw | str | None,
    disturbances: Disturbances | None = None,
    job_slots: int | None = None,
) -> ScenarioSource:
    if bool(name) == (topology is not None or workload is not None):
        raise InputError("an environment needs either a name or a topology and a workload", hint="give one of the two")
    if name:
        topology, workload = parts_of(name)
    if topology is None or workload is None:
        raise InputError("topology or workload is missing", hint="give both, or a name such as 'genomics'")
    return ScenarioSource(topology, workload, name=name, disturbances=disturbances, job_slots=job_slots)
