"""Drawing tokens from logits, soundly for 50 257 columns.

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

from tsdfm import kernels
from tsdfm.errors import UserError

CHUNK_CPU = 1 << 20  # elements of one chunk: 8 MiB of integer weights stay near the caches
ONE_LEVEL = 1024  # columns up to which one running sum is quicker than two
CHUNK_DEVICE = 1 << 25  # 256 MiB: large enough to fill a GPU, small beside the logits of a batch


class Other(NamedTuple):
    """One draw that is not z, with p(z) and 1 − p(z) in float64, each to its own relative precision."""

    tokens: Tensor
    p_z: Tensor
    p_other: Tensor


def _chunks(flat: Tensor) -> Iterator[slice]:
    rows, columns = flat.shape
    size = max(1, (CHUNK_CPU if flat.device.type == "cpu" else CHUNK_DEVICE) // columns)
    for start in range(0, max(rows, 1), size):
        yield slice(start, min(start + size, rows))


def _flat(logits: Tensor) -> Tensor:
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise UserError(f"logits need at least one column, got the shape {tuple(logits.shape)}")
    return logits.reshape(-1, logits.shape[-1])


def _floats(logits: Tensor) -> Tensor:
    """float64 stays, everything else is float32."""
    return logits if logits.dtype == torch.float64 else logits.to(torch.float32)


def _bits(columns: int) -> int:
    """Bits of the largest weight, so that `columns` of them still add up within 62 bits."""
    return 62 - max(1, math.ceil(math.log2(columns)))


def _peak(logits: Tensor) -> Tensor:
    """The largest logit [n, 1]; 0 for a row of all −inf, where there is nothing to subtract."""
    peak = logits.amax(-1, keepdim=True)
    return torch.where(peak == -math.inf, torch.zeros_like(peak), peak)


def _weights(below: Tensor, bits: int) -> Tensor:
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


@torch.no_grad()
def draw(logits: Tensor, u: Tensor) -> Tensor:
    """Tokens […] ~ softmax(logits […, V]) by the uniforms u […] in [0, 1)."""
    flat = _flat(logits)
    if not kernels.on(flat, "draw"):
        return plain_draw(logits, u)
    from tsdfm.kernels.draw import one_pass

    lots = u.reshape(-1)
    nobody = torch.full((len(lots),), flat.shape[1], dtype=torch.int64, device=flat.device)
    none = torch.empty(len(lots), 0, device=flat.device)
    tokens = one_pass(flat, nobody, none, none, lots).fresh
    assert tokens is not None
    return tokens.view(u.shape)


def plain_draw(logits: Tensor, u: Tensor) -> Tensor:
    """`draw` without kernels."""
    flat, u_flat = _flat(logits), u.reshape(-1)
    bits = _bits(flat.shape[1])
    parts = []
    for rows in _chunks(flat):
        chunk = _floats(flat[rows])
        tokens, total = _invert(_weights(chunk - _peak(chunk), bits), u_flat[rows])
        parts.append(torch.where(total == 0, _any_of(flat.shape[1], u_flat[rows]), tokens))
    return _join(parts, u.shape)


@torch.no_grad()
def draw_other(logits: Tensor, z: Tensor, u: Tensor) -> Other:
    """One token per row from softmax(logits) with z taken out, and the split p(z), 1 − p(z).

    The weights are taken against the largest logit that is not z's, so with W the log of the others' sum, p(z) =
    σ(l_z − W) and 1 − p(z) = σ(W − l_z): neither is a difference of nearly equal numbers, and the draw is as fine
    where p(z) is almost 1 as anywhere else. z = V ([MASK], no column) has p(z) = 0. Where nothing but z is possible,
    p(z) = 1, the token is z and 1 − p(z) = 0.
    """
    flat = _flat(logits)
    if not kernels.on(flat, "draw"):
        return plain_draw_other(logits, z, u)
    from tsdfm.kernels.draw import one_pass

    lots = u.reshape(-1, 1)
    found = one_pass(flat, z.reshape(-1), torch.ones_like(lots, dtype=torch.float32), lots)
    return Other(found.tokens.view(z.shape), found.p_z.view(z.shape), found.p_other.view(z.shape))


def plain_draw_other(logits: Tensor, z: Tensor, u: Tensor) -> Other:
    """`draw_other` without kernels."""
    flat, z_flat, u_flat = _flat(logits), z.reshape(-1), u.reshape(-1)
    parts = [_other(flat[rows], z_flat[rows], u_flat[rows]) for rows in _chunks(flat)]
    return Other(*(_join([part[i] for part in parts], z.shape) for i in range(3)))


def _other(logits: Tensor, z: Tensor, u: Tensor) -> Other:
    columns = logits.shape[-1]
    bits = _bits(columns)
    logits = _floats(logits)
    masked = z >= columns
    column = z.clamp(max=columns - 1).unsqueeze(-1)
    l_z = logits.gather(-1, column)
    others = logits.scatter(-1, column, torch.where(masked.unsqueeze(-1), l_z, -math.inf))
    peak, l_z = _peak(others), l_z.squeeze(-1)
    tokens, total = _invert(_weights(others.sub_(peak), bits), u)
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


@torch.no_grad()
def shape_logits(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Logits […, V] made sharper or cut to the likely tokens, in float32 or better; untouched where both dials are 1.

    temperature   l ← l/T. 0 is the limit: the largest logit alone (the lowest id among equals).
    top_p         keeps the fewest most likely tokens whose probabilities add up to at least p: the token that crosses
                  p is kept, so one always is. Equal logits are taken in the order of their ids. Applied after T.
    """
    if not 0.0 <= temperature < math.inf:
        raise UserError(f"temperature must be 0 (always the likeliest token) or above, not {temperature}")
    if not 0.0 < top_p <= 1.0:
        raise UserError(f"top-p must be above 0 and at most 1, not {top_p}")
    if temperature == 1.0 and top_p == 1.0:
        return logits
    flat = _flat(logits)
    shaped = torch.empty(flat.shape, dtype=_floats(flat[:0]).dtype, device=flat.device)
    for rows in _chunks(flat):
        shaped[rows] = _shape(_floats(flat[rows]), temperature, top_p)
    return shaped.view(logits.shape)


def _shape(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    peak = _peak(logits)
    if temperature == 0.0:
        # written as l − max at the winner, so that NaN stays NaN
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter(-1, best, logits.gather(-1, best) - peak)
    logits = (logits - peak) / temperature  # max is now 0: no overflow however cold
    if top_p == 1.0:
        return logits
    logits = torch.where(logits.amax(-1, keepdim=True) == -math.inf, 0.0, logits)  # all −inf counts as uniform
    order = logits.sort(dim=-1, descending=True, stable=True)
    weights = _weights(order.values - order.values[:, :1], _bits(logits.shape[-1]))
    before = weights.cumsum(-1) - weights
    enough = top_p * weights.sum(-1, keepdim=True).to(torch.float64)
    cut = order.values.masked_fill(before >= enough, -math.inf)
    return torch.empty_like(logits).scatter_(-1, order.indices, cut)
