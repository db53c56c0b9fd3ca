"""Which variants does a sample have? `python -m examples.genomics [--size 8]`.

    reads ─► count k-mers ─► frequent ─┐
                     genome ─► index ──┴─► candidates ─► align ─────────────┐
                                                └─► likelihood (genome) ────┼─► call
                                                └─► likelihood (variants) ──┘

Reads are drawn from a made-up genome with errors. Those of their k-mers that occur more than once say where a read may
have come from; Smith-Waterman aligns it there; a pair hidden Markov model says how likely it is given the genome, and
given a genome with all variants that somebody suspects. The sample has half of those, on one of its two chromosomes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import symphony as sy
from examples import running
from examples.arrays import both, count, repeat, windows

K = 9  # length of a k-mer
READ, WINDOW = 96, 128  # letters of a read, and of the genome that it is aligned to
GENOME = 6_000
SITES = np.arange(300, GENOME - 300, 300)  # where variants are suspected
READS = 500  # in a part
NO_LETTER = 4
DIAGONALS = READ + WINDOW - 1


@both
def count_kmers(xp: Any, reads: Any) -> Any:
    """How often each k-mer occurs."""
    return count(xp, _kmers(xp, reads), 4**K)


@both
def frequent(xp: Any, counts: Any) -> Any:
    """K-mers that are no errors of a single read."""
    return sum(counts) > 1


@both
def index(xp: Any, genome: Any) -> Any:
    """The k-mers of the genome in order, and where each begins."""
    kmers = _kmers(xp, genome)
    order = xp.argsort(kmers)
    return xp.stack([kmers[order], order])


@both
def candidates(xp: Any, index: Any, frequent: Any, reads: Any) -> Any:
    """Where in the genome each read may begin: the median over its k-mers that are found there."""
    kmers = _kmers(xp, reads)
    at = xp.minimum(xp.searchsorted(index[0], kmers), index.shape[1] - 1)
    found = (index[0][at] == kmers) & frequent[kmers]
    begins = xp.where(found, index[1][at] - xp.arange(kmers.shape[1]), xp.nan)
    begins = xp.where(found.any(axis=1, keepdims=True), begins, 0)
    return xp.nanmedian(begins, axis=1).astype("int32")


@both
def align(xp: Any, genome: Any, reads: Any, begins: Any) -> Any:
    """Smith-Waterman scores, by diagonals: a match is worth 2, a mismatch costs 1, a gap 2 for each letter."""
    letters = _beside(xp, genome, begins)

    def diagonal(number: Any, state: Any) -> Any:
        older, last, best = state
        worth = xp.where(reads == letters(number), 2.0, -1.0)
        here = xp.maximum(_down(xp, older) + worth, xp.maximum(_down(xp, last), last) - 2.0)
        here = xp.maximum(here, 0.0)
        return last, here, xp.maximum(best, here)

    return repeat(xp, DIAGONALS, diagonal, (xp.zeros(reads.shape),) * 3)[2].max(axis=1)


@both
def likelihood(xp: Any, genome: Any, reads: Any, begins: Any) -> Any:
    """Log-likelihood of each read under a pair hidden Markov model, by diagonals."""
    error, gap, longer, scale = 0.01, 0.001, 0.1, 1e30  # a GPU's floats would be 0 too soon without a scale
    letters = _beside(xp, genome, begins)

    def diagonal(number: Any, state: Any) -> Any:
        older, (match, extra, skipped), total = state  # extra: letters of the read alone; skipped: of the genome
        here = letters(number)
        emits = xp.where(reads == here, 1 - error, error / 3) * (here < NO_LETTER)
        before = _down(xp, older[0], scale / WINDOW) * (1 - 2 * gap) + _down(xp, older[1] + older[2]) * (1 - longer)
        new = (
            emits * before,
            (_down(xp, match) * gap + _down(xp, extra) * longer) / 4,
            match * gap + skipped * longer,
        )
        return (match, extra, skipped), new, total + new[0][:, -1] + new[1][:, -1]

    nothing = (xp.zeros(reads.shape),) * 3
    total = repeat(xp, DIAGONALS, diagonal, (nothing, nothing, xp.zeros(len(reads))))[2]
    return xp.log(xp.maximum(total, 1e-30)) - xp.log(scale)


@sy.kernel
def call(begins: list, scores: list, given_genome: list, given_variants: list) -> dict[str, Any]:
    """Variants for which at least a quarter of the reads speak that cover them."""
    begin, score, plain, other = (np.concatenate(part) for part in (begins, scores, given_genome, given_variants))
    aligned = score > 1.5 * READ
    covers = aligned[:, None] & (np.abs(begin[:, None] + READ // 2 - SITES) < READ // 2 - 4)
    speaks = covers & (other > plain)[:, None]
    called = SITES[speaks.sum(axis=0) > 0.25 * np.maximum(covers.sum(axis=0), 1)]
    return {"reads": len(score), "aligned": int(aligned.sum()), "variants": called}


def _kmers(xp: Any, letters: Any) -> Any:
    return (windows(xp, letters, K, 1).astype("int32") * 4 ** np.arange(K)).sum(axis=-1).astype("int32")


def _beside(xp: Any, genome: Any, begins: Any) -> Any:
    """The letters of the genome that are beside those of the reads [reads, READ], for each diagonal."""
    first = xp.clip(begins - (WINDOW - READ) // 2, 0, len(genome) - WINDOW)
    window = genome[first[:, None] + np.arange(WINDOW)]
    around = xp.pad(window[:, ::-1], ((0, 0), (READ, READ)), constant_values=NO_LETTER)
    return lambda number: xp.take(around, READ + WINDOW - 1 - number + np.arange(READ), axis=1)


def _down(xp: Any, diagonal: Any, first: float = 0.0) -> Any:
    """Moved on by a letter of the read."""
    return xp.concatenate([xp.full((diagonal.shape[0], 1), first), diagonal[:, :-1]], axis=1)


def sample(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A genome, the same with all suspected variants, and reads; one letter in two hundred is wrong."""
    rng = np.random.default_rng(seed)
    genome = rng.integers(0, 4, GENOME).astype(np.int8)
    variants, other = genome.copy(), genome.copy()
    variants[SITES] = (variants[SITES] + 1) % 4
    real = SITES[::2]
    other[real] = variants[real]  # the sample's second chromosome
    begin = rng.integers(0, GENOME - READ, READS * size)[:, None] + np.arange(READ)
    letters = np.where(rng.random((len(begin), 1)) < 0.5, genome[begin], other[begin])
    wrong = rng.random(letters.shape) < 0.005
    return genome, variants, np.where(wrong, rng.integers(0, 4, letters.shape), letters).astype(np.int8)


def build(size: int = 8, seed: int = 0) -> sy.Graph:
    """The graph, for so many parts of the reads."""
    genome, variants, reads = sample(size, seed)
    parts = np.array_split(reads, size)
    graph = sy.graph("genomics")
    known = graph.task(frequent, [graph.task(count_kmers, part) for part in parts])
    found = graph.task(index, genome)
    begins = [graph.task(candidates, found, known, part) for part in parts]
    given = [(part, begin) for part, begin in zip(parts, begins, strict=True)]
    scores = [graph.task(align, genome, *one) for one in given]
    plain = [graph.task(likelihood, genome, *one) for one in given]
    other = [graph.task(likelihood, variants, *one) for one in given]
    graph.task(call, begins, scores, plain, other)
    return graph


if __name__ == "__main__":
    running.main(__doc__, build)
