"""What a network's answer means: how it becomes logits of p(x_1 | x_t).

plain   logits of x_1 at every position: nothing is to be done
subs    MDLM's substitution, for the mask source: what has left [MASK] is x_1 already, p(x_1 = x_t | x_t) = 1

At [MASK] both are logits of x_1: so plain answers can be read as subs, but not the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.source import Source
from tsdfm.settings import nearest

Meaning = Callable[[Tensor, Tensor], Tensor]
"""(answer […, V], x_t […]) → logits […, V]."""


def carried_over(answer: Tensor, x_t: Tensor, source: Source) -> Tensor:
    """Logits […, V] that are the answer where x_t […] is [MASK], and −inf but for x_t itself elsewhere."""
    own = x_t.unsqueeze(-1)
    known = answer.new_full(answer.shape, -math.inf).scatter_(-1, own.clamp(max=source.vocab - 1), 0.0)
    return torch.where(own >= source.vocab, answer, known)  # [MASK] has the id |V|


def meaning_of(name: str, source: Source) -> Meaning | None:
    """The function that turns answers into logits, or None where they are logits of x_1."""
    if name == "plain":
        return None
    if name != "subs":
        raise UserError(f"unknown meaning of logits {name!r}{nearest(name, ('plain', 'subs'))}")
    if source.mask is None:
        raise UserError("logits of kind subs need the mask source: nothing has left [MASK] where there is none")
    return lambda answer, x_t: carried_over(answer, x_t, source)


def readable_as(name: str, wanted: str) -> bool:
    """Do answers that mean `name` hold all that those of meaning `wanted` do?"""
    return name == wanted or (name, wanted) == ("plain", "subs")
