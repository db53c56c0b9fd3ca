from __future__ import annotations

import numpy as np
import pytest

from symphony.lowering.applications import eeg, intrusion, variant_calling
from symphony.problem.topologies import topology
from symphony.problem.topology import DeviceKind
from symphony.problem.workload import Kernel, TaskGraph

# Published speeds of pairs of kernels on one SMT core, times 100: the upper triangle, row by row.
CO_RUN = {
    "KMerSearch": [63, 72, 72, 86, 98, 98, 96, 96, 68, 80, 92],
    "LandauVishkin": [85, 88, 99, 99, 75, 99, 62, 62, 87, 80],
    "LV-CIGAR": [85, 100, 100, 100, 96, 62, 67, 89, 80],
    "FilterPairs": [86, 89, 93, 88, 83, 86, 89, 83],
    "Entropy": [86, 98, 93, 90, 99, 98, 100],
    "Gaussian": [99, 100, 64, 73, 61, 82],
    "Thresholding": [99, 96, 98, 92, 96],
    "PairHMM": [63, 93, 97, 99],
    "KMerConst": [63, 69, 87],
    "DeBruijn": [82, 74],
    "SmithWaterman": [88],
}
GENTLE = ("GenomeDiff", "Genotype")
PAPER = topology("paper")


def draw(family, **options) -> tuple[dict[str, Kernel], tuple[TaskGraph, ...]]:
    kernels, graphs = family(np.random.default_rng(3), PAPER, **options)
    return {kernel.name: kernel for kernel in kernels}, graphs


GENOMICS, GENOMES = draw(variant_calling, graphs=4, regions=3, chunks=2, spread=0.5)
EEG, _ = draw(eeg, graphs=1, chunks=3, spread=0.0)
ALERTS, _ = draw(intrusion, graphs=1, users=3, events=100, spread=0.0)


def seconds(kernel: Kernel, kind: str) -> float:
    profile = kernel.on(DeviceKind(kind, kind))
    assert profile is not None
    return profile.seconds(1.0)


def co_run(first: str, second: str) -> float:
    """Speed of `first` on a Power8 socket of the paper's cluster, half filled with each."""
    device = next(device for device in PAPER.devices if device.kind == "power8")
    capacity = {r.name: (r.kind, r.capacity) for r in PAPER.resources}
    half = PAPER.kind_of["power8"].slots / 2
    a, b = (GENOMICS[name].implementations["power8"].demand for name in (first, second))
    speed = 1.0
    for hop in device.route:
        kind, room = capacity[hop.resource]
        if a.get(kind, 0.0) > 0:
            speed = min(speed, room / (half * (a[kind] + b.get(kind, 0.0))))
    return speed


def test_pairs_slow_one_another_down_as_published() -> None:
    errors = []
    for index, (first, row) in enumerate(CO_RUN.items()):
        for second, published in zip(list(CO_RUN)[index:], row, strict=True):
            errors.append(co_run(first, second) - published / 100)
    assert len(errors) == 66
    assert np.sqrt(np.mean(np.square(errors))) < 0.07
    assert np.max(np.abs(errors)) < 0.25


def test_memory_heavy_kernels_hurt_one_another_and_gentle_ones_nobody() -> None:
    heavy = ("KMerSearch", "KMerConst", "DeBruijn")
    assert all(co_run(a, b) < 0.8 for a in heavy for b in heavy)
    for gentle in GENTLE:
        assert all(co_run(name, gentle) > 0.95 and co_run(gentle, name) > 0.95 for name in GENOMICS)


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("xeon", 0.8, 0.9), ("k40", 7, 8.5), ("k80", 13.5, 15.5), ("fpga", 10, 15)]
)
def test_pair_hmm_has_the_published_speeds(kind: str, low: float, high: float) -> None:
    hmm = GENOMICS["PairHMM"]
    assert low <= seconds(hmm, "power8") / seconds(hmm, kind) <= high


def test_eeg_inference_has_the_published_times() -> None:
    infer = EEG["EEGInference"]
    assert seconds(infer, "power8") == pytest.approx(4.3)
    assert seconds(infer, "fpga") == pytest.approx(41.8e-3)
    assert seconds(infer, "k80") == pytest.approx(18.2 * 41.8e-3)


def test_attack_tagger_has_the_published_times() -> None:
    tagger = ALERTS["AttackTagger"]  # a size of 1 is 100 events
    assert seconds(tagger, "fpga") == pytest.approx(100 * 0.4e-3)
    assert seconds(tagger, "power8") == pytest.approx(100 * 48.4 * 0.4e-3)
    assert seconds(tagger, "k80") == pytest.approx(100 * 8.6 * 0.4e-3)


def test_only_indel_realignment_is_for_cpus_alone() -> None:
    for kernel in GENOMICS.values():
        on = {kind for kind in ("power8", "k80", "v100", "fpga") if kernel.on(DeviceKind(kind, "?"))}
        assert on == ({"power8"} if kernel.name == "IndelRealignment" else {"power8", "k80", "v100", "fpga"})
        assert kernel.on(DeviceKind("epyc", "cpu"))
    assert GENOMICS["PairHMM"].on(DeviceKind("h100", "gpu"))


def test_every_region_goes_from_alignment_over_realignment_to_calling() -> None:
    graph = GENOMES[0]
    assert {task.kernel for task in graph.tasks} == {*CO_RUN, *GENTLE, "IndelRealignment"}
    kernel = {task.name: task.kernel for task in graph.tasks}
    sources: dict[str, set[str]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, set()).add(edge.source or "home")

    def before(task: str) -> set[str]:
        found = sources.get(task, set()) - {"home"}
        return found.union(*map(before, found))

    for task in graph.tasks:
        reach = {kernel[name] for name in before(task.name)}
        if task.kernel == "KMerSearch":
            assert sources[task.name] == {"home"}
        if task.kernel == "IndelRealignment":
            assert reach == {"KMerSearch", "LandauVishkin", "LV-CIGAR", "FilterPairs"}
        if task.kernel == "Genotype":
            assert {"IndelRealignment", "PairHMM", "SmithWaterman", "Thresholding"} <= reach
    last = next(task.name for task in graph.tasks if task.kernel == "GenomeDiff")
    assert len(before(last)) == len(graph.tasks) - 1


def test_jobs_differ_in_size_but_not_on_average() -> None:
    _, graphs = draw(variant_calling, graphs=400, regions=1, chunks=1, spread=0.5)
    sizes = [graph.tasks[0].size for graph in graphs]
    assert np.std(sizes) > 0.3
    assert np.mean(sizes) == pytest.approx(1.0, rel=0.15)
    _, equal = draw(variant_calling, graphs=2, regions=1, chunks=2, spread=0.0)
    assert {task.size for task in equal[0].tasks if task.kernel == "PairHMM"} == {1.0}


def test_alert_jobs_have_up_to_as_many_users_as_asked_for() -> None:
    _, graphs = draw(intrusion, graphs=60, users=5, events=40, spread=1.0)
    users = {sum(task.kernel == "AttackTagger" for task in graph.tasks) for graph in graphs}
    assert users == {1, 2, 3, 4, 5}
