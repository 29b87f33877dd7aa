"""`RowNoise` for the hot path: the same bits, one launch for all uniforms of a draw, and no wait for the device.

`RowNoise` moves its salt, two numbers, from the host to the rows' device and waits for them to arrive; here the salt
stays a number of the host.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.flow.noise import DRAW_STRIDE, GOLDEN, MIX_1, RowNoise, mix64


@functools.lru_cache(maxsize=4096)
def salt_of(seed: int, stream: int) -> int:
    """What `RowNoise` mixes into every row's key."""
    salt = torch.tensor([seed, stream], dtype=torch.int64)
    return int(mix64(mix64(salt[0] + GOLDEN) ^ (salt[1] * MIX_1)))


@dataclass
class QuietNoise(RowNoise):
    """A `RowNoise` that does not make the host wait; draws on the device are one kernel, the rows' keys included."""

    def __post_init__(self) -> None:
        self.salt = salt_of(self.seed, self.stream)
        if not self._by_kernel():
            self._keys = self._hashed()

    def _by_kernel(self) -> bool:
        return kernels.on(self.rows, "noise") and self.rows.dtype == torch.int64

    def _hashed(self) -> Tensor:
        return mix64(mix64(self.rows.to(torch.int64) + GOLDEN) ^ self.salt)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        if not self._by_kernel() or dtype != torch.float64 or shape[0] != len(self.rows):
            if not hasattr(self, "_keys"):
                self._keys = self._hashed()
            return super().uniform(shape, dtype)
        from tsdfm.kernels.noise_triton import launch

        made = launch(self.rows, self.salt, self.draws * DRAW_STRIDE, torch.Size(shape))
        self.draws += 1
        return made

    def select(self, index: Tensor) -> QuietNoise:
        part = QuietNoise(self.seed, self.rows[index], self.stream)
        part.draws = self.draws
        return part


def quiet(noise: RowNoise) -> QuietNoise:
    """The same stream at the same place."""
    if isinstance(noise, QuietNoise):
        return noise
    made = QuietNoise(noise.seed, noise.rows, noise.stream)
    made.draws = noise.draws
    return made
