"""Uniform random numbers that belong to a sample, not to a batch.

`RowNoise` is a counter-based generator: the numbers of row i are a hash of (seed, i, draw, position) and of nothing
else. A text therefore does not change with the batch it was made in, a training row sees the same noise on one process
or on eight, and nothing has to be stored to resume. Every function of `flow` that needs randomness takes `noise`, which
is either a `RowNoise` or a plain `torch.Generator` (faster on a GPU, tied to the batch).

The hash is two rounds of the splitmix64 finaliser in wrapping 64-bit integers, so CPU and GPU give the same bits; on
a GPU with Triton a draw is one launch (`kernels/noise_triton.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.errors import UserError

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
WORD = (1 << 64) - 1
GOLDEN_RATIO = 0.6180339887498949  # its fractional part
FEW = 1024  # numbers up to which the calls cost more than the arithmetic
DRAW_STRIDE = 1 << 40  # positions within one draw stay below this, so draws never share a counter


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical (unsigned) right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix64(x: Tensor) -> Tensor:
    """splitmix64's finaliser: a bijection of 64-bit integers that scatters neighbouring inputs."""
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)


def hashed(keys: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniforms in [0, 1), a hash of keys and counters that broadcast; 53 random bits in float64, 24 in float32."""
    bits = mix64(mix64(keys + counter * GOLDEN) + keys)
    keep = 53 if dtype == torch.float64 else 24
    return _shift_right(bits, 64 - keep).to(dtype) * 2.0**-keep


def few_uniforms(rows: Tensor, salt: int, start: int, shape: tuple[int, ...]) -> Tensor:
    """The same bits as `RowNoise.uniform` for row numbers [B] on the host, by numpy: a tenth of the calls' cost."""

    def mix(x: Any) -> Any:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1 & WORD)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2 & WORD)
        return x ^ (x >> np.uint64(31))

    golden, numbers = np.uint64(GOLDEN & WORD), rows.detach().numpy().view(np.uint64)
    counter = np.arange(start, start + math.prod(shape[1:]), dtype=np.uint64)
    keys = mix(mix(numbers + golden) ^ np.uint64(salt & WORD))[:, None]
    bits = mix(mix(keys + counter * golden) + keys) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53).view(shape)


def _mixed(x: int) -> int:
    """`mix64` of one number, as 64 bits without a sign."""
    x = ((x ^ (x >> 30)) * MIX_1) & WORD
    x = ((x ^ (x >> 27)) * MIX_2) & WORD
    return x ^ (x >> 31)


@functools.lru_cache(maxsize=4096)
def salt_of(seed: int, stream: int) -> int:
    """What is mixed into every row's key; a number of the host, so that no device is waited for."""
    if not -(2**63) <= seed < 2**63:
        raise UserError(f"a seed is a whole number of 64 bits, not {seed}")
    salt = _mixed(_mixed((seed + GOLDEN) & WORD) ^ ((stream * MIX_1) & WORD))
    return salt - (1 << 64) if salt >> 63 else salt


def sent(x: Tensor, device: torch.device) -> Tensor:
    """x of the host on a device. Neither waits for the other: a GPU takes it from memory that it can read by itself."""
    return x if device.type == "cpu" else x.pin_memory().to(device, non_blocking=True)


