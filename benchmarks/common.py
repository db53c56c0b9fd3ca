"""What the benchmarks share: arguments, the machine's description, and keeping the raw figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any


def parser(about: str, sections: tuple[str, ...]) -> argparse.ArgumentParser:
    """Of the arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", nargs="+", choices=sections, default=sections, help="measure these only")
    parser.add_argument("--quick", action="store_true", help="under 60 s on 2 cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw figures")
    return parser


def arguments(about: str, sections: tuple[str, ...]) -> argparse.Namespace:
    """The arguments that every benchmark takes."""
    return parser(about, sections).parse_args()


def machine() -> dict[str, Any]:
    """Where the figures were taken."""
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
    """Write the raw figures."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"taken": time.strftime("%Y-%m-%d"), "machine": machine(), **figures}, indent=1))
