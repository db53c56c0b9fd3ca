"""StarPU's performance models: a sampling folder, with kernel times in codelets/45 and PCIe measurements in bus.

For one machine of the folder, measured kernel times become profiles, and the bandwidth and latency matrices a topology.

The topology of a machine, so that a run compares with StarPU's:

- One CPU device for each core that drives no GPU (StarPU gives every GPU a core of its own). All use main memory.
- Every GPU is a device kind of its own: identical cards were measured apart, and differ by some per cent.
- Three spans represent the three kinds of transfer in the matrices: `machine` is between main memory and a GPU,
  `socket` between GPUs, and `switch` between GPUs whose pair is at least a tenth faster than the slowest pair. So the
  "socket" of the GPUs is the PCIe tree, not a socket.
- A GPU has a link row for each of these spans, with the harmonic mean of the measured rates in both directions.
- A link that all transfers to and from main memory share in StarPU's platform description (Host) is a row, too.
  Transfers between GPUs cross it as often as the description says: not at all behind one switch, twice if they go up
  to it and down again, and twice if there is no direct path, so that they go through main memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, harmonic_mean
from xml.etree import ElementTree

from symphony.lowering.readers.parsing import DOWNLOAD_HINT, BadRecord, number_from, record, whole_from
from symphony.lowering.readers.reading import Collector, FileContents, Format, read_text
from symphony.lowering.readers.tables import option_value, whole
from symphony.problem.errors import DataError
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
from symphony.problem.workload import Kernel, Profile

MODEL_VERSION = "45"  # of the performance models
CPU_CORE_KIND = "core"  # the device kind of a CPU core
MIN_SWITCH_SPEEDUP = 1.1  # a pair of GPUs this much faster than the slowest pair is behind one switch
_TYPES = {"0": "cpu", "1": "cuda", "2": "opencl"}


@dataclass(frozen=True)
class Measured:
    """A row of a performance model: one codelet on one size on one device."""

    codelet: str
    device: str  # "core", "cuda0", …; "other" for anything but one core or one CUDA device
    footprint: str
    data_bytes: float  # of all operands
    flops: float
    mean_s: float
    std_s: float
    samples: int

    @property
    def kernel(self) -> str:
        """A kernel is a codelet on one size of data."""
        return f"{self.codelet}:{self.footprint}"


def read(path: Path, collector: Collector, *, machine: str = "", cores: int | str = "") -> FileContents:
    """Read a sampling folder: the profiles and the topology of one machine.

    `cores`: the number of CPU cores that run tasks; "": all that drive no GPU.
    """
    folder = path if path.is_dir() else path.parent
    name = _machine(folder, machine)
    rows = _rows(folder, name, collector)
    topology, about = _topology(folder, name, cores, collector)
    kinds = {kind.name for kind in topology.kinds}
    kernels = _kernels(rows, kinds)
    elsewhere = sum(row.device not in kinds for row in rows)
    notes = [
        f"{name} has {len(rows):,} rows; a kernel is a codelet on one size of data, with the mean time of its row.",
        "In StarPU's own samples, chol_model_syrk is half of chol_model_gemm, not a measurement of its own.",
        *about,
    ]
    if elsewhere:
        notes.append(f"{elsewhere} rows are of devices that the machine does not have; they are in the table only.")
    return FileContents(kernels=kernels, topology=topology, tables={"rows": tuple(rows)}, notes=tuple(notes))


def _kernels(rows: Iterable[Measured], kinds: set[str]) -> tuple[Kernel, ...]:
    """One kernel for each codelet and size; of several implementations on a device, the fastest."""
    profiles: dict[str, dict[str, Profile]] = {}
    for row in rows:
        if row.device in kinds:
            on = profiles.setdefault(row.kernel, {})
            if row.device not in on or row.mean_s < on[row.device].fixed_s:
                on[row.device] = Profile(row.mean_s, demand={"compute": 1.0}, memory=row.data_bytes)
    return tuple(Kernel(name, implementations) for name, implementations in profiles.items())


# --- Kernel times --------------------------------------------------------------------------------------------


def _rows(folder: Path, machine: str, collector: Collector) -> list[Measured]:
    rows: list[Measured] = []
    if not (folder / "codelets" / MODEL_VERSION).is_dir():
        others = sorted(inside.name for inside in (folder / "codelets").iterdir() if inside.is_dir())
        found = f"version {', '.join(others)}" if others else "no version"
        raise DataError(
            f"its performance models have {found}, and only version {MODEL_VERSION} can be read",
            where=str(folder / "codelets"),
            hint="name a sampling folder of StarPU 1.3 or 1.4",
        )
    for file in sorted((folder / "codelets" / MODEL_VERSION).glob(f"*.{machine}")):
        with record(collector, str(file)):
            rows += _model(file, collector)
    return rows


class _Lines:
    """The lines of a model that are not comments, in order."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = enumerate(read_text(file).splitlines(), 1)
        self.left = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")][::-1]
        self.number = 0

    @property
    def where(self) -> str:
        """File and line of the last line taken."""
        return f"{self.file}: line {self.number}"

    def take(self, what: str) -> list[str]:
        """The words of the next line; an error if there is none."""
        if not self.left:
            raise DataError(f"{what} is cut off", where=self.where, hint=DOWNLOAD_HINT)
        self.number, line = self.left.pop()
        return line.split()

    def take_columns(self, what: str, count: int) -> list[str]:
        """The words of the next line, which must be `count` columns."""
        words = self.take(what)
        if len(words) != count:
            raise DataError(
                f"{what} should follow, {count} columns; there is {' '.join(words)[:60]!r}",
                where=self.where,
                hint=f"download the file again; it must be a performance model of version {MODEL_VERSION}",
            )
        return words

    def count(self, what: str) -> int:
        """The next line, a whole number."""
        word = self.take_columns(what, 1)[0]
        try:
            return whole_from(word, what)
        except BadRecord as error:
            raise DataError(str(error), where=self.where, hint=DOWNLOAD_HINT) from None


