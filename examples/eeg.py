"""When does a recording look like a seizure? `python -m examples.eeg [--size 8]`.

    signal ─► clean ─┬─► band powers ──┐
                     ├─► line length ──┼─► score ─► detect
                     └─► synchrony ────┘

Channels are noise with a spectrum that falls with frequency, and the hum of the mains. During a seizure all of them
have spikes three times a second. A filter takes out the hum; windows of two seconds are described by their power in
bands of frequencies, by how long their line is, and by how much of it all channels share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import symphony as sy
from examples import running
from examples.arrays import both, windows

RATE, CHANNELS = 256, 24  # samples a second
PART = 180  # seconds in a part
WINDOW, HOP = 2 * RATE, RATE // 2
BANDS = ((1, 4), (4, 8), (8, 13), (13, 30))  # in Hz; the first is that of the spikes
SEIZURE = 12  # seconds
HUM = 50  # Hz


@both
def clean(xp: Any, signal: Any) -> Any:
    """Between 0.5 and 45 Hz, without the mains."""
    frequency = np.fft.rfftfreq(signal.shape[1], 1 / RATE)
    kept = (frequency > 0.5) & (frequency < 45) & (np.abs(frequency - HUM) > 2)
    return xp.fft.irfft(xp.fft.rfft(signal, axis=1) * kept, signal.shape[1], axis=1)


@both
def band_powers(xp: Any, signal: Any) -> Any:
    """Logarithm of the power in each band [windows, bands], over all channels."""
    spectrum = xp.abs(xp.fft.rfft(windows(xp, signal, WINDOW, HOP) * np.hanning(WINDOW), axis=-1)) ** 2
    frequency = np.fft.rfftfreq(WINDOW, 1 / RATE)
    inside = np.stack([(frequency >= low) & (frequency < high) for low, high in BANDS], axis=1)
    return xp.log((spectrum @ inside.astype("float32")).mean(axis=0) + 1e-9)


@both
def line_length(xp: Any, signal: Any) -> Any:
    """How far the signal goes up and down in each window, over all channels."""
    return xp.log(xp.abs(xp.diff(windows(xp, signal, WINDOW, HOP), axis=-1)).mean(axis=(0, 2)))


@both
def synchrony(xp: Any, signal: Any) -> Any:
    """How much of each window is the same in all channels: the largest share of a component of their correlations."""
    cut = windows(xp, signal, WINDOW, HOP).swapaxes(0, 1)
    cut = cut - cut.mean(axis=-1, keepdims=True)
    cut = cut / xp.sqrt((cut**2).sum(axis=-1, keepdims=True))
    return xp.linalg.eigvalsh(cut @ cut.swapaxes(1, 2))[:, -1] / CHANNELS


@both
def score(xp: Any, powers: Any, lengths: Any, shared: Any) -> Any:
    """What speaks for a seizure in each window."""
    return powers[:, 0] - powers[:, 2:].mean(axis=1) + lengths + 4 * shared


@sy.kernel
def detect(scores: list) -> dict[str, Any]:
    """Seconds at which the score is far above what is usual, in most of the windows around."""
    found = np.concatenate(scores)
    usual = np.median(found)
    spread = 1.5 * np.median(np.abs(found - usual))
    high = np.convolve(found > usual + 5 * spread, np.ones(5) / 5, mode="same") > 0.5
    edges = np.flatnonzero(np.diff(np.concatenate([[0], high, [0]])))
    # A part has fewer windows than its seconds would hold: the last ones would reach beyond it.
    each, lag = len(scores[0]), WINDOW / (2 * RATE)
    seconds = edges // each * PART + edges % each * HOP / RATE + lag
    return {"windows": len(found), "seizures": seconds.reshape(-1, 2)}


def sample(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A recording [channels, samples], and when its seizures begin."""
    rng = np.random.default_rng(seed)
    samples = size * PART * RATE
    spectrum = rng.normal(size=(CHANNELS, samples // 2 + 1, 2)).astype(np.float32).view(np.complex64)[..., 0]
    noise = np.fft.irfft(spectrum / np.sqrt(np.arange(1, samples // 2 + 2)), samples, axis=1)
    time = np.arange(samples) / RATE
    begins = (np.arange(size)[rng.permutation(size)[: max(size // 3, 1)]] + 0.3) * PART
    spikes = np.maximum(np.sin(2 * np.pi * 3 * time), 0) ** 8
    during = ((time >= begins[:, None]) & (time < begins[:, None] + SEIZURE)).any(axis=0)
    hum = 0.5 * np.sin(2 * np.pi * HUM * time)
    strength = rng.uniform(3, 5, size=(CHANNELS, 1))
    return (noise / noise.std() + hum + strength * spikes * during).astype(np.float32), np.sort(begins)


def build(size: int = 8, seed: int = 0) -> sy.Graph:
    """The graph, for so many parts of the recording."""
    signal, _ = sample(size, seed)
    graph = sy.graph("eeg")
    scores = []
    for part in np.split(signal, size, axis=1):
        cleaned = graph.task(clean, part)
        described = [graph.task(kernel, cleaned) for kernel in (band_powers, line_length, synchrony)]
        scores.append(graph.task(score, *described))
    graph.task(detect, scores)
    return graph


if __name__ == "__main__":
    running.main(__doc__, build)
