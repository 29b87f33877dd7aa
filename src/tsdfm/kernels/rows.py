"""Losses of logits rows and their gradients by the logits: the one place where each of them is written.

    divergence   KL(p ‖ q) = Σ_v p_v log(p_v/q_v);   in reverse, KL(q ‖ p);   q student, p target
    tokens       cross-entropy −log q(x_1), or the bracket of the generalised KL:
                 1 − q(x_1) where x_t = x_1,   −log q(x_1) − q(x_t) elsewhere,   q([MASK]) = 0
    scores       score entropy Σ_{v≠x_t} [s_v − r_v log s_v + r_v(log r_v − 1)],   log s = logits − shift,
                 r_v = high at v = x_1 and low elsewhere

`plain_divergence`, `plain_tokens` and `plain_scores` are plain torch. `divergence`, `tokens` and `scores` are what the
Triton kernels beside them (`rows_triton`) do: they leave the gradient, multiplied by the row's `scale`, in the logits'
place. There the logits are [n, V′] with V′ ≥ V = `columns`: what lies beyond V is ignored, and its gradient is zero.
Losses are [n]; softmax and sums are float32 or better, whatever the logits' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm import kernels

Graded = tuple[Tensor, Tensor | None]
"""Losses [n], and their gradients by the logits [n, V] where those are asked for."""


def bracket(log_1: Tensor, q_t: Tensor, arrived: Tensor) -> Tensor:
    """The generalised KL without its weight κ̇/(1 − κ), from log q(x_1), q(x_t) and whether x_t = x_1, all of one shape.

        1 − q(x_1) where x_t has arrived,   −log q(x_1) − q(x_t) elsewhere

    Never negative, and zero exactly at q = 1{x_1} on what has arrived.
    """
    return torch.where(arrived, -torch.expm1(log_1), -log_1 - q_t)


def plain_tokens(logits: Tensor, x_1: Tensor, x_t: Tensor | None, *, gradient: bool) -> Graded:
    """Cross-entropy with x_1 [n], or with x_t [n] (V is [MASK]) the bracket; logits [n, V] in float32 or better.

    ∂(−log q(x_1))/∂l_v = q_v − 1{v = x_1};   of the bracket, with q_t = q(x_t):   q_v q(x_1) − 1{v = x_1} q(x_1) where
    x_t has arrived,   q_v (1 + q_t) − 1{v = x_1} − 1{v = x_t} q_t elsewhere.
    """
    log_q, x_1, last = logits.log_softmax(-1), x_1[:, None], logits.shape[-1] - 1
    log_1 = log_q.gather(-1, x_1)
    if x_t is None:
        return -log_1.squeeze(-1), log_q.exp_().scatter_add_(-1, x_1, _ones(log_1).neg_()) if gradient else None
    x_t = x_t[:, None]
    here = x_t.clamp(max=last)
    q_t = torch.where(x_t > last, 0.0, log_q.gather(-1, here).exp())
    arrived = x_1 == x_t
    loss = bracket(log_1, q_t, arrived).squeeze(-1)
    if not gradient:
        return loss, None
    q_1 = log_1.exp()
    grad = log_q.exp_().mul_(torch.where(arrived, q_1, 1.0 + q_t))
    grad.scatter_add_(-1, x_1, -torch.where(arrived, q_1, _ones(q_1)))
    return loss, grad.scatter_add_(-1, here, -torch.where(arrived, 0.0, q_t))


@dataclass(frozen=True)
class Ratios:
    """What a score entropy is measured against, for each row [n]: x_1, x_t (V is [MASK]), and shift, low, high."""

    x_1: Tensor
    x_t: Tensor
    shift: Tensor
    low: Tensor
    high: Tensor

    def __getitem__(self, part: slice) -> Ratios:
        return Ratios(self.x_1[part], self.x_t[part], self.shift[part], self.low[part], self.high[part])


def plain_scores(logits: Tensor, to: Ratios, *, gradient: bool) -> Graded:
    """Score entropy of logits [n, V] in float32 or better: a sum of r(e^d − 1 − d), d = log s − log r, or s at r = 0.

    No term is negative, and all are zero at s = r. The gradient by l_v is s_v − r_v, and 0 at v = x_t.
    """
    log_s = logits - to.shift[:, None].to(logits.dtype)
    low, high = (r[:, None].to(logits.dtype) for r in (to.low, to.high))
    r = low.expand_as(log_s).scatter(-1, to.x_1[:, None], high)
    d = torch.where(r > 0, log_s - r.log(), 0.0)
    term = torch.where(r > 0, r * (torch.expm1(d) - d), log_s.exp())
    there = torch.arange(logits.shape[-1], device=logits.device) == to.x_t[:, None]
    loss = term.masked_fill(there, 0.0).sum(-1)
    return loss, (log_s.exp() - r).masked_fill_(there, 0.0) if gradient else None


def plain_divergence(logits: Tensor, log_p: Tensor, *, reverse: bool, gradient: bool) -> Graded:
    """KL(p ‖ q) or, in reverse, KL(q ‖ p) of logits of q and log p, both [n, V] in float32 or better; log p is used up.

    ∂KL(p ‖ q)/∂l = q − p;   ∂KL(q ‖ p)/∂l = q · (log q − log p − KL(q ‖ p))
    """
    log_q = logits.log_softmax(-1)
    if not reverse:
        p = log_p.exp()
        loss = (p * log_p.sub_(log_q)).sum(-1)
        return loss, log_q.exp_().sub_(p) if gradient else None
    q = log_q.exp()
    gap = log_q.sub_(log_p)
    loss = (q * gap).sum(-1)
    return loss, q.mul_(gap.sub_(loss[:, None])) if gradient else None


@torch.no_grad()
def divergence(
    logits: Tensor, target: Tensor, scale: Tensor, columns: int, *, reverse: bool = False, gradient: bool = True
) -> Tensor:
    """KL [n] of each row of `logits` (q) and `target` (p), both [n, V′].

    `logits` become the gradient times `scale` [n], where asked for.
    """
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.rows_triton import launch_divergence

        return launch_divergence(logits, target, scale, columns, reverse, gradient)
    log_p = _wide(target[:, :columns]).log_softmax(-1)
    loss, grad = plain_divergence(_wide(logits[:, :columns]), log_p, reverse=reverse, gradient=gradient)
    _replace(logits, grad, scale, columns)
    return loss


@torch.no_grad()
def tokens(
    logits: Tensor, x_1: Tensor, x_t: Tensor | None, scale: Tensor, columns: int, *, gradient: bool = True
) -> Tensor:
    """Cross-entropy [n] with x_1 [n] where x_t is None; else the bracket, with x_t [n], where V is [MASK].

    `logits` [n, V′] become the gradient times `scale` [n], where asked for.
    """
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.rows_triton import launch_tokens

        return launch_tokens(logits, x_1, x_t, scale, columns, gradient)
    loss, grad = plain_tokens(_wide(logits[:, :columns]), x_1, x_t, gradient=gradient)
    _replace(logits, grad, scale, columns)
    return loss


@torch.no_grad()
def scores(logits: Tensor, to: Ratios, scale: Tensor, columns: int, *, gradient: bool = True) -> Tensor:
    """Score entropy [n] of rows `logits` [n, V′], which become the gradient times `scale` [n], where asked for."""
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.rows_triton import launch_scores

        return launch_scores(logits, to, scale, columns, gradient)
    loss, grad = plain_scores(_wide(logits[:, :columns]), to, gradient=gradient)
    _replace(logits, grad, scale, columns)
    return loss


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _ones(like: Tensor) -> Tensor:
    return torch.ones_like(like)


def _replace(logits: Tensor, grad: Tensor | None, scale: Tensor, columns: int) -> None:
    if grad is not None:
        logits[:, :columns] = grad * scale[:, None].to(grad.dtype)
        logits[:, columns:] = 0
