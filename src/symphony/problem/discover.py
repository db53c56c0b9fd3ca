"""This machine as a topology, from /sys, /proc and NVML.

Discovery does not fail. A value that cannot be read is left out or assumed, and a note says so. The notes belong in the
saved file, where the assumptions can be corrected by hand.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from symphony.problem import limits
from symphony.problem.build import (
    CPU,
    ClusterSpec,
    DeviceSpec,
    MachineSpec,
    SocketSpec,
    SwitchSpec,
    build,
)
from symphony.problem.extras import install_command
from symphony.problem.topology import Topology
from symphony.problem.units import show

# Assumed values; a note is made when one is used.
PCIE_PAYLOAD = 0.8  # share of a PCIe link's raw rate that large copies reach
DEFAULT_LINK = 12e9  # bytes/s of an accelerator's link: PCIe gen 3 x16
DEFAULT_NIC = 1.25e9  # bytes/s: 10 Gbit/s
DEFAULT_INTERCONNECT = 40e9  # bytes/s between sockets
MEMORY_BANDWIDTH_PER_CORE = 5e9  # bytes/s of a socket's memory channels
MIN_MEMORY_BANDWIDTH, MAX_MEMORY_BANDWIDTH = 20e9, 200e9  # of a socket
DEFAULT_RECONFIGURE_S = 0.2

# Bytes and bytes/s of the memory of GPUs, if NVML is not installed. Vendors' figures.
_GPU_MEMORY = {
    "k40": (12e9, 288e9),
    "k80": (12e9, 240e9),  # each of its two GPUs is a PCI device
    "p100": (16e9, 732e9),
    "v100": (16e9, 900e9),
    "a100": (40e9, 1555e9),
    "h100": (80e9, 3350e9),
    "h200": (141e9, 4800e9),
    "t4": (16e9, 320e9),
}
_PCI_IDS = {0x1023: "k40", 0x1024: "k40", 0x102D: "k80", 0x15F8: "p100", 0x15F9: "p100", 0x1EB8: "t4"}
_PCI_IDS |= {0x1DB1: "v100", 0x1DB4: "v100", 0x20B0: "a100", 0x20F1: "a100", 0x2330: "h100", 0x2335: "h200"}
_NVIDIA, _AMD, _INTEL = 0x10DE, 0x1002, 0x8086
_FPGA_MAKERS = {0x10EE, 0x1172, 0x4144}  # Xilinx, Altera, Alpha Data
_INTEL_FPGAS = {0x09C4, 0x0B2B, 0x0B30}
# Vendors of display adapters that cannot compute: emulated ones, and those of management controllers.
_NO_COMPUTE = {0x1AF4, 0x1B36, 0x1234, 0x15AD, 0x1013, 0x1414, 0x80EE, 0x1A03, 0x102B}
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Discovery:
    """A topology, and notes on what was assumed."""

    topology: Topology
    cluster: ClusterSpec  # the same in the hierarchical form, to be saved and corrected by hand
    notes: tuple[str, ...]


def discover(root: Path = Path("/"), nvml: Any = None) -> Discovery:
    """Describe this machine. `root`: the folder with sys and proc; `nvml`: used instead of the module `pynvml`."""
    host = _Host(root.absolute())
    sockets, gpus = _sockets(host), _nvidia_gpus(nvml or _load_nvml(host))
    memory, bandwidth = _memory(host) / len(sockets), _memory_bandwidth(host, sockets)
    cards, linked = _cards(host, sockets, gpus), _linked(host, gpus)
    kinds: dict[str, DeviceSpec] = {}
    specs = []
    for index, socket in enumerate(sockets):
        cpu = _spec(type=CPU, slots=min(socket.cores, limits.SLOTS_PER_DEVICE), memory=_tidy(memory))
        devices = [_register(kinds, _cpu_name(host), cpu)]
        switches: dict[Path, list[str]] = defaultdict(list)
        for card in cards:
            if card.socket == index:
                spec = card.spec if linked else card.spec.model_copy(update={"peer": None})
                kind = _register(kinds, card.kind, spec)
                (switches[card.switch] if card.switch else devices).append(kind)
        specs.append(
            SocketSpec(
                memory=bandwidth[index],
                cache=socket.cache,
                interconnect=DEFAULT_INTERCONNECT if len(sockets) > 1 else None,
                devices=tuple(devices),
                switch=tuple(
                    SwitchSpec(bandwidth=_link(host, upstream), devices=tuple(behind))
                    for upstream, behind in switches.items()
                ),
            )
        )
    if len(sockets) > 1:
        host.note(f"the links between sockets are assumed to carry {show(DEFAULT_INTERCONNECT, 'bytes/s')}")
    name = re.sub(r"[^\w.-]", "", host.text("proc/sys/kernel/hostname")) or "machine"
    machine = MachineSpec(name=name, nic=_nic(host), peers=linked, socket=tuple(specs))
    cluster = ClusterSpec(name=name, device=kinds, machine=(machine,))
    return Discovery(build(cluster), cluster, tuple(host.notes))


@dataclass
class _Host:
    """The files of a machine, and the notes made while reading them."""

    root: Path
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def text(self, path: str | Path) -> str:
        """The stripped text of a file; "" if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str | Path) -> float | None:
        """The number at the start of a file ("8.0 GT/s PCIe", "0x10de", "-1"); None if there is none."""
        match = re.match(r"(0x[0-9a-f]+)|-?\d+(\.\d+)?", self.text(path))
        return None if not match else int(match[0], 16) if match[1] else float(match[0])

    def folders(self, parent: str, name: str = "") -> list[Path]:
        """The sorted entries of a folder; with a `name`, only those called `name` and a number."""
        try:
            entries = list((self.root / parent).iterdir())
        except OSError:
            return []
        chosen = [path for path in entries if not name or re.fullmatch(rf"{name}\d+", path.name)]
        return sorted(chosen, key=lambda path: (len(path.name), path.name))


