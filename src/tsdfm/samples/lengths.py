"""Gaps whose length the model chooses: `{3-8}`.

Every combination of lengths is written from the same seed and number. Kept is the one whose stretch from the first gap
to the last literal the model finds likeliest per token: the least bound of −log p, the model's own, of that stretch,
given the rest of the row. The literals are what tells: after a gap of the wrong length they stand where the model does
not expect them.
"""

from __future__ import annotations

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
    found, model = list[Tensor](), velocity.reading(bound.reads)
    for start in range(0, len(tokens), batch):
        part = slice(start, start + batch)
        numbers, x_1 = asked.numbers[part].to(velocity.device), tokens[part].to(velocity.device)
        given = asked.rows(part, velocity.device)
        assert given is not None  # a template gives something, its gaps at least
        outside = ~stretch(given)
        noise = RowNoise(seed, numbers, STREAM)
        found.append(bound.rows(model, x_1, velocity.schedule, velocity.source, TIMES, noise, h=h, given=outside))
    nats = torch.cat(found).nan_to_num(0.0).cpu()  # nothing to score where a template ends with its first gap
    kept, texts = list[int](), asked.numbers.tolist()
    for row, number in enumerate(texts):
        if not row or number != texts[row - 1]:
            kept.append(row)
        elif nats[row] < nats[kept[-1]]:
            kept[-1] = row
    return torch.tensor(kept)


def stretch(given: Given) -> Tensor:
    """The positions [B, L] from the first gap to the last literal."""
    free = ~given.held
    begun = free.cumsum(1) > 0
    goes_on = given.held.flip(1).cumsum(1).flip(1) > 0
    return begun & goes_on
