"""What networks say of states, position by position, without ever making the logits of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm.distil.chain import Heads
from tsdfm.kernels import fused
from tsdfm.kernels.fused import Target
from tsdfm.nn.velocity import VelocitySpec


@torch.no_grad()
def answer(net: nn.Module, spec: VelocitySpec, x: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Target:
    """A network's law of x_1 for states x [B, L] at t [B] before a step h [B], at the free positions [N]."""
    heads = Heads(copy=False)
    hidden, _ = net(x, *spec.told(t.float(), h.float(), latent), then=heads.keep)
    return Target([hidden[:, spec.anchor :].flatten(0, 1)], (1.0,), *heads.parts())


def own_answer(hidden: Tensor, head: nn.Linear) -> Target:
    """The law that a head makes of hidden states [N, D]."""
    heads = Heads(copy=False)
    heads.keep(hidden.detach(), head)
    return Target([hidden.detach()], (1.0,), *heads.parts())


@torch.no_grad()
def in_chunks(law: Target, each: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """`each(logits [n, V], part)` of a law of positions chunk by chunk, as one tensor [N]."""
    hidden = law.hidden[0]
    room = fused.FAST_ROOM if law.head is not None else fused.ROOM.get(hidden.device.type, fused.ROOM["cpu"])
    size = max(1, room // len(law.weight))
    parts = [slice(first, first + size) for first in range(0, len(hidden), size)]
    return torch.cat([each(logits_of(law, part), part) for part in parts])


def logits_of(law: Target, part: slice) -> Tensor:
    """Logits [n, V] of a chunk of positions."""
    hidden = law.hidden[0][part]
    if law.head is not None:
        return law.head(hidden)
    return F.linear(hidden.to(law.weight.dtype), law.weight, law.bias)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits [n, V]) at one token each [n], float64; V is [MASK], which has no probability."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    last = logits.shape[-1] - 1
    log_p = wide.gather(-1, tokens.clamp(max=last)[:, None]).squeeze(-1) - wide.logsumexp(-1)
    return torch.where(tokens > last, -math.inf, log_p.double())
