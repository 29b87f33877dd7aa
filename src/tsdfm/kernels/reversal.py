"""The time reversal of uniform noise: a logits row's part of Duo's bound, and its gradient by the logits.

At time t a position holds x_1 with probability κ, else a uniform token of K. Let q be the network's law of x_1, and

    c = κK/(1 − κ),    ĝ_y = 1 + c q_y,    g_y = 1 + c 1{y = x_1},    r̂_y = ĝ_y/ĝ_z,    r_y = g_y/g_z,    z = x_t

so that κ̇/(κK)·r̂_y is the rate at which the reversed process leaves z for y. The bound's rate, over κ̇/(κK), is

    Σ_{y≠z} [ r̂_y − r_y + r_y log(r_y/r̂_y) ].

All of it follows from three numbers of a row. With D_y = log ĝ_y, S = Σ_{y≠x_1} D_y and L = log((1 + c)/ĝ_{x_1}):

    z = x_1     [ (K + c)(e^L − 1) − (K − 1)L − S ] / (1 + c)
    else        (K + c)(D_z + e^{−D_z} − 1) + (1 + c)L − S

Where the network predicts p(x_1 | x_t) instead, q follows from it by Bayes: its logit of z is lowered by log(1 + c)
(`posterior`), and the gradient is the same.

Nothing here is a difference of large numbers that nearly cancel, so float32 does. Shapes: logits [n, V] or, for the
kernel (`reversal_triton`), [n, V′] with V′ ≥ V = K = `columns`; x_1, x_t, c, losses [n].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.kernels.inverse import chunks, flat_rows, floats
from tsdfm.kernels.rows import Graded


def reversal_bracket(
    log_1: Tensor, d_z: Tensor, others: Tensor, c: Tensor, columns: int, arrived: Tensor
) -> tuple[Tensor, Tensor]:
    """The bound's rate over κ̇/(κK), and L, from log q(x_1), D_z, S and whether x_t = x_1, all of one shape."""
    gap = torch.log1p(c * -torch.expm1(log_1) / (1 + c * log_1.exp()))
    here = ((columns + c) * torch.expm1(gap) - (columns - 1) * gap - others) / (1 + c)
    away = (columns + c) * (d_z + torch.expm1(-d_z)) + (1 + c) * gap - others
    return torch.where(arrived, here, away), gap


def without_own(logits: Tensor, x_t: Tensor, c: Tensor) -> Tensor:
    """Logits of q […, V] of those of p(x_1 | x_t) […, V]: the column of x_t […] is lowered by log(1 + c)."""
    return logits.scatter_add(-1, x_t[..., None], -torch.log1p(c)[..., None].to(logits.dtype))


def reversal_loss(logits: Tensor, x_1: Tensor, x_t: Tensor, c: Tensor, *, posterior: bool = False) -> Tensor:
    """The same […] of logits […, V] in float32 or better, by autograd; x_1, x_t, c […]."""
    logits = without_own(floats(logits), x_t, c) if posterior else floats(logits)
    log_q = logits.log_softmax(-1)
    c = c.to(log_q.dtype)
    spread = torch.log1p(c[..., None] * log_q.exp())
    log_1, d_1, d_z = (
        values.gather(-1, x[..., None]).squeeze(-1) for values, x in ((log_q, x_1), (spread, x_1), (spread, x_t))
    )
    return reversal_bracket(log_1, d_z, spread.sum(-1) - d_1, c, logits.shape[-1], x_1 == x_t)[0]


@torch.no_grad()
def reversal_value(logits: Tensor, x_1: Tensor, x_t: Tensor, c: Tensor) -> Tensor:
    """The same without gradients, by the kernel where it runs, and never for all positions at once."""
    flat, one, here, odds = flat_rows(logits), x_1.flatten(), x_t.flatten(), c.flatten()
    found = [
        reversal(flat[part], one[part], here[part], odds[part], odds[part], flat.shape[1], gradient=False)
        for part in chunks(flat)
    ]
    return torch.cat(found).view(x_1.shape)


def plain_reversal(
    logits: Tensor, x_1: Tensor, x_t: Tensor, c: Tensor, *, gradient: bool, posterior: bool = False
) -> Graded:
    """The losses [n] and their gradients by logits [n, V] in float32 or better.

    With m_y = c q_y/ĝ_y = ∂D_y/∂log q_y and G_y = ∂loss/∂D_y, the gradient is G_v m_v − q_v Σ_y G_y m_y, where

        z = x_1     G_y = [ −1 + 1{y = x_1}(K − (K + c)e^L) ] / (1 + c)
        else        G_y = −1 − c 1{y = x_1} + (K + c) m_z 1{y = z}
    """
    logits = without_own(logits, x_t, c) if posterior else logits
    columns, c = logits.shape[-1], c.to(logits.dtype)[:, None]
    log_q, x_1, x_t = logits.log_softmax(-1), x_1[:, None], x_t[:, None]
    q = log_q.exp()
    spread = torch.log1p(c * q)
    d_1, d_z, arrived = spread.gather(-1, x_1), spread.gather(-1, x_t), x_1 == x_t
    others = spread.sum(-1, keepdim=True) - d_1
    loss, gap = reversal_bracket(log_q.gather(-1, x_1), d_z, others, c, columns, arrived)
    if not gradient:
        return loss.squeeze(-1), None
    share = c * q / (1 + c * q)
    each = torch.where(arrived, 1 / (1 + c), 1.0)
    by_d = (-each).expand_as(q).clone()
    by_d.scatter_add_(-1, x_1, torch.where(arrived, each * (columns - (columns + c) * gap.exp()), -c))
    by_d.scatter_add_(-1, x_t, torch.where(arrived, 0.0, (columns + c) * share.gather(-1, x_t)))
    by_d *= share
    return loss.squeeze(-1), by_d - q * by_d.sum(-1, keepdim=True)


@torch.no_grad()
def reversal(
    logits: Tensor,
    x_1: Tensor,
    x_t: Tensor,
    c: Tensor,
    scale: Tensor,
    columns: int,
    *,
    gradient: bool = True,
    posterior: bool = False,
) -> Tensor:
    """The losses [n]; `logits` [n, V′] become the gradient times `scale` [n], where asked for."""
    if kernels.on(logits, "rows"):
        from tsdfm.kernels.reversal_triton import launch_reversal

        return launch_reversal(logits, x_1, x_t, c, scale, columns, gradient, posterior)
    own = floats(logits[:, :columns])
    loss, grad = plain_reversal(own, x_1, x_t, c, gradient=gradient, posterior=posterior)
    if grad is not None:
        logits[:, :columns] = grad * scale[:, None].to(grad.dtype)
        logits[:, columns:] = 0
    return loss


@dataclass(frozen=True)
class Reversal:
    """An objective of `kernels.fused`: x_1, x_t and c [N]; the weight κ̇/(κK) belongs into `scale`."""

    x_1: Tensor
    x_t: Tensor
    c: Tensor
    posterior: bool = False
    has_kernel: ClassVar[bool] = True

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `fused.Objective` says."""
        known = (self.x_1[part], self.x_t[part], self.c[part])
        return reversal(logits, *known, scale, columns, gradient=gradient, posterior=self.posterior)

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> Graded:
        known = (self.x_1[part], self.x_t[part], self.c[part])
        return plain_reversal(logits, *known, gradient=gradient, posterior=self.posterior)
