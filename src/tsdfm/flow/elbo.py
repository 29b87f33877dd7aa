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

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.logits import Reads
from tsdfm.flow.loss import LAST_TIME, bracket
from tsdfm.flow.noise import Noise, uniform
from tsdfm.flow.path import interpolate
from tsdfm.flow.schedule import Schedule
from tsdfm.flow.solver import Model
from tsdfm.flow.source import Source

Rate = Callable[[Tensor, Tensor, Tensor, Source, Tensor], tuple[Tensor, Tensor]]
"""(logits [B, L, V], x_1, x_t [B, L], source, κ [B]) → what the bound gains by dκ: losses [B, L] and a divisor [B]."""


def flow_rate(logits: Tensor, x_1: Tensor, x_t: Tensor, source: Source, kappa_t: Tensor) -> tuple[Tensor, Tensor]:
    """The generalised KL's bracket over 1 − κ."""
    return bracket(logits, x_1, x_t, source), 1.0 - kappa_t


@torch.no_grad()
def elbo_rows(
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
    rate: Rate = flow_rate,
) -> Tensor:
    """The bound for each row, nats per token [B] in float64. `times` calls of the model, each with step size `h`.

    `rate` is what is integrated: the flow's own, or that of another process with the same path.

    `given` (bool, [L] or [B, L]) marks positions that are known: they hold x_1 at every time and are not counted, so
    that the bound is one of p(the rest | the given).
    """
    if times < 1:
        raise UserError(f"the ELBO needs at least one time per row, not {times}")
    rows, total = x_1.shape[0], torch.zeros(x_1.shape[0], dtype=torch.float64, device=x_1.device)
    step = torch.full((rows,), h, dtype=time_dtype, device=x_1.device)
    free = torch.ones_like(x_1, dtype=torch.bool) if given is None else ~given.expand_as(x_1)
    for stratum in range(times):
        kappa_t = (stratum + uniform(noise, (rows,), x_1.device)) * (LAST_TIME / times)
        t = schedule.inverse(kappa_t)
        x_t = interpolate(source.draw(x_1.shape, noise, x_1.device), x_1, t, schedule, noise)
        x_t = torch.where(free, x_t, x_1)
        loss, divisor = rate(model(x_t, t.to(time_dtype), step), x_1, x_t, source, kappa_t)
        total += torch.where(free, loss, 0.0).to(torch.float64).sum(-1) / free.sum(-1) / divisor
    return total * (LAST_TIME / times)


@dataclass(frozen=True)
class Bound:
    """A bound of −log p(text) and what a manifest calls it: bounds of different processes are not comparable.

    `rows(model, x_1, schedule, source, times, noise, h=…, given=…)` gives nats per token [B], as `elbo_rows` does; its
    model's answers are what it `reads` (`flow.logits`).
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
