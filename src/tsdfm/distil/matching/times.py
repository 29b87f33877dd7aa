"""Which row of a batch learns what, and at which of k passes it stands. Everything follows from its running number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.distil.times import Levels, is_large
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise

OWN, DATA, CHAIN, FLOOR = range(4)
"""Matched from the student's own texts, matched from noised data, and the anchor's rows: large and smallest steps."""


@dataclass(frozen=True)
class Passes:
    """A number of passes k by its weight, and one of them, j = 0 … k − 1, all alike.

    t_a = 1 − (1 − j/k)^b,  h up to the next pass;  b = `power` 1 are equal steps h = 1/k, above it a late grid
    """

    counts: tuple[int, ...]
    weights: tuple[float, ...]
    power: float = 1.0

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise UserError("passes are whole numbers of at least 1, one or more")
        if len(self.weights) != len(self.counts) or min(self.weights) < 0 or not sum(self.weights) > 0:
            raise UserError(f"pass_weights takes {len(self.counts)} weights of at least 0, one for each of passes")

    def draw(self, noise: RowNoise) -> tuple[Tensor, Tensor]:
        """k [n] and j [n], int64, for the rows of `noise`, on the host."""
        u = noise.uniform((len(noise.rows), 2))
        edges = torch.tensor(self.weights, dtype=torch.float64).cumsum(0)
        which = (u[:, :1] * edges[-1] >= edges).sum(-1)
        last = max(i for i, weight in enumerate(self.weights) if weight > 0)
        k = torch.tensor(self.counts)[which.clamp(max=last)]
        return k, (u[:, 1] * k).to(torch.int64)

    def times(self, k: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """t_a [n] and h [n], float64, of pass j [n] of k [n]."""
        if self.power == 1.0:
            return j.double() / k, 1.0 / k.double()
        left, then = 1.0 - j.double() / k, 1.0 - (j + 1).double() / k
        return 1.0 - left**self.power, left**self.power - then**self.power


@dataclass(frozen=True)
class MatchedTimes:
    """The kinds of a batch's rows: `anchor` of them learn FS-DFM's loss, `own` of the others go on with texts.

    A row with a text of its own has the same place in every batch.
    """

    passes: Passes
    levels: Levels
    batch: int
    anchor: float
    own: float

    @property
    def share(self) -> float:
        """The share of rows with a large step, of the anchor's or of k."""
        return 1.0 - self.anchor * (1.0 - self.levels.share)

    @property
    def smallest(self) -> float:
        return self.levels.smallest

    def kinds(self, numbers: Tensor) -> Tensor:
        """The kind of each running row number [B], int64."""
        place, step = numbers % self.batch, torch.div(numbers, self.batch, rounding_mode="floor")
        before = torch.floor(place.double() * self.anchor).long()  # rows of the anchor at lower places
        each = int(torch.floor(torch.tensor(self.batch * self.anchor, dtype=torch.float64)))
        large = is_large(step * each + before, self.levels.share)
        matched = torch.where(is_large(place - before, self.own), OWN, DATA)
        return torch.where(is_large(place, self.anchor), torch.where(large, CHAIN, FLOOR), matched)

    def large(self, numbers: Tensor, step: int) -> Tensor:
        """Which running row numbers [B] take a large step, bool [B]."""
        return self.kinds(numbers) < FLOOR

    def draw(self, large: Tensor, noise: RowNoise, step: int) -> tuple[Tensor, Tensor]:
        """t [B] and h [B], float64: of k passes where `large`, else the smallest step's."""
        k, j = self.passes.draw(noise.select(torch.arange(len(large))))
        t, h = self.levels.draw(torch.zeros_like(large), noise, step)
        t_a, long = self.passes.times(k, j)
        return torch.where(large, t_a, t), torch.where(large, long, h)
