"""A different order of the rows in every epoch, without holding any of them in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
GOLDEN = 0x9E3779B97F4A7C15
MASK_64 = (1 << 64) - 1


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, wrapping in 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffled(places: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where each place of an epoch points: a permutation of 0 … size − 1 that needs O(1) memory.

    A Feistel network permutes the 4^k ≥ size numbers of 2k bits. A number that lands at or above `size` is sent through
    again until it is below (its cycle must come back), which leaves a permutation of the numbers below `size`.
    """
    bits = max(1, ((size - 1).bit_length() + 1) // 2)
    start = np.array([seed & MASK_64, epoch & MASK_64], dtype=np.uint64)
    key = mix64(mix64(start[:1] + np.uint64(GOLDEN)) ^ (start[1:] * np.uint64(GOLDEN)))
    keys = mix64(key + np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(GOLDEN))
    x = _feistel(places.astype(np.uint64), bits, keys)
    while (outside := x >= np.uint64(size)).any():
        x[outside] = _feistel(x[outside], bits, keys)
    return x.astype(np.int64)


def _feistel(x: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    half, low = np.uint64(bits), np.uint64((1 << bits) - 1)
    left, right = x >> half, x & low
    for key in keys:
        # the top bits of the hash: for halves of one or two bits the low ones would repeat too soon
        left, right = right, left ^ (mix64(right + key) >> np.uint64(64 - bits))
    return (left << half) | right
