"""Navigate (the paper's appendix C) in its parts: candidates, selection, refinement, safeguard.

A jump moves few positions, and which ones might is known before any logits are looked at: a position moves only if its
first uniform lies below the chance it would have at p(z) = 0. So draws are made at those positions alone, for all
candidates together, instead of reading every row of the logits K + 1 times.

Shapes: B states of which n are navigated (`rows` [n] says which); x_t [B, L], logits [B, L, V], t and h [B];
K candidates [n, K, L].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.distil.settings import NavigateSettings
from tsdfm.flow import LeaveJump, Schedule, draw
from tsdfm.kernels.draw import one_pass

ROOM = {"cpu": 1 << 21, "cuda": 1 << 25}  # logits worked on at once


def pieces(count: int, size: int, device: torch.device) -> Iterator[slice]:
    """`count` things of `size` logits each, in slices that fit."""
    step = max(1, ROOM.get(device.type, ROOM["cpu"]) // max(size, 1))
    return (slice(first, min(first + step, count)) for first in range(0, count, step))


def blind_move(jump: LeaveJump, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, u: Tensor, free: Tensor) -> Tensor:
    """The blind jump: `jump.move` by uniforms u [B, L, 2], at the positions `free` [B, L] (or less) alone."""
    return candidates(jump, x_t, logits, t, h, torch.arange(len(x_t), device=x_t.device), None, u[:, None], free)[:, 0]


def candidates(
    jump: LeaveJump,
    x_t: Tensor,
    logits: Tensor,
    t: Tensor,
    h: Tensor,
    rows: Tensor,
    temperature: Tensor | None,
    u: Tensor,
    free: Tensor,
) -> Tensor:
    """Algorithm 1, lines 7–10: x^(c) = CTMCJump(x_t, softmax(logits/T_c), h), [n, K, L].

    temperature [n, K] (None is 1), u [n, K, L, 2]. As in every jump here the draw is one that is not x_t, and the
    chance to leave it is that of the tempered p: with T = 1, a candidate is a blind jump.
    """
    x, t, h = x_t[rows], t[rows], h[rows]
    can = u[..., 0] < jump.leave(x, torch.ones_like(x, dtype=torch.float64), t, h)[:, None]
    can &= free.expand_as(x_t)[rows][:, None]
    if kernels.on(logits, "draw"):
        return _candidates_at_once(jump, x, logits, t, h, rows, temperature, u, can)
    out = x[:, None].expand(-1, u.shape[1], -1).clone()
    n, c, l = can.nonzero(as_tuple=True)
    for part in pieces(len(n), logits.shape[-1], logits.device):
        i, j, k = n[part], c[part], l[part]
        shaped = logits[rows[i], k]
        if temperature is not None:
            wide = shaped if shaped.dtype == torch.float64 else shaped.float()
            shaped = wide / temperature[i, j].to(wide.dtype)[:, None]
        out[i, j, k] = jump.move(x[i, k][:, None], shaped[:, None], t[i], h[i], u[i, j, k][:, None])[:, 0]
    return out


def _candidates_at_once(
    jump: LeaveJump,
    x: Tensor,
    logits: Tensor,
    t: Tensor,
    h: Tensor,
    rows: Tensor,
    temperature: Tensor | None,
    u: Tensor,
    can: Tensor,
) -> Tensor:
    """`candidates` by one read of each logits row at which any of them `can` [n, K, L] move; the host never waits.

    x [n, L], t and h [n] are the navigated rows' own.
    """
    (n, k, length), flat = can.shape, logits.flatten(0, 1)
    place = _places(rows, length)
    beta = torch.ones(n, k, device=x.device) if temperature is None else (1.0 / temperature).float()
    found = one_pass(
        flat,
        x.flatten(),
        beta[:, None].expand(n, length, k).reshape(-1, k),
        u[..., 1].transpose(1, 2).reshape(-1, k),
        at=place,
        need=can.any(1).flatten(),
    )
    tokens, p_other = (value.view(n, length, k).transpose(1, 2) for value in (found.tokens, found.p_other))
    leave = jump.leave(x.repeat(1, k), p_other.reshape(n, k * length), t, h)  # candidates side by side: t and h fit
    return torch.where(can & (u[..., 0] < leave.view(n, k, length)), tokens, x[:, None])


def _places(rows: Tensor, length: int) -> Tensor:
    """Where the positions of states `rows` [n] lie in [B·L] flat rows of logits, [n·L]."""
    return (rows[:, None] * length + torch.arange(length, device=rows.device)).flatten()


class Survey(NamedTuple):
    """What one read of the logits of n states says of each position, [n, L]: the entropy and largest probability of p,
    its token, and a draw from p (token 0 where none was asked for)."""

    entropy: Tensor
    confidence: Tensor
    top: Tensor
    fresh: Tensor


def survey(logits: Tensor, rows: Tensor, u: Tensor | None) -> Survey:
    """Read the states `rows` [n] of logits [B, L, V] once; u [n, L] are the uniforms of the draw."""
    length, vocab = logits.shape[1:]
    place = _places(rows, length)
    nothing = torch.empty(len(place), 0, device=logits.device)
    found = one_pass(
        logits.flatten(0, 1),
        torch.full_like(place, vocab),
        nothing,
        nothing,
        None if u is None else u.flatten(),
        at=place,
        stats=True,
    )
    assert found.entropy is not None
    assert found.confidence is not None
    assert found.top is not None
    fresh = torch.zeros_like(found.top) if found.fresh is None else found.fresh
    return Survey(*(x.view(-1, length) for x in (found.entropy, found.confidence, found.top, fresh)))


def mean_entropy(logits: Tensor, rows: Tensor, free: Tensor | None = None) -> Tensor:
    """Line 5: the entropy of p(x_1[i] | x_t) in nats, averaged over all or the `free` [n, L] positions, [n] float64."""
    length, vocab = logits.shape[1:]
    flat = logits.reshape(-1, vocab)
    place = (rows[:, None] * length + torch.arange(length, device=rows.device)).flatten()
    found = [entropies(flat[place[part]]) for part in pieces(len(place), vocab, logits.device)]
    return mean_over(torch.cat(found).view(-1, length).double(), free)


def mean_over(each: Tensor, free: Tensor | None) -> Tensor:
    """The mean of values [n, L] over all positions, or over the `free` ones [n, L] of each row."""
    if free is None:
        return each.mean(-1)
    return torch.where(free, each, 0.0).sum(-1) / free.sum(-1).clamp(min=1)


def entropies(logits: Tensor) -> Tensor:
    """−Σ p log p of each row […, V] of logits; a row of all −inf counts as uniform, as in a draw."""
    below, weights = _weights(logits)
    total = weights.sum(-1)
    return total.log() - (weights * below.clamp_(min=-1e4)).sum(-1) / total


def _weights(logits: Tensor) -> tuple[Tensor, Tensor]:
    """l − max and its exponential, float32 or better."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    peak = wide.amax(-1, keepdim=True)
    below = torch.where(peak == -math.inf, 0.0, wide - peak)
    return below, below.exp()


