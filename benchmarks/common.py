"""Shared by the benchmarks: arguments, a description of the machine, files of raw figures."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from symphony.problem.errors import DataError

LONG = (
    "errors",
    "times_s",
    "in_system_s",
    "costs",
    "columns",
    "others",
    "nobody",
)  # of a row: not printed


def parser(about: str, sections: tuple[str, ...]) -> argparse.ArgumentParser:
    """A parser with the arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", nargs="+", choices=sections, default=sections, help="measure only these")
    parser.add_argument("--quick", action="store_true", help="under 60 s on 2 cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw figures")
    return parser


def arguments(about: str, sections: tuple[str, ...]) -> argparse.Namespace:
    """The arguments that every benchmark takes."""
    return parser(about, sections).parse_args()


def in_parts(parser: argparse.ArgumentParser) -> None:
    """Add arguments to divide a benchmark among processes: each has its seeds and its file, and `--merge` reads all."""
    parser.add_argument("--first-seed", type=int, default=200, help="lower seeds were used for tuning")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing; merge these files")


def rows_of(section: str, *files: Path) -> list[dict[str, Any]]:
    """The rows of a section in these files, without their long fields."""
    found = [json.loads(file.read_text()).get(section, {}) for file in files if file.exists()]
    rows = [row for one in found for row in one.get("rows", [])]
    return [{key: value for key, value in row.items() if key != "errors"} for row in rows]


def before(options: argparse.Namespace, section: str) -> list[dict[str, Any]]:
    """Rows that need not be measured again: those to merge, or those in the file of an earlier run."""
    return rows_of(section, *(options.merge or ([options.json] if options.json else [])))


def gather(
    options: argparse.Namespace,
    found: dict[str, Any],
    section: str,
    rows: list[dict[str, Any]],
    more: Callable[[], Iterable[dict[str, Any]]],
    summary: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
) -> None:
    """Measure rows, and print and store each at once, so that a run may be stopped. Then add their summary."""
    options.before = rows
    for row in () if options.merge else more():
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name not in LONG}), flush=True)
        found[section] = {"rows": rows}
        keep(options.json, **found)
    if rows:
        found[section] = {"rows": rows} | ({"summary": summary(rows)} if summary else {})
        keep(options.json, **found)


def machine() -> dict[str, Any]:
    """The machine that runs the benchmark."""
    import jax

    device = jax.devices()[0]
    return {
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def keep(path: Path | None, **figures: Any) -> None:
    """Write the raw figures atomically: a run may be stopped at any time."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(json.dumps({"taken": time.strftime("%Y-%m-%d"), "machine": machine(), **figures}, indent=1))
        whole.replace(path)


def data(*parts: str) -> Path:
    """A file of the shared data."""
    root = Path(os.environ.get("SYMPHONY_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = root.joinpath(*parts)
    if not path.exists():
        raise DataError(f"{path} is missing", hint="set SYMPHONY_DATA to the folder that holds it")
    return path


def table(path: Path) -> list[dict[str, str]]:
    """The records of a CSV file, which may be compressed."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
