# mypy: ignore-errors
"""The kernel of `kernels.reward`: a program a row of three logits, three reads of each and one write.

The later reads come from the cache. The sums and the reward are float32 throughout, as in `rows_triton`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tsdfm.kernels.rows_triton import LOWEST, _block, _exp, _join, _load, _more

REWARD = (4096, 16)  # columns of one trip of a loop, warps


@triton.jit
def _gain(a_row, b_row, column, V, VP, a_lse, b_lse, clip):
    """clip[log q − log p, ±c], and 0 beyond V."""
    a = tl.load(a_row + column, mask=column < VP, other=0.0).to(tl.float32) - a_lse
    b = tl.load(b_row + column, mask=column < VP, other=0.0).to(tl.float32) - b_lse
    return tl.where(column < V, tl.minimum(tl.maximum(a - b, -clip), clip), 0.0)


@triton.jit
def reward_kernel(
    logits, aux, teacher, stride, aux_stride, teacher_stride, scale, loss, entropy, clip, V, VP,
    C: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    row, a_row, b_row = logits + n * stride, aux + n * aux_stride, teacher + n * teacher_stride
    i = tl.arange(0, C)
    peak = tl.full([C], LOWEST, tl.float32)
    a_peak = tl.full([C], LOWEST, tl.float32)
    b_peak = tl.full([C], LOWEST, tl.float32)
    total = tl.zeros([C], tl.float32)
    a_total = tl.zeros([C], tl.float32)
    b_total = tl.zeros([C], tl.float32)
    for first in range(0, V, C):
        peak, total = _more(peak, total, _load(row, first + i, V, VP))
        a_peak, a_total = _more(a_peak, a_total, _load(a_row, first + i, V, VP))
        b_peak, b_total = _more(b_peak, b_total, _load(b_row, first + i, V, VP))
    lse, a_lse, b_lse = _join(peak, total), _join(a_peak, a_total), _join(b_peak, b_total)
    found = tl.zeros([C], tl.float32)
    spread = tl.zeros([C], tl.float32)
    for first in range(0, V, C):
        log_g = _load(row, first + i, V, VP) - lse
        g = _exp(log_g)
        found += g * _gain(a_row, b_row, first + i, V, VP, a_lse, b_lse, clip)
        spread -= g * tl.maximum(log_g, LOWEST)
    whole = tl.sum(found, axis=0)
    tl.store(loss + n, whole)
    tl.store(entropy + n, tl.sum(spread, axis=0))
    if GRAD:
        weight = tl.load(scale + n).to(tl.float32)
        for first in range(0, VP, C):
            g = _exp(_load(row, first + i, V, VP) - lse)
            r = _gain(a_row, b_row, first + i, V, VP, a_lse, b_lse, clip)
            grad = g * (r - whole) * weight
            tl.store(row + first + i, grad.to(logits.dtype.element_ty), mask=first + i < VP)


def launch_reward(
    logits: Tensor, aux: Tensor, teacher: Tensor, scale: Tensor, columns: int, clip: float, gradient: bool
) -> tuple[Tensor, Tensor]:
    if aux.shape != logits.shape or teacher.shape != logits.shape:
        raise ValueError("the logits of student, auxiliary and teacher differ in shape")
    loss, entropy = torch.empty(2, len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        reward_kernel[(len(logits),)](
            logits, aux, teacher, logits.stride(0), aux.stride(0), teacher.stride(0), scale.contiguous(), loss, entropy,
            clip, columns, logits.shape[1], C=_block(columns, REWARD[0]), GRAD=gradient, num_warps=REWARD[1],
        )  # fmt: skip
    return loss, entropy
