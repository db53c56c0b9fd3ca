from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from symphony.lowering.readers.helios import HELIOS_FORMATS, read_sizes, read_state
from symphony.lowering.readers.reading import Collector
from symphony.problem.errors import DataError
from tests.data import data
from tests.lowering.readers.csv_files import by_name, check_cut, records, sniffed, write

STATE = "vc,time,running_gpujob_num,pending_gpujob_num,total_gpu_num,running_gpu_num,pending_gpu_num,idle_gpu_num"


def test_state() -> None:
    path = data("helios", "earth_vc_state_10min.csv.gz")
    assert sniffed(HELIOS_FORMATS, path) == ["helios-state"]
    reading = read_state(path, Collector())
    rows = reading.tables["state"]
    assert len(rows) == len(records(path)) == 13 * 31 * 144  # virtual clusters, days of May, tenths of an hour
    assert len({row["vc"] for row in rows}) == 13
    assert reading.topology is not None
    assert Counter(device.rack for device in reading.topology.devices)["vc6YE"] == 208
    assert len(reading.topology.devices) == 752
    assert len(reading.topology.machines) == 752 // 8
    assert reading.jobs == ()
    assert any("not jobs" in note for note in reading.notes)


def test_sizes() -> None:
    path = data("helios", "earth_gpus_per_vc_daily.csv")
    assert sniffed(HELIOS_FORMATS, path) == ["helios-sizes"]
    reading = read_sizes(path, Collector())
    rows = reading.tables["sizes"]
    assert len(rows) == 181
    assert (rows[0]["date"], rows[0]["total"], rows[0]["vc6YE"]) == ("2020-04-01", 784, 128)
    assert reading.topology is not None
    assert len(reading.topology.devices) == int(records(path)[-1]["total"]) == 1208
    assert reading.jobs == ()


def test_bad_records(tmp_path: Path) -> None:
    state = write(
        tmp_path,
        STATE,
        "vc1,2020-05-01 00:00:00,1,0,12,8,0,4",
        "vc1,2020-05-01 00:10:00,1,0,12,8,0,3",  # one GPU is nowhere
        "vc1,2020-05-01 00:00:00,1,0,12,8,0,4",  # again
        "vc2,2020-05-01 00:00:00,1,0,12,8,0,x",
    )
    reading = read_state(state, Collector(strict=False))
    assert (len(reading.tables["state"]), len(reading.problems)) == (1, 3)
    assert reading.topology is not None
    machines = Counter(device.machine for device in reading.topology.devices)
    assert sorted(machines.values()) == [4, 8]
    with pytest.raises(DataError, match="line 2: running and idle GPUs add up to 11, not to 12"):
        read_state(write(tmp_path, STATE, "vc1,2020-05-01 00:10:00,1,0,12,8,0,3"), Collector())
    sizes = write(tmp_path, "date,vca,vcb,total", "2020-04-01,8,8,16", "2020-04-02,8,8,15", "2020-04-03,8,,8")
    reading = read_sizes(sizes, Collector(strict=False))
    assert (len(reading.tables["sizes"]), len(reading.problems)) == (1, 2)
    with pytest.raises(DataError, match="the header is not a date"):
        read_sizes(write(tmp_path, "date,vca"), Collector(strict=False))


def test_an_empty_series_has_no_topology(tmp_path: Path) -> None:
    assert read_state(write(tmp_path, STATE), Collector()).topology is None
    assert read_sizes(write(tmp_path, "date,vca,total", "2020-04-01,0,0"), Collector()).topology is None


@pytest.mark.parametrize(
    ("name", "table", "file"),
    [
        ("helios-state", "state", "earth_vc_state_10min.csv.gz"),
        ("helios-sizes", "sizes", "earth_gpus_per_vc_daily.csv"),
    ],
)
def test_cut_files(tmp_path: Path, name: str, table: str, file: str) -> None:
    check_cut(by_name(HELIOS_FORMATS, name), data("helios", file), tmp_path, table)
