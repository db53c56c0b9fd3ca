"""Fresh runs of a whole system in which things go wrong, for as long as you like.

    python -m tests.whole_system.fuzz --seeds 1000              # starts at a seed that nobody has tried
    python -m tests.whole_system.fuzz --seeds 1 --first 1234    # that one again

Prints how far it is. When a property does not hold, it stops, says which, and how to see it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.compiling import compile_quickly

compile_quickly()

from tests.whole_system.runs import run  # noqa: E402
from tests.whole_system.world import POLICIES  # noqa: E402

SHARED = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # the disk is simulated: it need not be one


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 if all hold, 1 if one does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.whole_system.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="how many runs")
    parser.add_argument("--first", type=int, help="seed of the first; the others follow (default: drawn)")
    parser.add_argument("--policy", choices=POLICIES, default="", help="instead of one that is drawn")
    parser.add_argument("--log", action="store_true", help="say what the service says")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first that fails")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or (options.first or 0) < 0:
        parser.error("--seeds is 1 or more, --first is 0 or more")
    logging.basicConfig(level=logging.INFO if options.log else logging.CRITICAL)
    first = secrets.randbelow(2**31) if options.first is None else options.first
    began, jobs, starts, kills, failed = time.perf_counter(), 0, 0, 0, 0
    for number, seed in enumerate(range(first, first + options.seeds), start=1):
        with tempfile.TemporaryDirectory(dir=SHARED) as folder:
            try:
                world = run(seed, Path(folder), policy=options.policy)
                jobs, starts, kills = jobs + len(world.wanted), starts + world.starts, kills + world.kills
            except Exception as error:
                failed += 1
                if options.log or not isinstance(error, AssertionError):
                    traceback.print_exc()
                print(f"\n{error}", file=sys.stderr)
                if not options.keep_going:
                    return 1
        seconds = time.perf_counter() - began
        said = f"{number} of {options.seeds} runs, {jobs:,} jobs, {starts:,} starts, {kills:,} kills, {seconds:.0f} s"
        print(f"\r{said}", end="", flush=True)
    rate = options.seeds / (time.perf_counter() - began) * 60.0
    print(f"\n{options.seeds - failed} of {options.seeds} hold, from seed {first} on: {rate:.0f} runs a minute")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
