"""Where counter readings come from, each behind `CounterSource`: perf, its logs, the kernel's files, NVIDIA's GPUs.

- `perf_log`: what `perf stat -j` or `-x` wrote, from a file or line by line;
- `perf`: a `perf stat` that is run for the purpose;
- `kernel`: pressure, cgroups, scheduler and traffic from /proc and /sys, on any Linux;
- `nvml`: NVIDIA's GPUs;
- `replay`: any of these again.

`problems` and `polling` are what several of them share. `perf_log` is made of `perf_line` (one line), `perf_times`
(what its times mean) and `perf_groups` (what was counted together).
"""

from symphony.telemetry.sources.kernel import KernelSource
from symphony.telemetry.sources.nvml import NvmlSource
from symphony.telemetry.sources.perf import PerfSource
from symphony.telemetry.sources.perf_log import PerfLines, PerfLog, read_perf
from symphony.telemetry.sources.replay import Replay

__all__ = ["KernelSource", "NvmlSource", "PerfLines", "PerfLog", "PerfSource", "Replay", "read_perf"]