def _model(file: Path, collector: Collector) -> Iterator[Measured]:
    """The rows of one model file: codelet.machine. A bad entry is left out alone; other errors end the file."""
    codelet = file.name.rpartition(".")[0]
    lines = _Lines(file)
    if lines.take("the version") != [MODEL_VERSION]:
        raise DataError(
            f"it is not a performance model of version {MODEL_VERSION}", where=lines.where, hint="use another folder"
        )
    combinations = lines.count("the number of combinations")
    read = 0
    # Some files hold one combination more than they declare; it is as good as the others.
    while read < combinations or lines.left:
        read += 1
        device = _device(lines)
        for _ in range(lines.count("the number of implementations")):
            entries = lines.count("the number of entries")
            lines.take_columns("the regression", 9)
            lines.take_columns("the coefficients", 3)
            if lines.count("the number of multiple regressions"):
                raise DataError("it is a multiple regression", where=lines.where, hint="use models with a history")
            for _ in range(entries):
                words = lines.take("an entry")
                try:
                    yield _entry(codelet, device, words)
                except BadRecord as error:
                    collector.leave_out(lines.where, str(error))


def _device(lines: _Lines) -> str:
    """The device of a combination, as in `Measured.device`."""
    devices = []
    for _ in range(lines.count("the number of devices")):
        device_type = _TYPES.get(lines.take_columns("the device type", 1)[0])
        index, cores = lines.count("the device id"), lines.count("the number of cores")
        single_core = device_type == "cpu" and cores == 1
        devices.append(f"cuda{index}" if device_type == "cuda" else CPU_CORE_KIND if single_core else "other")
    return devices[0] if len(devices) == 1 else "other"


def _entry(codelet: str, device: str, words: list[str]) -> Measured:
    if len(words) != 8:
        raise BadRecord(f"an entry has 8 columns; there is {' '.join(words)[:60]!r}")
    footprint, size, flops, mean_us, deviation_us, _, _, samples = words
    return Measured(
        codelet,
        device,
        footprint,
        number_from(size, "size"),
        number_from(flops, "flops"),
        number_from(mean_us, "mean", above_zero=True) * 1e-6,
        number_from(deviation_us, "dev") * 1e-6,
        whole_from(samples, "n"),
    )


