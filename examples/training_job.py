"""A training job: several workers that start together, each on a device of its own, and exchange gradients.

    python examples/training_job.py                        # two workers on this machine
    python examples/training_job.py --ray 10.0.0.1:6379    # one on each of two machines of a Ray cluster

    python examples/training_job.py --kill-at 20           # one of them is killed at that pass, and it goes on

Each worker has its part of the data; after every pass over it, gradients are averaged. So it learns what one worker
with all the data would. It saves its weights now and then, and when the scheduler asks: if a worker is killed, or the
gang is stopped for something urgent, it goes on from there. The workers find one another through the job's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
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
        self.others = []
        at = folder / "address.json"
        if size == 1:
            return
        if rank == 0:
            key = secrets.token_hex(16)
            with Listener((host or ray_address(), 0), backlog=size, authkey=key.encode()) as listener:
                new = at.with_suffix(".new")
                new.write_text(json.dumps([*listener.address, key]))
                new.replace(at)
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


def trainer(passes: int, workers: int = 2) -> sy.kernel:
    """A training job of so many passes."""

    @sy.training(steps=passes, workers=workers, kind="logistic", checkpoint_s=0.01, every_s=10.0)
    def train(job, data, rate, host, kill_at):
        """Weights, after all passes over the data; and after how many this run went on."""
        points, labels = data
        mine = slice(job.rank * len(points) // job.size, (job.rank + 1) * len(points) // job.size)
        meeting = Meeting(job.folder, host, job.rank, job.size)
        weights = job.restore()
        if weights is None:
            weights = np.zeros(points.shape[1])
        for number in job.steps():
            weights = weights - rate * meeting.mean(gradient(weights, points[mine], labels[mine]))
            if job.save_now or number == kill_at - 1:
                job.save(weights)
            if number == kill_at and job.began < kill_at - 1 and job.rank == job.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)  # as the system does if there is too little memory
        return weights, job.began

    return train


@sy.kernel
def score(trained, data):
    """How many of the points the weights tell apart."""
    (weights, begin), (points, labels) = trained, data
    return {"right": float((((points @ weights) > 0) == labels).mean()), "began_at": begin, "weights": weights}


def job(rows: int, passes: int, host: str, kill_at: int = 0) -> sy.graph:
    """Data, training, and how good it is on other data. Without a `host`, workers meet at Ray's address of rank 0."""
    graph = sy.graph("training")
    trained = graph.task(trainer(passes), graph.task(draw, rows, 1), 2.0, host, kill_at)
    graph.task(score, trained, graph.task(draw, rows, 2))
    return graph


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--passes", type=int, default=50)
    parser.add_argument("--kill-at", type=int, default=0, help="pass at which a worker is killed, once")
    parser.add_argument("--ray", help="address of a Ray cluster with two machines or more")
    parser.add_argument("--folder", type=Path, help="that all machines reach; by default a new one on this one")
    parser.add_argument("--profiles", type=Path, help="file for what is learned of kernels")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as new:
        graph = job(given.rows, given.passes, "" if given.ray else "127.0.0.1", given.kill_at)
        options = {"profiles": given.profiles, "checkpoints": given.folder or Path(new)}
        with sy.ray(given.ray, **options) if given.ray else sy.local(sy.topology(TWO_CPUS), **options) as cluster:
            done = cluster.submit(graph)
            found = done.result()
            print(done.explain())
    print(f"{found['right']:.1%} of the points are told apart, after {given.passes} passes by two workers")
    return found


if __name__ == "__main__":
    try:
        main()
    except sy.EngineError as error:  # --ray, and Ray is not installed or not there
        raise SystemExit(f"error: {error}") from None
