"""Every bound on the size of a problem, and the buckets that sizes are padded to.

With a bound, a mistake (a gap of 1e-9 s, a million-device typo) is an error message at admission, instead of a machine
that runs out of memory an hour later.
"""

from __future__ import annotations

from symphony.problem.errors import LimitError

DEVICES = 20_000
SLOTS_PER_DEVICE = 512
RESOURCES = 200_000
ROUTE = 12  # resource rows of one device
DEVICE_KINDS = 31  # a bit of an int32 for each
KERNELS = 512
TASKS_PER_GRAPH = 32_767  # parents are counted in 16 bits
EDGES_PER_GRAPH = 131_072
WORKERS_PER_GANG = 256
GRAPHS_PER_WORKLOAD = 100_000  # a trace may hold as many distinct lengths
JOBS_PER_WORKLOAD = 10_000_000
TRANSFER_BYTES = 1e15
LEAST_CAPACITY, CAPACITY = 1e-6, 1e24  # of a row, in the unit of its kind: 32-bit floats end at 1e38
SECONDS = 1e9  # of a duration or arrival: 30 years
JOB_SLOTS = 4_096  # jobs in the system at once
SEEDS = 100_000
FAILURES_PER_DAY = 86_400  # of one device
NOISE = 1_000.0  # of background loads, relative errors and factors
WORK_NOISE = 5.0  # spread of the logarithm of the true work
SEED = 2**32 - 1  # the largest
NUMBER = 1e300  # of any number: near the largest float
LATENCY_S = 3_600.0  # of one decision
COUNTERS = 1_024  # of one machine
COUNTER_DELAY = 64  # windows
PRIORITY = 2**31 - 2  # largest absolute value


def check(name: str, value: float, bound: float, *, where: str = "") -> None:
    """Raise `LimitError` if `value` is beyond `bound`."""
    if value > bound:
        shown = f"{value:,.0f}" if value < 1e18 else f"{value:.3g}" if value < 1e300 else "too large"
        raise LimitError(
            f"{name} is {shown}, more than Symphony's bound of {bound:,.0f}",
            where=where,
            hint="split the input, or raise the bound in symphony.problem.limits if the size is intended",
        )


def bucket(n: int) -> int:
    """The padded size for `n`: 1, 2, 3, 4, 6, 8, 12, 16, 24, …

    Programs are compiled per shape; sizes within one bucket share a program. At most a third is padding.
    """
    if n <= 1:
        return 1
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power
