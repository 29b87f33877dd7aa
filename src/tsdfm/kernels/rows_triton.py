# mypy: ignore-errors
"""The kernels of `kernels.rows`: a program a row, two reads of it (the second from the cache) and one write.
The score entropy needs one read.

Every lane keeps its own running maximum and sum and they are joined once at the end of the first read, so there is no
barrier inside the loops. float32 throughout.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tsdfm.kernels.rows import Ratios

DIVERGENCE = (4096, 16)  # columns of one trip of a loop, warps: eight columns a thread, one load of bf16
TOKENS = (2048, 4)  # one row only, so sixteen a thread
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOWEST: tl.constexpr = tl.constexpr(-1.0e38)  # a maximum to start from: −inf would make −inf − −inf


@triton.jit
def _exp(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def _load(row, column, V, VP):
    """Logits of V columns, −inf beyond; read up to the aligned VP, as a mask that ends anywhere would split loads."""
    x = tl.load(row + column, mask=column < VP, other=0.0).to(tl.float32)
    return tl.where(column < V, x, float("-inf"))


@triton.jit
def _more(peak, total, x):
    """Running maximum and Σ e^{x − maximum} of each lane with one more value."""
    high = tl.maximum(peak, x)
    return high, total * _exp(peak - high) + _exp(x - high)


@triton.jit
def _join(peak, total):
    """The log-sum-exp over lanes."""
    high = tl.max(peak, axis=0)
    return high + tl.log(tl.sum(total * _exp(peak - high), axis=0))


@triton.jit
def divergence_kernel(
    logits, target, stride, target_stride, scale, loss, V, VP,
    C: tl.constexpr, REVERSE: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    a_row, b_row = logits + n * stride, target + n * target_stride
    i = tl.arange(0, C)
    a_peak = tl.full([C], LOWEST, tl.float32)
    b_peak = tl.full([C], LOWEST, tl.float32)
    a_sum = tl.zeros([C], tl.float32)
    b_sum = tl.zeros([C], tl.float32)
    for first in range(0, V, C):
        a, b = _load(a_row, first + i, V, VP), _load(b_row, first + i, V, VP)
        a_peak, a_sum = _more(a_peak, a_sum, a)
        b_peak, b_sum = _more(b_peak, b_sum, b)
    a_lse, b_lse = _join(a_peak, a_sum), _join(b_peak, b_sum)
    weight = tl.load(scale + n).to(tl.float32)
    found = tl.zeros([C], tl.float32)
    for first in range(0, VP, C):
        a, b = _load(a_row, first + i, V, VP) - a_lse, _load(b_row, first + i, V, VP) - b_lse
        p, q = _exp(b), _exp(a)
        if REVERSE:
            found += tl.where(q > 0, q * (a - b), 0.0)
        else:
            found += tl.where(p > 0, p * (b - a), 0.0)
            if GRAD:
                grad = tl.where(first + i < V, (q - p) * weight, 0.0)
                tl.store(a_row + first + i, grad.to(logits.dtype.element_ty), mask=first + i < VP)
    whole = tl.sum(found, axis=0)
    tl.store(loss + n, whole)
    if REVERSE and GRAD:
        for first in range(0, VP, C):
            a, b = _load(a_row, first + i, V, VP) - a_lse, _load(b_row, first + i, V, VP) - b_lse
            q = _exp(a)
            grad = tl.where(q > 0, q * (a - b - whole) * weight, 0.0)
            tl.store(a_row + first + i, grad.to(logits.dtype.element_ty), mask=first + i < VP)


@triton.jit
def tokens_kernel(
    logits, stride, x_1, x_t, scale, loss, V, VP, C: tl.constexpr, GKL: tl.constexpr, GRAD: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    row = logits + n * stride
    i = tl.arange(0, C)
    # the two tokens' logits are read before the sum over lanes, hence before anyone writes
    one = tl.load(x_1 + n)
    l_1 = tl.load(row + one).to(tl.float32)
    here = one * 0 - 1
    l_t = l_1
    if GKL:
        here = tl.load(x_t + n)
        l_t = tl.load(row + here, mask=here < V, other=float("-inf")).to(tl.float32)
    peak = tl.full([C], LOWEST, tl.float32)
    total = tl.zeros([C], tl.float32)
    for first in range(0, V, C):
        x = _load(row, first + i, V, VP)
        peak, total = _more(peak, total, x)
    lse = _join(peak, total)
    log_1 = l_1 - lse
    q_1 = _exp(log_1)
    found, whole, from_1, from_t = -log_1, q_1 * 0.0 + 1.0, q_1 * 0.0 + 1.0, q_1 * 0.0
    if GKL:
        q_t = _exp(l_t - lse)
        arrived = one == here
        # 1 − q without cancellation where q is small or near one alike: −expm1(log q) by its series near 0
        series = -log_1 * (1.0 + log_1 * (0.5 + log_1 * (0.16666667 + log_1 * 0.041666668)))
        rest = tl.where(log_1 > -0.05, series, 1.0 - q_1)
        found = tl.where(arrived, rest, -log_1 - q_t)
        whole = tl.where(arrived, q_1, 1.0 + q_t)
        from_1 = tl.where(arrived, q_1, 1.0)
        from_t = tl.where(arrived, 0.0, q_t)
    tl.store(loss + n, found)
    if GRAD:
        weight = tl.load(scale + n).to(tl.float32)
        for first in range(0, VP, C):
            column = first + i
            x = _load(row, column, V, VP)
            grad = _exp(x - lse) * whole
            grad -= tl.where(column == one, from_1, 0.0) + tl.where(column == here, from_t, 0.0)
            grad = tl.where(column < V, grad * weight, 0.0)
            tl.store(row + column, grad.to(logits.dtype.element_ty), mask=column < VP)


@triton.jit
def scores_kernel(
    logits, stride, x_1, x_t, shift, low, high, scale, loss, V, VP, C: tl.constexpr, GRAD: tl.constexpr
):  # fmt: skip
    """One read and one write: neither the losses nor their gradients need the sum of a row before."""
    n = tl.program_id(0).to(tl.int64)
    row = logits + n * stride
    i = tl.arange(0, C)
    one, here = tl.load(x_1 + n), tl.load(x_t + n)
    off, least = tl.load(shift + n).to(tl.float32), tl.load(low + n).to(tl.float32)
    most = tl.load(high + n).to(tl.float32)
    log_least, log_most = tl.log(tl.maximum(least, 1e-37)), tl.log(tl.maximum(most, 1e-37))
    weight = tl.load(scale + n).to(tl.float32)
    found = tl.zeros([C], tl.float32)
    for first in range(0, VP, C):
        column = first + i
        log_s = _load(row, column, V, VP) - off
        s = _exp(log_s)
        r = tl.where(column == one, most, least)
        d = tl.where((r > 0) & (column < V), log_s - tl.where(column == one, log_most, log_least), 0.0)
        # r(e^d − 1 − d), r·e^d = s; by its series near d = 0, where the difference would cancel
        series = d * d * (0.5 + d * (0.16666667 + d * (0.041666668 + d * 0.008333334)))
        term = tl.where((r > 0) & (tl.abs(d) < 0.1), r * series, s - r - r * d)
        counts = (column < V) & (column != here)
        found += tl.where(counts, term, 0.0)
        if GRAD:
            grad = tl.where(counts, (s - r) * weight, 0.0)
            tl.store(row + column, grad.to(logits.dtype.element_ty), mask=column < VP)
    tl.store(loss + n, tl.sum(found, axis=0))


def _block(columns: int, most: int) -> int:
    return min(most, triton.next_power_of_2(columns))


def launch_divergence(
    logits: Tensor, target: Tensor, scale: Tensor, columns: int, reverse: bool, gradient: bool
) -> Tensor:
    if target.shape != logits.shape:
        raise ValueError(f"logits {tuple(logits.shape)} and target {tuple(target.shape)} differ in shape")
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        divergence_kernel[(len(logits),)](
            logits, target, logits.stride(0), target.stride(0), scale.contiguous(), loss, columns, logits.shape[1],
            C=_block(columns, DIVERGENCE[0]), REVERSE=reverse, GRAD=gradient, num_warps=DIVERGENCE[1],
        )  # fmt: skip
    return loss


def launch_scores(logits: Tensor, to: Ratios, scale: Tensor, columns: int, gradient: bool) -> Tensor:
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        numbers = [x.to(torch.float32).contiguous() for x in (to.shift, to.low, to.high, scale)]
        scores_kernel[(len(logits),)](
            logits, logits.stride(0), to.x_1.contiguous(), to.x_t.contiguous(), *numbers, loss, columns,
            logits.shape[1], C=_block(columns, TOKENS[0]), GRAD=gradient, num_warps=TOKENS[1],
        )  # fmt: skip
    return loss


def launch_tokens(
    logits: Tensor, x_1: Tensor, x_t: Tensor | None, scale: Tensor, columns: int, gradient: bool
) -> Tensor:
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        tokens_kernel[(len(logits),)](
            logits, logits.stride(0), x_1.contiguous(), x_1 if x_t is None else x_t.contiguous(), scale.contiguous(),
            loss, columns, logits.shape[1], C=_block(columns, TOKENS[0]), GKL=x_t is not None, GRAD=gradient,
            num_warps=TOKENS[1],
        )  # fmt: skip
    return loss
