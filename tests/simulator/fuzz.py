"""Fresh random scenarios through both simulators, for as long as you like.

    python -m tests.simulator.fuzz --seeds 200              # starts at a seed that nobody has tried
    python -m tests.simulator.fuzz --seeds 1 --first 1234   # that one again

Prints how far it is. When the simulators disagree, it stops, says where, and how to see it again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback

from tests.compiling import compile_quickly

compile_quickly()

from tests.simulator.chaos import Chaos  # noqa: E402
from tests.simulator.strategies import SIZES, random_scenario  # noqa: E402
from tests.simulator.test_rollout import compare, double_precision_and_coarse_buckets, replay  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 if all agree, 1 if a scenario shows a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many scenarios")
    parser.add_argument("--first", type=int, help="seed of the first; the others follow (default: drawn)")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the scenarios")
    parser.add_argument("--truth", action="store_true", help="speeds are not what profiles say")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or (options.first or 0) < 0:
        parser.error("--seeds is 1 or more, --first is 0 or more")
    first = secrets.randbelow(2**31) if options.first is None else options.first
    began = time.perf_counter()
    decisions = events = 0
    with double_precision_and_coarse_buckets():
        for number, seed in enumerate(range(first, first + options.seeds), start=1):
            try:
                scenario = random_scenario(seed, size=options.size, truth=options.truth)
                trace, decided, reference = replay(scenario, Chaos(reorders=True))
                compare(scenario, trace, decided, reference)
            except Exception:
                traceback.print_exc()
                again = f"python -m tests.simulator.fuzz --seeds 1 --first {seed} --size {options.size}"
                again += " --truth" if options.truth else ""
                print(f"\nseed {seed} failed, after {number - 1} that agreed; again: {again}", file=sys.stderr)
                return 1
            decisions, events = decisions + len(decided), events + len(reference.events)
            seconds = time.perf_counter() - began
            print(f"\r{number} of {options.seeds} agree, {events:,} events, {seconds:.0f} s", end="", flush=True)
    print(f"\nall {options.seeds} agree, from seed {first} on: {events:,} events, {decisions:,} decisions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
