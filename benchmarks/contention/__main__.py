"""How well contention is modelled: `python -m benchmarks.contention [--quick] [--json FILE]`.

Three published sets of measurements: pairs of training jobs on one GPU (Gavel), pairs of genomics kernels on the
threads of a core (Symphony's supplement, figure 2), and training steps by placement (Pollux). Models are evaluated on
held-out job families, kernels or models, of which a few pairs may be known (probes).

Unfair to the table look-up: for a pair that it does not have, it falls back on means. Unfair to the models: co-run
rates on V100 are cut at the isolated rate in the published table, and isolated rates have measurement errors (see the
noise line). Errors are of relative speed, |predicted / measured - 1|.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from benchmarks.common import arguments, keep
from benchmarks.contention.exchange import exchange_section
from benchmarks.contention.kernels import kernels_section
from benchmarks.contention.pairs import pairs_section


def _rounded(got: Any) -> Any:
    if isinstance(got, Mapping):
        return {str(name): _rounded(one) for name, one in got.items()}
    if isinstance(got, list):
        return [_rounded(one) for one in got]
    return float(f"{got:.4g}") if isinstance(got, float) else got


def main() -> None:
    sections = {"pairs": pairs_section, "kernels": kernels_section, "exchange": exchange_section}
    args = arguments("How well contention is modelled.", tuple(sections))
    console = Console(width=120)
    figures: dict[str, dict[str, Any]] = {}
    for section in args.only:
        # Kept after every figure, so that a run that is cut short loses nothing.
        for name, got in sections[section](console, args.quick):
            figures.setdefault(section, {})[name] = _rounded(got)
            keep(args.json, **figures)


if __name__ == "__main__":
    main()