def temperatures(
    entropy: Tensor | None, rows: int, vocab: int, settings: NavigateSettings, device: torch.device | None = None
) -> Tensor:
    """Lines 6 and 8: T_c = (T_min + Δ_T(1 − H̃)) · (λ_min + (λ_max − λ_min)·(c−1)/(K−1)), [n, K] float64.

    H̃ [n] is the mean entropy over the largest of the batch, or over log |V|. A single candidate has the middle λ.
    `device` says where they shall lie if no entropy does.
    """
    if entropy is None:
        base = torch.full((rows,), settings.t_min, dtype=torch.float64, device=device)
    else:
        whole = entropy.max() if settings.entropy == "batch" else torch.full_like(entropy[:1], math.log(vocab))
        share = torch.where(whole > 0, entropy / whole, torch.zeros_like(entropy)).clamp(0.0, 1.0)
        base = settings.t_min + settings.delta_t * (1.0 - share)
    k = settings.k
    place = torch.arange(k, dtype=torch.float64, device=base.device) / (k - 1) if k > 1 else base.new_full((1,), 0.5)
    return base[:, None] * (settings.lambda_min + (settings.lambda_max - settings.lambda_min) * place)


def select(energies: Tensor | None, u: Tensor, settings: NavigateSettings) -> Tensor:
    """Lines 11–12: which candidate [n]. Energies [n, K], +inf where none was drawn; u [n] for what is drawn by lot."""
    if settings.selector == "random" or energies is None:
        return (u * settings.k).to(torch.int64).clamp(max=settings.k - 1)
    if settings.selector == "boltzmann":
        return draw(energies.double() / -settings.energy_temperature, u)
    return energies.argmin(-1)


