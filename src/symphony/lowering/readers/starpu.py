"""StarPU's performance models: a sampling folder, with kernel times in codelets/45 and PCIe measurements in bus.

For one machine of the folder, measured kernel times become profiles and the bandwidth and latency matrices a topology.
`cholesky_on` makes the tiled Cholesky factorisation that StarPU's own simulations run.

How a machine is laid out, so that a run compares with StarPU's:

- One CPU device for each core that drives no GPU (StarPU gives every GPU a core of its own). All work in main memory.
- Every GPU is a device kind of its own: equal cards were measured apart, and differ by some per cent.
- Three spans stand for the three kinds of transfer that the matrices tell apart: `machine` is between main memory and a
  GPU, `socket` between GPUs, and `switch` between GPUs whose pair is at least a tenth faster than the slowest pair.
  So the "socket" of the GPUs is a name for the PCIe tree, not a socket.
- A GPU has a link row for each of these spans, with the harmonic mean of the measured rates in both directions.
- Where StarPU's own platform description says that transfers share a link called Host, that is a row, too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, harmonic_mean
from xml.etree import ElementTree

from symphony.lowering.factorisations import Tile, cholesky_calls
from symphony.lowering.readers.parsing import BadRecord, parsed, record, whole
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.lowering.templates import Templates, check_size
from symphony.problem.errors import DataError, WorkloadError
from symphony.problem.topology import (
    DEFAULT_LATENCY_S,
    MACHINE,
    SOCKET,
    SWITCH,
    Device,
    DeviceKind,
    Hop,
    Resource,
    Topology,
)
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph

MODEL_VERSION = "45"  # of the performance models
CPU_CORE_KIND = "core"  # the device kind of a CPU core
FLOAT_BYTES = 4  # bytes: StarPU's chol_model_* kernels work on floats
MIN_SWITCH_SPEEDUP = 1.1  # a pair of GPUs this much faster than the slowest pair is behind one switch
# kernel of the factorisation -> tiles that its codelet touches; StarPU tells sizes apart by the bytes of all operands
_CHOLESKY = {"potrf": 1, "trsm": 2, "syrk": 2, "gemm": 3}
_TYPES = {"0": "cpu", "1": "cuda", "2": "opencl"}


@dataclass(frozen=True)
class Measured:
    """A row of a performance model: one codelet on one size on one device."""

    codelet: str
    device: str  # "core", "cuda0", …; "other" for what is neither a core nor a CUDA device
    footprint: str
    data_bytes: float  # of all operands
    flops: float
    mean_s: float
    std_s: float
    samples: int
    flag: str = ""  # not a measurement of its own: "half_of_gemm", "copied_across_devices", …

    @property
    def kernel(self) -> str:
        """The kernel that it is a time of: a codelet on one size of data."""
        return f"{self.codelet}:{self.footprint}"


def read(path: Path, collector: Collector, *, machine: str = "", cores: int | str = "") -> FileContents:
    """Read a sampling folder: the profiles and the topology of one machine. `cores`: how many CPU cores run tasks."""
    folder = path if path.is_dir() else path.parent
    name = _machine(folder, machine)
    rows = _rows(folder, name, collector)
    topology, about = _topology(folder, name, cores)
    kinds = {kind.name for kind in topology.kinds}
    kernels = _kernels(rows, kinds)
    flags = Counter(row.flag for row in rows if row.flag)
    elsewhere = sum(row.device not in kinds for row in rows)
    notes = [
        f"Of {name}, {len(rows):,} rows; a kernel is a codelet on one size of data, and has the mean of that row.",
        *about,
    ]
    if flags:
        listed = ", ".join(f"{count} {flag}" for flag, count in flags.items())
        notes.append(
            f"{sum(flags.values())} rows are no measurements of their own ({listed}); they are kept as profiles."
        )
    else:
        notes.append("Whether rows are copies of others is not known: there is no kernel_times.csv that marks them.")
    if elsewhere:
        notes.append(f"{elsewhere} rows are of devices that the machine does not have; they are in the table only.")
    return FileContents(
        "starpu",
        str(path),
        kernels,
        topology=topology,
        tables={"rows": tuple(rows)},
        notes=tuple(notes),
        problems=tuple(collector.problems),
    )


def cholesky_on(reading: FileContents, tiles: int, tile: int = 960) -> Templates:
    """Tiled Cholesky of `tiles` by `tiles` tiles of `tile` by `tile` floats, timed as the machine's model says.

    The rows are those of chol_model_potrf, _trsm, _syrk and _gemm whose operands have the bytes of 1, 2, 2 and 3 tiles:
    what StarPU's example looks up. syrk is half of gemm on every machine; StarPU uses it so, and so do we. The matrix
    begins on the home machine, in main memory.
    """
    check_size(1, tiles * (tiles + 1) * (tiles + 2) // 6, where=f"cholesky:{tiles}")
    tile_bytes = float(FLOAT_BYTES * tile * tile)
    kernels = {}
    for name, operands in _CHOLESKY.items():
        wanted = f"chol_model_{name}", operands * tile_bytes
        row = next((row for row in reading.tables["rows"] if (row.codelet, row.data_bytes) == wanted), None)
        found = next((kernel for kernel in reading.kernels if row and kernel.name == row.kernel), None)
        if found is None:
            sides = sorted({math.isqrt(int(row.data_bytes // FLOAT_BYTES)) for row in _of(reading, "chol_model_potrf")})
            raise WorkloadError(
                f"{reading.source} has no time of {wanted[0]} for tiles of {tile} by {tile} floats",
                hint=f"use a tile of {' or '.join(map(str, sides)) or 'another machine'}",
            )
        kernels[name] = replace(found, name=name)
    writer: dict[Tile, str] = {}
    tasks, edges = [], []
    for call in cholesky_calls(tiles):
        tasks.append(Task(call.name, call.kernel))
        edges += [Edge(writer.get(read), call.name, tile_bytes) for read in call.reads]
        writer |= dict.fromkeys(call.writes, call.name)
    used = dict.fromkeys(task.kernel for task in tasks)
    return tuple(kernels[name] for name in used), (TaskGraph(f"cholesky:{tiles}", tuple(tasks), tuple(edges)),)


def _of(reading: FileContents, codelet: str) -> Iterator[Measured]:
    return (row for row in reading.tables["rows"] if row.codelet == codelet)


def _kernels(rows: Iterable[Measured], kinds: set[str]) -> tuple[Kernel, ...]:
    """One kernel for each codelet and size; of several implementations on a device, the fastest."""
    profiles: dict[str, dict[str, Profile]] = {}
    for row in rows:
        if row.device in kinds:
            known = profiles.setdefault(row.kernel, {})
            if row.device not in known or row.mean_s < known[row.device].fixed_s:
                known[row.device] = Profile(row.mean_s, demand={"compute": 1.0}, memory=row.data_bytes)
    return tuple(Kernel(name, implementations) for name, implementations in profiles.items())


# --- Kernel times --------------------------------------------------------------------------------------------


def _rows(folder: Path, machine: str, collector: Collector) -> list[Measured]:
    """Every row of every model of a machine, with the flags of kernel_times.csv if there is one."""
    flags = _flags(folder / "kernel_times.csv", machine, collector)
    rows: list[Measured] = []
    for file in sorted((folder / "codelets" / MODEL_VERSION).glob(f"*.{machine}")):
        with record(collector, str(file)):
            rows += _model(file, collector)
    return [replace(row, flag=flags.get((row.codelet, row.device, row.footprint), "")) for row in rows]


def _flags(file: Path, machine: str, collector: Collector) -> dict[tuple[str, str, str], str]:
    """Of the rows that are no measurements of their own: (codelet, device, footprint) -> why."""
    if not file.is_file():
        return {}
    columns = [
        "machine",
        "codelet",
        "arch",
        "footprint",
        "data_bytes",
        "flops",
        "mean_us",
        "stddev_us",
        "n_samples",
        "flag",
    ]
    header, *lines = [line.split(",") for line in read_text(file).splitlines()] or [[]]
    if header != columns:
        raise DataError(f"the columns are not {','.join(columns)}", where=f"{file}: line 1", hint="remove the file")
    flags = {}
    for number, cells in enumerate(lines, 2):
        with record(collector, f"{file}: line {number}"):
            if len(cells) != len(columns):
                raise BadRecord(f"it has {len(cells)} columns, not {len(columns)}")
            arch = cells[2].partition("_")[0]
            if cells[0] == machine and cells[-1]:
                flags[cells[1], CPU_CORE_KIND if arch == "cpu0" else arch, cells[3]] = cells[-1]
    return flags


class _Lines:
    """The lines of a model that are no comments, one after the other."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = enumerate(read_text(file).splitlines(), 1)
        self.left = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")][::-1]
        self.number = 0

    @property
    def where(self) -> str:
        """File and line of the last one."""
        return f"{self.file}: line {self.number}"

    def take(self, what: str, columns: int = 1) -> list[str]:
        """The next line's columns; the file is refused if they are not as many as there should be."""
        self.number, line = self.left.pop() if self.left else (self.number, "")
        found = line.split()
        if len(found) != columns:
            raise DataError(
                f"{what} should follow, {columns} columns; there is {line.strip()[:60]!r}"
                if found
                else f"{what} is cut off",
                where=self.where,
                hint=f"get the file again; it must be a performance model of version {MODEL_VERSION}",
            )
        return found

    def count(self, what: str) -> int:
        """The next line, a whole number."""
        value = self.take(what)[0]
        try:
            return whole(value, what)
        except BadRecord as error:
            raise DataError(str(error), where=self.where, hint="get the file again") from None


