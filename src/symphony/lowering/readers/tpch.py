"""TPC-H stage profiles of Spark: graphs in queries.yaml, times in profiles.json; either of them, or their folder.

Every entry of the profiles (a query on a size of data with a limit on cores) becomes a graph. Of the parallel tasks of
a stage, only the number and the mean runtime are known.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from symphony.lowering.readers.parsing import BadRecord, load_json, number, record, table
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.lowering.readers.tables import option_value, whole
from symphony.problem import limits, units
from symphony.problem.errors import DataError
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

# Every task reads from all tasks of the stages before, so the number of edges grows with the square of this.
MAX_TASKS_PER_STAGE = 8
_ENTRY = re.compile(r"tpch_q(\d+)_(\w+?)_maxCores_(\d+)")
Stages = dict[int, list[int]]  # stage -> the stages that read from it


def read(
    path: Path,
    collector: Collector,
    *,
    query: int | str = "",
    size: str = "",
    cores: int | str = "",
    width: int | str = MAX_TASKS_PER_STAGE,
) -> FileContents:
    """Read every entry, or those of a query ("1"), a size ("100g") or a limit on cores ("50").

    A stage of more than `width` tasks is represented by `width` longer ones.
    """
    max_tasks = option_value("width", width, whole(1, limits.WORKERS_PER_GANG))
    wanted = str(query), str(size), str(cores)
    folder = path if path.is_dir() else path.parent
    queries = _queries(_one_of(folder, "queries.yaml"), collector)
    profiles = _one_of(folder, "profiles.json", "profiles.json.gz")
    graphs: list[TaskGraph] = []
    document = load_json(profiles)
    if not isinstance(document, dict):
        raise DataError("it is not a JSON object", where=str(profiles), hint="name the folder of the TPC-H profiles")
    skipped = 0
    for key, entry in document.items():
        with record(collector, f"{profiles}: {key}"):
            match = _ENTRY.fullmatch(key)
            if not match:
                raise BadRecord("its name is not like tpch_q1_50g_maxCores_50")
            if any(value and value != part for value, part in zip(wanted, match.groups(), strict=True)):
                skipped += 1
                continue
            if match[1] not in queries:
                raise BadRecord(f"queries.yaml has no good graph Q{match[1]}")
            if not isinstance(entry, list):
                raise BadRecord("it is not a list of stages")
            graphs.append(_graph(key, match[1], queries[match[1]], entry, max_tasks))
    notes = [
        f"A stage of n tasks is represented by {max_tasks} equal tasks, or n if that is fewer, which share its total"
        " time: n times the mean runtime.",
        "Every task of a stage waits for all tasks of the stages it reads from; the amount of data between them is not"
        " known, and assumed to be 0.",
        "Times are on one core of any CPU. They were measured under the limit on cores in the entry's name and grow"
        " with it, so they are not isolated times.",
    ]
    if skipped:
        notes.append(f"{skipped:,} entries were not selected.")
    names = dict.fromkeys(task.kernel for graph in graphs for task in graph.tasks)
    profile = Profile(per_work_s=1.0, demand={"compute": 1.0})
    kernels = tuple(Kernel(name, {"cpu": profile}) for name in names)
    return FileContents(kernels=kernels, graphs=tuple(graphs), notes=tuple(notes))


def _graph(name: str, query: str, stages: Stages, entry: list[object], width: int) -> TaskGraph:
    """The graph of one entry. A bad stage makes the whole entry bad: without the stage, it would be another query."""
    tasks: dict[int, list[Task]] = {}
    for index, given in enumerate(entry):
        stage = table(given, f"stage {index}")
        number_of: Any = stage.get("stage_id")
        if not units.is_whole(number_of, 0, 10**6) or number_of not in stages or number_of in tasks:
            raise BadRecord(f"[{index}].stage_id is {number_of!r}, which is given twice or not in queries.yaml")
        count: Any = stage.get("num_tasks")
        if not units.is_whole(count, 1, 10**9):
            raise BadRecord(f"[{index}].num_tasks is {count!r}, not a whole number above 0")
        mean_ms = number(
            stage.get("average_runtime_ms"), f"[{index}].average_runtime_ms", most=1e3 * limits.SECONDS, above_zero=True
        )
        parts = min(count, width)
        seconds = count * mean_ms * 1e-3 / parts
        kernel = f"q{query}-stage{number_of}"
        tasks[number_of] = [Task(f"{number_of}.{part}", kernel, seconds) for part in range(parts)]
    if missing := stages.keys() - tasks.keys():
        raise BadRecord(f"it has no stage {min(missing)}, which queries.yaml has")
    edges = [
        Edge(source.name, target.name)
        for stage, children in stages.items()
        for child in children
        for source in tasks[stage]
        for target in tasks[child]
    ]
    return TaskGraph(name, tuple(task for stage in tasks.values() for task in stage), tuple(edges))


def _queries(path: Path, collector: Collector) -> dict[str, Stages]:
    """The graphs of queries.yaml, which has five forms of line; any other line is a bad record."""
    queries: dict[str, Stages] = {}
    incomplete: set[str] = set()
    query, stage = "", -1
    for line_number, written in enumerate(read_text(path).splitlines(), 1):
        line = written.partition("#")[0].rstrip()
        if line.strip() in ("", "graphs:", "graph:"):
            continue
        with record(collector, f"{path}: line {line_number}"):
            if match := re.fullmatch(r"  - name: Q(\d+)", line):
                query, stage = match[1], -1
                if query in queries:
                    raise BadRecord(f"Q{query} is given twice")
                queries[query] = {}
            elif query and (match := re.fullmatch(r"      - name: (\d{1,6})", line)):
                stage = int(match[1])
                if stage in queries[query]:
                    raise BadRecord(f"stage {stage} of Q{query} is given twice")
                queries[query][stage] = []
            elif stage >= 0 and (match := re.fullmatch(r"        children: \[(\d{1,6}(?:, *\d{1,6})*)\]", line)):
                queries[query][stage] += [int(child) for child in match[1].split(",")]
            else:
                incomplete.add(query)
                raise BadRecord(f"it is not a query, a stage or its children: {line.strip()[:60]!r}")
    for name, stages in queries.items():
        for stage, children in stages.items():
            for child in children:
                if child not in stages:
                    incomplete.add(name)
                    collector.bad(str(path), f"stage {stage} of Q{name} has a child {child}, which is not a stage")
    return {name: stages for name, stages in queries.items() if name not in incomplete and stages}


def _one_of(folder: Path, *file_names: str) -> Path:
    for file_name in file_names:
        if (folder / file_name).is_file():
            return folder / file_name
    raise DataError(
        f"there is no {' or '.join(file_names)} in it",
        where=str(folder),
        hint="name the folder that holds queries.yaml and profiles.json.gz",
    )


def sniff(path: Path, head: bytes) -> bool:
    """Profiles or queries, by the name of the first entry; or a folder with both files."""
    if path.is_dir():
        names = {file.name for file in path.iterdir()}
        return "queries.yaml" in names and bool(names & {"profiles.json", "profiles.json.gz"})
    queries = re.search(rb"^graphs:\s*\n\s*- name: Q\d+\s*$", head, re.MULTILINE)
    return bool(re.match(rb'\s*\{\s*"tpch_q\d+_', head) or queries)


TPCH_FORMAT = Format("tpch", "TPC-H stage profiles of Spark", sniff, read)
