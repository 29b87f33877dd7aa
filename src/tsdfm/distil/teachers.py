"""Whose answers a student learns: its own average (FS-DFM, TS-DFM), a frozen model, or one renewed in rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.engine.sharded import sharded_module
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow.logits import readable_as
from tsdfm.nn.velocity import Velocity


@dataclass
class Average:
    """The moving average of the student's own weights: FS-DFM's semi-teacher."""

    net: nn.Module = field(init=False)

    def bind(self, context: Context, student: nn.Module) -> None:
        if context.ema is None:
            raise UserError("a student learns from its averaged weights: optim.ema must be above 0")
        self.net = context.ema

    def at(self, step: int) -> nn.Module:
        return self.net

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {}  # the loop saves its average itself


class Told(nn.Module):
    """A model's network, called with t and h whether it is told them or not; its answers are read as `logits`."""

    def __init__(self, velocity: Velocity, logits: str = "plain") -> None:
        super().__init__()
        self.net, self.spec = velocity.net, velocity.spec
        if not readable_as(self.spec.logits, logits):
            raise UserError(f"a teacher whose logits are {self.spec.logits} cannot be rolled out: use a {logits} one")

    @property
    def head(self) -> nn.Linear:
        return self.net.head

    def hidden(self, x_t: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """The final hidden state [B, L, D]."""
        return self.net.hidden(x_t, *self.spec.told(t, h))

    def forward(self, x_t: Tensor, t: Tensor, h: Tensor, then: Any = None) -> Any:
        """As the network's own."""
        return self.net(x_t, *self.spec.told(t, h), then=then)


@dataclass
class Frozen:
    """A model that stays as it is. The method names its path in `inputs`, so that a resumed run is held to its hash.

    `logits` is what the student's answers mean, and so what the teacher's are read as.
    """

    velocity: Velocity
    logits: str = "plain"

    def __post_init__(self) -> None:
        self.net = Told(self.velocity, self.logits)

    def bind(self, context: Context, student: nn.Module) -> None: ...

    def at(self, step: int) -> nn.Module:
        return self.net

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {}


@dataclass
class Rounds:
    """A copy of the student that is renewed every `every` steps; at first it is what the student starts from.

    The copy and the number of its round are part of the checkpoint: a resumed run asks the same network.
    """

    every: int
    net: nn.Module = field(init=False)
    called: nn.Module = field(init=False)
    student: nn.Module = field(init=False)
    round: Tensor = field(init=False)
    known: int | None = field(init=False, default=None)  # the same on the host, which then need not ask the device

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"a round takes at least 1 step, not {self.every}")

    def bind(self, context: Context, student: nn.Module) -> None:
        if sharded_module(student):
            raise UserError("a teacher renewed in rounds works with one process or ddp, not with fsdp")
        self.student = student
        self.net = copy.deepcopy(student).eval().requires_grad_(False)
        self.called = context.runner(self.net)
        self.round = torch.zeros(1, dtype=torch.int64, device=context.world.device)

    @torch.no_grad()
    def at(self, step: int) -> nn.Module:
        now = step // self.every
        if self.known is None:  # a checkpoint may have been loaded since `bind`
            self.known = int(self.round)
        if now != self.known:
            self.net.load_state_dict(self.student.state_dict())
            self.round.fill_(now)
            self.known = now
        return self.called

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {"teacher": {**self.net.state_dict(), "round": self.round}}