@dataclass
class RowNoise:
    """A stream of uniforms for each row; `rows` [B] are the rows' own numbers, int64.

    Two `RowNoise` objects with the same seed give row i the same numbers whatever their other rows are, as long as the
    same draws are asked for in the same order. `stream` separates uses that must not share numbers.
    """

    seed: int
    rows: Tensor
    stream: int = 0
    draws: int = 0
    _keys: Tensor | None = field(init=False, repr=False, default=None)

    @property
    def keys(self) -> Tensor:
        """The hash of each row's number [B], made when it is first asked for: a kernel makes its own."""
        if self._keys is None:
            self._keys = mix64(mix64(self.rows.to(torch.int64) + GOLDEN) ^ salt_of(self.seed, self.stream))
        return self._keys

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Uniforms in [0, 1) of `shape` = [B, …]; 53 random bits in float64, 24 in float32."""
        if shape[0] != len(self.rows):
            raise ValueError(f"noise has {len(self.rows)} rows, {shape[0]} were asked for")
        start = self.draws * DRAW_STRIDE
        self.draws += 1
        if dtype == torch.float64 and self.rows.dtype == torch.int64 and kernels.on(self.rows, "noise"):
            from tsdfm.kernels.noise_triton import launch

            made: Tensor = launch(self.rows, salt_of(self.seed, self.stream), start, torch.Size(shape))
            return made
        inner = torch.Size(shape[1:])
        if dtype == torch.float64 and self._few(inner):
            return few_uniforms(self.rows, salt_of(self.seed, self.stream), start, tuple(shape))
        counter = torch.arange(inner.numel(), device=self.rows.device).view(inner) + start
        return hashed(self.keys.view(-1, *[1] * len(inner)), counter, dtype)

    def _few(self, inner: torch.Size) -> bool:
        """Few plain numbers on the host, as the steps of a batch are: numpy has them sooner."""
        rows = self.rows
        plain = type(rows) is Tensor and rows.device.type == "cpu" and rows.dtype == torch.int64
        return plain and len(rows) * inner.numel() <= FEW and not torch.compiler.is_compiling()

    def moved(self, device: torch.device) -> RowNoise:
        """The same streams, at the same place, on a device, which is not waited for."""
        return RowNoise(self.seed, sent(self.rows, device), self.stream, self.draws)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: Tensor) -> RowNoise:
        """The same streams, at the same place, for some of the rows."""
        part = RowNoise(self.seed, self.rows[index], self.stream)
        part.draws = self.draws
        return part


@dataclass
class JoinedNoise:
    """The streams of rows that have each a seed of their own and began at other times, as their `RowNoise` has them.

    `keys` [B] are those of the rows, `starts` [B] the first counters of their next draw. All of it lies on the device:
    a draw takes nothing from the host.
    """

    keys: Tensor
    starts: Tensor

    @staticmethod
    def begun(seeds: Sequence[int], rows: Sequence[int]) -> JoinedNoise:
        """At their beginning, on the host: rows of these numbers."""
        salts = torch.tensor([salt_of(seed, 0) for seed in seeds])
        keys = mix64(mix64(torch.tensor(rows) + GOLDEN) ^ salts)
        return JoinedNoise(keys, torch.zeros_like(keys))

    @staticmethod
    def of(parts: Sequence[RowNoise | JoinedNoise]) -> JoinedNoise:
        """All rows of several, each where it is."""
        starts = [
            part.starts if isinstance(part, JoinedNoise) else torch.full_like(part.keys, part.draws * DRAW_STRIDE)
            for part in parts
        ]
        return JoinedNoise(torch.cat([part.keys for part in parts]), torch.cat(starts))

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Uniforms in [0, 1) of `shape` = [B, …], as `RowNoise` has them."""
        if shape[0] != len(self):
            raise ValueError(f"noise has {len(self)} rows, {shape[0]} were asked for")
        inner = torch.Size(shape[1:])
        keys, first = (x.view(-1, *[1] * len(inner)) for x in (self.keys, self.starts))
        self.starts = self.starts + DRAW_STRIDE
        return hashed(keys, first + torch.arange(inner.numel(), device=keys.device).view(inner), dtype)

    def moved(self, device: torch.device) -> JoinedNoise:
        """The same streams, at the same place, on a device, which is not waited for."""
        return JoinedNoise(sent(self.keys, device), sent(self.starts, device))

    def select(self, index: Tensor) -> JoinedNoise:
        """The same streams, at the same place, for some of the rows."""
        return JoinedNoise(self.keys[index], self.starts[index])


Noise = RowNoise | JoinedNoise | torch.Generator


def uniform(noise: Noise, shape: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniforms in [0, 1) of `shape` from any kind of noise."""
    if isinstance(noise, torch.Generator):
        return torch.rand(tuple(shape), generator=noise, device=device, dtype=dtype)
    return noise.uniform(shape, dtype).to(device)


def uniforms(noise: Noise, count: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """The next `count` draws of `shape` = [B, …], [count, B, …] float64; of a single row on a GPU in one launch."""
    if isinstance(noise, RowNoise) and len(noise) == 1 and kernels.on(noise.rows, "noise"):
        from tsdfm.kernels.noise_triton import launch

        start, noise.draws = noise.draws * DRAW_STRIDE, noise.draws + count
        each = torch.Size((count, *shape[1:]))
        made: Tensor = launch(noise.rows.expand(count), salt_of(noise.seed, noise.stream), start, each, DRAW_STRIDE)
        return made.unsqueeze(1)
    return torch.stack([uniform(noise, shape, device) for _ in range(count)])


def row_times(rows: Tensor, seed: int) -> Tensor:
    """A time in [0, 1) for each running row number [B]: the golden-ratio sequence, shifted by the seed.

    A row's time depends on its number alone, so it is the same on one process or many; and neighbouring rows, which
    share a batch, cover [0, 1) far more evenly than independent draws would.
    """
    shift = RowNoise(seed, torch.zeros(1, dtype=torch.int64), stream=2).uniform((1,)).item()
    return torch.frac(rows.to(torch.float64) * GOLDEN_RATIO + shift)
