"""Kernels and graphs for the tests of the service."""

from __future__ import annotations

import symphony as sy


@sy.kernel
def add(*values):
    return sum(values)


@sy.kernel
def zeros(count):
    import numpy as np

    return np.zeros(count)


@sy.kernel
def fail(text):
    raise LookupError(text)


@sy.kernel
def rave(text):
    """Writes a text, and fails with it."""
    print("wrote", text)
    raise LookupError(text)


@sy.kernel
def die_once(path, go):
    """Kills its process, the first time, when a file is there."""
    import os
    import pathlib
    import signal
    import time

    while not pathlib.Path(go).exists():
        time.sleep(0.005)
    if not pathlib.Path(path).exists():
        pathlib.Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


@sy.kernel
def note(path, text, *after):
    """Leaves a line in a file: how often it ran can be counted."""
    with open(path, "a") as file:
        file.write(f"{text}\n")
    return text


@sy.kernel
def wait_for(path, *after):
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.005)
    return "came"


@sy.kernel
def sleep(seconds=3600.0):
    import time

    time.sleep(seconds)


def one(kernel, *args, **kwargs):
    """A graph of one task."""
    graph = sy.graph(kernel.name)
    graph.task(kernel, *args, **kwargs)
    return graph


@sy.training(steps=400, every_s=600.0, kind="counting", checkpoint_s=0.5)
def count(job, notes):
    """Saves after 30 steps and waits after 35, unless it has gone on."""
    import os
    import pathlib
    import time

    gone = job.restore() or []
    pathlib.Path(notes, f"{job.began}-{os.getpid()}").touch()
    for step in job.steps():
        gone.append(step)
        if step == 30:
            job.save(gone)
        while step == 35 and not job.began:
            assert not job.save_now
            time.sleep(0.005)
    return job.began, gone == list(range(1, 401))
