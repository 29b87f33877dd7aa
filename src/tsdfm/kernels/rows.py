"""Losses of logits rows, with the gradient by the logits written in the logits' place.

    divergence   KL(p ‖ q) or, in reverse, KL(q ‖ p), of rows of logits of q (student) and p (target)
    tokens       c − w_1 log q(x_1) and the like: cross-entropy, and the generalised KL of `flow.loss.bracket`

The gradient comes multiplied by the row's `scale`. Softmax and sums are float32 or better, whatever the logits' dtype.
Logits are [n, V′] with V′ ≥ V = `columns`: what lies beyond V is ignored, and its gradient is zero. Losses are [n].
"""

from __future__ import annotations

import torch
from torch import Tensor

from tsdfm import kernels


@torch.no_grad()
def divergence(
    logits: Tensor, target: Tensor, scale: Tensor, columns: int, *, reverse: bool = False, gradient: bool = True
) -> Tensor:
    """The divergence of each row; `logits` become its gradient times `scale` [n], where asked for."""
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.rows_triton import launch_divergence

        return launch_divergence(logits, target, scale, columns, reverse, gradient)
    return divergence_reference(logits, target, scale, columns, reverse=reverse, gradient=gradient)


@torch.no_grad()
def divergence_reference(
    logits: Tensor, target: Tensor, scale: Tensor, columns: int, *, reverse: bool = False, gradient: bool = True
) -> Tensor:
    log_q, log_p = (_wide(x[:, :columns]).log_softmax(-1) for x in (logits, target))
    if reverse:
        gap = log_q - log_p
        loss = (log_q.exp() * gap).sum(-1)
        grad = log_q.exp() * (gap - loss[:, None])
    else:
        loss = (log_p.exp() * (log_p - log_q)).sum(-1)
        grad = log_q.exp() - log_p.exp()
    if gradient:
        _replace(logits, grad, scale, columns)
    return loss


@torch.no_grad()
def tokens(
    logits: Tensor, x_1: Tensor, x_t: Tensor | None, scale: Tensor, columns: int, *, gradient: bool = True
) -> Tensor:
    """Cross-entropy with x_1 [n] where x_t is None; else the generalised KL's bracket, with x_t = V for [MASK]."""
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.rows_triton import launch_tokens

        return launch_tokens(logits, x_1, x_t, scale, columns, gradient)
    return tokens_reference(logits, x_1, x_t, scale, columns, gradient=gradient)


@torch.no_grad()
def tokens_reference(
    logits: Tensor, x_1: Tensor, x_t: Tensor | None, scale: Tensor, columns: int, *, gradient: bool = True
) -> Tensor:
    log_q, x_1 = _wide(logits[:, :columns]).log_softmax(-1), x_1[:, None]
    log_1 = log_q.gather(-1, x_1)
    grad = log_q.exp()
    if x_t is None:
        loss = -log_1
        grad.scatter_add_(-1, x_1, torch.full_like(log_1, -1.0))
    else:
        x_t = x_t[:, None]
        here = x_t.clamp(max=columns - 1)
        q_t = torch.where(x_t >= columns, 0.0, log_q.gather(-1, here).exp())
        arrived = x_1 == x_t
        loss = torch.where(arrived, -torch.expm1(log_1), -log_1 - q_t)
        grad *= torch.where(arrived, log_1.exp(), 1.0 + q_t)
        grad.scatter_add_(-1, x_1, -torch.where(arrived, log_1.exp(), 1.0))
        grad.scatter_add_(-1, here, -torch.where(arrived, 0.0, q_t))
    if gradient:
        _replace(logits, grad, scale, columns)
    return loss.squeeze(-1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _replace(logits: Tensor, grad: Tensor, scale: Tensor, columns: int) -> None:
    logits[:, :columns] = grad * scale[:, None].to(grad.dtype)
    logits[:, columns:] = 0
