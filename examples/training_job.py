"""A training job: several workers that start together, each on a device of its own, and exchange gradients.

    python examples/training_job.py                        # two workers on this machine
    python examples/training_job.py --ray 10.0.0.1:6379    # one on each of two machines of a Ray cluster

Each worker has its part of the data; after every pass over it, gradients are averaged. So it learns what one worker
with all the data would. Rank 0 writes a checkpoint after every pass: if a worker is killed, the gang is run again and
goes on from there. The workers find one another through a folder that all of them can reach.
"""

from __future__ import annotations

import argparse
import io
import json
import secrets
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np

import symphony as sy

TWO_CPUS = Path(__file__).parent / "two_cpus.toml"


class Meeting:
    """The workers of a gang, connected: rank 0 is in the middle."""

    def __init__(self, folder: Path, host: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        at = folder / "address.json"
        if rank == 0:
            key = secrets.token_hex(16)
            with Listener((host or ray_address(), 0), backlog=size, authkey=key.encode()) as listener:
                _write(at, json.dumps([*listener.address, key]).encode())
                self.others = [listener.accept() for _ in range(size - 1)]
            return
        while True:  # an address at which nobody listens is that of a gang that is no more
            try:
                name, port, key = json.loads(at.read_text())
                self.others = [Client((name, port), authkey=key.encode())]
                return
            except (OSError, EOFError, AuthenticationError):
                time.sleep(0.05)

    def mean(self, array: np.ndarray) -> np.ndarray:
        """The mean of what all workers have, for all of them."""
        if self.rank:
            self.others[0].send(array)
            return self.others[0].recv()
        # In the order of connection, not of arrival: the sum is the same every time.
        mean = (array + sum(other.recv() for other in self.others)) / self.size
        self.tell(mean)
        return mean

    def tell(self, value: Any) -> Any:
        """What rank 0 has, for all of them."""
        if self.rank:
            return self.others[0].recv()
        for other in self.others:
            other.send(value)
        return value


def ray_address() -> str:
    """Where other machines of a Ray cluster reach this one."""
    import ray

    return ray.util.get_node_ip_address()


def _write(path: Path, data: bytes) -> None:
    """All of a file, or nothing."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


@sy.kernel
def draw(rows, seed):
    """Points on both sides of a plane."""
    rng = np.random.default_rng(seed)
    plane = np.random.default_rng(0).normal(size=20)
    points = rng.normal(size=(rows, 20))
    return points, points @ plane + rng.normal(size=rows) > 0


def gradient(weights: np.ndarray, points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of the logistic loss."""
    return points.T @ (1 / (1 + np.exp(-points @ weights)) - labels) / len(points)


@sy.kernel(workers=2)
def train(data, passes, rate, folder, host, rank=0, size=1):
    """Weights, after so many passes over the data; and the pass at which it began."""
    points, labels = data
    mine = slice(rank * len(points) // size, (rank + 1) * len(points) // size)
    meeting, checkpoint = Meeting(Path(folder), host, rank, size), Path(folder) / "checkpoint.npz"
    weights, begin = np.zeros(points.shape[1]), 0
    if rank == 0 and checkpoint.exists():
        with np.load(checkpoint) as found:
            weights, begin = found["weights"], int(found["passes"])
    weights, begin = meeting.tell((weights, begin))
    for number in range(begin, passes):
        weights = weights - rate * meeting.mean(gradient(weights, points[mine], labels[mine]))
        if rank == 0:
            file = io.BytesIO()
            np.savez(file, weights=weights, passes=number + 1)
            _write(checkpoint, file.getvalue())
    return weights, begin


@sy.kernel
def score(trained, data):
    """How many of the points the weights tell apart."""
    (weights, begin), (points, labels) = trained, data
    return {"right": float((((points @ weights) > 0) == labels).mean()), "began_at": begin, "weights": weights}


def job(folder: Path, rows: int, passes: int, host: str) -> sy.graph:
    """Data, training, and how good it is on other data. Without a `host`, workers meet at Ray's address of rank 0."""
    graph = sy.graph("training")
    trained = graph.task(train, graph.task(draw, rows, 1), passes, 2.0, str(folder), host)
    graph.task(score, trained, graph.task(draw, rows, 2))
    return graph


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--passes", type=int, default=50)
    parser.add_argument("--ray", help="address of a Ray cluster with two machines or more")
    parser.add_argument("--folder", type=Path, help="that all machines reach; by default a new one on this one")
    parser.add_argument("--profiles", type=Path, help="file for what is learned of kernels")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as new:
        graph = job(given.folder or Path(new), given.rows, given.passes, "" if given.ray else "127.0.0.1")
        options = {"profiles": given.profiles}
        with sy.ray(given.ray, **options) if given.ray else sy.local(sy.topology(TWO_CPUS), **options) as cluster:
            done = cluster.submit(graph)
            found = done.result()
            print(done.explain())
    print(f"{found['right']:.1%} of the points are told apart, after {given.passes} passes by two workers")
    return found


if __name__ == "__main__":
    main()
