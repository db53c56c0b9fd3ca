"""A CPU that does not exist: top-down slots and their parts, what a program did on it, and a perf that counts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from symphony.telemetry import catalogue
from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.listings import Listing, MapLine
from symphony.telemetry.samples import Recording, record
from tests.telemetry.simulated import SimulatedSource

CPUID = "GenuineIntel-6-FF-0"
PARTS = ("top.front", "top.bad", "top.back", "top.retired")
SHARES = ("front", "bad", "back", "retiring")
EVENTS = (*PARTS, "top.slots", "inst_retired.any", "uops.issued")
DEMO = Catalogue(
    "x86/demo",
    events=(
        *(Event(name, codes=(0xA4,), umask=1 << bit) for bit, name in enumerate(PARTS)),
        Event("top.slots", codes=(0xA4,), umask=0xF),
        Event("inst_retired.any", fixed=0),
        Event("uops.issued", codes=(0x0E,), umask=1),
        Event("bytes.read", codes=(0x55,), umask=1, scale=64.0, scale_unit="Bytes"),
    ),
    metrics=(
        *(
            Metric(share, f"{part} / top.slots", groups=("TopdownL1",), scale=100.0, scale_unit="%")
            for share, part in zip(SHARES, PARTS, strict=True)
        ),
        Metric("late", "top.front / 4 / top.slots", groups=("TopdownL2", "front_group"), scale=100.0, scale_unit="%"),
        Metric(
            "narrow", "top.front * 0.75 / top.slots", groups=("TopdownL2", "front_group"), scale=100.0, scale_unit="%"
        ),
        Metric("wasted", "(uops.issued - top.retired) / top.slots", scale=100.0, scale_unit="%"),
        Metric("speed", "inst_retired.any / duration_time"),
    ),
    pmus=(Pmu("", 2, 1),),
    source="made up",
)
GROUPS = tuple(("inst_retired.any", *pair) for pair in (PARTS[:2], PARTS[2:], ("top.slots", "uops.issued")))


def program(windows: int = 40, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """True counts in every slice of 4 ms, by event: phases of a fifth of a window."""
    rng = np.random.default_rng(seed)
    slices = windows * 25
    long = slices // 5 + 1
    share = np.repeat(rng.dirichlet([4, 1, 4, 4], long), 5, axis=0)[:slices]
    speed = np.repeat(rng.lognormal(0, 1.2, long), 5)[:slices] * rng.lognormal(0, 0.05, slices)
    parts = np.round(1e7 * speed[:, None] * share)
    found = dict(zip(PARTS, parts.T, strict=True))
    found["top.slots"] = parts.sum(axis=1)
    found["inst_retired.any"] = np.round(found["top.retired"] * 0.9)
    found["uops.issued"] = found["top.bad"] + found["top.retired"]
    return found


def source(
    windows: int = 40, seed: int = 0, groups: Sequence[Sequence[str]] = GROUPS, where: str = ""
) -> SimulatedSource:
    """The program, counted in turns."""
    truth = program(windows, seed)
    return SimulatedSource(tuple(truth), np.stack(list(truth.values()), axis=1), tuple(map(tuple, groups)), where=where)


def recording(windows: int = 40, seed: int = 0, where: str = "") -> Recording:
    """The same, as arrays."""
    return record(source(windows, seed, where=where).samples())[where]


def add() -> None:
    """Put the catalogue where commands find it."""
    catalogue._store(Listing((DEMO,), (MapLine("x86", CPUID, "x86/demo"),)))


# It counts the groups that it is told to count, in turns of 4 ms, all windows at once, then waits to be ended.
PERF = """\
#!{python} -S
import json, os, re, signal, sys, time
arguments = sys.argv[1:]
with open({kept!r}, "a") as file:
    file.write(json.dumps(arguments) + "\\n")
truth = json.loads(open({truth!r}).read())
orders, answers = map(int, arguments[arguments.index("--control") + 1].removeprefix("fd:").split(","))
assert os.read(orders, 100) == b"enable\\n"
done = []
signal.signal(signal.SIGINT, lambda *_: done.append(True))
os.write(answers, b"ack\\n\\0")
log = open(int(arguments[arguments.index("--log-fd") + 1]), "w")

def names(text):
    words = re.findall(r"[^,/]+(?:/[^/]*/)?", re.sub(r"^{{|}}:W$", "", text))
    return [re.sub(r".*name=([\\w.]+)/.*", r"\\1", word) for word in words]

groups = [names(arguments[at + 1]) for at, word in enumerate(arguments) if word == "-e"]
taking_turns = [group for group in groups if group[0] in truth]

def line(time_s, value, unit, event, running, share):
    log.write(json.dumps({{"interval": time_s, "counter-value": value, "unit": unit, "event": event,
                          "event-runtime": round(running * 1e9), "pcnt-running": share}}) + "\\n")

for window in range(len(next(iter(truth.values()))) // 25):
    end = round((window + 1) * 0.1, 9)
    for group in groups:
        if group not in taking_turns:
            for event in group:
                line(end, "100.0" if "clock" in event else "3", "msec" if "clock" in event else "", event, 0.1, 100.0)
            continue
        turn = taking_turns.index(group) if taking_turns.count(group) == 1 else None
        own = [t for t in range(window * 25, window * 25 + 25)
               if (t % len(taking_turns) == turn if turn is not None else taking_turns[t % len(taking_turns)] is group)]
        for event in group:
            count = sum(truth[event][t] for t in own)
            text = str(round(count * 25 / len(own))) if own else "<not counted>"
            line(end, text, "", event, len(own) * 0.004, round(4.0 * len(own), 2))
log.flush()
while not done:
    time.sleep(0.01)
"""


def perf(folder: Path, windows: int = 40, seed: int = 0) -> Path:
    """A program called perf that counts the demo; its arguments are kept in the file `arguments` beside it."""
    truth = folder / "truth.json"
    truth.write_text(json.dumps({event: counts.tolist() for event, counts in program(windows, seed).items()}))
    file = folder / "perf"
    file.write_text(PERF.format(python=sys.executable, kept=str(folder / "arguments"), truth=str(truth)))
    file.chmod(0o755)
    return file
