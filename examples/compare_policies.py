"""Your cluster, your kernels, your jobs: which policy serves them best?

    python examples/compare_policies.py --seeds 20 --report out/compare

The cluster is `my_cluster.toml` beside this file. The work is an image pipeline with made-up profiles: replace them by
what you have measured. The last lines ask the records a question that no table answers.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import symphony as sy

CLUSTER = Path(__file__).parent / "my_cluster.toml"

# What each kernel costs, per 1,000 images, on each kind or type of device. A kind's name wins over its type's.
KERNELS = (
    sy.Kernel("decode", {"cpu": sy.Profile(per_work_s=1.2, demand={"compute": 1.0, "memory": 6e9})}),
    sy.Kernel(
        "segment",
        {
            "cpu": sy.Profile(per_work_s=20.0, demand={"compute": 1.0, "cache": 24e6, "memory": 4e9}),
            "t4": sy.Profile(fixed_s=0.05, per_work_s=1.6, demand={"compute": 0.9}, memory=3e9),
            "v100": sy.Profile(fixed_s=0.05, per_work_s=0.5, demand={"compute": 0.7}, memory=3e9),
        },
    ),
    sy.Kernel("stitch", {"cpu": sy.Profile(fixed_s=0.2, per_work_s=0.4, demand={"compute": 1.0, "memory": 12e9})}),
)


def pipeline(name: str, sizes: Sequence[float]) -> sy.TaskGraph:
    """Decode and segment each chunk (in thousands of images), then stitch all of them."""
    tasks, edges = [], []
    for i, size in enumerate(sizes):
        tasks += [sy.Task(f"decode-{i}", "decode", size), sy.Task(f"segment-{i}", "segment", size)]
        edges += [
            sy.Edge(None, f"decode-{i}", 0.2e9 * size),  # None: the files lie on the job's home machine
            sy.Edge(f"decode-{i}", f"segment-{i}", 1.5e9 * size),
            sy.Edge(f"segment-{i}", "stitch", 0.1e9 * size),
        ]
    return sy.TaskGraph(name, (*tasks, sy.Task("stitch", "stitch", sum(sizes))), tuple(edges))


def workload(topology: sy.Topology, seed: int, jobs: int, gap_s: float) -> sy.Workload:
    """Jobs of one to four chunks that arrive at random; the same for every policy with the same seed."""
    rng = np.random.default_rng(seed)
    graphs = tuple(pipeline(f"pipeline-{n}", rng.uniform(0.5, 2.0, 1 + n % 4).tolist()) for n in range(8))
    arrivals = np.cumsum(rng.exponential(gap_s, jobs)).tolist()
    machines = len(topology.machines)
    return sy.Workload(
        "image-pipeline",
        KERNELS,
        graphs,
        tuple(sy.Job(rng.integers(len(graphs)).item(), t, home=rng.integers(machines).item()) for t in arrivals),
    )


def main(arguments: Sequence[str] | None = None) -> sy.Report:
    """Compare, print, and ask one more question of the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fifo,shortest-queue,heft,eft-static,eft-belief,eft-exact")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=80)
    parser.add_argument("--gap", type=float, default=0.6, help="mean seconds between arrivals")
    parser.add_argument("--report", type=Path, help="write report.html, plots and records here")
    chosen = parser.parse_args(arguments)

    def image_pipeline(topology: sy.Topology, seed: int) -> sy.Workload:
        return workload(topology, seed, chosen.jobs, chosen.gap)

    report = sy.compare(
        chosen.policies.split(","),
        topology=sy.topology(CLUSTER),
        workload=image_pipeline,
        seeds=range(chosen.seeds),
    )
    print(report.summary())
    print(report.headline())
    if chosen.report:
        print(f"report: {report.write(chosen.report)}")

    print("\nWhere did 'segment' run?")
    for policy in report.ranking:
        kinds: Counter[str] = Counter()
        for seed in report.seeds:
            meta, run = report.scenarios[seed], report.run_of[policy, seed]
            graph_of = {job.job: job.graph for job in run.jobs}
            for stay in run.gangs:
                if meta.graphs[graph_of[stay.job]].kernels[stay.gang] == "segment":
                    kinds[meta.devices[stay.devices[0]].kind] += 1
        shares = ", ".join(f"{kind} {count / kinds.total():.0%}" for kind, count in kinds.most_common())
        print(f"  {report.label(policy)}: {shares}")
    return report


if __name__ == "__main__":
    main()
