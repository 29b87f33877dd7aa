"""Gaps whose length the model chooses: `{3-8}`.

Every combination of lengths is written from the same seed and number. Kept is the one whose stretch from the first gap
to the last literal the model finds likeliest per token: the least bound of −log p, the model's own, of that stretch,
given the rest of the row. The literals are what tells: after a gap of the wrong length they stand where the model does
not expect them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tsdfm.flow import Bound, RowNoise
from tsdfm.nn.velocity import Velocity
from tsdfm.samples.given import Asked, Given

TIMES = 8  # passes that score a text
STREAM = 1 << 21  # of the scoring's own random numbers


def likeliest(
    velocity: Velocity, bound: Bound, asked: Asked, tokens: Tensor, seed: int, h: float, batch: int
) -> Tensor:
    """Which rows [n] of finished `tokens` [R, L] to keep, one for each text; of equal ones, the first.

    `h` is the step size that a few-step model is told.
    """
    found = list[Tensor]()
    for start in range(0, len(tokens), batch):
        part = slice(start, start + batch)
        given = asked.rows(part, velocity.device)
        assert given is not None  # a template gives something, its gaps at least
        found.append(bounds(velocity, bound, given, asked.numbers[part], tokens[part], seed, h))
    return torch.tensor(kept(asked.numbers.tolist(), torch.cat(found).tolist()))


def bounds(
    velocity: Velocity, bound: Bound, given: Given, numbers: Tensor, tokens: Tensor, seed: int, h: float
) -> Tensor:
    """The bound [B] of the stretch of each finished row [B, L]; 0 where a template ends with its first gap."""
    noise, x_1 = RowNoise(seed, numbers.to(velocity.device), STREAM), tokens.to(velocity.device)
    model, law = velocity.reading(bound.reads), (velocity.schedule, velocity.source)
    return bound.rows(model, x_1, *law, TIMES, noise, h=h, given=~stretch(given)).nan_to_num(0.0).cpu()


def kept(numbers: Sequence[int], bound: Sequence[float]) -> list[int]:
    """The row with the least bound of each text; rows of one text have its number and follow each other."""
    best = list[int]()
    for row, number in enumerate(numbers):
        if not row or number != numbers[row - 1]:
            best.append(row)
        elif bound[row] < bound[best[-1]]:
            best[-1] = row
    return best


def stretch(given: Given) -> Tensor:
    """The positions [B, L] from the first gap to the last literal."""
    free = ~given.held
    begun = free.cumsum(1) > 0
    goes_on = given.held.flip(1).cumsum(1).flip(1) > 0
    return begun & goes_on
