"""From what a file holds to a workload: windows, arrivals, modelled times, and what is refused."""

from __future__ import annotations

import gzip
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symphony.lowering import readers, trace
from symphony.lowering.capacity import jobs_per_second
from symphony.lowering.family import drawn, family, reading, workload
from symphony.lowering.readers import symphony_file
from symphony.lowering.readers.reading import FileContents, SkippedRecord
from symphony.problem.errors import DataError, InfeasibleError, SymphonyWarning, WorkloadError
from symphony.problem.runnable import check_feasible
from symphony.problem.topologies import topology
from symphony.problem.workload import Gang, Job, Kernel, Profile, Task, TaskGraph
from tests.data import data
from tests.lowering.small import cluster

GPUS = cluster({"gpu": 4})


def listed(count: int = 40, **changes: Any) -> FileContents:
    """A job list: every job a graph of its own, of 1 or 2 workers, gaps of 1, 2, 3 … seconds."""
    graphs = []
    for number in range(count):
        workers = tuple(f"w{worker}" for worker in range(1 + number % 2))
        tasks = tuple(Task(worker, f"k{number % 3}", units=1.0 + number) for worker in workers)
        graphs.append(TaskGraph(f"g{number}", tasks, gangs=(Gang("all", workers),)))
    kernels = tuple(Kernel(f"k{i}", {"gpu": Profile(0.5 + i)}) for i in range(3))
    jobs = tuple(Job(number, 7.0 + number * (number + 1) / 2, priority=number % 5) for number in range(count))
    return replace(FileContents("list", "list.csv", kernels, tuple(graphs), jobs), **changes)


def bag(count: int = 12) -> FileContents:
    """Graphs without arrivals, whose kernels have CPU times only."""
    kernels = tuple(Kernel(f"k{i}", {"cpu": Profile(0.1, 1.0, {"memory": 1e9}, memory=5.0)}) for i in range(4))
    graphs = (TaskGraph(f"g{i}", (Task("a", f"k{i % 4}", 1.0 + i), Task("b", "k0"))) for i in range(count))
    return FileContents("bag", "bag.json", kernels, tuple(graphs), notes=("Times are of one core.",))


# -------------------------------------------------------------------- jobs with arrivals


def test_a_list_is_replayed_as_it_is() -> None:
    given = listed(homes=True)
    made = trace.draw(given, GPUS, 0)
    assert made.workload.jobs == given.jobs and made.workload.graphs == given.graphs
    assert made.notes == () and not made.modelled and not made.problems


def test_a_window_is_of_consecutive_jobs_with_what_they_use() -> None:
    given = listed()
    part = trace.sample(given, 3, 0, first=5)
    assert [graph.name for graph in part.graphs] == ["g5", "g6", "g7"]
    assert [(job.graph, job.arrival_s, job.priority) for job in part.jobs] == [(0, 0.0, 0), (1, 6.0, 1), (2, 13.0, 2)]
    assert [kernel.name for kernel in trace.sample(given, 1, 0, first=4).kernels] == ["k1"]
    assert "3 of 40 jobs, from number 5 on" in part.notes[-1]


def test_seeds_are_different_windows_and_the_same_ones_again() -> None:
    given = listed()
    starts = [trace.draw(given, GPUS, seed, jobs=5).workload.graphs[0].name for seed in range(20)]
    assert len(set(starts)) > 10
    assert starts == [trace.draw(given, GPUS, seed, jobs=5).workload.graphs[0].name for seed in range(20)]
    # The window of a draw is that of a sample.
    assert trace.sample(given, 5, 3).graphs == trace.draw(given, GPUS, 3, jobs=5).workload.graphs
    everywhere = {trace.sample(given, 39, seed).graphs[0].name for seed in range(20)}
    assert everywhere == {"g0", "g1"}


def test_machines_are_drawn_unless_the_file_has_them() -> None:
    drawn_homes = {job.home for job in trace.draw(listed(), GPUS, 0).workload.jobs}
    assert drawn_homes == {0, 1, 2, 3}
    assert {job.home for job in trace.draw(listed(homes=True), GPUS, 0).workload.jobs} == {0}


def gaps(made: trace.DrawnWorkload) -> np.ndarray:
    return np.diff([job.arrival_s for job in made.workload.jobs])


def test_time_can_be_stretched() -> None:
    np.testing.assert_allclose(gaps(trace.draw(listed(), GPUS, 1, time_scale=2.5)), 2.5 * np.arange(1, 40))


