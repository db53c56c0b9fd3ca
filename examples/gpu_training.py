"""Four unlike training jobs in JAX that share one GPU: convolutional, transformer, embedding-heavy, recurrent.

    python examples/gpu_training.py                              # on the GPU of this machine, or on two CPU slots
    python examples/gpu_training.py --size tiny --steps 20       # a few seconds on a CPU
    python examples/gpu_training.py --kinds transformer recurrent --policy srtf

Each job draws its data from a seed, so that nothing is downloaded. It saves its weights when the scheduler asks, and
resumes from there. Workers keep their compiled programs: the second job of a kind starts at once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import symphony as sy
from symphony.problem.build import ClusterSpec, DeviceSpec, MachineSpec, SocketSpec, build

KINDS = ("convolutional", "transformer", "embedding", "recurrent")
CLASSES = 10
LEARNING_RATE = 0.05


class Size(NamedTuple):
    """Sizes of one model. `rows`: of the image, the vocabulary or the table. `length`: of a sequence."""

    batch: int
    width: int
    layers: int
    rows: int
    length: int = 1


SIZES = {
    "tiny": {
        "convolutional": Size(batch=4, width=8, layers=2, rows=8),
        "transformer": Size(batch=2, width=16, layers=1, rows=32, length=8),
        "embedding": Size(batch=16, width=8, layers=1, rows=500, length=4),
        "recurrent": Size(batch=4, width=16, layers=1, rows=16, length=8),
    },
    "full": {  # chosen: steps of milliseconds on a data-centre GPU, checkpoints of at most 130 MB
        "convolutional": Size(batch=256, width=128, layers=6, rows=32),
        "transformer": Size(batch=32, width=512, layers=6, rows=8192, length=128),
        "embedding": Size(batch=8192, width=64, layers=2, rows=500_000, length=32),
        "recurrent": Size(batch=128, width=512, layers=1, rows=64, length=64),
    },
}


class Model(NamedTuple):
    """`weights(rng)`: initial arrays. `batch(key)`: inputs and labels. `scores(weights, inputs)`: of the classes."""

    weights: Callable[[np.random.Generator], Any]
    batch: Callable[[Any], tuple[Any, Any]]
    scores: Callable[[Any, Any], Any]
    operations: float  # floating-point operations per sample, forward and backward


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Initial weights, scaled by the number of inputs."""
    return (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)


