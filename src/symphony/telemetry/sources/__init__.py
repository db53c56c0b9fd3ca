"""Sources of counter readings, each a `CounterSource`: perf, its logs, the kernel's files, NVIDIA's GPUs.

- `perf_log`: logs of `perf stat -j` or `-x`, from a file or line by line;
- `perf`: runs `perf stat`;
- `kernel`: pressure, cgroups, scheduler and network from /proc and /sys, on any Linux;
- `nvml`: NVIDIA's GPUs;
- `replay`: recordings as a source.

`problems` and `polling` are shared. `perf_log` is made of `perf_line` (one line), `perf_times` (enabled times) and
`perf_groups` (groups of events).
"""

from symphony.telemetry.sources.kernel import KernelSource
from symphony.telemetry.sources.nvml import NvmlSource
from symphony.telemetry.sources.perf import PerfSource
from symphony.telemetry.sources.perf_log import PerfLines, PerfLog, read_perf
from symphony.telemetry.sources.replay import Replay

__all__ = ["KernelSource", "NvmlSource", "PerfLines", "PerfLog", "PerfSource", "Replay", "read_perf"]
