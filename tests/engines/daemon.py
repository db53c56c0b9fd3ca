"""A kernel that leaves a process behind, for whoever tests that it ends."""

from __future__ import annotations


def daemon(path: str, stay_s: float = 0.0) -> int:
    """Start a process that leaves its group, its session and its parent; its pid, which is also in a file."""
    import os
    import pathlib
    import time

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            pathlib.Path(path + ".part").write_text(str(os.getpid()))
            os.rename(path + ".part", path)
            time.sleep(3600)
        os._exit(0)
    while not os.path.exists(path):
        time.sleep(0.01)
    time.sleep(stay_s)
    return int(pathlib.Path(path).read_text())