def _model(file: Path, collector: Collector) -> Iterator[Measured]:
    """The rows of one model file: codelet.machine."""
    codelet = file.name.rpartition(".")[0]
    lines = _Lines(file)
    if lines.take("the version") != [MODEL_VERSION]:
        raise DataError(
            f"it is no performance model of version {MODEL_VERSION}", where=lines.where, hint="use another folder"
        )
    combinations = lines.count("the number of combinations")
    read = 0
    # Some files hold a combination more than they say; it is as good as the others.
    while read < combinations or lines.left:
        read += 1
        devices = []
        for _ in range(lines.count("the number of devices")):
            kind = lines.take("the device type")[0]
            index, cores = lines.count("the device id"), lines.count("the number of cores")
            single = _TYPES.get(kind) == "cuda" or (_TYPES.get(kind) == "cpu" and cores == 1)
            devices.append("other" if not single else CPU_CORE_KIND if _TYPES[kind] == "cpu" else f"cuda{index}")
        device = devices[0] if len(devices) == 1 else "other"
        for _ in range(lines.count("the number of implementations")):
            entries = lines.count("the number of entries")
            lines.take("the regression", 9)
            lines.take("the coefficients", 3)
            if lines.count("the number of multiple regressions"):
                raise DataError("it is a multiple regression", where=lines.where, hint="use models with a history")
            for _ in range(entries):
                row = lines.take("an entry", 8)
                with record(collector, lines.where):
                    yield Measured(
                        codelet,
                        device,
                        row[0],
                        parsed(row[1], "size"),
                        parsed(row[2], "flops"),
                        parsed(row[3], "mean", above_zero=True) * 1e-6,
                        parsed(row[4], "dev") * 1e-6,
                        whole(row[7], "n"),
                    )


