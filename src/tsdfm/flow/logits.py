"""What a network's answer means, and how it becomes what a jump reads.

A network answers with one of

    plain          logits of p(x_1 | x_t) at every position
    subs           the same with MDLM's substitution, for the mask source: what has left [MASK] is x_1 already
    score          log s_y, s_y = q_t(y)/q_t(x_t): how much likelier the state is with y in this place (SEDD)
    scaled-score   log s_y − log r + log|V|, for the mask source: SEDD's «scale by σ»
    others         logits of π, for the uniform source: p(x_1 | the other positions), its own token not looked at (Duo)

and a jump or a bound reads one of three things: the posterior p(x_1 | x_t) as logits, the score as log s, or π as
logits (`others`; at [MASK] it is the posterior). Each follows from the others at each position. With κ = κ(t),
r = κ/(1−κ) and K = |V|:

    mask       s_y = r·p_y                           p_y = s_y/Σs                 at [MASK]; elsewhere p = 1{x_t}
    uniform    s_y = (1 + K r π_y)/(1 + K r π_x)     π_y = [s_y/Σs − (1−κ)/K]/κ   Σs with s_x = 1
               π_y ∝ p_y/(κ1{y=x} + (1−κ)/K)         p_y ∝ π_y·(κ1{y=x} + (1−κ)/K)

A learned score may ask for π < 0: that is taken as 0. The error of a learned score grows by 1/κ on its way to π, so
near t = 0 the posterior of the uniform source is worth little; the jumps that read the score do without it. A learned
score of the mask source may also have Σs ≠ r: only jumps that read the score notice.

At [MASK] plain answers are logits of x_1 as well, and so are those of the score, since softmax does not see a constant:
they can be read as subs, but not the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.loss import LAST_TIME
from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source
from tsdfm.kernels.inverse import floats
from tsdfm.settings import nearest

Reads = Literal["posterior", "score", "others"]
Meaning = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(answer […, V], x_t […], t that broadcasts to x_t) → what is read […, V]."""

NAMES = ("plain", "subs", "score", "scaled-score", "others")
FIRST_TIME = 1e-3
"""The score's scale r is 0 at t = 0 and infinite at 1: its times are held between this one and `LAST_TIME`."""


def log_odds(schedule: Schedule, t: Tensor) -> Tensor:
    """log r = log κ/(1−κ) of times t […], float64, finite."""
    t = t.to(torch.float64).clamp(FIRST_TIME, LAST_TIME)
    return torch.log(schedule.kappa(t)) - torch.log(schedule.remaining(t))


def carried_over(answer: Tensor, x_t: Tensor, source: Source) -> Tensor:
    """Logits […, V] that are the answer where x_t […] is [MASK], and −inf but for x_t itself elsewhere."""
    own = x_t.unsqueeze(-1)
    known = answer.new_full(answer.shape, -math.inf).scatter_(-1, own.clamp(max=source.vocab - 1), 0.0)
    return torch.where(own >= source.vocab, answer, known)  # [MASK] has the id |V|


def score_from_posterior(logits: Tensor, x_t: Tensor, t: Tensor, schedule: Schedule, source: Source) -> Tensor:
    """log s […, V] of logits of p(x_1 | x_t) […, V], as above; the column of x_t itself, if it has one, is 0."""
    wide, odds = floats(logits), log_odds(schedule, t).unsqueeze(-1)
    wide = torch.where(wide.amax(-1, keepdim=True) == -math.inf, 0.0, wide)  # all −inf counts as uniform
    if source.mask is not None:
        return wide.log_softmax(-1) + odds.to(wide.dtype)
    own, times = x_t.unsqueeze(-1), (source.vocab * odds.exp()).to(wide.dtype)
    others = wide.scatter_add(-1, own, -torch.log1p(times).expand(own.shape)).softmax(-1)
    score = torch.log1p(times * others)
    return score - score.gather(-1, own)


