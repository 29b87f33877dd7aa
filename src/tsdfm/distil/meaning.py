"""Answers that are not logits of x_1 at every position, along a roll-out.

    subs      only a [MASK] is answered: what has left it is x_1 already, so a stage has a say while the position is
              still [MASK], and midpoints move no other
    others    logits of π = p(x_1 | the other positions): the state's own token is raised by log(1 + Kκ/(1−κ)), as
              `flow.logits` has it

The average of the stages' logits of x_1 is then the head of the averaged hidden states, taken over the stages that have
a say, with the column of every stage's own token raised by its share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tsdfm.flow.logits import own_weight
from tsdfm.kernels.fused import Objective, Target
from tsdfm.kernels.head import Head
from tsdfm.kernels.reward import Raised
from tsdfm.nn.velocity import VelocitySpec

Raise = tuple[Tensor, Tensor]
ROLLED = ("plain", "subs", "others")
"""The meanings that a roll-out by RK-4 can read."""


def own_tokens(spec: VelocitySpec, x: Tensor, t: Tensor) -> Raise | None:
    """What turns a network's answers to states x [B, L] at t [B] into logits of x_1: the tokens at the free positions
    [N], and by how much their columns are raised. None where the answers are that already, wherever they are asked."""
    if spec.logits != "others":
        return None
    free = x[:, spec.anchor :]
    weight = own_weight(free, t[:, None], spec.flow_schedule(), spec.flow_source())
    return free.flatten(), weight.flatten()


def read(objective: Objective, own: Raise | None) -> Objective:
    """An objective of logits of x_1 as one of a network's answers."""
    return objective if own is None else Raised(objective, *own)


class Stages:
    """The hidden states of a roll-out's stages, averaged by their shares or, for an average of probabilities, kept.

    `spec` says what the answers mean (none: plain). `places` [N] are the wanted positions among the B·L, all of them
    [MASK] at first (none: those behind the first `anchor` of each row).
    """

    def __init__(
        self, average: str = "logits", anchor: int = 0, spec: VelocitySpec | None = None, places: Tensor | None = None
    ) -> None:
        self.apart, self.anchor, self.spec, self.places = average == "probabilities", anchor, spec, places
        self.kept: list[Tensor] = []
        self.raised: list[Raise] = []
        self.say: Tensor | None = None

    def pick(self, x: Tensor) -> Tensor:
        """The wanted positions of x [B, L, …], as [N, …]."""
        if self.places is None:
            return x[:, self.anchor :].flatten(0, 1)
        return x.flatten(0, 1).index_select(0, self.places)

    def add(self, hidden: Tensor, x: Tensor, t: Tensor, share: float) -> None:
        """The next stage: hidden states [B, L, D] of states x [B, L] at t [B]."""
        hidden = self.pick(hidden)
        weight: Tensor | float = share
        if self.spec is not None and self.spec.logits == "subs":
            say = (self.pick(x) >= self.spec.vocab).to(hidden.dtype) * share  # [MASK] has the id |V|
            self.say = say if self.say is None else self.say + say
            weight = say[:, None]
        elif self.spec is not None and (own := own_tokens(self.spec, x, t)) is not None:
            self.raised.append((own[0], own[1] * share))
        if self.apart or not self.kept:
            self.kept.append(hidden if self.apart else hidden * weight)
        else:
            self.kept[0] += hidden * weight

    def target(
        self, shares: tuple[float, ...], weight: Tensor, bias: Tensor | None, head: Head | None = None
    ) -> Target:
        """The law that a head makes of them."""
        kept = self.kept if self.say is None else [self.kept[0] / self.say[:, None]]
        raised = None
        if self.raised:
            tokens, by = (torch.stack(parts, dim=1) for parts in zip(*self.raised, strict=True))
            raised = (tokens, by)
        return Target(kept, shares if self.apart else (1.0,), weight, bias, head, raised)
