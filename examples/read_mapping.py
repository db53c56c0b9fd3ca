"""A data-flow graph of real kernels on this machine: `python examples/read_mapping.py [--reads 400] [--parts 8]`.

Reads are drawn from a made-up genome with errors, and go three ways: k-mers are counted to find where each read may
have come from (NumPy), Smith-Waterman aligns it there (JAX), and a pair hidden Markov model says how likely it is given
the genome and given a variant of it (JAX). Each kernel is an ordinary function; where and when it runs is Symphony's.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import symphony as sy

K = 11  # length of a k-mer
READ = 96  # of a read
WINDOW = 128  # of the genome, to which a read is aligned
VARIANT = 2_000  # position at which some of the reads differ


@sy.kernel
def count_kmers(genome: np.ndarray) -> np.ndarray:
    """Positions of the genome in the order of the k-mers that start there, with the k-mers."""
    kmers = _kmers(genome)
    order = np.argsort(kmers, kind="stable")
    return np.stack([kmers[order], order])


@sy.kernel
def seed(index: np.ndarray, reads: np.ndarray) -> np.ndarray:
    """Where in the genome each read is likely to begin: the diagonal on which most of its k-mers lie."""
    starts = np.zeros(len(reads), np.int64)
    for number, read in enumerate(reads):
        kmers = _kmers(read)
        at = np.searchsorted(index[0], kmers)
        at = np.minimum(at, index.shape[1] - 1)
        hits = index[0, at] == kmers
        diagonals = index[1, at[hits]] - np.flatnonzero(hits)
        starts[number] = np.bincount(np.maximum(diagonals, 0)).argmax() if hits.any() else 0
    return starts


@sy.kernel
def align(genome: np.ndarray, reads: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Smith-Waterman scores: a match is worth 2, a mismatch costs 1, a gap costs 2 for each letter."""
    return np.asarray(_smith_waterman(reads, _windows(genome, starts)))


@sy.kernel
def likelihood(genome: np.ndarray, reads: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Log-likelihood of each read under a pair hidden Markov model with one error in a hundred letters."""
    return np.asarray(_pair_hmm(reads, _windows(genome, starts)))


@sy.kernel
def call(scores: list, given_genome: list, given_variant: list) -> dict[str, Any]:
    """What the reads say: how many align, and how many speak for the variant."""
    score, genome, variant = (np.concatenate(part) for part in (scores, given_genome, given_variant))
    aligned = score > 1.5 * READ
    differ = aligned & (np.abs(variant - genome) > 1.0)
    return {
        "reads": len(score),
        "aligned": int(aligned.sum()),
        "covering": int(differ.sum()),
        "for_variant": int((differ & (variant > genome)).sum()),
    }


def _kmers(letters: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(letters, K)
    return windows.astype(np.int64) @ (4 ** np.arange(K))


def _windows(genome: np.ndarray, starts: np.ndarray) -> np.ndarray:
    begin = np.clip(starts - (WINDOW - READ) // 2, 0, len(genome) - WINDOW)
    return genome[begin[:, None] + np.arange(WINDOW)]


@jax.jit
@jax.vmap
def _smith_waterman(read: jax.Array, window: jax.Array) -> jax.Array:
    """By rows; gaps along a row are a running maximum."""
    column = jnp.arange(WINDOW)

    def row(before: jax.Array, letter: jax.Array) -> tuple[jax.Array, jax.Array]:
        diagonal = jnp.concatenate([jnp.zeros(1), before[:-1]]) + jnp.where(window == letter, 2.0, -1.0)
        best = jnp.maximum(jnp.maximum(diagonal, before - 2.0), 0.0)
        best = jax.lax.cummax(best + 2.0 * column) - 2.0 * column
        return best, best.max()

    return jax.lax.scan(row, jnp.zeros(WINDOW), read)[1].max()


@jax.jit
@jax.vmap
def _pair_hmm(read: jax.Array, window: jax.Array) -> jax.Array:
    """Forward algorithm by rows, in logarithms: matches, letters of the read alone, letters of the window alone."""
    error, gap, longer = 0.01, 0.001, 0.1
    nowhere = jnp.full(WINDOW, -jnp.inf)

    def row(before: tuple[jax.Array, ...], letter: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        shifted = [jnp.concatenate([jnp.full(1, -jnp.inf), state[:-1]]) for state in before]
        emits = jnp.where(window == letter, jnp.log1p(-error), jnp.log(error / 3))
        gaps = jnp.logaddexp(shifted[1], shifted[2]) + jnp.log1p(-longer)
        match = emits + jnp.logaddexp(shifted[0] + jnp.log1p(-2 * gap), gaps)
        insert = jnp.log(0.25) + jnp.logaddexp(before[0] + jnp.log(gap), before[1] + jnp.log(longer))

        def along(left: jax.Array, here: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.logaddexp(here + jnp.log(gap), left + jnp.log(longer)), left

        return (match, insert, jax.lax.scan(along, -jnp.inf, match)[1]), None

    (match, insert, _), _ = jax.lax.scan(row, (jnp.full(WINDOW, -jnp.log(WINDOW)), nowhere, nowhere), read)
    return jax.nn.logsumexp(jnp.logaddexp(match, insert))


def sample(reads: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A genome, a variant of it, and reads: half of them of either, one letter in a hundred wrong."""
    rng = np.random.default_rng(seed)
    genome = rng.integers(0, 4, length).astype(np.int8)
    variant = genome.copy()
    variant[VARIANT] = (variant[VARIANT] + 1) % 4
    begin = rng.integers(0, length - READ, reads)
    letters = np.where(rng.random((reads, 1)) < 0.5, *(x[begin[:, None] + np.arange(READ)] for x in (genome, variant)))
    wrong = rng.random(letters.shape) < 0.01
    return genome, variant, np.where(wrong, rng.integers(0, 4, letters.shape), letters).astype(np.int8)


def build(genome: np.ndarray, variant: np.ndarray, reads: np.ndarray, parts: int) -> Any:
    """The graph: one index, then three kernels for each part of the reads, then one that puts all together."""
    graph = sy.graph("read mapping")
    index = graph.task(count_kmers, genome)
    scores, plain, other = [], [], []
    for part in np.array_split(reads, parts):
        starts = graph.task(seed, index, part)
        scores.append(graph.task(align, genome, part, starts))
        plain.append(graph.task(likelihood, genome, part, starts))
        other.append(graph.task(likelihood, variant, part, starts))
    graph.output("calls", graph.task(call, scores, plain, other))
    return graph


def main(argv: list[str] | None = None, topology: sy.Topology | None = None) -> dict[str, Any]:
    """Run it twice: the second time, Symphony knows what each kernel takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=400)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--policy", default="eft-belief")
    parser.add_argument("--profiles", help="where what is learned is kept", default=None)
    parser.add_argument("--trace", help="write a trace for ui.perfetto.dev")
    options = parser.parse_args(argv)
    genome, variant, reads = sample(options.reads, 4_000, seed=0)
    with sy.local(topology, policy=options.policy, profiles=options.profiles) as cluster:
        for _ in range(2):
            job = cluster.submit(build(genome, variant, reads, options.parts))
            calls = job.result()["calls"]
            print(job.explain(), "\n")
        if options.trace:
            job.trace(options.trace)
        print(cluster.profiles)
    print(calls)
    return calls


if __name__ == "__main__":
    main()