def posterior_from_score(score: Tensor, x_t: Tensor, t: Tensor, schedule: Schedule, source: Source) -> Tensor:
    """Logits of p(x_1 | x_t) […, V] of log s […, V], as above; the score's column of x_t itself is not looked at."""
    if source.mask is not None:
        return carried_over(score, x_t, source)
    wide, own, odds = floats(score), x_t.unsqueeze(-1), log_odds(schedule, t).unsqueeze(-1)
    law = wide.scatter(-1, own, 0.0).softmax(-1)
    noise = 1.0 / (source.vocab * (1.0 + odds.exp()))  # (1 − κ)/K
    others = (law - noise.to(law.dtype)).clamp(min=0.0).log()
    return others.scatter_add(-1, own, torch.log1p(source.vocab * odds.exp()).to(law.dtype).expand(own.shape))


def own_weight(x_t: Tensor, t: Tensor, schedule: Schedule, source: Source) -> Tensor:
    """log(1 + Kκ/(1−κ)) […, 1]: how much likelier x_t makes it that x_1 is the same token, with the uniform source."""
    t = t.to(torch.float64).clamp(max=LAST_TIME)
    weight = torch.log1p(source.vocab * schedule.kappa(t) / schedule.remaining(t))
    return weight.expand_as(x_t).unsqueeze(-1)


def posterior_from_others(logits: Tensor, x_t: Tensor, t: Tensor, schedule: Schedule, source: Source) -> Tensor:
    """Logits of p(x_1 | x_t) […, V] of logits of π […, V], as above: x_t's own column is raised."""
    wide, weight = floats(logits), own_weight(x_t, t, schedule, source)
    return wide.scatter_add(-1, x_t.unsqueeze(-1), weight.to(wide.dtype))


def others_from_posterior(logits: Tensor, x_t: Tensor, t: Tensor, schedule: Schedule, source: Source) -> Tensor:
    """Logits of π […, V] of logits of p(x_1 | x_t) […, V], with the uniform source.

    At t = 1, where x_t is x_1 for sure, a posterior tells nothing of π: it is left as it is.
    """
    wide, weight = floats(logits), own_weight(x_t, t, schedule, source)
    weight = torch.where((t < 1.0).expand_as(x_t).unsqueeze(-1), weight, 0.0)
    return wide.scatter_add(-1, x_t.unsqueeze(-1), -weight.to(wide.dtype))


def reshaped_score(score: Tensor, shaped: Tensor, x_t: Tensor, t: Tensor, schedule: Schedule, source: Source) -> Tensor:
    """log s […, V] of a posterior that was `shaped` […, V]; with the mask source it keeps the sum Σs it had."""
    new = score_from_posterior(shaped, x_t, t, schedule, source)
    if source.mask is None:
        return new
    return new - new.logsumexp(-1, keepdim=True) + floats(score).logsumexp(-1, keepdim=True)


def meaning_of(name: str, source: Source, schedule: Schedule, reads: Reads = "posterior") -> Meaning | None:
    """The function that turns answers into what is read, or None where they are that already."""
    if name not in NAMES:
        raise UserError(f"unknown meaning of logits {name!r}{nearest(name, NAMES)}")
    if name in ("subs", "scaled-score") and source.mask is None:
        raise UserError(f"logits of kind {name} need the mask source: nothing has left [MASK] where there is none")
    if name == "others" and source.mask is not None:
        raise UserError("logits of kind others need the uniform source: at [MASK] they are plain ones")
    if reads == "others" and source.mask is not None:
        reads = "posterior"
    if (name, reads) in (("plain", "posterior"), ("score", "score"), ("others", "others")):
        return None
    if (name, reads) == ("scaled-score", "score"):
        return lambda answer, x_t, t: answer + _unscaled(schedule, t, source).to(floats(answer[:0]).dtype)
    first = {"plain": None, "others": posterior_from_others}.get(name, posterior_from_score)
    second = {"posterior": None, "score": score_from_posterior, "others": others_from_posterior}[reads]

    def mean(answer: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        for turn in (first, second):
            answer = answer if turn is None else turn(answer, x_t, t, schedule, source)
        return answer

    return mean


def _unscaled(schedule: Schedule, t: Tensor, source: Source) -> Tensor:
    return (log_odds(schedule, t) - math.log(source.vocab)).unsqueeze(-1)


def readable_as(name: str, wanted: str) -> bool:
    """Do answers that mean `name` hold all that those of meaning `wanted` do?"""
    return name == wanted or (wanted == "subs" and name in ("plain", "score", "scaled-score"))
