"""A moving average of the weights: what is evaluated, sampled from, and (in distillation) learned from."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Ema:
    """A copy of `model` whose weights follow it: θ̄ ← θ̄ + (1 − d_n)(θ − θ̄), d_n = min(decay, (1 + n)/(10 + n)).

    n counts the updates made before, so the first steps are not weighed down by the random start; `warmup=False` keeps
    d_n = decay, for a run that starts from trained weights. Make it before the model is wrapped or compiled, then call
    `follow` once both have their final parameters.
    """

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool = True) -> None:
        self.decay, self.warmup = decay, warmup
        self.module = copy.deepcopy(model).requires_grad_(False).eval()
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self.follow(model)

    def follow(self, model: nn.Module) -> None:
        """Pair this copy's tensors with the model's (again, after sharding replaced them)."""
        self._pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
        self._buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))

    def decay_at(self, n: int) -> float:
        """d_n, the share of the old average that is kept."""
        return min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self, n: int) -> None:
        """Move towards the model after update number `n` (from 0). A shard follows its own shard: no communication."""
        mine = [local(a) for a, _ in self._pairs]
        theirs = [local(b) for _, b in self._pairs]
        torch._foreach_lerp_(mine, theirs, 1 - self.decay_at(n))
        for a, b in self._buffers:
            a.copy_(b)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
