from __future__ import annotations

import numpy as np
import pytest

from symphony.lowering.capacity import jobs_per_second
from symphony.lowering.family import family, names, workload
from symphony.problem.errors import InfeasibleError, LimitError, WorkloadError
from symphony.problem.runnable import check_feasible
from symphony.problem.topologies import topology
from symphony.problem.topology import Topology
from tests.lowering.small import cluster

PLACES = ("machine", "paper", "gpu24", "fat-tree:64")
NEEDS_CPU = {"variant-calling", "mixed"}
SUITED = [(name, where) for name in names() for where in PLACES if not (name in NEEDS_CPU and where in PLACES[2:])]


def test_the_families_of_the_issue_are_there() -> None:
    assert set(names()) == {
        "variant-calling", "eeg", "intrusion", "layered", "fork-join", "series-parallel",
        "cholesky", "lu", "qr", "training", "mixed",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "where"), SUITED)
def test_every_family_is_valid_feasible_and_the_same_for_the_same_seed(name: str, where: str) -> None:
    t = topology(where)
    drawn = [workload(name, t, seed) for seed in (0, 1, 2)]
    for w in drawn:
        check_feasible(t, w)
        times = [job.arrival_s for job in w.jobs]
        assert times == sorted(times)
        assert len(times) == family(name).values["jobs"]
        assert {job.graph for job in w.jobs} <= set(range(len(w.graphs)))
        assert {job.home for job in w.jobs} <= set(range(len(t.machines)))
    assert workload(name, t, 1) == drawn[1]
    assert len({w.jobs for w in drawn}) == 3
    if name not in ("cholesky", "lu", "qr"):  # whose graphs have nothing random
        assert len({w.graphs for w in drawn}) == 3


@pytest.mark.parametrize(("name", "where"), SUITED)
def test_no_kernel_alone_asks_for_more_than_a_row_has(name: str, where: str) -> None:
    """Otherwise it would not run at its isolated speed in isolation."""
    t = topology(where)
    capacity = {r.name: (r.kind, r.capacity) for r in t.resources}
    largest: dict[str, float] = {}
    w = workload(name, t, 0)
    for graph in w.graphs:
        for task in graph.tasks:
            largest[task.kernel] = max(task.size, largest.get(task.kernel, 0.0))
    first = {device.kind: device for device in t.devices}
    for kernel in w.kernels:
        for kind, device in first.items():
            profile = kernel.on(t.kind_of[kind])
            for row, room in (capacity[hop.resource] for hop in device.route):
                assert profile is None or profile.demand.get(row, 0.0) <= room * (1 + 1e-9), (
                    kernel.name,
                    kind,
                    row,
                )


def sustained(t: Topology, spec: str, seed: int) -> float:
    w = workload(spec, t, seed)
    return jobs_per_second(t, w.graphs, [1.0] * len(w.graphs), w.kernels)


@pytest.mark.parametrize("arrivals", ["poisson", "bursty", "diurnal"])
@pytest.mark.parametrize("name", ["eeg", "layered", "training"])
def test_arrivals_match_load_times_capacity(name: str, arrivals: str) -> None:
    t, jobs, load = topology("gpu24"), 4_000, 0.6
    w = workload(name, t, 3, jobs=jobs, load=load, arrivals=arrivals)
    rate = jobs / w.jobs[-1].arrival_s
    error = 4 * np.sqrt((20 if arrivals == "bursty" else 1) / jobs)
    assert rate == pytest.approx(load * sustained(t, name, 3), rel=error)


def test_another_load_leaves_the_graphs_and_the_order_of_jobs() -> None:
    t = topology("paper")
    low, high = (workload("eeg", t, 4, load=load) for load in (0.4, 0.8))
    assert low.graphs == high.graphs
    assert [job.graph for job in low.jobs] == [job.graph for job in high.jobs]
    ratio = [a.arrival_s / b.arrival_s for a, b in zip(low.jobs, high.jobs, strict=True)]
    np.testing.assert_allclose(ratio, 2.0)


def test_jobs_share_graphs_evenly() -> None:
    w = workload("layered?graphs=8&jobs=40", topology("machine"), 0)
    assert len(w.graphs) == 8
    assert np.bincount([job.graph for job in w.jobs]).tolist() == [5] * 8


def test_a_spec_sets_sizes_and_options_and_arguments_win() -> None:
    t = topology("machine")
    w = workload("cholesky:4?jobs=3&arrivals=batch&priorities=5", t, 0)
    assert len(w.graphs[0].tasks) == 20 and len(w.jobs) == 3
    assert {job.arrival_s for job in w.jobs} == {0.0}
    assert len(workload("cholesky:4?jobs=3", t, 0, jobs=7).jobs) == 7
    assert len(workload("layered:5", t, 0).graphs[0].tasks) == 5
    urgent = workload("intrusion?priorities=3", t, 0)
    assert {job.priority for job in urgent.jobs} == {0, 1, 2}


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("cholesy", "cholesy", "did you mean 'cholesky'"),
        ("nothing-like-it", "nothing-like-it", "families are variant-calling"),
        ("", "unknown workload ''", "families are"),
        ("layered?task=3", "'task'", "did you mean 'tasks'"),
        ("cholesky?graphs=3", "'graphs'", "tiles, tile, jobs"),
        ("cholesky:ten", "tiles is 'ten'", "a whole number, 1 to 45"),
        ("cholesky:2.5", "tiles is '2.5'", "whole number"),
        ("cholesky:", "tiles is ''", "tiles=10"),
        ("cholesky:1000", "tiles is '1000'", "1 to 45"),
        ("eeg?load=-1", "load is '-1'", "load=0.7"),
        ("eeg?load=nan", "load is 'nan'", "load=0.7"),
        ("eeg?load=inf", "load is 'inf'", "load=0.7"),
        ("eeg?arrivals=often", "'often'", "poisson, bursty, diurnal, batch"),
        ("eeg?load", "'load' is not an option", "option=value"),
        ("eeg?jobs=1&jobs=2", "jobs is given twice", "leave one"),
        ("layered:8?tasks=9", "tasks is given twice", "leave one"),
    ],
)
def test_a_bad_spec_says_what_to_write(spec: str, message: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        family(spec)
    assert message in str(caught.value) and hint in caught.value.hint


def test_bad_arguments_are_refused_too() -> None:
    t = topology("machine")
    for wrong in ({"jobs": 0}, {"load": -0.5}, {"arrivals": "sometimes"}, {"jobs": 2.5}):
        with pytest.raises(WorkloadError):
            workload("eeg", t, 0, **wrong)
    for seed in (-1, 0.5, True):
        with pytest.raises(WorkloadError, match="seed"):
            workload("eeg", t, seed)


def test_what_the_topology_cannot_run_and_what_is_too_large_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="fpga"):
        workload("cholesky:3", cluster({"fpga": 2}), 0)
    with pytest.raises(LimitError, match="tasks"):
        workload("variant-calling:256?chunks=64", topology("paper"), 0)


def test_every_option_has_a_default_that_it_allows() -> None:
    for name in names():
        found = family(name)
        assert found.size in found.own
        for key, option in found.options.items():
            assert option.read(option.default) == option.default, (name, key)
            assert option.read(str(option.default)) == option.default
            assert option.about and option.allowed
