"""Losses of an x_1-predicting model: cross-entropy, and the generalised KL bound.

    ℓ(t) = −κ̇/(1−κ) · [ p(x_t | x_t) − 1{x_1 = x_t} + 1{x_1 ≠ x_t} · log p(x_1 | x_t) ]

ℓ integrated over t bounds −log p(x_1) from above. Shapes: logits [B, L, V]; x_1, x_t [B, L]; t [B]. Float32 or better.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source
from tsdfm.kernels import rows

LAST_TIME = 1.0 - 1e-5
"""The weight κ̇/(1−κ) has a pole at t = 1; times are held below it."""

Reduction = Literal["mean", "none"]


def _log_probability(logits: Tensor, *tokens: Tensor) -> list[Tensor]:
    """log p of some tokens [B, L] each. By logsumexp and gathers: no [B, L, V] of log-probabilities is kept."""
    logits = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    norm = logits.logsumexp(-1)
    return [logits.gather(-1, x.unsqueeze(-1)).squeeze(-1) - norm for x in tokens]


def _reduce(loss: Tensor, reduction: Reduction) -> Tensor:
    return loss.mean() if reduction == "mean" else loss


def cross_entropy(logits: Tensor, x_1: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """−log p(x_1 | x_t), at every position, arrived or not."""
    (log_p,) = _log_probability(logits, x_1)
    return _reduce(-log_p, reduction)


def bracket(logits: Tensor, x_1: Tensor, x_t: Tensor, source: Source) -> Tensor:
    """The generalised KL [B, L] without its weight, `kernels.rows.bracket` of logits [B, L, V] and x_1, x_t [B, L].

    [MASK] has no column: p([MASK]) = 0.
    """
    log_p_1, log_p_t = _log_probability(logits, x_1, x_t.clamp(max=source.vocab - 1))
    p_t = log_p_t.exp()
    if source.mask is not None:
        p_t = torch.where(x_t == source.mask, 0.0, p_t)
    return rows.bracket(log_p_1, p_t, x_1 == x_t)


def generalised_kl(
    logits: Tensor,
    x_1: Tensor,
    x_t: Tensor,
    t: Tensor,
    schedule: Schedule,
    source: Source,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """ℓ(t) at every position, or its mean."""
    loss = bracket(logits, x_1, x_t, source)
    weight = schedule.rate(t.to(torch.float64).clamp(max=LAST_TIME)).to(loss.dtype)
    return _reduce(weight.view(-1, *[1] * (loss.ndim - 1)) * loss, reduction)
