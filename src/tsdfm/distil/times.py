"""Which step a row of a batch trains: its step size h, its time t, and whether it takes the large-step target.

`Levels`     h ∈ {2^0, 2^−1, …, 2^−10}, t = k/1024 with t + h ≤ 1, all k alike. The smallest step learns from the data,
             the others from the semi-teacher.
`Doubling`   one h for all rows, twice as large in every round; t anywhere in [0, 1).

Everything follows from a row's running number, on the host: no device is waited for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.distil.settings import LEVELS
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, row_times

GRID = 1024
SMALLEST = 1.0 / GRID
"""The step size that learns from the data; every other one is above FS-DFM's bound of 1/513."""


def weights_of(kind: str, given: tuple[float, ...] = ()) -> Tensor:
    """The law of the level n of h = 2^−n, [11] float64; `given` weights go before `kind`."""
    if given:
        weights = torch.tensor(given, dtype=torch.float64)
        if len(given) != LEVELS or not bool(((weights >= 0) & weights.isfinite()).all()) or not weights.sum() > 0:
            raise UserError(f"level_weights takes {LEVELS} weights of at least 0, h = 1 first and h = 1/1024 last")
    elif kind == "inverse":
        weights = 2.0 ** torch.arange(LEVELS, dtype=torch.float64)
    else:
        weights = torch.ones(LEVELS, dtype=torch.float64)
    return weights / weights.sum()


def large_share(weights: Tensor, share: float | None) -> float:
    """The share of rows with a large step: as set, or as the weights say (∝ 1/h: 1023/2047)."""
    found = float(weights[:-1].sum()) if share is None else share
    if found > 0 and not weights[:-1].sum() > 0:
        raise UserError("level_weights give no large step any weight: set share to 0, or raise one of the first ten")
    return found


def is_large(rows: Tensor, share: float) -> Tensor:
    """Which running row numbers [n] take a large step: those at which ⌊r·share⌋ rises.

    Spread as evenly as can be, so that batches of one size hold the same number of them, give or take one.
    """
    rows = rows.to(torch.float64)
    return torch.floor((rows + 1) * share) > torch.floor(rows * share)


@functools.lru_cache(maxsize=16)
def _law(weights: tuple[float, ...]) -> tuple[Tensor, Tensor, int]:
    """The large levels' weight in all, its running sums [10], and the last level that has any."""
    law = torch.tensor(weights, dtype=torch.float64)[:-1]
    last = int((law > 0).nonzero().max()) if bool((law > 0).any()) else 0  # rounding must not reach a level of weight 0
    return law.sum(), law.cumsum(0), last


def draw_steps(large: Tensor, weights: Tensor, noise: RowNoise) -> tuple[Tensor, Tensor]:
    """t [n] and h [n], float64 and exact: a large row's level by `weights` without the smallest, the others' 1/1024."""
    u = noise.uniform((len(large), 2))
    whole, along, last = _law(tuple(weights.tolist()))
    level = (u[:, :1] * whole >= along).sum(-1).clamp(max=last)
    h = torch.where(large, 2.0 ** -level.to(torch.float64), SMALLEST)
    places = GRID * (1.0 - h) + 1  # whole numbers: 1 for h = 1, 1 024 for h = 1/1024
    return torch.floor(u[:, 1] * places) / GRID, h


@dataclass(frozen=True)
class Levels:
    """FS-DFM's steps: a large row's level n of h = 2^−n by `weights` [11], a share of rows large, the rest 1/1024."""

    weights: Tensor
    share: float
    smallest: float = SMALLEST

    def large(self, numbers: Tensor, step: int) -> Tensor:
        return is_large(numbers, self.share)

    def draw(self, large: Tensor, noise: RowNoise, step: int) -> tuple[Tensor, Tensor]:
        return draw_steps(large, self.weights, noise)


@dataclass(frozen=True)
class Doubling:
    """Steps that double every `every` steps of the training: h = first·2^round, cut off at t + h = 1; all rows large.

    t is spread over [0, 1) evenly: a row's time is that of its number (`flow.row_times`).
    """

    first: float
    every: int
    share: float = 1.0

    @property
    def smallest(self) -> float:
        return self.first

    def large(self, numbers: Tensor, step: int) -> Tensor:
        return torch.ones_like(numbers, dtype=torch.bool)

    def draw(self, large: Tensor, noise: RowNoise, step: int) -> tuple[Tensor, Tensor]:
        t = row_times(noise.rows, noise.seed)
        return t, (1.0 - t).clamp(max=self.first * 2.0 ** (step // self.every))