# --- The machine ---------------------------------------------------------------------------------------------


def _machine(folder: Path, wanted: str) -> str:
    machines = sorted(file.name.removesuffix(".bandwidth") for file in (folder / "bus").glob("*.bandwidth"))
    if wanted in machines:
        return wanted
    if not wanted and len(machines) == 1:
        return machines[0]
    problem = f"it has no machine {wanted!r}" if wanted else f"it has {'several' if machines else 'no'} machines"
    hint = "name a folder with bus/*.bandwidth"
    if machines:
        hint = f"write machine={machines[0]} (the machines are {', '.join(machines)})"
    raise DataError(problem, where=str(folder / "bus"), hint=hint)


def _topology(folder: Path, machine: str, cores: int | str, collector: Collector) -> tuple[Topology, list[str]]:
    """The machine, and notes about it."""
    cpus, gpus = _config(folder / "bus" / f"{machine}.config")
    rate = _matrix(folder / "bus" / f"{machine}.bandwidth", 1 + gpus, collector)
    latency = _matrix(folder / "bus" / f"{machine}.latency", 1 + gpus, collector)
    platform = _platform(folder, machine)
    workers = max(cpus - gpus, 0) if cores == "" else option_value("cores", cores, whole(0, cpus))

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
        crossings = {
            SOCKET: max(map(platform.crossings, far), default=0),
            SWITCH: max(map(platform.crossings, near), default=0),
        }
        resources.append(Resource(f"{machine}/host", "switch", platform.host, machine))
        once = (MACHINE, *(span for span, times in crossings.items() if times))
        shared = (Hop(f"{machine}/host", once),)
        if twice := tuple(span for span, times in crossings.items() if times > 1):
            shared += (Hop(f"{machine}/host", twice),)
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
        "Rows have no direction: a link's rate is the harmonic mean of both, and both directions share it. StarPU"
        " shares only its Host link in that way.",
        "Latencies are means: {:.1f} us between main memory and a GPU, {:.1f} between GPUs, {:.1f} behind one"
        " switch.".format(*(seconds[span] * 1e6 for span in (MACHINE, SOCKET, SWITCH))),
        f"All transfers share {platform.host / 1e9:.2f} GB/s, StarPU's Host link"
        f"{', except those behind one switch' if SWITCH not in shared[0].spans else ''}"
        f"{'; those from GPU to GPU cross it twice' if len(shared) > 1 else ''}."
        if platform.host
        else "No link is shared: there is no platform description, or it has no such link.",
    ]
    return topology, about


def _groups(pairs: dict[tuple[int, int], float], gpus: int) -> dict[int, int]:
    """GPU -> the first GPU behind the same switch. Pairs that are clearly faster than the slowest are behind one."""
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
        cpus, gpus = (whole_from(count.get(what, ""), f"the number of {what}") for what in ("CPUs", "CUDA devices"))
    except BadRecord as error:
        raise DataError(str(error), where=str(file), hint=DOWNLOAD_HINT) from None
    if not 0 < cpus + gpus <= 1024:
        raise DataError(f"it says {cpus} CPUs and {gpus} GPUs", where=str(file), hint=DOWNLOAD_HINT)
    return cpus, gpus