def _tidy(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def _spec(**keys: Any) -> DeviceSpec:
    """A device kind from the keys whose values are known."""
    return DeviceSpec.model_validate({key: value for key, value in keys.items() if value})


def _register(kinds: dict[str, DeviceSpec], name: str, spec: DeviceSpec) -> str:
    """Add a device kind, and return its name: `name`, or with a number if `name` is another kind."""
    number = 1
    while kinds.setdefault(name if number == 1 else f"{name}-{number}", spec) != spec:
        number += 1
    return name if number == 1 else f"{name}-{number}"


# --- CPUs and memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Socket:
    cpus: frozenset[int]
    cores: int
    cache: float | None  # bytes of last-level cache


def _sockets(host: _Host) -> list[_Socket]:
    """The sockets, with the CPUs and cores that this process may use."""
    sockets = _all_sockets(host)
    total, quota = sum(socket.cores for socket in sockets), _quota(host)
    if 0 < quota < total:
        host.note(f"this container may use {quota:g} of {total} cores at once, so it has so many slots")
        sockets = [replace(socket, cores=max(1, round(socket.cores * quota / total))) for socket in sockets]
    return sockets


def _in_cgroup(host: _Host, file: str, older: str) -> str:
    """A limit of this container (control groups, version 2 or 1); "" if there is none."""
    return host.text(f"sys/fs/cgroup/{file}") or host.text(f"sys/fs/cgroup/{older}")


def _quota(host: _Host) -> float:
    """The CPU time that a container may use, in cores; 0: not limited."""
    older = " ".join(host.text(f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    found = re.fullmatch(r"(\d+) (\d+)", host.text("sys/fs/cgroup/cpu.max") or older)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else 0.0


def _all_sockets(host: _Host) -> list[_Socket]:
    packages: dict[float, dict[int, str]] = defaultdict(dict)  # package -> CPU -> the CPUs of its core
    allowed = _numbers(_in_cgroup(host, "cpuset.cpus.effective", "cpuset/cpuset.effective_cpus"))
    for folder in host.folders("sys/devices/system/cpu", "cpu"):
        cpu = int(folder.name[3:])
        if host.text(folder / "online") == "0":
            continue
        if allowed and cpu not in allowed:
            host.note("some CPUs are left out: this container may not use them")
            continue
        package = host.number(folder / "topology/physical_package_id") or 0
        names = ("core_cpus_list", "thread_siblings_list")  # the new name and the old one
        core = next(filter(None, (host.text(folder / "topology" / name) for name in names)), str(cpu))
        packages[max(package, 0)][cpu] = core
    if not packages:
        count = len(re.findall(r"^processor\s*:", host.text("proc/cpuinfo"), re.MULTILINE)) or 1
        host.note(f"/sys does not list the CPUs; assumed one socket with {count} of them")
        return [_Socket(frozenset(range(count)), count, None)]
    # Intel's two kinds of cores, or Arm's relative capacities.
    unlike = len([folder for folder in ("cpu_core", "cpu_atom") if host.text(f"sys/devices/{folder}/cpus")]) > 1
    capacities = {
        host.text(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity") for cpus in packages.values() for cpu in cpus
    }
    if unlike or len(capacities) > 1:
        host.note("the cores of this CPU differ in speed; they are taken to be alike")
    return [
        _Socket(frozenset(cores), len(set(cores.values())), _cache(host, cores))
        for _, cores in sorted(packages.items())
    ]


def _cache(host: _Host, cpus: dict[int, str]) -> float | None:
    """Total bytes of the last-level caches of some CPUs; a socket may have several."""
    sizes: dict[float, dict[str, float]] = defaultdict(dict)  # level -> the CPUs that share a cache -> bytes
    for cpu in cpus:
        for folder in host.folders(f"sys/devices/system/cpu/cpu{cpu}/cache", "index"):
            size = host.text(folder / "size")
            factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:], 1)
            count = host.number(folder / "size")
            if host.text(folder / "type") != "Instruction" and count:
                level = host.number(folder / "level") or 0
                sizes[level][host.text(folder / "shared_cpu_list") or str(cpu)] = count * factor
    if not sizes:
        host.note("/sys does not state the size of the last-level cache; contention for it is left out")
        return None
    return sum(sizes[max(sizes)].values())


def _cpu_name(host: _Host) -> str:
    model = re.search(r"^(?:model name|cpu)\s*:\s*(.*)$", host.text("proc/cpuinfo"), re.MULTILINE | re.IGNORECASE)
    brand = re.search(r"xeon|epyc|ryzen|power\d+|neoverse|opteron", model[1] if model else "", re.IGNORECASE)
    return brand[0].lower() if brand else "cpu"


def _numbers(text: str) -> set[int]:
    """The numbers in a list such as "0-3,8"."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {number for low, high in ranges for number in range(int(low), int(high or low) + 1)}


def _memory(host: _Host) -> float:
    """Bytes of the memory of NUMA nodes with CPUs; 0 if unknown."""
    total, far = _total_memory(host, "proc/meminfo"), 0.0
    for folder in host.folders("sys/devices/system/node", "node"):
        size = _total_memory(host, folder / "meminfo")
        if size and not _numbers(host.text(folder / "cpulist")):
            host.note(f"the {show(size, 'bytes')} of {folder.name} belong to no CPU; left out")
            far += size
    if not total:
        host.note("the size of the memory is not known; it is not limited")
    own = max(total - far, 0.0)
    limit = _in_cgroup(host, "memory.max", "memory/memory.limit_in_bytes")
    if limit.isdecimal() and 0 < int(limit) < own:
        host.note(
            f"this container may use {show(float(limit), 'bytes')} of the machine's {show(own, 'bytes')} of memory"
        )
        own = float(limit)
    return own


def _total_memory(host: _Host, path: str | Path) -> float:
    match = re.search(r"MemTotal:\s*(\d+) kB", host.text(path))
    return int(match[1]) * 1024.0 if match else 0.0


def _memory_bandwidth(host: _Host, sockets: list[_Socket]) -> list[float]:
    """Bytes/s of each socket's memory channels: from the DMI table, or assumed."""
    total, channels = _dmi_bandwidth(host)
    if total:
        host.note(f"memory bandwidth is that of the modules in the DMI table: {channels}")
        return [_tidy(total / len(sockets))] * len(sockets)
    each, least, most = (
        show(rate, "bytes/s") for rate in (MEMORY_BANDWIDTH_PER_CORE, MIN_MEMORY_BANDWIDTH, MAX_MEMORY_BANDWIDTH)
    )
    host.note(
        f"memory bandwidth is assumed: {each} a core, from {least} to {most} a socket "
        "(the DMI table has the true value; only root can read it)"
    )
    return [
        min(max(MEMORY_BANDWIDTH_PER_CORE * socket.cores, MIN_MEMORY_BANDWIDTH), MAX_MEMORY_BANDWIDTH)
        for socket in sockets
    ]


def _dmi_bandwidth(host: _Host) -> tuple[float, str]:
    """Bytes/s of all memory channels, and how they were counted; 0 if the table does not state it."""
    try:
        table = (host.root / "sys/firmware/dmi/tables/DMI").read_bytes()
    except OSError:
        return 0.0, ""
    modules: dict[str, float] = {}  # locator -> bytes/s
    for kind, data, strings in _dmi_structures(table):
        if kind != 17 or len(data) < 0x17:
            continue
        # Data width in bits, size (0: an empty slot), MT/s as rated and, since SMBIOS 2.7, as configured.
        width, size, rated, configured = (
            int.from_bytes(data[at : at + 2], "little") for at in (0x0A, 0x0C, 0x15, 0x20)
        )
        speed = configured or rated
        if size and 0 < width < 0xFFFF and 0 < speed < 0xFFFF:
            locator = "/".join(strings[at - 1] for at in (data[0x11], data[0x10]) if 0 < at <= len(strings))
            modules[locator or str(len(modules))] = width / 8 * speed * 1e6
    # Modules of one channel have equal labels up to the last number (A1, A2). If all modules do, labels do not show
    # the channels: then every module counts as a channel.
    by_channel = {re.sub(r"\d+$", "", locator): rate for locator, rate in modules.items()}
    rates = list((by_channel if len(by_channel) > 1 else modules).values())
    return sum(rates), f"{len(rates)} channels of {show(max(rates), 'bytes/s')}" if rates else ""


def _dmi_structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """Type, formatted part and strings of each structure of an SMBIOS table."""
    at = 0
    while at + 4 <= len(table) and table[at + 1] >= 4:
        start, at = at, at + table[at + 1]
        end = table.find(b"\0\0", at)
        if end < 0:
            return
        strings = table[at:end].split(b"\0")
        yield table[start], table[start:at], [text.decode("latin-1") for text in strings]
        at = end + 2


# --- Accelerators ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NvmlFacts:
    """What NVML states about a GPU."""

    name: str
    memory: float | None
    device_memory: float | None
    link: float | None
    peer: float  # bytes/s of all its NVLinks
    neighbours: frozenset[str]  # addresses of the GPUs at their other ends; "switch" for NVSwitches


@dataclass(frozen=True)
class _Card:
    kind: str
    spec: DeviceSpec
    socket: int
    switch: Path | None  # upstream port of its PCIe switch


def _cards(host: _Host, sockets: list[_Socket], gpus: dict[str, _NvmlFacts]) -> list[_Card]:
    cards: dict[str, _Card] = {}  # slot -> card; other PCI functions of a card are not cards
    for folder in host.folders("sys/bus/pci/devices"):
        kind = _card_type(host, folder)
        slot = folder.name.rpartition(".")[0]
        if kind and slot not in cards:
            cards[slot] = _card(host, sockets, folder, kind, gpus.get(folder.name))
    for address, gpu in gpus.items():
        if address.rpartition(".")[0] not in cards:
            host.note(f"{gpu.name} at {address} is not in the PCI tree; assumed to be attached to the first socket")
            cards[address] = _card(host, sockets, host.root / "sys/bus/pci/devices" / address, "gpu", gpu)
    return list(cards.values())


def _card_type(host: _Host, folder: Path) -> str:
    """The device type of a PCI device: "gpu", "fpga", "accelerator", or "" for any other device."""
    if os.path.exists(folder / "physfn"):  # a virtual function, for a guest
        return ""
    code, vendor, device = (int(host.number(folder / name) or 0) for name in ("class", "vendor", "device"))
    if code >> 8 in (0x0300, 0x0302, 0x0380):
        integrated = vendor == _INTEL and not _ports(folder)
        if vendor in _NO_COMPUTE or integrated:
            host.note(f"the display adapter at {folder.name} is left out: it cannot compute")
            return ""
        return "gpu"
    if code >> 8 == 0x1200:
        if vendor in _FPGA_MAKERS or (vendor == _INTEL and device in _INTEL_FPGAS):
            host.note(
                f"reconfiguring an FPGA is assumed to take {show(DEFAULT_RECONFIGURE_S, 'seconds')}, with one context"
            )
            return "fpga"
        return "gpu" if vendor in (_NVIDIA, _AMD) else "accelerator"
    return ""


def _card(host: _Host, sockets: list[_Socket], folder: Path, kind: str, gpu: _NvmlFacts | None) -> _Card:
    driver = host.text(Path("proc/driver/nvidia/gpus") / folder.name / "information")
    model = re.search(r"^Model:\s*(.*)$", driver, re.MULTILINE)
    product = gpu.name if gpu else model[1] if model else host.text(folder / "product_name")
    vendor, device = (int(host.number(folder / name) or 0) for name in ("vendor", "device"))
    name = _model(product) if product else _PCI_IDS.get(device, kind) if vendor == _NVIDIA else kind
    usual_memory, usual_bandwidth = _GPU_MEMORY.get(name, (None, None))
    memory = (gpu and gpu.memory) or host.number(folder / "mem_info_vram_total") or usual_memory
    device_memory = (gpu and gpu.device_memory) or usual_bandwidth
    link = _link(host, folder) or (gpu and gpu.link)
    what = f"{name} at {folder.name}"
    if not memory:
        host.note(f"the memory of {what} is not known; it is not limited")
    if not device_memory:
        host.note(f"the bandwidth of {what}'s own memory is not known; contention for it is left out")
    if not link:
        host.note(f"the PCIe link of {what} is not known; assumed to carry {show(DEFAULT_LINK, 'bytes/s')}")
    ports = _ports(folder)
    spec = _spec(
        type=kind,
        memory=_tidy(memory or 0),
        reconfigure=DEFAULT_RECONFIGURE_S if kind == "fpga" else 0,
        device_memory=device_memory,
        link=link or DEFAULT_LINK,
        peer=gpu and gpu.peer,
    )
    switch = ports[1] if len(ports) >= 3 else None  # downstream port, upstream port, …, root port
    return _Card(name, spec, _socket_of(host, sockets, folder), switch)


def _ports(folder: Path) -> list[Path]:
    """The PCI ports between a device and the root, the nearest first."""
    return [port for port in Path(os.path.realpath(folder)).parents if _ADDRESS.fullmatch(port.name)]


def _model(name: str) -> str:
    """A short name for a GPU: "v100" for "Tesla V100-SXM2-16GB"."""
    short = re.search(r"\b[A-Z]{1,2}\d{1,4}[A-Z]?\b", name)
    return (short[0] if short else "-".join(re.findall(r"[A-Za-z0-9]+", name)) or "gpu").lower()


def _socket_of(host: _Host, sockets: list[_Socket], folder: Path) -> int:
    """The index of the socket that a PCI device is attached to."""
    node = host.number(folder / "numa_node")
    near = _numbers(host.text(folder / "local_cpulist"))
    if node is not None and node >= 0:
        near = _numbers(host.text(f"sys/devices/system/node/node{node:.0f}/cpulist")) or near
    shared = [len(near & socket.cpus) for socket in sockets]
    if len(sockets) > 1 and (not any(shared) or all(shared)):
        host.note(f"/sys does not state the socket of {folder.name}; assumed to be the first")
        return 0
    return shared.index(max(shared))


def _link(host: _Host, folder: Path) -> float | None:
    """Bytes/s between a PCI device or port and the port above it; None if /sys does not state it."""
    # Idle devices slow their links down, so the maximum of both ends counts, not the current speed.
    speeds = [host.number(end / "max_link_speed") for end in (folder, *_ports(folder)[:1])]
    width = host.number(folder / "current_link_width") or host.number(folder / "max_link_width")
    stated = [speed for speed in speeds if speed]
    return _pcie(min(stated), width) if stated and width and 0 < width <= 32 else None


def _pcie(gigatransfers: float, lanes: float) -> float:
    """Bytes/s of payload over a PCIe link."""
    coding = 8 / 10 if gigatransfers < 8 else 128 / 130
    return _tidy(gigatransfers * 1e9 / 8 * coding * lanes * PCIE_PAYLOAD)


# --- NVML --------------------------------------------------------------------------------------------------

_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # per lane, by PCIe generation
# Bytes/s of an NVLink, one direction, by NVML's number of the architecture (Pascal, Blackwell); else 25 GB/s. The
# version of the link would be more direct, but some drivers misreport it.
_NVLINK = {4: 20e9, 10: 50e9}
_NVLINKS = 18  # the most that a GPU has
_ON, _TO_GPU, _TO_SWITCH, _MEMORY_CLOCK = 1, 0, 2, 2  # of NVML's enumerations


def _load_nvml(host: _Host) -> Any:
    """The module `pynvml`, if it is installed and `host` is this machine."""
    if host.root != Path("/"):
        return None
    try:
        import pynvml
    except ImportError:
        if host.folders("proc/driver/nvidia/gpus"):
            host.note(f"for more exact figures of the NVIDIA GPUs, type: {install_command('nvidia')}")
        return None
    return pynvml


def _nvidia_gpus(nvml: Any) -> dict[str, _NvmlFacts]:
    """By PCI address."""
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError):
        return {}  # no driver, so no usable GPU

    def ask(function: str, *arguments: Any) -> Any:
        """The result of an NVML function, or None: support differs by model and driver."""
        try:
            return getattr(nvml, function)(*arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    gpus = {}
    for index in range(ask("nvmlDeviceGetCount") or 0):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        pci, memory = ask("nvmlDeviceGetPciInfo", handle), ask("nvmlDeviceGetMemoryInfo", handle)
        bits = ask("nvmlDeviceGetMemoryBusWidth", handle)
        megahertz = ask("nvmlDeviceGetMaxClockInfo", handle, _MEMORY_CLOCK)
        generation = ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
        lanes = ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
        peer, neighbours = _nvlinks(ask, handle)
        address = _address(pci.busId) if pci else f"nvml:{index}"
        gpus[address] = _NvmlFacts(
            name=_decoded(ask("nvmlDeviceGetName", handle) or "gpu"),
            memory=memory.total if memory else None,
            device_memory=_tidy(bits / 8 * megahertz * 1e6 * 2) if bits and megahertz else None,
            link=_pcie(_GIGATRANSFERS[generation], lanes) if generation in _GIGATRANSFERS and lanes else None,
            peer=peer,
            neighbours=neighbours,
        )
    ask("nvmlShutdown")
    return gpus


def _nvlinks(ask: Callable[..., Any], handle: Any) -> tuple[float, frozenset[str]]:
    """Total bytes/s of a GPU's NVLinks to other GPUs, and `_NvmlFacts.neighbours`."""
    rate = _NVLINK.get(ask("nvmlDeviceGetArchitecture", handle), 25e9)
    total, neighbours = 0.0, set()
    for link in range(_NVLINKS):
        if ask("nvmlDeviceGetNvLinkState", handle, link) != _ON:
            continue
        towards = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if towards == _TO_SWITCH:
            neighbours.add("switch")
        elif towards == _TO_GPU and remote:
            neighbours.add(_address(remote.busId))
        else:
            continue  # a link to a CPU
        total += rate
    return total, frozenset(neighbours)


def _linked(host: _Host, gpus: dict[str, _NvmlFacts]) -> bool:
    """Whether all GPUs with NVLinks are connected by them, directly or through others."""
    linked = {address: gpu.neighbours for address, gpu in gpus.items() if gpu.peer}
    if len(linked) < 2:
        return False
    reached = {next(iter(linked))}
    while grown := {a for a, near in linked.items() if a not in reached and near & _reach(reached, linked)}:
        reached |= grown
    if reached != set(linked):
        host.note("the NVLinks form several groups of GPUs, which a topology cannot express; they are left out")
    return reached == set(linked)


def _reach(addresses: set[str], linked: dict[str, frozenset[str]]) -> set[str]:
    """Some GPUs, and the switches among their neighbours."""
    return addresses | {"switch" for address in addresses if "switch" in linked[address]}


def _address(bus_id: str | bytes) -> str:
    """A PCI address as /sys writes it."""
    domain, _, rest = _decoded(bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _decoded(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


# --- Network -----------------------------------------------------------------------------------------------


def _nic(host: _Host) -> float | None:
    """Bytes/s of the fastest network interface; None if there is none."""
    interfaces = [
        folder
        for folder in host.folders("sys/class/net")
        if os.path.exists(folder / "device") and not os.path.exists(folder / "device/physfn")
    ]
    speeds = [(host.number(folder / "speed") or 0) * 1e6 / 8 for folder in interfaces]
    for adapter in host.folders("sys/class/infiniband"):
        for port in host.folders(f"sys/class/infiniband/{adapter.name}/ports"):
            speeds.append((host.number(port / "rate") or 0) * 1e9 / 8)
    if speeds and max(speeds) <= 0:
        host.note(f"no network interface states its speed; assumed to be {show(DEFAULT_NIC, 'bytes/s')}")
        return DEFAULT_NIC
    if not speeds:
        host.note("there is no network interface")
    return max(speeds, default=None)
