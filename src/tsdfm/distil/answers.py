"""What networks say of states, position by position, without ever making the logits of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tsdfm.distil.chain import Heads
from tsdfm.distil.meaning import Raise, own_tokens
from tsdfm.kernels import fused
from tsdfm.kernels.fused import Target
from tsdfm.kernels.inverse import floats
from tsdfm.nn.velocity import VelocitySpec


@torch.no_grad()
def answer(net: nn.Module, spec: VelocitySpec, x: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Target:
    """A network's law of x_1 for states x [B, L] at t [B] before a step h [B], at the free positions [N]."""
    heads = Heads(copy=False)
    hidden, _ = net(x, *spec.told(t.float(), h.float(), latent), then=heads.keep)
    free = hidden[:, spec.anchor :].flatten(0, 1)
    return Target([free], (1.0,), *heads.parts(), own_tokens(spec, x, t))


def own_answer(hidden: Tensor, head: nn.Linear, own: Raise | None = None) -> Target:
    """The law that a head makes of hidden states [N, D], with `own_tokens`."""
    heads = Heads(copy=False)
    heads.keep(hidden.detach(), head)
    return Target([hidden.detach()], (1.0,), *heads.parts(), own)


@torch.no_grad()
def in_chunks(law: Target, each: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """`each(logits [n, V], part)` of a law of positions chunk by chunk, as one tensor [N]."""
    hidden, fast = law.hidden[0], law.head is not None and law.raised is None
    room = fused.FAST_ROOM if fast else fused.ROOM.get(hidden.device.type, fused.ROOM["cpu"])
    size = max(1, room // len(law.weight))
    parts = [slice(first, first + size) for first in range(0, len(hidden), size)]
    return torch.cat([each(logits_of(law, part), part) for part in parts])


def logits_of(law: Target, part: slice) -> Tensor:
    """Logits [n, V] of a chunk of positions."""
    hidden = law.hidden[0]
    if law.head is not None and law.raised is None:
        return law.head(hidden[part])
    with torch.autocast(hidden.device.type, enabled=False):
        return law.logits(hidden, part)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits [n, V]) at one token each [n], float64; V is [MASK], which has no probability."""
    wide = floats(logits)
    last = logits.shape[-1] - 1
    log_p = wide.gather(-1, tokens.clamp(max=last)[:, None]).squeeze(-1) - wide.logsumexp(-1)
    return torch.where(tokens > last, -math.inf, log_p.double())
