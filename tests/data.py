"""Where the public traces and measured tables lie, for tests that read real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("SYMPHONY_DATA", Path(__file__).parents[2] / "shared" / "data"))


def data(*parts: str) -> Path:
    """A file or folder of the shared data; the test is skipped where it is absent."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} of the shared data: set SYMPHONY_DATA to the folder that holds it")
    return path
