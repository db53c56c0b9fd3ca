"""Discovery, on made-up /sys and /proc trees."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from symphony.problem import topology_file
from symphony.problem.discover import DEFAULT_LINK, DEFAULT_NIC, PCIE_PAYLOAD, Discovery, discover
from symphony.problem.topology import PEER, SWITCH

GEN3_X16 = 8e9 * 16 / 8 * 128 / 130 * PCIE_PAYLOAD
GEN4_X16 = 2 * GEN3_X16


class Tree:
    """Writes the files of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, **files: object) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(f"{content}\n")
        return folder

    def cpus(self, *, sockets: int, cores: int, threads: int = 2) -> None:
        """Numbered as Linux does: first thread of every core, then the second."""
        total = sockets * cores
        for cpu in range(total * threads):
            core = cpu % total
            socket = core // cores
            siblings = ",".join(str(core + thread * total) for thread in range(threads))
            base = f"sys/devices/system/cpu/cpu{cpu}"
            self.put(f"{base}/topology", physical_package_id=socket, core_cpus_list=siblings)
            near = f"{socket * cores}-{(socket + 1) * cores - 1}"
            for index, (level, kind, size, shared) in enumerate(
                [
                    (1, "Data", "32K", siblings),
                    (1, "Instruction", "32K", siblings),
                    (3, "Unified", "16M", near),
                ]
            ):
                cache = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
                self.put(f"{base}/cache/index{index}", **cache)
        for socket in range(sockets):
            low = socket * cores
            cpulist = ",".join(f"{low + t * total}-{low + t * total + cores - 1}" for t in range(threads))
            self.put(f"sys/devices/system/node/node{socket}", cpulist=cpulist)
        self.put("proc", meminfo=f"MemTotal: {sockets * 64_000_000} kB\nMemFree: 1 kB")
        self.put("proc", cpuinfo="processor : 0\nmodel name : Intel(R) Xeon(R) CPU E5-2683 v4 @ 2.10GHz")
        self.put("proc/sys/kernel", hostname="box")

    def pci(self, path: str, **files: object) -> None:
        """A PCI device: its folder in the tree, and the link to it in the list of all."""
        real = self.put(f"sys/devices/pci0000:00/{path}", **files)
        listed = self.put("sys/bus/pci/devices") / real.name
        listed.symlink_to(real)


def port(speed: str = "8.0 GT/s PCIe", width: int = 16) -> dict[str, object]:
    link = {"max_link_speed": speed, "current_link_speed": "2.5 GT/s PCIe", "current_link_width": width}
    return {"class": "0x060400", "vendor": "0x10b5", **link}


