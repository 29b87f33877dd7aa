"""Drawing tokens from logits, soundly for 50 257 columns: the reference of the kernel `draw`.

The usual argmax(logits + Gumbel) in float32 loses the rare tokens (u has 24 bits, and there are 50 257 of them to
split those bits). Here a draw is an inverse CDF on whole numbers: the weights exp(l − max) become integers of up to
62 bits in total, so sums are exact in any order, nothing cancels, and a row's token does not depend on how the device
split the sum, on the batch, or on its neighbours. At 50 257 columns a weight is resolved to 2⁻⁴⁶ of the largest one,
at five columns to 2⁻⁵⁹; the uniform has 53 bits. Two levels, first the block of columns, then the column inside it,
keep the running sums short. Rows are worked through in chunks: no second [B, L, V] tensor is ever alive.

A row of all −inf logits counts as uniform, the limit of equal logits. Shapes: logits […, V]; z, u, tokens […].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tsdfm.errors import UserError

CHUNK_CPU = 1 << 20  # elements of one chunk: 8 MiB of integer weights stay near the caches
ONE_LEVEL = 1024  # columns up to which one running sum is quicker than two
CHUNK_DEVICE = 1 << 25  # 256 MiB: large enough to fill a GPU, small beside the logits of a batch


class Other(NamedTuple):
    """One draw that is not z, with p(z) and 1 − p(z) in float64, each to its own relative precision."""

    tokens: Tensor
    p_z: Tensor
    p_other: Tensor


def chunks(flat: Tensor) -> Iterator[slice]:
    """Rows of logits [n, V] in slices that stay near the caches, or fill a GPU."""
    rows, columns = flat.shape
    size = max(1, (CHUNK_CPU if flat.device.type == "cpu" else CHUNK_DEVICE) // columns)
    for start in range(0, max(rows, 1), size):
        yield slice(start, min(start + size, rows))


def flat_rows(logits: Tensor) -> Tensor:
    """Logits […, V] as rows [n, V]."""
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise UserError(f"logits need at least one column, got the shape {tuple(logits.shape)}")
    return logits.reshape(-1, logits.shape[-1])


def floats(logits: Tensor) -> Tensor:
    """float64 stays, everything else is float32."""
    return logits if logits.dtype == torch.float64 else logits.to(torch.float32)


def weight_bits(columns: int) -> int:
    """Bits of the largest weight, so that `columns` of them still add up within 62 bits."""
    return 62 - max(1, math.ceil(math.log2(columns)))


def peak_of(logits: Tensor) -> Tensor:
    """The largest logit [n, 1]; 0 for a row of all −inf, where there is nothing to subtract."""
    peak = logits.amax(-1, keepdim=True)
    return torch.where(peak == -math.inf, torch.zeros_like(peak), peak)


def whole_weights(below: Tensor, bits: int) -> Tensor:
    """exp(l − peak) as integers of at most `bits` bits, int64 [n, V]; `below` = l − peak is used up."""
    return below.exp_().mul_(2.0**bits).to(torch.int64)


def _target(total: Tensor, u: Tensor) -> Tensor:
    """The whole number in [0, total) that u points at, [n, 1]."""
    return torch.minimum((u.to(torch.float64) * total).to(torch.int64), total - 1).unsqueeze(-1)


def _pass(running: Tensor, target: Tensor) -> Tensor:
    """The first index [n, 1] whose running sum passes `target` [n, 1]; a column of weight 0 is never the one."""
    return torch.searchsorted(running, target, right=True).clamp_(max=running.shape[-1] - 1)


def _invert(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Token [n] with P(token) = weight/total, and the total [n]; weights int64 [n, V] are used up, u [n] in [0, 1)."""
    columns = weights.shape[1]
    if columns <= ONE_LEVEL:
        running = weights.cumsum_(-1)
        total = running[:, -1]
        return _pass(running, _target(total, u)).squeeze(-1), total
    # blocks of about √V columns, the last of which may be shorter
    width = 1 << (columns.bit_length() // 2)
    whole = columns - columns % width
    blocks = [weights[:, :whole].reshape(len(weights), whole // width, width).sum(-1)]
    if whole < columns:
        blocks.append(weights[:, whole:].sum(-1, keepdim=True))
    running = torch.nn.functional.pad(torch.cat(blocks, dim=-1).cumsum_(-1), (1, 0))
    total = running[:, -1]
    target = _target(total, u)
    block = _pass(running[:, 1:].contiguous(), target)
    index = block * width + torch.arange(width, device=weights.device)
    inside = weights.gather(-1, index.clamp(max=columns - 1)).masked_fill_(index >= columns, 0)
    column = block * width + _pass(inside.cumsum_(-1), target - running.gather(-1, block))
    return column.squeeze(-1).clamp_(max=columns - 1), total  # only a row without any weight needs the clamp


def _any_of(count: int, u: Tensor) -> Tensor:
    """One of 0 … count − 1, all alike."""
    return (u.to(torch.float64) * count).to(torch.int64).clamp_(max=max(count - 1, 0))


def plain_draw(logits: Tensor, u: Tensor) -> Tensor:
    """Tokens […] ~ softmax(logits […, V]) by the uniforms u […] in [0, 1): `flow.draw` without kernels."""
    flat, u_flat = flat_rows(logits), u.reshape(-1)
    bits = weight_bits(flat.shape[1])
    parts = []
    for rows in chunks(flat):
        chunk = floats(flat[rows])
        tokens, total = _invert(whole_weights(chunk - peak_of(chunk), bits), u_flat[rows])
        parts.append(torch.where(total == 0, _any_of(flat.shape[1], u_flat[rows]), tokens))
    return _join(parts, u.shape)


def plain_draw_other(logits: Tensor, z: Tensor, u: Tensor) -> Other:
    """One draw per row that is not z, with the split p(z), 1 − p(z): `flow.draw_other` without kernels."""
    flat, z_flat, u_flat = flat_rows(logits), z.reshape(-1), u.reshape(-1)
    parts = [_other(flat[rows], z_flat[rows], u_flat[rows]) for rows in chunks(flat)]
    return Other(*(_join([part[i] for part in parts], z.shape) for i in range(3)))


def _other(logits: Tensor, z: Tensor, u: Tensor) -> Other:
    columns = logits.shape[-1]
    bits = weight_bits(columns)
    logits = floats(logits)
    masked = z >= columns
    column = z.clamp(max=columns - 1).unsqueeze(-1)
    l_z = logits.gather(-1, column)
    others = logits.scatter(-1, column, torch.where(masked.unsqueeze(-1), l_z, -math.inf))
    peak, l_z = peak_of(others), l_z.squeeze(-1)
    tokens, total = _invert(whole_weights(others.sub_(peak), bits), u)
    # σ(±gap) with gap = l_z − W; a total of 0 gives W = −inf and p(z) = 1
    gap = l_z.to(torch.float64) - peak.squeeze(-1) - torch.log(total.to(torch.float64) * 2.0**-bits)
    # a row of all −inf: every token alike, z among them
    empty = (total == 0) & (l_z == -math.inf)
    rest = torch.where(masked, columns, columns - 1)
    gap = torch.where(empty, -torch.log(rest.to(torch.float64)), gap)
    alike = (u.to(torch.float64) * rest).to(torch.int64)
    alike = alike + (alike >= z).to(torch.int64)  # step over z
    tokens = torch.where(empty, alike, tokens)
    # σ written out: torch.sigmoid may round differently at the end of a vector, and a row must not know where it lies
    p_z = torch.where(masked, 0.0, 1.0 / (1.0 + torch.exp(-gap)))
    p_other = torch.where(masked, 1.0, 1.0 / (1.0 + torch.exp(gap)))
    return Other(torch.where(p_other > 0, tokens, z), p_z, p_other)


def _join(parts: list[Tensor], shape: torch.Size) -> Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(shape)
