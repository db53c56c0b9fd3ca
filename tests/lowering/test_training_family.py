from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from symphony.lowering.training_family import mixed, training
from symphony.problem.errors import InfeasibleError
from symphony.problem.topologies import topology
from symphony.problem.workload import TaskGraph
from tests.lowering.small import cluster

GPU24 = topology("gpu24")


def draw(where=GPU24, **options):
    defaults = {"graphs": 400, "workers": 8, "minutes": 18.0, "spread": 2.0}
    return training(np.random.default_rng(5), where, **(defaults | options))


KERNELS, GRAPHS = draw()


def test_a_job_is_one_preemptible_gang_that_can_be_restored() -> None:
    for graph in GRAPHS:
        (gang,) = graph.all_gangs
        assert gang.preemptible and gang.checkpoint_s > 0 and gang.restore_s > gang.checkpoint_s
        assert 1 <= gang.checkpoint_units < float("inf")
        assert len(gang.tasks) == len(graph.tasks)


def test_gangs_are_of_1_2_4_and_8_and_most_of_1() -> None:
    widths = Counter(len(graph.tasks) for graph in GRAPHS)
    assert set(widths) == {1, 2, 4, 8}
    assert widths[1] > len(GRAPHS) / 2


def test_no_gang_is_wider_than_asked_for_or_than_there_are_gpus() -> None:
    assert {len(graph.tasks) for graph in draw(workers=2)[1]} == {1, 2}
    assert {len(graph.tasks) for graph in draw(topology("machine"))[1]} == {1, 2, 4}


def iterations_s(graph: TaskGraph) -> float:
    kernel = next(kernel for kernel in KERNELS if kernel.name == graph.tasks[0].kernel)
    return graph.tasks[0].units * kernel.implementations["v100"].seconds(1.0)


def test_lengths_are_heavy_tailed_with_the_median_asked_for() -> None:
    single = np.array([iterations_s(graph) for graph in GRAPHS if len(graph.tasks) == 1])
    assert np.log(np.median(single) / 1080) == pytest.approx(0.0, abs=4 * 1.25 * 2 / np.sqrt(len(single)))
    assert single.mean() > 3 * np.median(single)
    assert single.max() <= 7 * 86400 + 1


def test_larger_models_exchange_more_and_slower_gpus_take_longer() -> None:
    by_name = {kernel.name: kernel for kernel in KERNELS}
    assert len(by_name) == 8
    assert by_name["VGG-16"].exchange_bytes > by_name["ResNet-50"].exchange_bytes > by_name["A3C"].exchange_bytes > 0
    for kernel in KERNELS:
        k80, p100, v100, a100 = (kernel.implementations[kind] for kind in ("k80", "p100", "v100", "a100"))
        assert k80.seconds(1) > p100.seconds(1) > v100.seconds(1) > a100.seconds(1)
        assert k80.demand["compute"] >= v100.demand["compute"] >= a100.demand["compute"]


def test_a_model_is_left_out_where_no_gpu_holds_it() -> None:
    small = cluster({"k80": 4}, memory={"k80": 12e9})
    assert "BERT" not in {graph.tasks[0].kernel for graph in draw(small)[1]}
    assert "BERT" in {graph.tasks[0].kernel for graph in GRAPHS}


def test_without_gpus_there_is_no_training() -> None:
    with pytest.raises(InfeasibleError, match="its devices are cpu") as caught:
        draw(cluster({"cpu": 4}))
    assert "GPU" in caught.value.hint


def test_a_blend_has_all_four_kinds_of_jobs() -> None:
    kernels, graphs = mixed(np.random.default_rng(0), topology("paper"), graphs=300, training_share=0.4, minutes=0.1)
    kinds = Counter(graph.name.rpartition("-")[0] for graph in graphs)
    assert set(kinds) == {"training", "variant-calling", "eeg", "intrusion"}
    assert kinds["training"] == pytest.approx(120, abs=4 * np.sqrt(300 * 0.4 * 0.6))
    assert {task.kernel for graph in graphs for task in graph.tasks} == {kernel.name for kernel in kernels}
    none, _ = mixed(np.random.default_rng(0), topology("paper"), graphs=30, training_share=0.0, minutes=0.1)
    assert not any(kernel.exchange_bytes for kernel in none)
