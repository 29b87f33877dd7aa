"""A compass that keeps up with its student (beyond the paper, whose stated limit is that the compass stays frozen).

Every so many steps the compass takes one step of the objective `ratio` on the student's batch: the true x_{t+h} of each
pair against jumps of the semi-teacher from the same x_t. The compass on disk is not touched; the student's checkpoints
hold the refreshed one beside its own weights, so that a resumed run goes on with it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from tsdfm.compass.exam import true_and_jumps
from tsdfm.compass.loss import nce, regularisation
from tsdfm.compass.model import Compass
from tsdfm.compass.ratio import step_times
from tsdfm.compass.states import walk
from tsdfm.distil.beyond.settings import RefreshSettings
from tsdfm.engine.distributed import Processes, average_gradients
from tsdfm.engine.optim import Optimiser
from tsdfm.engine.settings import OptimSettings
from tsdfm.flow import RowNoise
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.tokens.loader import Batch

REFRESH_STREAM = 9  # noise of its own, apart from the distillation's


class Refresher:
    """A trainable copy of a compass. `compass` is what navigation asks for energies: always the newest weights."""

    def __init__(self, compass: Compass, settings: RefreshSettings, spec: VelocitySpec, seed: int) -> None:
        self.settings, self.spec, self.seed = settings, spec, seed
        net = copy.deepcopy(compass.net).requires_grad_(True)
        self.compass = replace(compass, net=net)
        self.optimiser = Optimiser(net, OptimSettings(lr=settings.lr, weight_decay=0.0, warmup=0))
        self.last = -1

    def due(self, step: int) -> bool:
        """Once in every so many steps, however many parts a step's batch has."""
        return step % self.settings.every == 0 and step != self.last

    def update(self, batch: Batch, semi: nn.Module, world: Processes, step: int) -> None:
        """One step of NCE over the true next state and n jumps of the semi-teacher, with λ·E² of the true one."""
        self.last = step
        ratio, noise = self.settings.ratio, RowNoise(self.seed, batch.rows, REFRESH_STREAM)
        source, schedule = self.spec.flow_source(), self.spec.flow_schedule()
        states = walk(batch.tokens, source, schedule, self.spec.anchor, noise, batch.given)
        t, h = step_times(batch.rows, self.seed, ratio, noise)
        proposer = Velocity(self.spec, semi, source, schedule)  # type: ignore[arg-type]
        with torch.no_grad():
            x, _ = true_and_jumps(states, noise, proposer, t, h, ratio.n, ratio.jump)
        energies = self.compass.net(x.flatten(0, 1)).view(x.shape[:2])
        loss = nce(energies[:, 0], energies[:, 1:]).mean() + ratio.lambda_reg * regularisation(energies[:, 0]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        average_gradients(self.compass.net, world)
        self.optimiser.step(self.settings.lr)
        torch.clear_autocast_cache()  # else navigation in this step would use the casts of the weights before it

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint has to hold besides the student."""
        return {"compass": self.compass.net.state_dict(), "compass_optim": self.optimiser.state()}
