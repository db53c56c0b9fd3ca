"""One program as a kernel, for `symphony run`: in a folder of the machine that runs it, or in one that travels with it.

A travelling folder is a tar archive. It holds the files that git tracks or would track, or all files if the folder is
in no git repository.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony.problem import units
from symphony.problem.errors import InputError
from symphony.runtime.failures import BY_SIGNAL, EXIT_STATUS
from symphony.runtime.kernels import KernelFunction, KernelOptions

MAX_FOLDER_BYTES = 512 << 20  # of a folder that travels
# Exit statuses where a program has none of its own, as shells and `timeout` give them.
FAILED, TIMED_OUT, INTERRUPTED = 1, 124, 130


@dataclass(frozen=True)
class Command:
    words: Sequence[str]
    folder: str  # in which it runs, on the machine that runs it; if `archive` is set, only for messages
    archive: bytes | None = None  # of the files of that folder, to be unpacked into a new one
    fetch: Sequence[str] = ()  # patterns of files there to bring back
    environment: Mapping[str, str] = field(default_factory=dict)  # in addition to that of the process that runs it
    stdin: bytes = b""

    @property
    def name(self) -> str:
        return Path(self.words[0]).name

    def kernel(self, device: str, options: KernelOptions) -> KernelFunction:
        """Its value is a tar archive of the fetched files. If the exit status is not 0, it raises a
        `subprocess.CalledProcessError` of the class that `exception_of_status` names.
        """
        kernel = KernelFunction(_running(), device, self.name, options)
        kernel.key = f"run.{self.words[0]}"
        return kernel

    def arguments(self) -> tuple[Any, ...]:
        """Plain values: a process that runs it need not import Symphony."""
        variables = dict(self.environment)
        return list(self.words), self.folder, self.archive, list(self.fetch), variables, self.stdin


def _running() -> Callable[..., bytes]:
    # A nested function is pickled by value: a process that runs it need not import Symphony.
    def run(
        words: list[str],
        folder: str,
        archive: bytes | None,
        fetch: list[str],
        variables: dict[str, str],
        stdin: bytes,
    ) -> bytes:
        import contextlib
        import ctypes
        import errno
        import io
        import os
        import pathlib
        import signal
        import subprocess
        import sys
        import tarfile
        import tempfile
        import threading

        log: Any = getattr(sys.stdout, "log", None)  # of a service; without one, the streams are those of the terminal
        prctl = ctypes.CDLL(None).prctl

        def die_with_parent() -> None:
            prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a cancelled program must not continue

        def failed(status: int) -> Exception:
            name = f"ExitStatus{status if status >= 0 else 128 - status}"  # EXIT_STATUS; `exception_of_status`
            kind: Any = type(name, (subprocess.CalledProcessError,), {"__module__": "__main__"})
            return kind(status, words)

        with contextlib.ExitStack() as stack:
            if archive is not None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="symphony-run-"))
                with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                    files.extractall(folder, filter="data")
            elif not os.path.isdir(folder):
                raise FileNotFoundError(
                    f"there is no folder {folder} on {os.uname().nodename}; send its files along with --send"
                )
            try:
                child = subprocess.Popen(
                    words,
                    cwd=folder,
                    env=os.environ | variables,
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=None if log is None else subprocess.PIPE,
                    stderr=None if log is None else subprocess.STDOUT,
                    preexec_fn=die_with_parent,  # noqa: PLW1509 - a single system call, without locks
                )
            except OSError as error:  # with the exit statuses of a shell
                print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
                raise failed(126 if error.errno == errno.EACCES else 127) from None
            with child:

                def write(pipe: Any) -> None:
                    with contextlib.suppress(BrokenPipeError), pipe:
                        pipe.write(stdin)

                if stdin:
                    threading.Thread(target=write, args=(child.stdin,), daemon=True).start()
                try:
                    while child.stdout is not None and (data := os.read(child.stdout.fileno(), 1 << 16)):
                        log(data)
                    child.wait()
                except BaseException:
                    child.kill()
                    raise
            if child.returncode:
                raise failed(child.returncode)
            found = io.BytesIO()
            if fetch:
                root = pathlib.Path(folder)
                with tarfile.open(fileobj=found, mode="w:gz") as files:
                    for path in sorted({path for pattern in fetch for path in root.glob(pattern) if path.is_file()}):
                        files.add(path, str(path.relative_to(root)))
            return found.getvalue()

    return run


def packed(folder: Path) -> bytes:
    """The files of a folder as a tar archive. Raises `InputError` if they are too many bytes."""
    paths = _files(folder)
    size = sum(path.lstat().st_size for path in paths)
    if size > MAX_FOLDER_BYTES:
        shown, most = (units.show(float(number), "bytes") for number in (size, MAX_FOLDER_BYTES))
        raise InputError(
            f"its files have {shown}, more than {most}",
            where=str(folder),
            hint="list what is not needed in .gitignore, or run in a folder that all machines reach",
        )
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as files:
        for path in paths:
            files.add(path, str(path.relative_to(folder)), recursive=False)
    return made.getvalue()


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError("there is no such folder", where=str(folder), hint="name a folder")
    git = shutil.which("git")
    if git is not None:
        listing = [git, "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, capture_output=True, check=False)
        if listed.returncode == 0:
            named = (folder / name for name in listed.stdout.decode(errors="surrogateescape").split("\0") if name)
            return sorted({path for path in named if path.is_symlink() or path.is_file()})
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def unpack(archive: bytes, folder: Path) -> list[str]:
    """Write fetched files into a folder; their names."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        return files.getnames()


def exception_of_status(status: int) -> str:
    """The name of what `Command.kernel` raises at this exit status, for `retry_on`."""
    return f"__main__.{EXIT_STATUS}{status}"


def exit_status(error: BaseException | None) -> int | None:
    """The exit status of a program that raised this; None if it did not end by itself."""
    if not isinstance(error, subprocess.CalledProcessError):
        return None
    return error.returncode if error.returncode >= 0 else BY_SIGNAL - error.returncode