@pytest.mark.parametrize("arrivals", [None, "poisson"])
def test_load_is_a_share_of_what_the_cluster_can_sustain(arrivals: str | None) -> None:
    made = [trace.draw(listed(), GPUS, 1, load=load, arrivals=arrivals) for load in (0.4, 0.8)]
    np.testing.assert_allclose(gaps(made[0]), 2 * gaps(made[1]))
    assert made[0].workload.graphs == made[1].workload.graphs
    w = made[1].workload
    rate = len(w.jobs) / w.jobs[-1].arrival_s / jobs_per_second(GPUS, w.graphs, [1.0] * len(w.graphs), w.kernels)
    assert rate == pytest.approx(0.8, rel=1e-9 if arrivals is None else 0.5)
    if arrivals is None:  # the pattern is the file's
        np.testing.assert_allclose(gaps(made[0]) / gaps(made[0])[0], np.arange(1, 40))


def test_arrivals_can_be_drawn_anew_at_the_recorded_rate() -> None:
    made = trace.draw(listed(), GPUS, 1, arrivals="poisson")
    assert [job.graph for job in made.workload.jobs] == list(range(40))
    assert made.workload.jobs[-1].arrival_s == pytest.approx(7 + 39 * 20, rel=0.5)
    assert not np.allclose(gaps(made), np.arange(1, 40))
    assert gaps(trace.draw(listed(), GPUS, 1, arrivals="batch", load=0.5)).tolist() == [0.0] * 39


def test_priorities_are_the_files_unless_drawn() -> None:
    assert {job.priority for job in trace.draw(listed(), GPUS, 0).workload.jobs} == {0, 1, 2, 3, 4}
    assert {job.priority for job in trace.draw(listed(), GPUS, 0, priorities=2).workload.jobs} == {0, 1}


AT_ONCE = replace(listed(), jobs=tuple(replace(job, arrival_s=0.0) for job in listed().jobs))