# --- The machine ---------------------------------------------------------------------------------------------


def _machine(folder: Path, wanted: str) -> str:
    known = sorted(file.name.removesuffix(".bandwidth") for file in (folder / "bus").glob("*.bandwidth"))
    if wanted in known:
        return wanted
    if not wanted and len(known) == 1:
        return known[0]
    problem = f"it has no machine {wanted!r}" if wanted else "it has several machines" if known else "it has no machine"
    hint = f"say machine={known[0]} (there are {', '.join(known)})" if known else "name a folder with bus/*.bandwidth"
    raise DataError(problem, where=str(folder / "bus"), hint=hint)


def _topology(folder: Path, machine: str, cores: int | str) -> tuple[Topology, list[str]]:
    """The machine, and notes about it."""
    cpus, gpus = _config(folder / "bus" / f"{machine}.config")
    rate = _matrix(folder / "bus" / f"{machine}.bandwidth", 1 + gpus)
    latency = _matrix(folder / "bus" / f"{machine}.latency", 1 + gpus)
    platform = _platform(folder, machine)
    workers = max(cpus - gpus, 0) if cores == "" else _cores(cores, cpus)

    def both_ways(a: int, b: int) -> float:
        return harmonic_mean([rate[a][b], rate[b][a]]) * 1e6

    def mean_s(pairs: Iterable[tuple[int, int]], otherwise: float) -> float:
        times = [latency[a][b] * 1e-6 for a, b in pairs] + [latency[b][a] * 1e-6 for a, b in pairs]
        return fmean(times) if times else otherwise

    pairs = {(a, b): both_ways(a, b) for a in range(1, gpus + 1) for b in range(a + 1, gpus + 1)}
    group = _groups(pairs, gpus)
    near = [pair for pair in pairs if group[pair[0]] == group[pair[1]]]
    far = [pair for pair in pairs if pair not in near]
    home = f"{machine}/core-0" if workers else ""
    resources: list[Resource] = []
    shared: tuple[Hop, ...] = ()
    if platform.host:
        spans = [MACHINE, SOCKET] + [SWITCH] * any(pair in platform.through_host for pair in near)
        resources.append(Resource(f"{machine}/host", "switch", platform.host, machine))
        shared = (Hop(f"{machine}/host", tuple(spans)),)
    devices, kinds = [], [DeviceKind(CPU_CORE_KIND, "cpu")] * (workers > 0)

    def row(name: str, kind: str, capacity: float, *spans: int) -> Hop:
        resources.append(Resource(name, kind, capacity, machine))
        return Hop(name, spans)

    for index in range(workers):
        name = f"{machine}/core-{index}"
        route = (row(f"{name}/compute", "compute", 1.0),)
        devices.append(Device(name, CPU_CORE_KIND, machine, machine, f"{machine}/cores", name, route, home=home))
    for gpu in range(1, gpus + 1):
        kind, name = f"cuda{gpu - 1}", f"{machine}/cuda{gpu - 1}"
        kinds.append(DeviceKind(kind, "gpu", memory=platform.memory.get(kind, math.inf)))
        hops = [row(f"{name}/compute", "compute", 1.0), row(f"{name}/link", "link", both_ways(0, gpu), MACHINE)]
        for span, label, among in ((SOCKET, "far", far), (SWITCH, "near", near)):
            rates = [pairs[pair] for pair in among if gpu in pair]
            if rates:
                hops.append(row(f"{name}/{label}", "link", harmonic_mean(rates), span))
        switch = f"{machine}/switch-{group[gpu]}"
        devices.append(Device(name, kind, machine, machine, f"{machine}/pcie", switch, (*hops, *shared)))
    seconds = list(DEFAULT_LATENCY_S)
    seconds[MACHINE] = mean_s([(0, gpu) for gpu in range(1, gpus + 1)], seconds[MACHINE])
    seconds[SOCKET], seconds[SWITCH] = mean_s(far, seconds[SOCKET]), mean_s(near, seconds[SWITCH])
    topology = Topology(machine, tuple(kinds), tuple(resources), tuple(devices), tuple(seconds))
    about = [
        f"{machine} has {cpus} cores, of which {workers} run tasks, and {gpus} GPUs: "
        f"{', '.join(platform.models) or 'of unknown model'}.",
        "Rows have no direction: a link's rate is the harmonic mean of both, and what goes up shares it with what goes"
        " down. StarPU shares only its Host link in that way.",
        "Latencies are means: {:.1f} us between main memory and a GPU, {:.1f} between GPUs, {:.1f} behind one"
        " switch.".format(*(seconds[span] * 1e6 for span in (MACHINE, SOCKET, SWITCH))),
        f"All transfers share {platform.host / 1e9:.2f} GB/s, StarPU's Host link"
        f"{', but for those behind one switch' if SWITCH not in shared[0].spans else ''}; one from GPU to GPU counts"
        " there once (in StarPU, twice where it names the link twice)."
        if platform.host
        else "No link is shared: there is no platform description, or it has no Host link.",
    ]
    return topology, about


