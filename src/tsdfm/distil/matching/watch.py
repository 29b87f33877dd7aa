"""The watch for collapse: the entropy of the student's texts beside that of the batch's own.

A matched student that collapses writes the same few words over and over, within some hundred steps and after many
quiet ones. A look every so many steps tells it. If so wished, student, average and auxiliary go back to the weights of
the last good look, both optimisers start anew, and the student's learning rate is lowered. All that this depends on is
part of the checkpoint, so that a resumed run does the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tsdfm import terminal
from tsdfm.distil.beside import Beside
from tsdfm.distil.matching.settings import WatchSettings
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context

MEASURES = ("text_bits", "data_bits", "pool_bits", "data_pool_bits")
"""Entropy of a text's tokens and of all texts' tokens together, of the student's texts and of as many of the data's."""


def histogram_bits(tokens: Tensor, vocab: int, world: Processes, counted: Tensor | None = None) -> Tensor:
    """The mean over rows [n, L] of the entropy of a row's tokens, and the entropy of all tokens together: [2], bits.

    Only the tokens that are `counted` [n, L], if that is given. With several processes both are of all their rows.
    """
    counts = torch.zeros(len(tokens), vocab, device=tokens.device)
    each = torch.ones_like(tokens, dtype=counts.dtype) if counted is None else counted.to(counts.dtype)
    counts.scatter_add_(1, tokens, each)
    mean, pool = bits(counts).mean()[None], counts.sum(0)
    if world.size > 1:
        both = torch.cat([mean / world.size, pool])
        dist.all_reduce(both)
        mean, pool = both[:1], both[1:]
    return torch.cat([mean, bits(pool)[None]]).double()


def bits(counts: Tensor) -> Tensor:
    """The entropy of the frequencies that counts […, |V|] give."""
    p = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return torch.xlogy(p, p).sum(-1) / -math.log(2)


class Watch:
    """Sums since the last look, the pace of the student's training, and the weights of the last good look."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.state = torch.tensor([1.0, 0.0], dtype=torch.float64)  # the pace, and how often it went back
        self.good: dict[str, Tensor] = {}
        self.found: dict[str, Tensor] = {}  # of the last batch
        self.last = -1

    def bind(self, context: Context, student: nn.Module, auxiliary: Beside[Any]) -> None:
        self.world, self.optimiser, self.auxiliary = context.world, context.optimiser, auxiliary
        self.sums = torch.zeros(len(MEASURES) + 1, dtype=torch.float64, device=context.world.device)
        networks = {"model": student, "ema": context.ema, "auxiliary": auxiliary.net}
        self.networks = {name: net for name, net in networks.items() if net is not None}
        if self.settings.rollback:
            self.good = {name: value.to("cpu", copy=True) for name, value in self._live().items()}

    def _live(self) -> dict[str, Tensor]:
        return {f"{part}.{name}": x for part, net in self.networks.items() for name, x in net.state_dict().items()}

    @torch.no_grad()
    def add(self, texts: Tensor, data: Tensor, vocab: int, counted: tuple[Tensor, Tensor] | None = None) -> None:
        """Measure the student's texts beside the data's, both [n, L], and of each only what is `counted`, if given."""
        parts = (None, None) if counted is None else counted
        both = [histogram_bits(x, vocab, self.world, part) for x, part in zip((texts, data), parts, strict=True)]
        found = torch.stack(both, dim=1).flatten()
        self.sums += torch.cat([found, torch.ones_like(found[:1])])
        self.found = dict(zip(MEASURES, found.unbind(), strict=True))

    @torch.no_grad()
    def look(self, step: int) -> bool:
        """Before a step of the training: is it time, and have the weights gone back?"""
        if step == self.last:
            return False
        self.last = step
        if self.optimiser is not None:
            self.optimiser.pace = float(self.state[0])
        every = self.settings.every
        if not every or step % every or not step:
            return False
        text, own, pool, own_pool, count = self.sums.tolist()
        self.sums.zero_()
        if not count:
            return False
        share = min(text / max(own, 1e-9), pool / max(own_pool, 1e-9))
        if share >= self.settings.least:
            if self.settings.rollback and share >= (1 + self.settings.least) / 2:  # not on its way down
                for name, value in self._live().items():
                    self.good[name].copy_(value)
            return False
        return self._collapsed(step, share)

    def _collapsed(self, step: int, share: float) -> bool:
        went = self.settings.rollback > float(self.state[1])
        word = f"warning: step {step}: the student's texts have {share:.0%} of the entropy of the data: it collapses"
        if went:
            for name, value in self._live().items():
                value.copy_(self.good[name])
            for optimiser in (self.optimiser, self.auxiliary.optimiser):
                if optimiser is not None:
                    optimiser.restart()
            self.state[0] *= self.settings.slower
            self.state[1] += 1
            if self.optimiser is not None:
                self.optimiser.pace = float(self.state[0])
            advice = f"back to its last good weights, at {float(self.state[0]):g} of the learning rate"
        else:
            advice = "lower optim.lr, let what learns beside it learn faster, or set watch.rollback"
        if self.world.main:
            terminal.say(f"{word}; {advice}")
        return went

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds."""
        kept: dict[str, Mapping[str, Tensor]] = {"good": self.good} if self.good else {}
        return {"watch": {"sums": self.sums, "state": self.state}, **kept}