@pytest.mark.parametrize(
    ("given", "options", "message", "hint"),
    [
        (listed(), {"jobs": 41}, "jobs is 41, and there are 40 jobs", "jobs=1 to jobs=40"),
        (listed(), {"jobs": 8, "first": 35}, "jobs is 8, and there are 5", "jobs=5"),
        (listed(), {"first": 40}, "first is 40, and there are 40", "first=0 to first=39"),
        (bag(), {"first": 12}, "first is 12, and there are 12 graphs", "first=11"),
        (listed(), {"load": 0.5, "time_scale": 2.0}, "both set the gaps", "leave one"),
        (bag(), {"time_scale": 2.0}, "no recorded arrivals to scale", "load"),
        (AT_ONCE, {"load": 0.5}, "all its jobs arrive at once", "arrivals=poisson&load=0.5"),
        (AT_ONCE, {"arrivals": "bursty"}, "all its jobs arrive at once", "arrivals=bursty&load=0.7"),
        (listed(), {"heterogeneity": 1.0}, "have times for gpu, so no time is modelled", "leave heterogeneity out"),
        (FileContents("r", "rates.csv", listed().kernels), {}, "no task graphs and no jobs, only 3 kernels", "show"),
        (FileContents("r", "pairs.csv", tables={"pairs": []}), {}, "only the table 'pairs'", "show"),
    ],
)
def test_what_makes_no_sense_is_refused(given: FileContents, options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        trace.draw(given, GPUS, 0, **options)
    assert message in caught.value.message and caught.value.where == given.source and hint in caught.value.hint


def test_jobs_that_cannot_run_are_refused_or_left_out_and_listed() -> None:
    one = cluster({"gpu": 1})
    with pytest.raises(InfeasibleError, match="g1") as caught:
        trace.draw(listed(), one, 0)
    assert "keep_good=1" in caught.value.hint and caught.value.where.startswith("list.csv: ")
    earlier = SkippedRecord("list.csv: line 3", "it is bad")
    made = trace.draw(listed(problems=(earlier,)), one, 0, keep_good=True)
    check_feasible(one, made.workload)
    assert [graph.name for graph in made.workload.graphs] == [f"g{n}" for n in range(0, 40, 2)]
    assert made.problems[0] == earlier and len(made.problems) == 21
    assert made.problems[1].where == "list.csv: job 1" and "2 devices" in made.problems[1].what
    with pytest.raises(InfeasibleError, match="none of its graphs"):
        trace.draw(listed(), cluster({"cpu": 4}), 0, keep_good=True)


def test_a_file_that_describes_its_cluster_says_so_when_another_cannot_run_it() -> None:
    with pytest.raises(InfeasibleError) as caught:
        trace.draw(listed(topology=GPUS), cluster({"cpu": 2}), 0)
    assert "--topology-out" in caught.value.hint


# -------------------------------------------------------------------- graphs without arrivals

CPUS = cluster({"cpu": 2}, slots={"cpu": 4})
BOTH = cluster({"cpu": 2, "gpu": 1, "fpga": 1}, slots={"cpu": 4})


def test_graphs_are_picked_at_random_and_arrive_like_a_family() -> None:
    few = [trace.draw(bag(), CPUS, seed, jobs=5).workload for seed in range(6)]
    assert all(len(w.graphs) == 5 == len(w.jobs) for w in few)
    assert len({frozenset(graph.name for graph in w.graphs) for w in few}) > 3
    many = trace.draw(bag(), CPUS, 0, jobs=36).workload
    assert np.bincount([job.graph for job in many.jobs]).tolist() == [3] * 12
    assert len(trace.draw(bag(), CPUS, 0).workload.jobs) == trace.DEFAULT_JOBS
    assert [graph.name for graph in trace.draw(bag(), CPUS, 0, jobs=2, first=7).workload.graphs] == ["g7", "g8"]
    low, high = (trace.draw(bag(), CPUS, 3, jobs=24, load=load) for load in (0.3, 0.6))
    np.testing.assert_allclose(gaps(low), 2 * gaps(high))


def test_times_are_modelled_where_the_file_has_cpus_only_and_it_says_so() -> None:
    made = trace.draw(bag(), BOTH, 0)
    assert "Times on gpu, fpga are modelled" in made.modelled and made.modelled in made.notes
    assert "heterogeneity=1" in made.modelled and made.notes[0] == "Times are of one core."
    for kernel in made.workload.kernels:
        base = kernel.implementations["cpu"]
        assert base == Profile(0.1, 1.0, {"memory": 1e9}, memory=5.0)
        for kind in ("gpu", "fpga"):
            profile = kernel.implementations[kind]
            assert profile.fixed_s / base.fixed_s == pytest.approx(profile.per_work_s / base.per_work_s)
            assert not profile.demand and not profile.memory
    again, other = trace.draw(bag(), BOTH, 0).workload, trace.draw(bag(), BOTH, 1).workload
    assert again == made.workload and other.kernels != made.workload.kernels
    assert not trace.draw(bag(), CPUS, 0).modelled  # there is nothing to model


def factors(heterogeneity: float, count: int = 400) -> np.ndarray:
    kernels = tuple(Kernel(f"k{i}", {"cpu": Profile(1.0)}) for i in range(count))
    graph = TaskGraph("g", tuple(Task(f"t{i}", f"k{i}") for i in range(count)))
    made = trace.draw(FileContents("b", "b", kernels, (graph,)), BOTH, 0, jobs=1, heterogeneity=heterogeneity)
    return np.array(
        [[kernel.implementations[kind].fixed_s for kind in ("gpu", "fpga")] for kernel in made.workload.kernels]
    )


def test_modelled_times_spread_as_those_of_random_graphs_do() -> None:
    np.testing.assert_allclose(factors(0.0), 0.5)  # one slot of four is slower than a whole device by their root
    logs = np.log(factors(0.5)) - np.log(0.5)
    assert abs(logs.mean()) < 0.1
    # The factor is between two kinds, and each varies.
    np.testing.assert_allclose(logs.std(axis=0), 0.5 * 2**0.5, rtol=0.15)
    assert np.corrcoef(logs.T)[0, 1] < 0.75


def test_times_are_modelled_for_clusters_without_a_cpu_too() -> None:
    made = trace.draw(bag(), GPUS, 0)
    check_feasible(GPUS, made.workload)
    assert "Times on gpu are modelled" in made.modelled


# -------------------------------------------------------------------- as families


@pytest.fixture
def list_file(tmp_path: Path) -> Path:
    path = tmp_path / "list.json.gz"
    symphony_file.write(listed(), path)
    return path


def test_a_path_is_a_family(list_file: Path) -> None:
    spec = f"{list_file}?jobs=5&time_scale=2&format=symphony"
    made = workload(spec, GPUS, 3)
    assert made.name == spec and len(made.jobs) == 5
    expected = trace.draw(readers.read(list_file), GPUS, 3, jobs=5, time_scale=2.0, name=spec).workload
    assert made == expected
    assert len(workload(spec, GPUS, 3, jobs=7).jobs) == 7
    assert workload(f"{list_file}?first=2&jobs=1", GPUS, 0).graphs[0].name == "g2"
    assert reading(f"{list_file}?jobs=5").graphs == listed().graphs
    assert family(str(list_file)).options.keys() >= {"format", "keep_good", "jobs", "load", "arrivals", "priorities"}


def test_a_relative_path_and_a_name_without_a_suffix_work(
    list_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(workload("list.json.gz?jobs=3", GPUS, 0).jobs) == 3
    list_file.rename(tmp_path / "mine")
    assert len(workload("mine?jobs=3", GPUS, 0).jobs) == 3
    (tmp_path / "mine").rename(tmp_path / "eeg")  # the family wins; ./eeg is the file
    assert workload("eeg?jobs=3", topology("machine"), 0).graphs[0].name == "eeg-0"
    assert workload("./eeg?jobs=3&first=0", GPUS, 0).graphs[0].name == "g0"


def test_a_file_that_changes_is_read_again(list_file: Path) -> None:
    assert len(workload(str(list_file), GPUS, 0).jobs) == 40
    symphony_file.write(listed(6), list_file)
    assert len(workload(str(list_file), GPUS, 0).jobs) == 6


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("?job=3", "no option 'job'", "did you mean 'jobs'"),
        ("?jobs=0", "jobs is '0'", "jobs=100"),
        ("?keep_good=2", "keep_good is '2'", "0 to 1"),
        ("?heterogeneity=-1", "heterogeneity is '-1'", "0 to 4"),
        ("?first=a", "first is 'a'", "a whole number"),
        ("?jobs=3&jobs=4", "jobs is given twice", "leave one"),
        ("?jobs", "'jobs' is not an option", "option=value"),
    ],
)
def test_a_bad_spec_of_a_file_says_what_to_write(list_file: Path, query: str, message: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        family(f"{list_file}{query}")
    assert message in str(caught.value) and hint in caught.value.hint


def test_a_missing_file_is_named_whatever_makes_it_look_like_one(tmp_path: Path) -> None:
    for head in ("nowhere.json", "nowhere.csv.gz", "some/where", str(tmp_path / "x")):
        with pytest.raises(DataError, match="no such file") as caught:
            family(f"{head}?jobs=3")
        assert caught.value.where == head and caught.value.hint
    with pytest.raises(WorkloadError, match="unknown workload 'nowhere'") as caught_name:
        family("nowhere")
    assert "path of a file" in caught_name.value.hint


def test_bad_records_are_refused_or_kept_out_and_told_once(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(symphony_file.dumps(listed()).rpartition("}\n]")[0], encoding="utf-8")
    with pytest.raises(DataError, match="line 92"):
        workload(str(path), GPUS, 0)
    names_the_line = rf"1 record was left out, first {re.escape(str(path))}: line 92.*`symphony workload show` lists"
    with pytest.warns(SymphonyWarning, match=names_the_line) as told:
        for seed in range(3):
            assert len(workload(f"{path}?keep_good=1", GPUS, seed).jobs) == 39
    assert len(told) == 1
    assert drawn(f"{path}?keep_good=1", GPUS, 0).problems[0].where.startswith(f"{path}: line 92")


def test_modelled_times_are_told(tmp_path: Path) -> None:
    path = tmp_path / "bag.json"
    symphony_file.write(bag(), path)
    with pytest.warns(SymphonyWarning, match="Times on gpu, fpga are modelled"):
        workload(f"{path}?heterogeneity=0.5", BOTH, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workload(f"{path}?heterogeneity=0.5", BOTH, 1)
        workload(str(path), CPUS, 0)


def test_a_readers_own_options_are_part_of_the_spec() -> None:
    path = data("tpch-cloudlab")
    names = [graph.name for graph in reading(f"{path}?query=1&cores=50").graphs]
    assert names and all(name.startswith("tpch_q1_") and name.endswith("_50") for name in names)
    with pytest.raises(WorkloadError, match="no option 'quary'") as caught:
        family(f"{path}?quary=1")
    assert "query" in caught.value.hint


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        (("wfinstances", "helloworld"), "machine"),
        (("wfinstances", "nextflow", "bacass-dirt02-001.json.gz"), "fat-tree:64"),
        (("readys-graphs", "cholesky_4.txt.gz"), "machine"),
        (("gavel", "traces", "generated_gap2700_seed0.csv"), "gpu24"),
        (("shockwave", "traces", "dynamic_120jobs_100.csv"), "gpu24"),
        (("muri", "testbed_trace.csv"), "fat-tree:64"),
    ],
)
def test_real_files_are_workloads(parts: tuple[str, ...], where: str) -> None:
    t, path = topology(where), data(*parts)
    made = [drawn(f"{path}?jobs=12&load=0.5&keep_good=1", t, seed).workload for seed in (0, 1, 2)]
    for w in made:
        check_feasible(t, w)
        assert len(w.jobs) == 12
    assert len({w.jobs for w in made}) == 3
    assert drawn(f"{path}?jobs=12&load=0.5&keep_good=1", t, 1).workload == made[1]


def test_a_compressed_file_that_is_damaged_is_refused(list_file: Path) -> None:
    whole = list_file.read_bytes()
    list_file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged") as caught:
        workload(str(list_file), GPUS, 0)
    assert caught.value.where == str(list_file)
    list_file.write_bytes(gzip.compress(b"\0\1\2" * 999))
    with pytest.raises(DataError, match="binary data in none of the formats"):
        workload(str(list_file), GPUS, 0)
