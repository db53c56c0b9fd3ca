"""Kernels of gangs, for the tests. They import what they use, and nothing is imported with them."""

from __future__ import annotations


def meet(folder, rank, size):
    import pathlib
    import time

    (pathlib.Path(folder) / str(rank)).touch()
    while len(list(pathlib.Path(folder).iterdir())) < size:
        time.sleep(0.005)
    return f"{rank} of {size}"


def wait(folder, rank, size):
    import pathlib
    import time

    (pathlib.Path(folder) / str(rank)).touch()
    time.sleep(3600)


def one_breaks(folder, rank, size):
    import pathlib
    import time

    folder = pathlib.Path(folder)
    if rank == 0:
        (folder / "there").touch()
        time.sleep(3600)
    while not (folder / "there").exists():
        time.sleep(0.005)
    raise ValueError("rank 1 does not like it")


def misses_the_other(folder, rank, size):
    """Rank 0 raises first, and only then the other is killed: as when it has heard of that before anybody."""
    import os
    import pathlib
    import signal
    import time

    if rank == 0:
        (pathlib.Path(folder) / "raised").touch()
        raise EOFError("the other is gone")
    while not (pathlib.Path(folder) / "raised").exists():
        time.sleep(0.005)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
