"""Optional parts: the extras of the package, and the command that installs one where Symphony runs."""

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
    """Around the imports of an optional part. If one fails, `error` says what needs it and how to install the extra."""
    try:
        yield
    except ImportError as failed:
        name = (failed.name or "").partition(".")[0]
        if name == "symphony":  # a mistake of ours, which no extra repairs
            raise
        missing = f"{name}, which is not installed" if isinstance(failed, ModuleNotFoundError) and name else ""
        reason = missing or f"the extra {extra!r}, which cannot be loaded: {failed}"
        raise error(f"{what} needs {reason}", hint=f"type: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """Installs an extra into this environment, from the clone or wheel that Symphony was installed from.

    If that is not known, or no longer there, the command is for either: `.` is the clone, FILE.whl the wheel.
    """
    pip = f"{shlex.quote(sys.executable or 'python')} -m pip install"
    source, editable = _source()
    if source is not None:
        return f"{pip} {'-e ' if editable else ''}{shlex.quote(f'{source}[{extra}]')}"
    return f"{pip} '.[{extra}]' in a clone, or {pip} 'FILE.whl[{extra}]' with the wheel"


def _source() -> tuple[Path | None, bool]:
    """The folder or wheel that Symphony was installed from, and whether in editable form: pip notes it (PEP 610)."""
    try:
        note = json.loads(distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None, False
    scheme, _, path = note.get("url", "").partition("://")
    found = Path(path) if scheme == "file" and path and Path(path).exists() else None
    return found, bool(note.get("dir_info", {}).get("editable"))
