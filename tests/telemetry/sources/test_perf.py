"""perf, run for the purpose: a stand-in for what this machine cannot show, and the real one where there is one."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.samples import record
from symphony.telemetry.sources.perf import PerfSource, is_software, paranoid
from symphony.testing import check_counter_source
from tests.telemetry.sources.logs import as_json, recording

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (Debian: linux-perf)")

# As much of perf as is needed: it keeps its arguments, waits for the order, confirms it, writes, and ends when told.
STAND_IN = """\
#!{python} -S
import json, os, signal, sys, time
arguments = sys.argv[1:]
open({arguments!r}, "w").write(json.dumps(arguments))
if {error!r}:
    sys.exit({error!r})
orders, answers = map(int, arguments[arguments.index("--control") + 1].removeprefix("fd:").split(","))
assert os.read(orders, 100) == b"enable\\n"
done = []
signal.signal(signal.SIGINT, lambda *_: done.append(True))
os.write(answers, b"ack\\n\\0")
os.write(int(arguments[arguments.index("--log-fd") + 1]), {output!r}.encode())
while not done and {lasting}:
    time.sleep(0.01)
"""

Make = Callable[..., str]


@pytest.fixture
def stand_in(tmp_path: Path) -> Make:
    def make(output: str = "", error: str = "", lasting: bool = False) -> str:
        path = tmp_path / "perf"
        kept = str(tmp_path / "arguments")
        text = STAND_IN.format(python=sys.executable, arguments=kept, output=output, error=error, lasting=lasting)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    return make


def given_to(tmp_path: Path) -> str:
    return (tmp_path / "arguments").read_text()


COUNTED = [("cycles", 0), ("instructions", 0), ("cache-misses", 1), ("cpu-clock", 2)]
MULTIPLEXED = as_json({"": recording(COUNTED, [[40, 80, 12, 100]] * 2, [0.04, 0.04, 0.06, 0.1], 0.1)})


def test_groups_are_asked_for_and_come_back(stand_in: Make, tmp_path: Path) -> None:
    perf = stand_in(MULTIPLEXED)
    source = PerfSource([["cycles", "instructions"], ["cache-misses"]], system_wide=True, interval_ms=50, perf=perf)
    found = record(source.samples())[""]
    assert [(column.event, column.group) for column in found.columns] == COUNTED
    np.testing.assert_allclose(found.count[0], [40, 80, 12, 100])
    assert not source.problems and source.exit_status is None
    for words in (
        '"-I", "50", "-j"',
        '"-e", "{cycles,instructions}:W", "-e", "cache-misses", "-e", "cpu-clock"',
        '"-a"',
    ):
        assert words in given_to(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pids": [12, 13]}, '"-e", "task-clock", "-p", "12,13"'),
        ({"cpus": "0-3", "per_cpu": True}, '"-C", "0-3", "-A"'),
        ({"system_wide": True, "per_cpu": True}, '"-a", "-A"'),
        ({"system_wide": True, "per_socket": True}, '"-a", "--per-socket"'),
        ({"system_wide": True, "weak": False}, '"{a,b}"'),
    ],
)
def test_what_is_counted(stand_in: Make, tmp_path: Path, options: dict[str, object], words: str) -> None:
    list(PerfSource([["a", "b"]], perf=stand_in(MULTIPLEXED), **options).samples())  # type: ignore[arg-type]
    assert words in given_to(tmp_path)


def test_a_caller_that_has_enough_ends_perf(stand_in: Make) -> None:
    source = PerfSource([["cycles"]], system_wide=True, perf=stand_in(MULTIPLEXED * 3, lasting=True))
    samples = source.samples()
    next(samples)
    assert source._process is not None and source._process.poll() is None
    samples.close()  # type: ignore[attr-defined]
    assert source._process.poll() == 0  # it was asked, and ended by itself


def test_the_commands_exit_status_is_passed_on(stand_in: Make, capfd: pytest.CaptureFixture[str]) -> None:
    perf = stand_in(MULTIPLEXED, lasting=True)
    for command, status in ((["sh", "-c", "echo out; echo err >&2; exit 7"], 7), (["sh", "-c", "kill -9 $$"], -9)):
        source = PerfSource([["cycles"]], command=command, perf=perf)
        assert len(list(source.samples())) == 2
        assert source.exit_status == status
    assert capfd.readouterr() == ("out\n", "err\n")


NOT_PERMITTED = """Error:
Access to performance monitoring and observability operations is limited.
Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open
"""


@pytest.mark.parametrize(
    ("said", "what", "hint"),
    [
        (NOT_PERMITTED, "counting is not permitted to this user", "sysctl kernel.perf_event_paranoid=-1"),
        ("Problems finding threads of monitor\n", "there is no such process", "ps -e"),
        ("event syntax error: 'nonsense'\n     \\___ parser error\n", "event syntax error: 'nonsense'", "perf list"),
        ("  Error: unknown option `control'\n", "unknown option `control'", "perf 6.0"),
    ],
)
def test_why_nothing_is_counted(stand_in: Make, tmp_path: Path, said: str, what: str, hint: str) -> None:
    started = tmp_path / "started"
    for options in ({"system_wide": True}, {"command": ["touch", str(started)]}):
        source = PerfSource([["cycles"]], perf=stand_in(error=said), **options)  # type: ignore[arg-type]
        with pytest.raises(DataError) as error:
            next(source.samples())
        assert what in error.value.message and "\n" not in error.value.message and hint in error.value.hint
    assert not started.exists()  # a command that cannot be counted is not run


def test_no_perf(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="perf is not installed"):
        next(PerfSource([["cycles"]], system_wide=True, perf=str(tmp_path / "perf")).samples())


def test_no_pmu_is_said_in_one_line(stand_in: Make) -> None:
    text = "".join(
        f'{{"interval" : 0.1, "counter-value" : "{value}", "unit" : "", "event" : "{event}", '
        f'"event-runtime" : {run}, "pcnt-running" : 100.00}}\n'
        for value, event, run in (("<not supported>", "cycles:u", 0), ("5", "page-faults", 100))
    )
    source = PerfSource([["cycles"], ["page-faults"]], system_wide=True, perf=stand_in(text))
    [sample] = source.samples()
    assert np.isnan(sample.count[0]) and sample.count[1] == 5
    assert "no performance counters" in source.problems[0].what and "\n" not in source.problems[0].what
    assert len(source.problems) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": [], "system_wide": True},
        {"groups": [[]], "system_wide": True},
        {"groups": [[" "]], "system_wide": True},
        {"groups": [["a"]]},
        {"groups": [["a"]], "system_wide": True, "pids": [1]},
        {"groups": [["a"]], "command": ["true"], "pids": [1]},
        {"groups": [["a"]], "command": ["true"], "per_cpu": True},
        {"groups": [["a"]], "command": ["true"], "per_socket": True},
        {"groups": [["a"]], "system_wide": True, "per_cpu": True, "per_socket": True},
        {"groups": [["a"]], "system_wide": True, "interval_ms": 0},
        {"groups": [["a"]], "command": ["no-such-command-here"]},
    ],
)
def test_wrong_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as error:
        PerfSource(**wrong)  # type: ignore[arg-type]
    assert error.value.hint


def test_which_events_need_no_pmu() -> None:
    assert is_software("page-faults:u") and is_software("task-clock") and not is_software("cpu/cycles/")


def test_the_setting_of_the_kernel(tmp_path: Path) -> None:
    assert paranoid(tmp_path) == ""
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/perf_event_paranoid").write_text("2\n")
    assert paranoid(tmp_path) == "2"


# --- The real one ------------------------------------------------------------------------------------------


def run_real(groups: Sequence[Sequence[str]], **options: object) -> PerfSource:
    source = PerfSource(groups, interval_ms=20, **options)  # type: ignore[arg-type]
    try:
        check_counter_source(source)
    except DataError as error:
        pytest.skip(f"perf does not count here: {error.message}")
    return source


@needs_perf
def test_a_command_and_what_it_starts() -> None:
    work = f"'{sys.executable}' -S -c '[bytearray(1 << 20) for _ in range(64)]'; exit 5"
    source = PerfSource([["page-faults", "context-switches"], ["page-faults"]], command=["sh", "-c", work])
    try:
        found = record(source.samples())[""]
    except DataError as error:
        pytest.skip(f"perf does not count here: {error.message}")
    assert source.exit_status == 5
    names = ["page-faults", "context-switches", "page-faults", "task-clock"]
    assert [column.event.removesuffix(":u") for column in found.columns] == names
    assert np.nansum(found.count[:, 0]) > 100  # of the child of the shell


@needs_perf
def test_a_process_and_the_machine() -> None:
    assert run_real([["task-clock"]], pids=[os.getpid()]).exit_status is None
    run_real([["cpu-clock"], ["page-faults"]], system_wide=True, per_cpu=True, command=["sleep", "0.1"])


@needs_perf
def test_a_command_that_is_no_longer_wanted_is_ended() -> None:
    source = PerfSource([["page-faults"]], interval_ms=10, command=["sleep", "60"])
    samples = source.samples()
    try:
        next(samples)
    except DataError as error:
        pytest.skip(f"perf does not count here: {error.message}")
    samples.close()  # type: ignore[attr-defined]
    assert source.exit_status == -signal.SIGTERM


@needs_perf
def test_short_commands_are_counted_every_time() -> None:
    """perf prints its last window only if it is interrupted while it waits, and the command has not been reaped."""
    for _ in range(30):
        source = PerfSource([["page-faults"]], command=["true"])
        try:
            found = list(source.samples())
        except DataError as error:
            pytest.skip(str(error))
        assert sum(np.nansum(sample.count[0]) for sample in found) > 0 and not source.problems