def _groups(pairs: dict[tuple[int, int], float], gpus: int) -> dict[int, int]:
    """GPU -> the first GPU behind the same switch: those joined by pairs that are clearly faster than the slowest."""
    group = {gpu: gpu for gpu in range(1, gpus + 1)}
    slowest = min(pairs.values(), default=0.0)
    for (a, b), rate in pairs.items():
        if rate >= MIN_SWITCH_SPEEDUP * slowest:
            low, high = sorted((group[a], group[b]))
            group = {gpu: low if first == high else first for gpu, first in group.items()}
    return group


def _config(file: Path) -> tuple[int, int]:
    """Numbers of CPU cores and CUDA devices."""
    written = re.findall(r"^(\w*)\s*# Number of (CPUs|CUDA devices)\s*$", read_text(file), re.MULTILINE)
    count = {what: value for value, what in written}
    try:
        cpus, gpus = (whole(count.get(what, ""), f"the number of {what}") for what in ("CPUs", "CUDA devices"))
    except BadRecord as error:
        raise DataError(str(error), where=str(file), hint="get the file again") from None
    if not 0 < cpus + gpus <= 1024:
        raise DataError(f"it says {cpus} CPUs and {gpus} GPUs", where=str(file), hint="get the file again")
    return cpus, gpus