def gpu(device: str = "0x1db4", node: int = 0, speed: str = "8.0 GT/s PCIe") -> dict[str, object]:
    return {**port(speed), "class": "0x030200", "vendor": "0x10de", "device": device, "numa_node": node}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Two sockets of 4 cores: on the first an FPGA, on the second two V100 behind a PCIe switch. A NIC."""
    tree = Tree(tmp_path)
    tree.cpus(sockets=2, cores=4)
    switch = "0000:80:01.0/0000:81:00.0"
    tree.pci("0000:80:01.0", **port())
    tree.pci(switch, **port())
    for slot in (0, 1):
        tree.pci(f"{switch}/0000:82:0{slot}.0", **port())
        tree.pci(f"{switch}/0000:82:0{slot}.0/0000:8{3 + slot}:00.0", **gpu(node=1))
    fpga = {**port(width=8), "class": "0x120000", "vendor": "0x10ee", "device": "0x5000", "numa_node": 0}
    tree.pci("0000:00:02.0", **port())
    tree.pci("0000:00:02.0/0000:02:00.0", **fpga)
    tree.pci("0000:00:02.0/0000:02:00.1", **fpga)  # a second function of the same board
    tree.pci("0000:00:03.0", **{"class": "0x030000", "vendor": "0x1a03", "device": "0x2000"})
    tree.pci("0000:00:04.0", **{"class": "0x020000", "vendor": "0x15b3", "device": "0x1017"})
    tree.put("sys/class/net/eth0", speed=25000)
    (tree.root / "sys/class/net/eth0/device").symlink_to(tree.root / "sys/devices/pci0000:00/0000:00:04.0")
    tree.put("sys/class/net/lo", speed="")
    return tree


def rows(found: Discovery) -> dict[str, float]:
    return {row.name: row.capacity for row in found.topology.resources}


def noted(found: Discovery, words: str) -> bool:
    return any(words in note for note in found.notes)


def test_a_machine_with_two_sockets_a_switch_and_an_fpga(tree: Tree) -> None:
    found = discover(tree.root)
    topology, capacity = found.topology, rows(found)
    assert topology.name == "box"
    assert topology.kind_counts == {"xeon": 2, "fpga": 1, "v100": 2}
    xeon = topology.kind_of["xeon"]
    assert (xeon.type, xeon.slots, xeon.memory) == ("cpu", 4, pytest.approx(64_000_000 * 1024, rel=1e-3))
    v100 = topology.kind_of["v100"]
    assert (v100.type, v100.memory) == ("gpu", 16e9)  # from the PCI id: there is no driver to ask
    assert topology.kind_of["fpga"].reconfigurable
    device = {d.name: d for d in topology.devices}
    assert device["box/v100-0"].socket == device["box/v100-1"].socket == "box/s1"
    assert topology.distance(device["box/v100-0"], device["box/v100-1"]) == SWITCH
    assert device["box/fpga-0"].socket == "box/s0"
    assert device["box/fpga-0"].switch == "box/fpga-0"
    assert capacity["box/v100-0/link"] == pytest.approx(GEN3_X16, rel=1e-3)  # not the idle speed
    assert capacity["box/s1/sw0"] == pytest.approx(GEN3_X16, rel=1e-3)
    assert capacity["box/fpga-0/link"] == pytest.approx(GEN3_X16 / 2, rel=1e-3)
    assert capacity["box/s0/cache"] == 16 * 2**20
    assert capacity["box/nic"] == 25e9 / 8
    assert noted(found, "memory bandwidth is assumed")
    assert noted(found, "display adapter at 0000:00:03.0 is left out")
    assert noted(found, "between sockets")


def test_the_found_cluster_reads_back_equal(tree: Tree) -> None:
    found = discover(tree.root)
    text = topology_file.dumps(found.cluster, comment="\n".join(found.notes))
    assert topology_file.loads(text) == found.topology


def test_an_empty_machine_is_one_core(tmp_path: Path) -> None:
    found = discover(tmp_path)
    assert [(d.name, d.kind) for d in found.topology.devices] == [("machine/cpu-0", "cpu")]
    assert len(found.notes) == 4
    assert rows(found).keys() == {"machine/cpu-0/compute", "machine/s0/memory"}


def test_this_machine() -> None:
    found = discover()
    assert found.topology.devices[0].kind in found.topology.kind_of
    assert topology_file.loads(topology_file.dumps(found.cluster)) == found.topology


def test_files_that_hold_rubbish_are_as_good_as_missing(tree: Tree) -> None:
    for path in sorted(tree.root.rglob("*")):
        if path.is_file() and path.name != "physical_package_id":
            path.write_bytes(b"\xff\x00 rubbish")
    found = discover(tree.root)
    assert len(found.topology.kinds) == 1


def test_links_that_are_not_told_are_assumed(tree: Tree) -> None:
    for name in ("max_link_speed", "current_link_width"):
        for path in tree.root.rglob(name):
            path.write_text("Unknown\n")
    (tree.root / "sys/class/net/eth0/speed").write_text("-1\n")
    found = discover(tree.root)
    assert rows(found)["box/v100-0/link"] == DEFAULT_LINK
    assert rows(found)["box/nic"] == DEFAULT_NIC
    assert "box/s1/sw0" not in rows(found)
    assert noted(found, "the PCIe link of v100 at 0000:83:00.0 is not known")
    assert noted(found, "no network interface states its speed")


def test_offline_cpus_and_caches_of_several_core_groups(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cpus(sockets=1, cores=4, threads=1)
    tree.put("sys/devices/system/cpu/cpu3", online=0)
    for cpu in range(3):  # cores 0 and 1 share a cache, core 2 has its own
        tree.put(f"sys/devices/system/cpu/cpu{cpu}/cache/index2", shared_cpu_list="2" if cpu == 2 else "0-1")
    found = discover(tmp_path)
    assert found.topology.kind_of["xeon"].slots == 3
    assert rows(found)["box/s0/cache"] == 2 * 16 * 2**20


@pytest.mark.parametrize(
    ("files", "slots", "memory", "notes"),
    [
        ({}, [4, 4], 64_000_000 * 1024, []),
        (
            {"cpu.max": "max 100000", "memory.max": "max", "cpuset.cpus.effective": "0-15"},
            [4, 4],
            64_000_000 * 1024,
            [],
        ),
        ({"cpu.max": "400000 100000"}, [2, 2], 64_000_000 * 1024, ["may use 4 of 8 cores"]),
        ({"cpu.max": "50000 100000"}, [1, 1], 64_000_000 * 1024, ["may use 0.5 of 8 cores"]),
        (
            {"cpu/cpu.cfs_quota_us": 600000, "cpu/cpu.cfs_period_us": 100000},
            [3, 3],
            64_000_000 * 1024,
            ["6 of 8 cores"],
        ),
        ({"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, [4, 4], 64_000_000 * 1024, []),
        ({"cpuset.cpus.effective": "4-6,12-14"}, [3], 128_000_000 * 1024, ["some CPUs are left out"]),
        ({"memory.max": 16 * 2**30}, [4, 4], 8 * 2**30, ["may use 16 GiB of the machine's"]),
        ({"memory/memory.limit_in_bytes": 2**63 - 4096}, [4, 4], 64_000_000 * 1024, []),
    ],
)
def test_limits_of_a_container(
    tmp_path: Path, files: dict[str, object], slots: list[int], memory: float, notes: list[str]
) -> None:
    tree = Tree(tmp_path)
    tree.cpus(sockets=2, cores=4)
    before = discover(tmp_path).notes
    for path, content in files.items():
        folder, _, name = f"sys/fs/cgroup/{path}".rpartition("/")
        tree.put(folder, **{name: content})
    found = discover(tmp_path)
    assert [found.topology.kind_of[device.kind].slots for device in found.topology.devices] == slots
    assert found.topology.kinds[0].memory == pytest.approx(memory, rel=1e-3)
    new = [note for note in found.notes if note not in before]
    assert len(new) == len(notes) and all(words in note for words, note in zip(notes, new, strict=True))


def test_cores_that_differ_are_noted(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cpus(sockets=1, cores=4)
    assert not noted(discover(tmp_path), "differ in speed")
    for name, cpus in (("cpu_core", "0-3"), ("cpu_atom", "4-7")):
        tree.put(f"sys/devices/{name}", cpus=cpus)
    assert noted(discover(tmp_path), "differ in speed")
    (tmp_path / "sys/devices/cpu_atom/cpus").unlink()
    for cpu in range(8):
        tree.put(f"sys/devices/system/cpu/cpu{cpu}", cpu_capacity=1024 if cpu < 2 else 446)
    assert noted(discover(tmp_path), "differ in speed")


def test_memory_without_a_cpu_is_left_out(tree: Tree) -> None:
    tree.put("sys/devices/system/node/node2", cpulist="", meminfo="Node 2 MemTotal: 28000000 kB")
    found = discover(tree.root)
    assert found.topology.kind_of["xeon"].memory == pytest.approx(50_000_000 * 1024, rel=1e-3)
    assert noted(found, "node2 belong to no CPU")


def test_integrated_virtual_and_emulated_adapters_are_no_accelerators(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cpus(sockets=1, cores=2)
    tree.pci("0000:00:02.0", **{"class": "0x030000", "vendor": "0x8086", "device": "0x5912"})
    tree.pci("0000:00:03.0", **{"class": "0x038000", "vendor": "0x1af4", "device": "0x1050"})
    tree.pci("0000:00:04.0", **gpu())
    tree.put("sys/devices/pci0000:00/0000:00:04.0/physfn")
    assert discover(tmp_path).topology.kind_counts == {"xeon": 1}


def test_other_accelerators(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cpus(sockets=1, cores=2)
    amd = {"vendor": "0x1002", "device": "0x740f", "product_name": "AMD Instinct MI210"}
    tree.pci("0000:00:05.0", **{"class": "0x038000", **amd, "mem_info_vram_total": 64 * 2**30})
    tree.pci("0000:00:06.0", **{"class": "0x120000", "vendor": "0x1da3", "device": "0x1000"})
    topology = discover(tmp_path).topology
    assert topology.kind_counts == {"xeon": 1, "mi210": 1, "accelerator": 1}
    assert topology.kind_of["mi210"].memory == pytest.approx(64 * 2**30, rel=1e-3)
    assert topology.kind_of["accelerator"].type == "accelerator"


def test_kinds_of_one_model_that_differ_are_numbered(tree: Tree) -> None:
    (tree.root / "sys/bus/pci/devices/0000:84:00.0/current_link_width").write_text("8\n")
    assert discover(tree.root).topology.kind_counts == {"xeon": 2, "fpga": 1, "v100": 1, "v100-2": 1}


def dmi_module(locator: str, megatransfers: int = 2400, size: int = 16384) -> bytes:
    """A structure of type 17, as SMBIOS 2.8 lays it out."""
    data = bytearray(0x28)
    data[0], data[1], data[0x10] = 17, len(data), 1
    for at, value in ((0x08, 72), (0x0A, 64), (0x0C, size), (0x15, 2666), (0x20, megatransfers)):
        data[at : at + 2] = value.to_bytes(2, "little")
    return bytes(data) + locator.encode() + b"\0\0"


@pytest.mark.parametrize(
    ("locators", "channels"),
    [
        (["P1-DIMMA1", "P1-DIMMA2", "P1-DIMMB1", "P2-DIMMA1", "P2-DIMMB1", "P2-DIMMB2"], 4),
        (["DIMM 0", "DIMM 1", "DIMM 2", "DIMM 3"], 4),
    ],
)
def test_memory_bandwidth_from_the_dmi_table(tree: Tree, locators: list[str], channels: int) -> None:
    board = bytes([2, 8, 0, 0, 1, 0, 0, 0]) + b"Board\0\0"
    table = board + b"".join(map(dmi_module, locators)) + dmi_module("P2-DIMMC1", size=0)
    (tree.put("sys/firmware/dmi/tables") / "DMI").write_bytes(table)
    found = discover(tree.root)
    assert rows(found)["box/s0/memory"] == rows(found)["box/s1/memory"] == channels * 19.2e9 / 2
    assert noted(found, f"{channels} channels of 19.2 GB/s")


@pytest.mark.parametrize("table", [b"", b"\x11", b"\x11\x28\0\0", b"\x11\x00\0\0" * 9, dmi_module("A1")[:-3]])
def test_a_broken_dmi_table_tells_nothing(tree: Tree, table: bytes) -> None:
    (tree.put("sys/firmware/dmi/tables") / "DMI").write_bytes(table)
    assert noted(discover(tree.root), "memory bandwidth is assumed")


class FakeNvml:
    """NVML, as far as discovery asks it: two GPUs with two links each."""

    class NVMLError(Exception):
        """As in NVML."""

    def __init__(self, *, towards: int = 0, remote: dict[int, str] | None = None) -> None:
        self.addresses = ["00000000:83:00.0", "00000000:84:00.0"]
        self.towards = towards
        self.remote = remote or {0: self.addresses[1], 1: self.addresses[0]}

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA A100-SXM4-40GB"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=self.addresses[handle].encode())

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=40 * 2**30)

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        return 5120

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        return {2: 1215}[clock]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 4

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetArchitecture(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 4:
            raise self.NVMLError
        return int(link < 2)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return self.towards

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=self.remote[handle])


def test_what_nvml_tells_comes_first(tree: Tree) -> None:
    found = discover(tree.root, FakeNvml())
    topology, capacity = found.topology, rows(found)
    assert topology.kind_counts["a100"] == 2
    assert topology.kind_of["a100"].memory == pytest.approx(40 * 2**30, rel=1e-3)
    assert capacity["box/a100-0/device_memory"] == pytest.approx(1555e9, rel=1e-3)
    assert capacity["box/a100-0/peer"] == 50e9
    a, b = (d for d in topology.devices if d.kind == "a100")
    assert topology.span(a, b) == PEER


def test_gpus_that_are_not_in_the_pci_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.cpus(sockets=1, cores=2)
    found = discover(tmp_path, FakeNvml(towards=2))  # through NVSwitches
    assert found.topology.kind_counts == {"xeon": 1, "a100": 2}
    assert rows(found)["box/a100-0/link"] == pytest.approx(GEN4_X16, rel=1e-3)
    assert found.topology.devices[1].peers == found.topology.devices[2].peers != ""
    assert noted(found, "A100-SXM4-40GB at 0000:83:00.0 is not in the PCI tree")


@pytest.mark.parametrize(
    ("nvml", "note"),
    [
        (FakeNvml(remote={0: "00000000:99:00.0", 1: "00000000:98:00.0"}), "form several groups"),
        (FakeNvml(towards=1), ""),  # links to the CPU
    ],
)
def test_links_that_do_not_join_the_gpus_make_no_peers(tree: Tree, nvml: FakeNvml, note: str) -> None:
    found = discover(tree.root, nvml)
    assert not any(row.kind == "peer" for row in found.topology.resources)
    assert noted(found, note)


def test_nvml_without_a_driver(tree: Tree) -> None:
    nvml = FakeNvml()

    def fail() -> None:
        raise nvml.NVMLError

    nvml.nvmlInit = fail  # type: ignore[method-assign]
    assert discover(tree.root, nvml).topology.kind_counts["v100"] == 2
