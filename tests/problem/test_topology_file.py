"""Topology files: what is written reads back equal, and what is wrong is named with its line and key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.problem import limits, topologies, topology_file
from symphony.problem.build import ClusterSpec, build
from symphony.problem.errors import InputError, LimitError, TopologyError
from symphony.problem.topology import RESOURCE_KINDS, SPANS, Device, DeviceKind, Hop, Resource, Topology

GUIDE = Path(__file__).parents[2] / "docs/guides/topologies.md"

LAB = """\
name = "lab"

[device.xeon]
type = "cpu"
slots = 16
memory = "128 GB"

[device.v100]
type = "gpu"
memory = "16 GB"
device_memory = "900 GB/s"
link = "12 GB/s"
peer = "150 GB/s"

[[rack]]
name = "r0"
uplink = "50 GB/s"

[[rack.machine]]
name = "small"

[[rack.machine.socket]]
devices = ["xeon"]

[[rack.machine]]
name = "big"
count = 4
nic = "12.5 GB/s"
peers = true

[[rack.machine.socket]]
memory = "100 GB/s"
devices = [  # a value on several lines
  "xeon",
]

[[rack.machine.socket.switch]]
bandwidth = "16 GB/s"
devices = ["v100", "v100"]
"""

# --- Round trips -------------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
_name = _text.filter(bool)
_size = st.floats(limits.LEAST_CAPACITY, limits.CAPACITY)


@st.composite
def any_topology(draw: st.DrawFn) -> Topology:
    """Not only such as the builder makes: any names, any routes."""
    kinds = [
        DeviceKind(
            name,
            draw(_text),
            draw(st.integers(1, 512)),
            draw(st.floats(0, 1e18) | st.just(float("inf"))),
            draw(st.floats(0, 1e9)),
        )
        for name in draw(st.lists(_name, min_size=1, max_size=3, unique=True))
    ]
    rows = [
        Resource(name, draw(st.sampled_from(list(RESOURCE_KINDS))), draw(_size), draw(_text))
        for name in draw(st.lists(_name, max_size=4, unique=True))
    ]
    spans = st.lists(st.integers(0, len(SPANS) - 1), max_size=7).map(tuple)
    hops = st.builds(Hop, st.sampled_from([row.name for row in rows]), spans) if rows else st.nothing()
    names = draw(st.lists(_name, min_size=1, max_size=3, unique=True))
    devices = [
        Device(
            name,
            draw(st.sampled_from([kind.name for kind in kinds])),
            *(draw(_text) for _ in range(4)),
            tuple(draw(st.lists(hops, max_size=4))) if rows else (),
            draw(st.sampled_from(["", names[0]])),  # whose memory is its own
            draw(_text),
        )
        for name in names
    ]
    latency = draw(st.lists(st.floats(0, 999), min_size=len(SPANS), max_size=len(SPANS)))
    return Topology(draw(_text), tuple(kinds), tuple(rows), tuple(devices), tuple(latency))


@given(any_topology())
@settings(max_examples=100, deadline=None)
def test_any_topology_reads_back_equal(topology: Topology) -> None:
    assert topology_file.loads(topology_file.dumps(topology)) == topology


@pytest.mark.parametrize("name", ["machine", "paper", "gpu24", "fat-tree:70"])
def test_built_ins_read_back_equal_through_a_file(name: str, tmp_path: Path) -> None:
    topology = topologies.topology(name)
    topology_file.write(topology, tmp_path / "copy.toml", comment="two\nlines")
    assert topology_file.read(tmp_path / "copy.toml") == topology


def _table(required: dict[str, Any] | None = None, **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required or {}, optional=optional)


_kinds = st.lists(st.sampled_from(["odd.kind [name]", "gpu"]), max_size=2)
_count = st.integers(1, 3)
_switch = _table(count=_count, bandwidth=_size, devices=_kinds)
_socket = _table(count=_count, memory=_size, cache=_size, devices=_kinds, switch=st.lists(_switch, max_size=2))
_sockets = st.lists(_socket, max_size=2)
_device = {"type": "gpu", "memory": 1 / 3, "peer": 1e9}


@given(
    st.lists(_table({"name": _name}, count=_count, nic=_size, socket=_sockets), max_size=2),
    st.lists(_table({"name": _name}, count=_count, uplink=_size), max_size=2),
    _table(rack=st.floats(0, 999)),
)
@settings(max_examples=100, deadline=None)
def test_the_hierarchical_form_reads_back_equal(
    machines: list[dict[str, Any]], racks: list[dict[str, Any]], latency: dict[str, float]
) -> None:
    sure = {"name": 'the "sure" one', "peers": True, "socket": [{"switch": [{"devices": ["gpu"]}]}]}
    spec = ClusterSpec.model_validate(
        {
            "name": "lab",
            "latency": latency,
            "device": {"odd.kind [name]": _device, "gpu": _device},
            "rack": [{"name": "sure", "machine": [sure]}, *racks],
            "machine": machines,
        }
    )
    text = topology_file.dumps(spec)
    assert ClusterSpec.model_validate(tomllib.loads(text)) == spec
    try:
        expected = build(spec)
    except TopologyError as error:  # a name drawn twice
        with pytest.raises(TopologyError, match=re.escape(error.message)):
            topology_file.loads(text)
    else:
        assert topology_file.loads(text) == expected


def test_every_example_of_the_guide_is_valid() -> None:
    examples = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    found = [topology_file.loads(text, where=f"example {index}") for index, text in enumerate(examples)]
    assert [topology.name for topology in found] == ["lab", "topology"]
    assert found[0].kind_counts == {"xeon": 16, "v100": 8, "fpga": 4}
    assert found[1].latency_s[4:6] == (1.5e-6, 4e-6)


def test_a_file_without_a_name_is_named_after_itself(tmp_path: Path) -> None:
    (tmp_path / "cellar.toml").write_text(LAB.replace('name = "lab"\n', "", 1))
    assert topology_file.read(tmp_path / "cellar.toml").name == "cellar"


def test_line_ends_of_other_systems(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_bytes(LAB.replace("\n", "\r\n").encode())
    assert topology_file.read(tmp_path / "lab.toml") == topology_file.loads(LAB)
    assert topology_file.loads(LAB.replace("\n", "\r\n")) == topology_file.loads(LAB)


# --- What is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "where", "message", "hint"),
    [
        ("slots = 16", "slots = 0", "5: device.xeon.slots", "0 should be 1 or more", "write slots = 16"),
        ("slots = 16", 'slots = "many"', "5: device.xeon.slots", "should be a whole number", "slots = 16"),
        ("slots = 16", "slotz = 16", "5: device.xeon.slotz", "unknown key 'slotz'", "'slots' instead?"),
        ("slots = 16", "qwertz = 16", "5: device.xeon.qwertz", "unknown key", "one of: type, slots"),
        ('memory = "128 GB"', "memory = -1", "6: device.xeon.memory", "-1 is not a finite", '"16 GB"'),
        (
            'memory = "128 GB"',
            'memory = "9 GB/s"',
            "6: device.xeon.memory",
            "not a quantity in bytes",
            "16 GB",
        ),
        ('memory = "128 GB"', f"memory = 1{'0' * 400}", "6: device.xeon.memory", "too large", "smaller"),
        ('memory = "128 GB"', "memory = 128 GB", "6", "not TOML", 'in quotes: "16 GB"'),
        ('type = "gpu"\n', "", "8: device.v100.type", "'type' is missing", 'write type = "gpu"'),
        ('uplink = "50 GB/s"', 'uplink = "0 GB/s"', "17: rack[0].uplink", "not a capacity", "leave the key out"),
        ("count = 4", "count = 4.5", "27: rack[0].machine[1].count", "4.5 should be a whole", "count = 2"),
        ("peers = true", "peers = 1", "29: rack[0].machine[1].peers", "1 should be true or false", "true"),
        (
            '  "xeon",\n',
            '  "xeom",\n',
            "33: rack[0].machine[1].socket[0].devices",
            "unknown device kind 'xeom'",
            "write 'xeon'",
        ),
        (
            'devices = ["v100", "v100"]',
            'devices = "v100"',
            "39: rack[0].machine[1].socket[0].switch[0].devices",
            "'v100' should be an array",
            'devices = ["v100", "v100"]',
        ),
        (
            "[[rack.machine.socket.switch]]",
            "[[rack.machine.socket.swich]]",
            "37: rack[0].machine[1].socket[0].swich",
            "unknown key 'swich'",
            "'switch' instead?",
        ),
        ('name = "lab"', '"na.me" = """\n"""', "1: na.me", "unknown key", "name"),
        ('name = "lab"', "latency = {rak = 1}", "1: latency.rak", "unknown key 'rak'", "'rack' instead?"),
        ('name = "lab"', "latency = {rack = 1e4}", "lab", "latency_s is", "give 7 seconds"),
        ('name = "lab"', 'form = "flatt"', "1: form", "unknown form 'flatt'", 'form = "flat"'),
        ('name = "lab"', 'name = "lab', "1", "not TOML", "double quotes"),
        ('name = "lab"', 'name = "lab"\ndevice = 3', "4", "not TOML", "one `key = value` on a line"),
        ("[[rack]]", "[rack]", "15: rack", "should be an array", "[[rack]] tables"),
    ],
)
def test_errors_name_line_and_key_and_what_to_write(old: str, new: str, where: str, message: str, hint: str) -> None:
    assert old in LAB
    topology_file.loads(LAB)
    with pytest.raises(TopologyError) as caught:
        topology_file.loads(LAB.replace(old, new, 1), where="lab.toml")
    place = f"lab.toml:{where}" if where[0].isdigit() else f"lab.toml: {where}"
    assert caught.value.where == place.replace("lab.toml: lab", "lab.toml: topology")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_several_errors_are_counted_and_the_first_line_comes_first() -> None:
    wrong = LAB.replace("bandwidth", "bandwith").replace("slots", "slotz").replace("nic =", "nik =")
    with pytest.raises(TopologyError, match=r"lab.toml:5: .*'slotz' \(and 2 more\)"):
        topology_file.loads(wrong, where="lab.toml")


def test_a_misspelt_key_that_is_required_is_called_misspelt() -> None:
    with pytest.raises(TopologyError, match=r"lab.toml:16: rack\[0\].naem: unknown key 'naem' \(and 1 more\)"):
        topology_file.loads(LAB.replace('name = "r0"', 'naem = "r0"'), where="lab.toml")


def test_limits_name_the_place_too() -> None:
    with pytest.raises(LimitError, match=r"lab.toml:3: device.xeon: slots is 10,000"):
        topology_file.loads(LAB.replace("slots = 16", "slots = 10000"), where="lab.toml")
    with pytest.raises(LimitError, match=r"lab.toml:25: rack\[0\].machine\[1\]: number of devices"):
        topology_file.loads(LAB.replace("count = 4", "count = 90000"), where="lab.toml")


FLAT = """\
form = "flat"
name = "pair"
[[kind]]
name = "core"
type = "cpu"
[[resource]]
name = "bus"
kind = "memory"
capacity = "20 GB/s"
group = "host"
[[device]]
name = "left"
kind = "core"
machine = "host"
rack = "rack"
socket = "s0"
switch = "left"
route = [["bus", "socket"]]
"""


@pytest.mark.parametrize(
    ("old", "new", "where", "message", "hint"),
    [
        ('"20 GB/s"', '"20 GB"', "9: resource[0].capacity", "not a quantity in bytes/s", '"32 GB/s"'),
        ('"memory"', '"memori"', "8: resource[0].kind", "unknown resource kind", "'memory' instead?"),
        ('"socket"]', '"soket"]', "18: device[0].route[0]", "unknown span 'soket'", "'socket' instead?"),
        ('["bus", "socket"]', "3", "18: device[0].route[0]", "3 is not a hop", "a row, then spans"),
        ('["bus"', '["buzz"', "11: device[0]", "its route names 'buzz'", "define it"),
        ('kind = "core"', 'kind = "cor"', "11: device[0]", "unknown device kind 'cor'", "define it"),
        ('type = "cpu"', 'type = "cpu"\nslots = 1000', "3: kind[0]", "slots is 1,000", "bound"),
    ],
)
def test_errors_of_the_flat_form(old: str, new: str, where: str, message: str, hint: str) -> None:
    topology_file.loads(FLAT)
    with pytest.raises(InputError) as caught:
        topology_file.loads(FLAT.replace(old, new, 1), where="pair.toml")
    assert caught.value.where == f"pair.toml:{where}"
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no such file"), (b"\xff\xfe", "byte 0 is not UTF-8"), (b"", "there is no device")],
)
def test_files_that_cannot_be_read(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TopologyError, match=message) as caught:
        topology_file.read(path)
    assert str(path) in caught.value.where


def test_folders_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="it is not a file"):
        topology_file.read(tmp_path)
    with pytest.raises(TopologyError, match="it cannot be written"):
        topology_file.write(topologies.topology("machine"), tmp_path)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(TopologyError, match="nested too deeply"):
        topology_file.loads("x = " + "[" * 100_000)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_files_are_refused_with_a_typed_error_or_read(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([LAB, FLAT]))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 20, len(text))))
    filling = data.draw(st.text("[]{}\"'=.,#\n0e-ab\\", max_size=6))
    try:
        topology_file.loads(text[:start] + filling + text[end:])
    except InputError as error:
        assert error.hint