def _matrix(file: Path, size: int, collector: Collector) -> list[list[float]]:
    """The first rows and columns of a matrix: main memory, then the CUDA devices.

    A bad cell is left out: the measurement of the other direction replaces it.
    """
    lines = [(n, line.split()) for n, line in enumerate(read_text(file).splitlines(), 1) if not line.startswith("#")]
    cells: dict[tuple[int, int], float] = {}
    bad: dict[tuple[int, int], tuple[str, str]] = {}  # -> (where, what)
    for row in range(size):
        number, words = lines[row] if row < len(lines) else (len(lines) + 1, [])
        where = f"{file}: line {number}"
        if len(words) < size:
            problem = f"the matrix is cut off: {len(words)} columns, not {size}"
            raise DataError(problem, where=where, hint=DOWNLOAD_HINT)
        for column in range(size):
            try:
                cells[row, column] = number_from(words[column], f"column {column}", above_zero=column != row)
            except BadRecord as error:
                bad[row, column] = where, str(error)
    for (row, column), (where, what) in bad.items():
        if row != column and (column, row) not in cells:
            raise DataError(f"{what}, and neither is the other direction", where=where, hint=DOWNLOAD_HINT)
        collector.leave_out(where, f"{what}; the other direction counts for both")
        cells[row, column] = cells.get((column, row), 0.0)
    return [[cells[row, column] for column in range(size)] for row in range(size)]


@dataclass(frozen=True)
class _Platform:
    """What StarPU's platform description has beyond the matrices."""

    models: tuple[str, ...] = ()
    memory: dict[str, float] = field(default_factory=dict)  # bytes, by device kind
    host: float = 0.0  # bytes/s of the shared link; 0: there is none
    through_host: Counter[tuple[int, int]] = field(default_factory=Counter)  # crossings of it, by pair of GPUs (from 1)
    direct: frozenset[tuple[int, int]] = frozenset()  # pairs of GPUs with a route of their own

    def crossings(self, pair: tuple[int, int]) -> int:
        """How often a transfer between two GPUs crosses the shared link."""
        return self.through_host[pair] if pair in self.direct else 2


def _platform(folder: Path, machine: str) -> _Platform:
    file = folder / "bus" / f"{machine}.platform.v4.xml"
    if not file.is_file():
        return _Platform()
    try:
        root = ElementTree.fromstring(read_text(file))
        memory, models = {}, []
        for cuda in root.iter("host"):
            name = cuda.get("id", "")
            if re.fullmatch(r"CUDA\d+", name):
                properties = {prop.get("id"): prop.get("value", "") for prop in cuda.iter("prop")}
                models.append(properties.get("model", "unknown"))
                if "memsize" in properties:
                    memory[name.lower()] = number_from(properties["memsize"], f"memsize of {name}", above_zero=True)
        routes = _routes(root)
        # Links of one direction or one GPU are not shared by all these routes.
        with_memory = [set(links) for ends, links in routes.items() if 0 in ends]
        rates = {link.get("id", ""): link.get("bandwidth", "").removesuffix("Bps") for link in root.iter("link")}
        shared = {
            link: number_from(rates.get(link, ""), f"bandwidth of {link}", above_zero=True)
            for link in (set.intersection(*with_memory) if with_memory else ())
        }
    except (ElementTree.ParseError, BadRecord) as error:
        raise DataError(str(error), where=str(file), hint="download the file again, or remove it") from None
    host = min(shared, key=shared.__getitem__, default="")
    direct = {ends: links for ends, links in routes.items() if 0 not in ends}
    through = Counter({ends: links.count(host) for ends, links in direct.items()})
    return _Platform(tuple(models), memory, shared.get(host, 0.0), through, frozenset(direct))


def _routes(root: ElementTree.Element) -> dict[tuple[int, int], list[str]]:
    """Links between main memory (0) and GPUs (from 1), by their ends."""
    routes = {}
    for route in root.iter("route"):
        ends = [re.fullmatch(r"RAM|CUDA(\d{1,4})", route.get(end, "")) for end in ("src", "dst")]
        if ends[0] and ends[1]:
            source, target = (0 if end[1] is None else int(end[1]) + 1 for end in ends if end)
            routes[source, target] = [link.get("id", "") for link in route.iter("link_ctn")]
    return routes


def sniff(path: Path, head: bytes) -> bool:
    """A folder with bus measurements and codelets."""
    return path.is_dir() and any((path / "bus").glob("*.bandwidth")) and (path / "codelets").is_dir()


STARPU_FORMAT = Format("starpu", "StarPU performance models and bus measurements", sniff, read)
