"""A reward for the width of the student's texts: no token shall be written more often than the data has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tsdfm.engine.distributed import Processes
from tsdfm.kernels.fused import Target

DECAY = 0.98  # of the running averages
LEAST = 0.01  # of 1/|V|: the frequency that a token never seen is given


class Width:
    """weight · log(own/data) of every token, from running averages [2, |V|] of how often each is written and read.

    This is the gradient of weight · KL(own ‖ data) of the pooled frequencies by the student's law at a position.
    """

    def __init__(self, weight: float, vocab: int) -> None:
        self.weight = weight
        self.means = torch.full((2, vocab), 1.0 / vocab)

    def bind(self, world: Processes) -> None:
        self.world, self.means = world, self.means.to(world.device)

    @torch.no_grad()
    def add(self, texts: Tensor, data: Tensor) -> None:
        """Take in the tokens of a batch, both [N]."""
        vocab = self.means.shape[1]
        counts = torch.zeros(2, vocab, device=texts.device)
        for row, tokens in zip(counts, (texts, data), strict=True):
            row.scatter_add_(0, tokens, torch.ones_like(tokens, dtype=counts.dtype))
        if self.world.size > 1:
            dist.all_reduce(counts)
        self.means.lerp_(counts / counts.sum(-1, keepdim=True).clamp(min=1), 1 - DECAY)

    def less(self) -> Tensor:
        """weight · log(data/own) of every token [|V|]."""
        own, data = self.means + LEAST / self.means.shape[1]
        rarer: Tensor = self.weight * (data / own).log()
        return rarer

    def on(self, teacher: Target) -> Target:
        """The teacher with this reward in its head's bias: log auxiliary − log teacher then rises by it.

        What that changes besides is a constant inside each row, which moves no gradient (`kernels.reward`).
        """
        bias = self.less().to(teacher.weight.dtype) + (0 if teacher.bias is None else teacher.bias)
        head = teacher.head
        if head is not None:
            head = replace(head, bias=F.pad(bias, (0, len(head.weight) - len(bias))).to(head.weight.dtype))
        return replace(teacher, bias=bias, head=head)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds."""
        return {"width": {"means": self.means}}
