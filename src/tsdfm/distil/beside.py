"""A network that learns beside the student: IDLM's auxiliary, the law of the student's own texts.

It has a steady learning rate of its own. Its weights and its optimiser are part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from tsdfm.engine.distributed import average_gradients
from tsdfm.engine.optim import Optimiser, lr_at
from tsdfm.engine.runner import Compiled, body_of, wrapped
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Context

Net = TypeVar("Net", bound=nn.Module)


class Beside(Generic[Net]):
    """The network, how it is called (`runner`), and its optimiser. A subclass says what it learns."""

    name: ClassVar[str]
    """What a checkpoint calls it."""

    def __init__(self, net: Net, loop: LoopSettings, *, lr: float, warmup: int) -> None:
        self.net, self.loop = net, loop
        self.optim = OptimSettings(lr=lr, warmup=warmup, floor=1.0, beta2=0.99, weight_decay=0.0)

    def bind(self, context: Context) -> None:
        """Move to the device, compile where the student is compiled, and make the optimiser."""
        self.world = context.world
        self.net.to(self.world.device).train()
        self.runner = self.net
        if self.loop.compile:
            self.runner = wrapped(self.net, Compiled(body_of(self.net), "each"))
        self.optimiser = Optimiser(self.net, self.optim)

    def step(self, step: int) -> None:
        """One step of its training by the gradients that are there, those of all processes together."""
        average_gradients(self.net, self.world)
        self.optimiser.step(lr_at(step, self.loop.steps, self.optim))
        torch.clear_autocast_cache()  # else the rest of this step would use the casts of the weights before it

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student."""
        return {self.name: self.net.state_dict(), f"{self.name}_optim": self.optimiser.state()}
