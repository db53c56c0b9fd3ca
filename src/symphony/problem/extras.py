"""Optional dependencies: the extras of the package, and the command that installs one."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from symphony.problem.errors import InputError, SymphonyError

PACKAGE = "symphony-scheduler"


@contextmanager
def needs_extra(extra: str, what: str, error: type[SymphonyError] = InputError) -> Iterator[None]:
    """Context for the imports of an extra. If one fails, raises `error`, which says how to install the extra."""
    try:
        yield
    except ImportError as failed:
        name = (failed.name or "").partition(".")[0]
        if name == "symphony":  # a bug of Symphony, which no extra fixes
            raise
        missing = f"{name}, which is not installed" if isinstance(failed, ModuleNotFoundError) and name else ""
        reason = missing or f"the extra {extra!r}, which cannot be loaded: {failed}"
        raise error(f"{what} needs {reason}", hint=f"type: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """The pip command that installs an extra into this environment, from the clone or wheel of this installation.

    If that is not known, or no longer exists, the command is for both: `.` is the clone, FILE.whl the wheel.
    """
    pip = f"{shlex.quote(sys.executable or 'python')} -m pip install"
    source, editable = _source()
    if source is not None:
        return f"{pip} {'-e ' if editable else ''}{shlex.quote(f'{source}[{extra}]')}"
    return f"{pip} '.[{extra}]' in a clone, or {pip} 'FILE.whl[{extra}]' with the wheel"


def _source() -> tuple[Path | None, bool]:
    """The folder or wheel that Symphony was installed from, and whether it is editable, as pip records it (PEP 610)."""
    try:
        record = json.loads(distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None, False
    scheme, _, path = record.get("url", "").partition("://")
    source = Path(path) if scheme == "file" and path and Path(path).exists() else None
    return source, bool(record.get("dir_info", {}).get("editable"))
