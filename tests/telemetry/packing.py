"""Folders and archives of listings, made the way the real ones are."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def unpacked(root: Path, files: Mapping[str, bytes]) -> Path:
    """A folder with these files in it."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def tar(files: Mapping[str, bytes], compression: str = "xz") -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as archive:  # type: ignore[call-overload]
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def deb(data: bytes, name: str = "data.tar.xz") -> bytes:
    """A Debian package whose content is a tar archive."""

    def member(title: str, content: bytes) -> bytes:
        header = f"{title:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        return header + content + b"\n" * (len(content) % 2)

    return b"!<arch>\n" + member("debian-binary", b"2.0\n") + member("control.tar.xz", b"odd") + member(name, data)


def kernel(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Listings where they lie in a kernel's archive, with some of what lies about them."""
    inside = {f"linux-9.9/tools/perf/pmu-events/arch/{path}": content for path, content in files.items()}
    return {"linux-9.9/README": b"hello", "linux-9.9/drivers/odd.json": b"{", **inside}
