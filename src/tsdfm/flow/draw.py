"""Tokens from logits: a draw, a draw that is not z, and logits shaped by temperature and top-p.

A draw is an inverse CDF, exact for 50 257 columns: `kernels.inverse` says how. Shapes: logits […, V]; z, u, tokens […].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.errors import UserError
from tsdfm.kernels.draw import one_pass
from tsdfm.kernels.inverse import (
    Other,
    chunks,
    flat_rows,
    floats,
    peak_of,
    plain_draw,
    plain_draw_other,
    weight_bits,
    whole_weights,
)


@torch.no_grad()
def draw(logits: Tensor, u: Tensor) -> Tensor:
    """Tokens […] ~ softmax(logits […, V]) by the uniforms u […] in [0, 1)."""
    flat = flat_rows(logits)
    if not kernels.on(flat, "draw"):
        return plain_draw(logits, u)
    rows_u = u.reshape(-1)
    nobody = torch.full((len(rows_u),), flat.shape[1], dtype=torch.int64, device=flat.device)
    none = torch.empty(len(rows_u), 0, device=flat.device)
    tokens = one_pass(flat, nobody, none, none, rows_u).fresh
    assert tokens is not None
    return tokens.view(u.shape)


@torch.no_grad()
def draw_other(logits: Tensor, z: Tensor, u: Tensor) -> Other:
    """One token per row from softmax(logits) with z taken out, and the split p(z), 1 − p(z).

    The weights are taken against the largest logit that is not z's, so with W the log of the others' sum, p(z) =
    σ(l_z − W) and 1 − p(z) = σ(W − l_z): neither is a difference of nearly equal numbers, and the draw is as fine
    where p(z) is almost 1 as anywhere else. z = V ([MASK], no column) has p(z) = 0. Where nothing but z is possible,
    p(z) = 1, the token is z and 1 − p(z) = 0.
    """
    flat = flat_rows(logits)
    if not kernels.on(flat, "draw"):
        return plain_draw_other(logits, z, u)
    rows_u = u.reshape(-1, 1)
    found = one_pass(flat, z.reshape(-1), torch.ones_like(rows_u, dtype=torch.float32), rows_u)
    return Other(found.tokens.view(z.shape), found.p_z.view(z.shape), found.p_other.view(z.shape))


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
    flat = flat_rows(logits)
    shaped = torch.empty(flat.shape, dtype=floats(flat[:0]).dtype, device=flat.device)
    for rows in chunks(flat):
        shaped[rows] = _shape(floats(flat[rows]), temperature, top_p)
    return shaped.view(logits.shape)


def _shape(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    peak = peak_of(logits)
    if temperature == 0.0:
        # written as l − max at the winner, so that NaN stays NaN
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter(-1, best, logits.gather(-1, best) - peak)
    logits = (logits - peak) / temperature  # max is now 0: no overflow however cold
    if top_p == 1.0:
        return logits
    logits = torch.where(logits.amax(-1, keepdim=True) == -math.inf, 0.0, logits)  # all −inf counts as uniform
    order = logits.sort(dim=-1, descending=True, stable=True)
    weights = whole_weights(order.values - order.values[:, :1], weight_bits(logits.shape[-1]))
    before = weights.cumsum(-1) - weights
    enough = top_p * weights.sum(-1, keepdim=True).to(torch.float64)
    cut = order.values.masked_fill(before >= enough, -math.inf)
    return torch.empty_like(logits).scatter_(-1, order.indices, cut)
