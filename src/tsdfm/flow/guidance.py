"""Classifier-free guidance by what is given: a second pass that does not see it, for any model of the mask source.

    logits = (1 + w)·c − w·u,     c of the state as it is, u of the same state with the given positions masked

With w = 0 it is the model itself. Every call takes two passes of the network, and a solver counts them so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.source import Source
from tsdfm.flow.walk import Model, PartialModel


@dataclass(frozen=True)
class ClassifierFree:
    """`model` guided by the strength w = `scale`; `known` [B, L] is what the second pass does not see."""

    model: Model
    scale: float
    known: Tensor
    source: Source
    passes_a_call: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 <= self.scale < math.inf:
            raise UserError(f"the strength of classifier-free guidance is a number of at least 0, not {self.scale}")
        if self.source.mask is None:
            raise UserError("classifier-free guidance masks what is given: it needs a model of the mask source")

    def unseeing(self, x_t: Tensor) -> Tensor:
        """x_t [B, L] without what is given."""
        return torch.where(self.known, self.source.tokens - 1, x_t)  # [MASK] is the last of them

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """Logits [B, L, V], float32 or better."""
        return self.mixed(self.model(x_t, t, h), self.model(self.unseeing(x_t), t, h))

    def mixed(self, seeing: Tensor, unseeing: Tensor) -> Tensor:
        """(1 + w)·c − w·u of logits […, V]; what c rules out stays so."""
        c, u = (x if x.dtype == torch.float64 else x.float() for x in (seeing, unseeing))
        return torch.where(c == -math.inf, c, c + self.scale * (c - u))

    def look(self, x_t: Tensor, t: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
        """Two passes: places [N] among the B·L positions → their logits [N, V]."""
        if not isinstance(self.model, PartialModel):
            whole = self(x_t, t, h).flatten(0, 1)
            return lambda places: whole[places]
        seeing, unseeing = self.model.look(x_t, t, h), self.model.look(self.unseeing(x_t), t, h)
        return lambda places: self.mixed(seeing(places), unseeing(places))