def base_probability(t: Tensor, h: Tensor, schedule: Schedule) -> Tensor:
    """1 − exp(−h·κ̇/(1 − κ)) [n] at the jump's own start time."""
    t, h = t.double(), h.double()
    return -torch.expm1(-torch.where(h > 0, h * schedule.rate(t), 0.0))


def replacement(base: Tensor, align: Tensor, confidence: Tensor, t: Tensor, settings: NavigateSettings) -> Tensor:
    """Lines 15 and 18: clamp(p_base · exp(Δ_align · conf · β_0(1 − α_β t) · α_soft), 0, p_max)."""
    beta = settings.beta_0 * (1.0 - settings.alpha_beta * t)
    return (base * torch.exp(align * confidence * beta * settings.alpha_soft)).clamp(0.0, settings.p_max)


def refine(
    x_t: Tensor,
    best: Tensor,
    logits: Tensor,
    t: Tensor,
    h: Tensor,
    rows: Tensor,
    u: Tensor,
    free: Tensor,
    schedule: Schedule,
    settings: NavigateSettings,
    known: Survey | None = None,
) -> Tensor:
    """Lines 14–19: the selected states best [n, L] with some tokens replaced by a fresh draw from p, x_t included.

    u [n, L, 2]: the draw, and whether it replaces. Refine `jumped` leaves alone what has not jumped, and never takes a
    jump back: as many positions differ from x_t afterwards as before. What a survey (by u[…, 0]) has `known` is not
    worked out again.
    """
    x, t, h = x_t[rows], t[rows].double(), h[rows]
    base, can = base_probability(t, h, schedule), free.expand_as(x_t)[rows]
    if settings.refine == "jumped":
        can &= best != x
    if known is not None:
        align = (known.fresh == known.top).double() - (best == known.top).double()
        chance = replacement(base[:, None], align, known.confidence, t[:, None], settings)
        taken = can & (known.fresh != best) & (u[..., 1] < chance)
        if settings.refine == "jumped":
            taken &= known.fresh != x
        return torch.where(taken, known.fresh, best)
    one = torch.ones_like(t)
    most = torch.maximum(replacement(base, one, one, t, settings), replacement(base, -one, one, t, settings))
    can &= u[..., 1] < most[:, None]
    out = best.clone()
    n, l = can.nonzero(as_tuple=True)
    for part in pieces(len(n), logits.shape[-1], logits.device):
        i, k = n[part], l[part]
        own = logits[rows[i], k]
        proposed, now = draw(own, u[i, k, 0]), best[i, k]
        _, weights = _weights(own)
        confidence, top = weights.max(-1)
        align = (proposed == top).double() - (now == top).double()
        chance = replacement(base[i], align, (confidence / weights.sum(-1)).double(), t[i], settings)
        taken = (proposed != now) & (u[i, k, 1] < chance)
        if settings.refine == "jumped":
            taken &= proposed != x[i, k]
        out[i, k] = torch.where(taken, proposed, now)
    return out


def safeguard(
    best: Tensor, energy: Tensor, refined: Tensor, refined_energy: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Lines 21–25: the refined states where E_ref ≤ E_best + ε_safe, else the selected ones; and which those are."""
    accepted = refined_energy <= energy + epsilon
    return torch.where(accepted[:, None], refined, best), accepted
