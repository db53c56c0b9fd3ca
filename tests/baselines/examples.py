"""Published example graphs, as workloads: what each task takes on each processor, and what edges cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symphony.problem.topology import (
    CLUSTER,
    MACHINE,
    RACK,
    SOCKET,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)
from symphony.problem.workload import Edge, Job, Kernel, Profile, Task, TaskGraph, Workload

RATE = 1e9  # bytes/s of every link: an edge of cost c carries c * RATE bytes
OUT = (SWITCH, SOCKET, MACHINE, RACK, CLUSTER)


def processors(count: int) -> Topology:
    """Processors of a kind each, joined by links of one bandwidth and no latency."""
    names = [f"p{n + 1}" for n in range(count)]
    return Topology(
        "processors",
        tuple(DeviceKind(name, name) for name in names),
        tuple(Resource(f"{name}/link", "link", RATE, name) for name in names),
        tuple(Device(name, name, name, "rack", name, name, (Hop(f"{name}/link", OUT),)) for name in names),
        (0.0,) * 7,
    )


def graph(costs: Sequence[Sequence[float]], edges: Mapping[tuple[int, int], float]) -> Workload:
    """One job. Tasks are numbered from 1, as in the papers, each a kernel of its own."""
    names = [f"n{n + 1}" for n in range(len(costs))]
    kernels = tuple(
        Kernel(name, {f"p{p + 1}": Profile(float(seconds)) for p, seconds in enumerate(row)})
        for name, row in zip(names, costs, strict=True)
    )
    data = tuple(Edge(names[a - 1], names[b - 1], cost * RATE) for (a, b), cost in edges.items())
    tasks = tuple(Task(name, name) for name in names)
    return Workload("example", kernels, (TaskGraph("example", tasks, data),), (Job(0, 0.0),))


# Topcuoglu, Hariri and Wu (2002), figure 2 and table 1. HEFT's schedule ends at 80, CPOP's at 86.
TOPCUOGLU = graph(
    [
        (14, 16, 9),
        (13, 19, 18),
        (11, 13, 19),
        (13, 8, 17),
        (12, 13, 10),
        (13, 16, 9),
        (7, 15, 11),
        (5, 11, 14),
        (18, 12, 20),
        (21, 7, 16),
    ],
    {
        (1, 2): 18,
        (1, 3): 12,
        (1, 4): 9,
        (1, 5): 11,
        (1, 6): 14,
        (2, 8): 19,
        (2, 9): 16,
        (3, 7): 23,
        (4, 8): 27,
        (4, 9): 23,
        (5, 9): 13,
        (6, 8): 15,
        (7, 10): 17,
        (8, 10): 11,
        (9, 10): 13,
    },
)
# Upward ranks, and their sums with downward ranks.
TOPCUOGLU_RANK = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
TOPCUOGLU_BOTH = [108.000, 108.000, 105.000, 102.000, 93.000, 90.333, 105.000, 102.333, 108.000, 108.000]
TOPCUOGLU_CRITICAL = [1, 2, 9, 10]

# Arabnejad and Barbosa (2014), figure 1. PEFT's schedule ends at 122, HEFT's at 133.
ARABNEJAD = graph(
    [
        (22, 21, 36),
        (22, 18, 18),
        (32, 27, 43),
        (7, 10, 4),
        (29, 27, 35),
        (26, 17, 24),
        (14, 25, 30),
        (29, 23, 36),
        (15, 21, 8),
        (13, 16, 33),
    ],
    {
        (1, 2): 17,
        (1, 3): 31,
        (1, 4): 29,
        (1, 5): 13,
        (1, 6): 7,
        (2, 8): 3,
        (2, 9): 30,
        (3, 7): 16,
        (4, 8): 11,
        (4, 9): 7,
        (5, 9): 57,
        (6, 8): 5,
        (7, 10): 9,
        (8, 10): 42,
        (9, 10): 7,
    },
)
# The optimistic cost table that the paper prints, and its means.
ARABNEJAD_COST = [
    (64, 68, 86),
    (42, 39, 42),
    (27, 41, 43),
    (42, 39, 50),
    (28, 37, 28),
    (42, 39, 44),
    (13, 16, 22),
    (13, 16, 33),
    (13, 16, 20),
    (0, 0, 0),
]
ARABNEJAD_RANK = [72.7, 41.0, 37.0, 43.7, 31.0, 41.7, 17.0, 20.7, 16.3, 0.0]
