"""Blobs: files named by their SHA-256, for arguments, functions and results that are too large for the journal."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from symphony.engines.engine import Pickled
from symphony.problem.errors import InputError, LimitError
from symphony.problem.units import show
from symphony.service.wire import MAX_INLINE_BYTES, Content, Value


class Upload:
    """A blob that is being received, in a temporary file."""

    def __init__(self, blobs: Blobs, digest: str, most: int, size: int = 0) -> None:
        """`size`: expected bytes, 0 = unknown. Raises `OSError` if the disk has no room for them."""
        if size > shutil.disk_usage(blobs.folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(blobs.folder))
        self._blobs, self._digest, self._most = blobs, digest, most
        descriptor, self._path = tempfile.mkstemp(dir=blobs.folder, prefix="part-")
        self._file = os.fdopen(descriptor, "wb")
        self._sum = hashlib.sha256()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._most:
            raise too_large(self._most)
        self._sum.update(data)
        self._file.write(data)

    def end(self) -> None:
        if self._sum.hexdigest() != self._digest:
            raise InputError("the bytes do not have this SHA-256", where=self._digest, hint="send them again")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._blobs.place(self._path, self._digest)

    def close(self) -> None:
        """Remove the temporary file, if there is one."""
        with contextlib.suppress(OSError):  # the disk is full; the data is discarded anyway
            self._file.close()
        Path(self._path).unlink(missing_ok=True)


class Blobs:
    def __init__(self, folder: Path, *, sweep: bool = True) -> None:
        """`sweep`: remove what a killed process left. Not beside a service: its uploads look the same."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in folder.glob("part-*") if sweep else ():
            part.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest

    def size(self, digest: str) -> int:
        """Bytes; -1 if it does not exist."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return -1

    def read(self, digest: str) -> memoryview:
        """The contents, memory-mapped copy-on-write."""
        with open(self.path(digest), "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if not length:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))

    def place(self, part: str, digest: str) -> None:
        path = self.path(digest)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        os.replace(part, path)
        _sync(path.parent)

    def put(self, data: Any) -> str:
        """Store bytes and return their digest. Not synced: they survive the end of this process, but no power cut."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if self.size(digest) != memoryview(data).nbytes:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            descriptor, part = tempfile.mkstemp(dir=self.folder, prefix="part-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(part, path)
        return digest

    def remove(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)

    def listed(self) -> Iterator[tuple[str, float]]:
        """Digests and ages in seconds."""
        for path in self.folder.glob("*/*"):
            yield path.name, time.time() - path.stat().st_mtime

    def kept(self, value: Pickled) -> tuple[Value, dict[str, int]]:
        """A value for the journal, with large parts stored as blobs, and the sizes of these by digest."""
        sizes: dict[str, int] = {}

        def content(data: Any) -> Content:
            size = memoryview(data).nbytes
            if size <= MAX_INLINE_BYTES:
                return Content.model_construct(inline=bytes(data), blob=None)
            digest = self.put(data)
            sizes[digest] = size
            return Content.model_construct(inline=None, blob=digest)

        head = content(value.head)
        return Value.model_construct(head=head, buffers=[content(one) for one in value.buffers]), sizes

    def found(self, value: Value) -> Pickled:
        """The inverse of `kept`. Raises `FileNotFoundError` if a blob is missing."""

        def data(content: Content) -> Any:
            return self.read(content.blob) if content.blob is not None else content.inline

        return Pickled(bytes(data(value.head)), [memoryview(data(one)) for one in value.buffers])


def named_in(values: Iterable[Value]) -> set[str]:
    """The digests of the blobs in some values."""
    return {part.blob for value in values for part in (value.head, *value.buffers) if part.blob is not None}


def too_large(most: int, option: str = "--blob-bytes") -> LimitError:
    """The error for a body above a limit, which `option` of `symphony serve` raises."""
    return LimitError(
        f"it is larger than {show(float(most), 'bytes')}, the limit of this service",
        hint=f"pass paths and read files in the kernels, or serve with a larger {option}",
    )


def _sync(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