def _cores(cores: int | str, cpus: int) -> int:
    if not str(cores).isdecimal() or int(cores) > cpus:
        raise DataError(f"cores is {cores!r}", where="starpu", hint=f"write cores=0 to cores={cpus}")
    return int(cores)


def _matrix(file: Path, size: int) -> list[list[float]]:
    """The first rows and columns of a matrix: main memory, then the CUDA devices."""
    lines = [(n, line.split()) for n, line in enumerate(read_text(file).splitlines(), 1) if not line.startswith("#")]
    rows = []
    for index in range(size):
        number, cells = lines[index] if index < len(lines) else (len(lines) + 1, [])
        try:
            if len(cells) < size:
                raise BadRecord(f"the matrix is cut off: {len(cells)} columns, not {size}")
            rows.append([parsed(cell, f"column {n}", above_zero=n != index) for n, cell in enumerate(cells[:size])])
        except BadRecord as error:
            raise DataError(str(error), where=f"{file}: line {number}", hint="get the file again") from None
    return rows


@dataclass(frozen=True)
class _Platform:
    """What StarPU's platform description adds to the matrices."""

    models: tuple[str, ...] = ()
    memory: dict[str, float] = field(default_factory=dict)  # bytes, by device kind
    host: float = 0.0  # bytes/s of the link that transfers share; 0: there is none
    through_host: tuple[tuple[int, int], ...] = ()  # pairs of GPUs (from 1) whose transfers cross it


def _platform(folder: Path, machine: str) -> _Platform:
    file = folder / "bus" / f"{machine}.platform.v4.xml"
    if not file.is_file():
        return _Platform()
    try:
        root = ElementTree.fromstring(read_text(file))
        link = root.find(".//link[@id='Host']")
        host = 0.0 if link is None else parsed((link.get("bandwidth") or "").removesuffix("Bps"), "bandwidth of Host")
        memory, models = {}, []
        for cuda in root.iter("host"):
            name = cuda.get("id", "")
            if re.fullmatch(r"CUDA\d+", name):
                properties = {prop.get("id"): prop.get("value", "") for prop in cuda.iter("prop")}
                models.append(properties.get("model", "unknown"))
                if "memsize" in properties:
                    memory[name.lower()] = parsed(properties["memsize"], f"memsize of {name}", above_zero=True)
    except (ElementTree.ParseError, BadRecord) as error:
        raise DataError(str(error), where=str(file), hint="get the file again, or remove it") from None
    crossing = []
    for route in root.iter("route"):
        ends = [re.fullmatch(r"CUDA(\d{1,4})", route.get(end, "")) for end in ("src", "dst")]
        if all(ends) and any(link.get("id") == "Host" for link in route.iter("link_ctn")):
            crossing.append((int(ends[0][1]) + 1, int(ends[1][1]) + 1))  # type: ignore[index]  # all of them matched
    return _Platform(tuple(models), memory, host, tuple(crossing))


def sniff(path: Path, head: bytes) -> bool:
    """A folder with bus measurements and codelets."""
    return path.is_dir() and any((path / "bus").glob("*.bandwidth")) and (path / "codelets" / MODEL_VERSION).is_dir()


STARPU_FORMAT = Format("starpu", "StarPU performance models and bus measurements", sniff, read)
