"""Which files this process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Files of a folder that are open or mapped, once for each descriptor and mapping; also those that were removed."""
    found = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path.startswith(f"{folder}/"))
