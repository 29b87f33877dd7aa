"""A moving average of the weights: what is evaluated, sampled from, and (in distillation) learned from."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tsdfm.engine.sharded import sharded_tensor


class Ema:
    """A copy of `model` whose weights follow it: θ̄ ← θ̄ + (1 − d_n)(θ − θ̄), d_n = min(decay, (1 + n)/(10 + n)).

    n counts the updates made before, so the first steps are not weighed down by the random start; `warmup=False` keeps
    d_n = decay, for a run that starts from trained weights. Make it before the model is wrapped or compiled, then call
    `follow` once both have their final parameters.

    Not `torch.optim.swa_utils.AveragedModel`: that one copies the model at its first update instead of averaging, has
    no d_n, keeps its own count beside the run's, and sorts all parameters into lists anew at every step. Here a step is
    one call on lists that are made once, of a process's own shards where the model is sharded.
    """

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool = True) -> None:
        self.decay, self.warmup = decay, warmup
        self.module = copy.deepcopy(model).requires_grad_(False).eval()
        self.follow(model)

    def follow(self, model: nn.Module) -> None:
        """Pair this copy's tensors with the model's (again, after sharding replaced them)."""
        self._mine: list[Tensor] = list(self.module.parameters())
        self._theirs: list[Tensor] = list(model.parameters())
        if len(self._mine) != len(self._theirs):
            raise ValueError("the average follows a model of its own kind")
        self._whole = not any(sharded_tensor(x) for x in (*self._mine, *self._theirs))
        self._buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))

    def decay_at(self, n: int) -> float:
        """d_n, the share of the old average that is kept."""
        return min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self, n: int) -> None:
        """Move towards the model after update number `n` (from 0). A shard follows its own shard: no communication."""
        mine = self._mine if self._whole else [local(a) for a in self._mine]
        theirs = self._theirs if self._whole else [local(b) for b in self._theirs]
        torch._foreach_lerp_(mine, theirs, 1 - self.decay_at(n))
        if self._buffers:
            torch._foreach_copy_([local(a) for a, _ in self._buffers], [local(b) for _, b in self._buffers])


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if sharded_tensor(tensor) else tensor
