"""All that a jump and Navigate ask of a row of logits, from one read of it.

K tempered draws that are not z with the split p(z), 1 − p(z), and, where asked for, the argmax, its probability, the
entropy and one plain draw. A draw is a two-level inverse CDF, as in `kernels.inverse`: sums of blocks of columns first,
then the column inside the chosen block. The kernel keeps each block's sum relative to the block's own largest logit,
joins blocks in float64 and works out the chosen block in float64 too, so that every token keeps its probability to
about 10⁻⁷ of itself, however rare.
With the same uniforms it gives the reference's tokens, except where a boundary between two tokens moves by that much. A
row's answer depends on the row alone: on its logits, z, temperatures and uniforms.

Shapes: logits [M, V], of which N rows are looked at; K draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.kernels.inverse import plain_draw, plain_draw_other


class Drawn(NamedTuple):
    """Tokens [N, K] that are not z with p(z) and 1 − p(z) [N, K] in float64; then, for the untempered row, the
    log-sum-exp, entropy and confidence [N] in float64, the argmax [N] and a plain draw [N]. What was not asked for is
    None; rows not `need`ed have token z, p(z) = 1 and zeros."""

    tokens: Tensor
    p_z: Tensor
    p_other: Tensor
    lse: Tensor | None
    entropy: Tensor | None
    confidence: Tensor | None
    top: Tensor | None
    fresh: Tensor | None


@torch.no_grad()
def one_pass(
    logits: Tensor,
    z: Tensor,
    beta: Tensor,
    u: Tensor,
    u_fresh: Tensor | None = None,
    *,
    at: Tensor | None = None,
    need: Tensor | None = None,
    stats: bool = False,
) -> Drawn:
    """Draw from rows `at` [N] (None is all) of logits: z [N] (V is [MASK], no column), beta = 1/T [N, K], u [N, K].

    `u_fresh` [N] asks for the plain draw, `stats` for the statistics; `need` [N] bool leaves rows out.
    """
    if kernels.on(logits, "draw"):
        from tsdfm.kernels.draw_triton import launch

        made: Drawn = launch(logits, z, beta, u, u_fresh, at, need, stats)
        return made
    return reference(logits, z, beta, u, u_fresh, at=at, need=need, stats=stats)


@torch.no_grad()
def reference(
    logits: Tensor,
    z: Tensor,
    beta: Tensor,
    u: Tensor,
    u_fresh: Tensor | None = None,
    *,
    at: Tensor | None = None,
    need: Tensor | None = None,
    stats: bool = False,
) -> Drawn:
    """The same by `kernels.inverse`, one draw after another."""
    rows = torch.arange(len(z), device=logits.device) if at is None else at
    keep = torch.ones_like(rows, dtype=torch.bool) if need is None else need
    own = logits[rows]
    wide = own if own.dtype == torch.float64 else own.float()
    found = [
        plain_draw_other(wide * beta[:, k : k + 1].to(wide.dtype), z, u[:, k].contiguous()) for k in range(u.shape[1])
    ]
    shape = (len(z), u.shape[1])
    tokens = torch.stack([f.tokens for f in found], 1) if found else z.new_empty(shape)
    p_z, p_other = (
        torch.stack([f[i] for f in found], 1) if found else torch.empty(shape, dtype=torch.float64, device=z.device)
        for i in (1, 2)
    )
    tokens = torch.where(keep[:, None], tokens, z[:, None])
    p_z, p_other = torch.where(keep[:, None], p_z, 1.0), torch.where(keep[:, None], p_other, 0.0)
    fresh = None if u_fresh is None else torch.where(keep, plain_draw(own, u_fresh), z)
    if not stats:
        return Drawn(tokens, p_z, p_other, None, None, None, None, fresh)
    lse, entropy, confidence, top = (torch.where(keep, value, 0) for value in _statistics(wide.double()))
    return Drawn(tokens, p_z, p_other, lse, entropy, confidence, top, fresh)


def _statistics(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-sum-exp, entropy, largest probability and its (lowest) token; a row of all −inf counts as uniform."""
    peak = logits.amax(-1, keepdim=True)
    below = torch.where(peak == -math.inf, 0.0, logits - peak)
    weights = below.exp()
    total = weights.sum(-1)
    entropy = total.log() - (weights * below.clamp(min=-1e4)).sum(-1) / total
    top = (below == 0).to(torch.int8).argmax(-1)
    return peak.squeeze(-1) + total.log(), entropy, 1.0 / total, top
