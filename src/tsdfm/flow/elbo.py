"""The evidence bound of held-out text: an upper bound of −log p(x_1), in nats per token.

    −log p(x_1) ≤ ∫₀¹ E[ κ̇/(1−κ) · bracket(x_t) ] dt = ∫₀¹ E[ bracket(x_t) / (1−κ) ] dκ

The integral is taken over κ, where it is the same for every schedule, with one draw in each of `times` equal strata:
its error falls faster than with independent times. With the mask source and the true posterior it is −log p(x_1)
exactly; with the uniform source it stays above, since a token that is there by chance cannot be told from one that
has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.logits import Reads
from tsdfm.flow.loss import LAST_TIME, bracket, cross_entropy
from tsdfm.flow.noise import Noise, uniform
from tsdfm.flow.path import interpolate
from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source
from tsdfm.flow.walk import Model


@torch.no_grad()
def stratified_rows(
    model: Model,
    x_1: Tensor,
    schedule: Schedule,
    source: Source,
    times: int,
    noise: Noise,
    *,
    time: Callable[[Tensor], Tensor],
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    over: Callable[[Tensor], Tensor],
    span: tuple[float, float] = (0.0, LAST_TIME),
    h: float = 0.0,
    given: Tensor | None = None,
    time_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """∫ E[loss(answer, x_t, t)]/over(v) dv over v in `span`, t = time(v): for each row, per free position [B], float64.

    One draw of v in each of `times` equal strata, and a call of the model with step size `h` for each. `loss` gives
    [B, L] of the model's answer [B, L, V], x_t [B, L] and t [B]; `over` and `time` map [B] to [B].

    `given` (bool, [L] or [B, L]) marks positions that are known: they hold x_1 at every time and are not counted, so
    that a bound is one of p(the rest | the given).
    """
    if times < 1:
        raise UserError(f"a bound needs at least one time per row, not {times}")
    rows, total = x_1.shape[0], torch.zeros(x_1.shape[0], dtype=torch.float64, device=x_1.device)
    step = torch.full((rows,), h, dtype=time_dtype, device=x_1.device)
    free = torch.ones_like(x_1, dtype=torch.bool) if given is None else ~given.expand_as(x_1)
    width = (span[1] - span[0]) / times
    for stratum in range(times):
        v = span[0] + (stratum + uniform(noise, (rows,), x_1.device)) * width
        t = time(v)
        x_t = interpolate(source.draw(x_1.shape, noise, x_1.device), x_1, t, schedule, noise)
        x_t = torch.where(free, x_t, x_1)
        found = torch.where(free, loss(model(x_t, t.to(time_dtype), step), x_t, t), 0.0)
        total += found.to(torch.float64).sum(-1) / free.sum(-1) / over(v)
    return total * width


def elbo_rows(
    model: Model, x_1: Tensor, schedule: Schedule, source: Source, times: int, noise: Noise, **given: Any
) -> Tensor:
    """The bound for each row, nats per token [B] in float64; h, given and time_dtype are those of `stratified_rows`."""
    return stratified_rows(
        model,
        x_1,
        schedule,
        source,
        times,
        noise,
        time=schedule.inverse,  # v is κ
        loss=lambda logits, x_t, t: bracket(logits, x_1, x_t, source),
        over=lambda kappa_t: 1.0 - kappa_t,
        **given,
    )


@torch.no_grad()
def exact_rows(
    model: Model,
    x_1: Tensor,
    schedule: Schedule,
    source: Source,
    times: int,
    noise: Noise,
    *,
    h: float = 0.0,
    given: Tensor | None = None,
    time_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The bound of the mask source by exact numbers of masks, nats per token [B] in float64.

        −log p(x_1) ≤ E[ n/k · Σ_{masked} −log p(x_1 | x_t) ],    k ~ U{1 … n},    k of the n free positions masked

    It has the mean of `elbo_rows` with SUBS and a smaller variance: the number of masks is not left to chance. One k in
    each of `times` equal strata. A model that is told the time is told the one at which k masks of n are expected.
    """
    if source.mask is None:
        raise UserError("a bound by numbers of masks needs a model of the mask source")
    if times < 1:
        raise UserError(f"the ELBO needs at least one time per row, not {times}")
    rows, total = x_1.shape[0], torch.zeros(x_1.shape[0], dtype=torch.float64, device=x_1.device)
    step = torch.full((rows,), h, dtype=time_dtype, device=x_1.device)
    free = torch.ones_like(x_1, dtype=torch.bool) if given is None else ~given.expand_as(x_1)
    room = free.sum(-1)
    for stratum in range(times):
        share = (stratum + uniform(noise, (rows,), x_1.device)) / times
        k = (1 + (share * room).to(torch.int64)).minimum(room)
        rank = torch.where(free, uniform(noise, x_1.shape, x_1.device), 2.0).argsort(-1).argsort(-1)
        masked = rank < k[:, None]
        t = schedule.inverse(1.0 - k / room)
        logits = model(torch.where(masked, source.mask, x_1), t.to(time_dtype), step)
        loss = torch.where(masked, cross_entropy(logits, x_1, reduction="none"), 0.0)
        total += loss.to(torch.float64).sum(-1) / k
    return total / times


@dataclass(frozen=True)
class Bound:
    """A bound of −log p(text) and what a manifest calls it: bounds of different processes are not comparable.

    `rows(model, x_1, schedule, source, times, noise, h=…, given=…)` gives nats per token [B], as `elbo_rows` does. The
    model gives what it `reads`: logits of p(x_1 | x_t), the score, or π (`flow.logits`).
    """

    label: str
    rows: Callable[..., Tensor]
    reads: Reads = "posterior"


FLOW_BOUND = Bound("flow ELBO", elbo_rows)


def bits_per_character(nats_per_token: float, tokens: int, characters: int) -> float:
    """The same bound in bits per character, which does not depend on the tokenizer."""
    if characters < 1:
        raise UserError("bits per character need a text with at least one character")
    return nats_per_token * tokens / (characters * math.log(2.0))
