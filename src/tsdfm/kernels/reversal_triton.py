# mypy: ignore-errors
"""The kernel of `kernels.reversal`: a program a row, three reads of it (two from the cache) and one write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tsdfm.kernels.rows_triton import LOWEST, _block, _exp, _join, _load, _more

REVERSAL = (4096, 16)  # columns of one trip of a loop, warps


@triton.jit
def _log1p(x):
    """log(1 + x) for x ≥ 0, by its series where 1 + x would round x away."""
    series = x * (1.0 - x * (0.5 - x * (0.33333334 - x * 0.25)))
    return tl.where(x < 0.01, series, tl.log(1.0 + x))


@triton.jit
def _expm1(x):
    """e^x − 1, by its series near 0."""
    series = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * 0.008333334))))
    return tl.where(tl.abs(x) < 0.05, series, _exp(x) - 1.0)


@triton.jit
def _lowered(row, column, here, own, V, VP, POSTERIOR: tl.constexpr):
    """Logits of V columns; of the posterior, the one at `here` less by `own`."""
    x = _load(row, column, V, VP)
    if POSTERIOR:
        x -= tl.where(column == here, own, 0.0)
    return x


@triton.jit
def reversal_kernel(
    logits, stride, x_1, x_t, odds, scale, loss, V, VP, C: tl.constexpr, GRAD: tl.constexpr, POSTERIOR: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    row = logits + n * stride
    i = tl.arange(0, C)
    # the two tokens' logits are read before the sums over lanes, hence before anyone writes
    one, here = tl.load(x_1 + n), tl.load(x_t + n)
    l_1, l_z = tl.load(row + one).to(tl.float32), tl.load(row + here).to(tl.float32)
    c = tl.load(odds + n).to(tl.float32)
    own = _log1p(c)
    if POSTERIOR:
        l_1 -= tl.where(one == here, own, 0.0)
        l_z -= own
    peak = tl.full([C], LOWEST, tl.float32)
    total = tl.zeros([C], tl.float32)
    for first in range(0, V, C):
        peak, total = _more(peak, total, _lowered(row, first + i, here, own, V, VP, POSTERIOR))
    lse = _join(peak, total)
    spreads = tl.zeros([C], tl.float32)
    shares = tl.zeros([C], tl.float32)
    for first in range(0, V, C):
        x = c * _exp(_lowered(row, first + i, here, own, V, VP, POSTERIOR) - lse)  # 0 beyond V
        spreads += _log1p(x)
        shares += x / (1.0 + x)
    q_1, x_z = _exp(l_1 - lse), c * _exp(l_z - lse)
    arrived, wide = one == here, V + c
    others = tl.sum(spreads, axis=0) - _log1p(c * q_1)
    gap = _log1p(-c * _expm1(l_1 - lse) / (1.0 + c * q_1))
    d_z, m_z = _log1p(x_z), x_z / (1.0 + x_z)
    each = tl.where(arrived, 1.0 / (1.0 + c), 1.0)
    there = (wide * _expm1(gap) - (V - 1) * gap - others) * each
    away = wide * (d_z + _expm1(-d_z)) + (1.0 + c) * gap - others
    tl.store(loss + n, tl.where(arrived, there, away))
    if GRAD:
        weight = tl.load(scale + n).to(tl.float32)
        m_1 = c * q_1 / (1.0 + c * q_1)
        from_1 = tl.where(arrived, each * (V - wide * _exp(gap)), -c) * m_1
        from_z = tl.where(arrived, 0.0, wide * m_z) * m_z
        whole = from_1 + from_z - each * tl.sum(shares, axis=0)
        for first in range(0, VP, C):
            column = first + i
            q = _exp(_lowered(row, column, here, own, V, VP, POSTERIOR) - lse)
            grad = -each * (c * q / (1.0 + c * q)) - q * whole
            grad += tl.where(column == one, from_1, 0.0) + tl.where(column == here, from_z, 0.0)
            grad = tl.where(column < V, grad * weight, 0.0)
            tl.store(row + column, grad.to(logits.dtype.element_ty), mask=column < VP)


def launch_reversal(
    logits: Tensor, x_1: Tensor, x_t: Tensor, c: Tensor, scale: Tensor, columns: int, gradient: bool, posterior: bool
) -> Tensor:
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        reversal_kernel[(len(logits),)](
            logits, logits.stride(0), x_1.contiguous(), x_t.contiguous(), c.contiguous(), scale.contiguous(), loss,
            columns, logits.shape[1], C=_block(columns, REVERSAL[0]), GRAD=gradient, POSTERIOR=posterior,
            num_warps=REVERSAL[1],
        )  # fmt: skip
    return loss
