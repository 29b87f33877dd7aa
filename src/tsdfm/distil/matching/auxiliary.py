"""The auxiliary: a network beside the student that learns what a teacher of the student's own texts would say.

It starts as the teacher and is told what the student is told.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tsdfm.distil.beside import Beside
from tsdfm.distil.chain import Heads
from tsdfm.distil.matching.settings import AuxiliarySettings
from tsdfm.distil.meaning import own_tokens, read
from tsdfm.distil.settings import DistilSettings
from tsdfm.distil.start import start_from
from tsdfm.engine.task import Context
from tsdfm.kernels.fused import Objective, Target, fused_loss
from tsdfm.nn.decoder import told_decoder
from tsdfm.nn.network import TokenNet
from tsdfm.nn.velocity import Velocity, VelocitySpec


class Auxiliary(Beside[TokenNet]):
    """The network and what it learns."""

    name = "auxiliary"

    def __init__(self, own: AuxiliarySettings, settings: DistilSettings, spec: VelocitySpec, teacher: Velocity) -> None:
        """`spec` is the student's: what it is told, the auxiliary is told too."""
        self.own = own
        shape = replace(teacher.spec.shape, dropout=spec.shape.dropout, checkpoint=settings.checkpoint)
        told_h = spec.step_size or teacher.spec.step_size
        decoder = told_decoder(teacher.spec.decoder, told_h)
        self.spec = replace(teacher.spec, shape=shape, step_size=told_h, decoder=decoder)
        torch.manual_seed(settings.loop.seed)  # the same new weights as the student's, where h is new to both
        super().__init__(self.spec.network(), settings.loop, lr=own.lr, warmup=own.warmup)
        known, where = teacher.spec.step_size, str(teacher.checkpoint)
        start_from(self.net, teacher.net.state_dict(), self.spec, step_size=known, fit=True, where=where)

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.waiting = self.parts_of_step = 0

    def split(self, rows: int) -> None:
        """A step's batch comes in parts of `rows` rows: their gradients add up to one step."""
        self.parts_of_step = max(1, self.loop.batch // self.world.size // rows)

    def learn(
        self, x: Tensor, t: Tensor, h: Tensor, objective: Objective, scale: Tensor, step: int
    ) -> tuple[Target, Tensor]:
        """One step of `objective` with weights `scale` [N]; what it said before the step, and the loss."""
        heads = Heads(copy=True)  # the head is about to change
        own = own_tokens(self.spec, x, t)
        objective = read(objective, own)

        def then(hidden: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
            free = hidden[:, self.spec.anchor :].flatten(0, 1)
            heads.keep(free.detach(), head)
            return free.detach(), fused_loss(free, head, objective, scale)

        with torch.enable_grad():
            hidden, loss = self.runner(x, *self.spec.told(t.float(), h.float()), then=then)
            (loss / self.parts_of_step).backward()
        self.waiting += 1
        if self.waiting == self.parts_of_step:
            self.waiting = 0
            self.step(step)
        return Target([hidden], (1.0,), *heads.parts(), own), loss.detach()
