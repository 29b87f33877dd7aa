"""Whose answers a student learns: its own average (FS-DFM, TS-DFM), a frozen model, or one renewed in rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tsdfm.engine.task import Context
from tsdfm.errors import UserError


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


@dataclass
class Frozen:
    """A model that stays as it is."""

    net: nn.Module

    def bind(self, context: Context, student: nn.Module) -> None: ...

    def at(self, step: int) -> nn.Module:
        return self.net

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {}  # it is an input of the run, which is held to its hash


@dataclass
class Rounds:
    """A copy of the student that is renewed every `every` steps; at first it is what the student starts from.

    The copy and the number of its round are part of the checkpoint: a resumed run asks the same network.
    """

    every: int
    net: nn.Module = field(init=False)
    student: nn.Module = field(init=False)
    round: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"a round takes at least 1 step, not {self.every}")

    def bind(self, context: Context, student: nn.Module) -> None:
        self.student = student
        self.net = copy.deepcopy(student).eval().requires_grad_(False)
        self.round = torch.zeros(1, dtype=torch.int64)

    @torch.no_grad()
    def at(self, step: int) -> nn.Module:
        now = step // self.every
        if now != int(self.round):
            self.net.load_state_dict(self.student.state_dict())
            self.round.fill_(now)
        return self.net

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {"teacher": {**self.net.state_dict(), "round": self.round}}
