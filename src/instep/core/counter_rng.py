"""Counter-based random numbers: a pure function of a key, so that a noisy world depends only on its arguments.

A key is a uint64 per world of a batch. Mixing is SplitMix64; a batch gives bit for bit what a loop gives.
"""

from __future__ import annotations

import numpy as np

from .world import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(seed: int, stream: str) -> Array:
    """The key of a stream of random numbers, apart from all streams with other names or seeds."""
    mixed = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
    for byte in stream.encode():
        mixed = _mix(np.asarray(mixed ^ np.uint64(byte)))
    return _mix(np.asarray(mixed))


def next_key(keys: Array) -> Array:
    """The next key of each stream."""
    return _mix(keys)


def uniform(keys: Array, n: int) -> Array:
    """n numbers in [0, 1) for each key [..., n]."""
    with np.errstate(over="ignore"):
        counters = keys[..., None] + _GOLDEN * np.arange(1, n + 1, dtype=np.uint64)
    return (_mix(counters) >> np.uint64(11)).astype(float) * 2.0**-53


def normal(keys: Array, n: int) -> Array:
    """n standard normal numbers for each key [..., n], by Box and Muller's transform."""
    half = (n + 1) // 2
    u = uniform(keys, 2 * half)
    radius = np.sqrt(-2.0 * np.log1p(-u[..., :half]))
    angle = 2.0 * np.pi * u[..., half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)[..., :n]


def _mix(x: Array) -> Array:
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint64) + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
