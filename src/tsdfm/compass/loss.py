"""The three terms of the compass's loss. Energies come in as float32 (or float64) [B], [B, N]."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def nce(positive: Tensor, negatives: Tensor, void: Tensor | None = None) -> Tensor:
    """−log e^{−E(x_t)} / (e^{−E(x_t)} + Σ_j e^{−E(x̃_j)}) of each row [B]; void negatives [B, N] are left out."""
    against = -negatives if void is None else (-negatives).masked_fill(void, -math.inf)
    return torch.logsumexp(torch.cat([-positive[:, None], against], dim=1), dim=1) + positive


def regularisation(positive: Tensor) -> Tensor:
    """E(x_t)² [B]: keeps the scale of the energies where it is."""
    return positive**2


def ordering(positive: Tensor, earlier: Tensor, delta: Tensor, gamma: float, void: Tensor | None = None) -> Tensor:
    """max(0, E(x_t) − E(x_{t′}) + γδ) [B]; 0 for a void row, whose x_{t′} is x_t itself."""
    hinge = torch.relu(positive - earlier + gamma * delta.to(positive.dtype))
    return hinge if void is None else hinge.masked_fill(void, 0.0)