def convolutional(s: Size) -> Model:
    """Residual convolutions of 3 by 3, at one resolution. Images are noise around the mean of their class."""
    import jax
    import jax.numpy as jnp

    def weights(rng: np.random.Generator) -> Any:
        return {
            "first": normal(rng, 3, 3, 3, s.width),
            "layers": [normal(rng, 3, 3, s.width, s.width) for _ in range(s.layers)],
            "last": normal(rng, s.width, CLASSES),
        }

    def batch(key: Any) -> tuple[Any, Any]:
        labels = jax.random.randint(key, (s.batch,), 0, CLASSES)
        noise = jax.random.normal(key, (s.batch, s.rows, s.rows, 3))
        return noise + (labels / CLASSES)[:, None, None, None], labels

    def scores(w: Any, images: Any) -> Any:
        same = partial(
            jax.lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = same(images, w["first"])
        for layer in w["layers"]:
            x = x + 0.3 * jax.nn.relu(same(x, layer))
        return jnp.mean(x, axis=(1, 2)) @ w["last"]

    return Model(weights, batch, scores, 6.0 * s.rows**2 * 9 * s.width * (3 + s.layers * s.width))


def transformer(s: Size) -> Model:
    """Predicts the next token of a sequence that repeats its first half."""
    import jax
    import jax.numpy as jnp

    heads = max(1, s.width // 64)

    def weights(rng: np.random.Generator) -> Any:
        layer = {"qkv": (s.width, 3 * s.width), "out": (s.width, s.width)}
        layer |= {"up": (s.width, 4 * s.width), "down": (4 * s.width, s.width)}
        return {
            "tokens": 0.02 * rng.normal(size=(s.rows, s.width)).astype(np.float32),
            "places": 0.02 * rng.normal(size=(s.length, s.width)).astype(np.float32),
            "layers": [{name: normal(rng, *shape) for name, shape in layer.items()} for _ in range(s.layers)],
        }

    def batch(key: Any) -> tuple[Any, Any]:
        half = jax.random.randint(key, (s.batch, s.length // 2 + 1), 0, s.rows)
        tokens = jnp.concatenate([half, half], axis=1)[:, : s.length + 1]
        return tokens[:, :-1], tokens[:, 1:]

    def centred(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def scores(w: Any, tokens: Any) -> Any:
        x = w["tokens"][tokens] + w["places"]
        earlier = jnp.tril(jnp.ones((s.length, s.length), bool))
        for layer in w["layers"]:
            q, k, v = jnp.moveaxis((centred(x) @ layer["qkv"]).reshape(s.batch, s.length, 3, heads, -1), 2, 0)
            match = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(s.width / heads)
            match = jax.nn.softmax(jnp.where(earlier, match, -jnp.inf))
            x = x + jnp.einsum("bhqk,bkhd->bqhd", match, v).reshape(x.shape) @ layer["out"]
            x = x + jax.nn.gelu(centred(x) @ layer["up"]) @ layer["down"]
        return centred(x) @ w["tokens"].T

    used = 12 * s.layers * s.width**2 + s.rows * s.width
    return Model(weights, batch, scores, 6.0 * s.length * used)


def embedding(s: Size) -> Model:
    """Sums rows of a large table, as recommenders do. The label depends on the first item."""
    import jax
    import jax.numpy as jnp

    def weights(rng: np.random.Generator) -> Any:
        return {
            "table": 0.02 * rng.standard_normal((s.rows, s.width), dtype=np.float32),
            "layers": [normal(rng, s.width, s.width) for _ in range(s.layers)],
            "last": normal(rng, s.width, CLASSES),
        }

    def batch(key: Any) -> tuple[Any, Any]:
        items = jax.random.randint(key, (s.batch, s.length), 0, s.rows)
        return items, items[:, 0] % CLASSES

    def scores(w: Any, items: Any) -> Any:
        x = jnp.sum(w["table"][items], axis=1)
        for layer in w["layers"]:
            x = jax.nn.relu(x @ layer)
        return x @ w["last"]

    return Model(weights, batch, scores, 6.0 * s.width * (s.length + s.layers * s.width + CLASSES))


def recurrent(s: Size) -> Model:
    """A gated recurrent network; the label is in the first element of the sequence."""
    import jax
    import jax.numpy as jnp

    def weights(rng: np.random.Generator) -> Any:
        return {
            "input": normal(rng, s.rows, 3 * s.width),
            "state": normal(rng, s.width, 3 * s.width),
            "last": normal(rng, s.width, CLASSES),
        }

    def batch(key: Any) -> tuple[Any, Any]:
        labels = jax.random.randint(key, (s.batch,), 0, CLASSES)
        noise = jax.random.normal(key, (s.length, s.batch, s.rows))
        return noise.at[0].add(4 * jax.nn.one_hot(labels, s.rows)), labels

    def scores(w: Any, sequence: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, None]:
            keep, reset, new = jnp.split(x @ w["input"], 3, axis=-1)
            keep_state, reset_state, new_state = jnp.split(state @ w["state"], 3, axis=-1)
            gate = jax.nn.sigmoid(keep + keep_state)
            fresh = jnp.tanh(new + jax.nn.sigmoid(reset + reset_state) * new_state)
            return gate * state + (1 - gate) * fresh, None

        state, _ = jax.lax.scan(step, jnp.zeros((s.batch, s.width)), sequence)
        return state @ w["last"]

    return Model(weights, batch, scores, 6.0 * s.length * 3 * s.width * (s.rows + s.width))


MODELS = {
    "convolutional": convolutional,
    "transformer": transformer,
    "embedding": embedding,
    "recurrent": recurrent,
}


PROGRAMS: dict[tuple[str, str], tuple[Model, Callable[..., Any]]] = {}  # of this process


def program(kind: str, size: str) -> tuple[Model, Callable[..., Any]]:
    """A model, and its compiled step: (weights, seed, number of the step) -> (weights, loss). Made once."""
    if (kind, size) not in PROGRAMS:
        PROGRAMS[kind, size] = new_program(kind, size)
    return PROGRAMS[kind, size]


def new_program(kind: str, size: str) -> tuple[Model, Callable[..., Any]]:
    """As `program`."""
    import jax
    import jax.numpy as jnp

    model = MODELS[kind](SIZES[size][kind])

    def loss(weights: Any, inputs: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(model.scores(weights, inputs))
        return -jnp.mean(jnp.take_along_axis(logs, labels[..., None], axis=-1))

    def step(weights: Any, seed: Any, number: Any) -> tuple[Any, Any]:
        inputs, labels = model.batch(jax.random.fold_in(jax.random.key(seed), number))
        value, gradient = jax.value_and_grad(loss)(weights, inputs, labels)
        return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradient), value

    return model, jax.jit(step, donate_argnums=0)


def initial(kind: str, size: str, seed: int) -> Any:
    """Initial weights on the device."""
    import jax

    return jax.device_put(program(kind, size)[0].weights(np.random.default_rng(seed)))


def train(job: Any, kind: str, size: str, seed: int) -> dict[str, Any]:
    """Train one model. Returns the first and the last loss of this run, and the step after which it began."""
    import jax

    _, step = program(kind, size)
    saved = job.restore()
    weights = initial(kind, size, seed) if saved is None else jax.device_put(saved)
    losses: list[Any] = []
    for number in job.steps():
        weights, loss = step(weights, seed, number)
        losses = [*losses[:1], jax.block_until_ready(loss)]  # a step counts when it is done, not when it is queued
        if job.save_now:
            job.save(jax.device_get(weights))
    return {"losses": [float(loss) for loss in losses], "began": job.began}


def parameters(kind: str, size: str) -> int:
    """Number of weights."""
    s = SIZES[size][kind]
    return {
        "convolutional": 9 * s.width * (3 + s.layers * s.width) + s.width * CLASSES,
        "transformer": 12 * s.layers * s.width**2 + (s.rows + s.length) * s.width,
        "embedding": s.rows * s.width + s.layers * s.width**2 + s.width * CLASSES,
        "recurrent": 3 * s.width * (s.rows + s.width) + s.width * CLASSES,
    }[kind]


def training_kernel(
    kind: str, steps: int, *, device: str = "gpu", size: str = "full", checkpoint_s: float = 0.1, restore_s: float = 0.1
) -> Any:
    """A training job of this kind. It is described by its numbers; the scheduler learns its speed from its reports."""
    described: dict[str, Any] = {
        "batch": SIZES[size][kind].batch,
        "parameters": parameters(kind, size),
        "operations": MODELS[kind](SIZES[size][kind]).operations,
    }
    cost = {"checkpoint_s": checkpoint_s, "restore_s": restore_s}
    return sy.training(steps=steps, device=device, name=kind, kind=f"{kind}-{size}", **described, **cost)(train)


def job(kind: str, steps: int, seed: int = 0, *, size: str = "full", **options: Any) -> sy.graph:
    """A graph with one training job."""
    graph = sy.graph(f"{kind} {seed}")
    graph.task(training_kernel(kind, steps, size=size, **options), kind, size, seed)
    return graph


def gpu_name() -> str:
    """The kind of the first GPU of this machine; "" if there is none."""
    found = sy.discover().topology
    return next((kind.name for kind in found.kinds if kind.type == "gpu"), "")


def one_device(gpu: str, slots: int = 2) -> sy.Topology:
    """This machine as one device that `slots` jobs share: its GPU, or else CPU cores that stand for one."""
    name, kind = gpu or "emulated", "gpu" if gpu else "emulated"
    machine = MachineSpec(name="here", socket=(SocketSpec(devices=(name,)),))
    return build(ClusterSpec(name=f"one {name}", device={name: DeviceSpec(type=kind, slots=slots)}, machine=(machine,)))


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Run one job of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--size", choices=SIZES, help="by default full on a GPU, tiny on a CPU")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--slots", type=int, default=2, help="jobs that share the GPU")
    parser.add_argument("--policy", default="planner")
    parser.add_argument("--profiles", type=Path, help="file for what is learned of jobs")
    given = parser.parse_args(arguments)
    gpu = gpu_name()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the GPU
    options = {"size": given.size or ("full" if gpu else "tiny"), "device": gpu or "emulated"}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        profiles = given.profiles or Path(folder) / "profiles.json"
        with sy.local(one_device(gpu, given.slots), policy=given.policy, profiles=profiles, round_s=10.0) as cluster:
            jobs = {kind: cluster.submit(job(kind, given.steps, **options)) for kind in given.kinds}
            for kind, submitted in jobs.items():
                found[kind] = submitted.result()
                first, last = found[kind]["losses"][0], found[kind]["losses"][-1]
                print(f"{kind}: {given.steps} steps in {submitted.completion_s:.1f} s, loss {first:.2f} to {last:.2f}")
    return found


if __name__ == "__main__":
    main()
