"""Walks that `TextModel.sample` does not make: part of the way, and from a prefix of its own for each row."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tsdfm.engine.precision import autocast
from tsdfm.flow import Jump, RowNoise, grid, solve
from tsdfm.flow.draw import shape_logits
from tsdfm.samples.model import TextModel


def points_between(start: float, end: float, steps: int) -> tuple[float, ...]:
    """`steps` equal steps from start to end."""
    return (*(start + (end - start) * k / steps for k in range(steps)), end)


def allocation(steps: int, t_mid: float) -> tuple[int, int]:
    """The paper's split of a budget: max(1, ⌊S·t⌋) steps to the midpoint (none at t = 0), max(1, ⌊S·(1 − t)⌋) from it.

    >>> allocation(8, 0.3)
    (2, 5)
    """
    near = 1e-9  # 10 · 0.3 is 3
    before = max(1, math.floor(steps * t_mid + near)) if t_mid > 0 else 0
    return before, max(1, math.floor(steps * (1 - t_mid) + near))


@torch.no_grad()
def walk(
    made: TextModel,
    x: Tensor,
    points: tuple[float, ...],
    jump: Jump,
    noise: RowNoise,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Tensor:
    """States x [B, L] taken along the times `points`; the anchor stays."""
    anchor = x[:, : made.velocity.spec.anchor].clone()
    with autocast(made.bf16, made.velocity.device):
        for start, end in pairwise(points):
            t = torch.full((len(x),), start, dtype=torch.float64, device=x.device)
            h = torch.full_like(t, end - start)
            logits = shape_logits(made.velocity(x, t.float(), h.float()), temperature, top_p)
            x = jump(x, logits, t, h, noise)
            x[:, : anchor.shape[1]] = anchor
    return x


def sources(made: TextModel, numbers: Tensor, seed: int) -> tuple[Tensor, RowNoise]:
    """Where texts of these numbers start [B, L], and their noise; the anchor is in its place."""
    spec = made.velocity.spec
    noise = RowNoise(seed, numbers)
    x = made.velocity.source.draw((len(numbers), spec.length), noise, numbers.device)
    x[:, : spec.anchor] = made.tokenizer.end_of_text
    return x, noise


@torch.no_grad()
def continue_rows(
    made: TextModel, rows: Tensor, held: Tensor, steps: int, seed: int, jump: Jump, temperature: float, top_p: float
) -> Tensor:
    """Rows [n, L] written anew except where `held` [n, L], a batch at a time; row i depends on the seed and i alone."""
    device, size, out = made.velocity.device, made.batch_size(), list[Tensor]()
    for first in range(0, len(rows), size):
        part, kept = rows[first : first + size].to(device), held[first : first + size].to(device)
        noise = RowNoise(seed, torch.arange(first, first + len(part), device=device))
        x_0 = made.velocity.source.draw(part.shape, noise, device)
        with autocast(made.bf16, device):
            found = solve(
                made.velocity,
                x_0,
                grid(steps),
                jump,
                noise,
                given=kept,
                given_tokens=part,
                temperature=temperature,
                top_p=top_p,
            )
        out.append(found.tokens.cpu())
    return torch.cat(out)
