"""Several jumps of a velocity network from one state, at the price of one pass through its blocks.

A position moves only if its first uniform lies below the chance of leaving, and that chance is largest when p(z) = 0,
which needs no logits to know. So the head and the draw run on the few positions that can move at all: for a step of
h = 1/64 about one in 64(1 − t), instead of every position of every candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tsdfm.engine.runner import is_recorded
from tsdfm.errors import UserError
from tsdfm.flow import Jump, draw, reads_of
from tsdfm.flow.jump import PositionJump, Remembers
from tsdfm.flow.logits import Reads
from tsdfm.kernels.head import quick_logits
from tsdfm.nn.velocity import Velocity

ROOM = {"cpu": 1 << 24, "cuda": 1 << 29}  # logits alive at once


@torch.no_grad()
def propose(
    velocity: Velocity, x: Tensor, t: Tensor, h: Tensor, u: Tensor, jump: Jump, given: Tensor | None = None
) -> Tensor:
    """N jumps [B, N, L] from each state x [B, L] at t [B] over h [B], by uniforms u [B, N, L, 2].

    Equal to `jump.move(x, read, t, h, u[:, n])` for each n, where `read` is what the jump reads at x; anchor positions,
    and what is `given` [B, L], stay. The jump must decide position by position.
    """
    if not isinstance(jump, PositionJump) or isinstance(jump, Remembers):
        raise UserError("a jump that looks at a whole text cannot propose several states: use euler or cumulative")
    hidden, reads = hidden_of(velocity, x, t, h), reads_of(jump)
    xs, ts, hs = (y.repeat_interleave(u.shape[1], 0) for y in (x, t, h))
    can = jump.needs(xs, ts, hs, u.flatten(0, 1)).view(u.shape[:3])
    can[..., : velocity.spec.anchor] = False
    can = can if given is None else can & ~given[:, None]
    out = x[:, None].expand(-1, u.shape[1], -1).clone()
    b, n, l = can.nonzero(as_tuple=True)
    for part in parts(len(b), velocity):
        i, j, k = b[part], n[part], l[part]
        logits = answers(velocity, hidden[i, k], x[i, k], t[i], reads)
        moved = jump.move(x[i, k][:, None], logits[:, None], t[i], h[i], u[i, j, k][:, None])
        out[i, j, k] = moved[:, 0]
    return out


@torch.no_grad()
def reconstruct(velocity: Velocity, x: Tensor, t: Tensor, where: Tensor, u: Tensor) -> Tensor:
    """x [B, L] with tokens drawn from p(x_1 | x, t) at the positions `where` [B, L], by uniforms u [B, L]."""
    hidden = hidden_of(velocity, x, t, torch.zeros_like(t))
    out = x.clone()
    b, l = where.nonzero(as_tuple=True)
    for part in parts(len(b), velocity):
        i, k = b[part], l[part]
        out[i, k] = draw(answers(velocity, hidden[i, k], x[i, k], t[i]), u[i, k])
    return out


def answers(velocity: Velocity, hidden: Tensor, x: Tensor, t: Tensor, reads: Reads = "posterior") -> Tensor:
    """Logits of x_1, or the score [N, V], of positions with hidden states [N, D] and tokens x [N] at times t [N]."""
    logits, mean = quick_logits(hidden, velocity.net.head), velocity.spec.meaning(reads)
    return logits if mean is None else mean(logits, x, t)


def hidden_of(velocity: Velocity, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    """The network's last hidden state [B, L, D].

    A recorded network (`engine.graphs`) is called with whole fours of rows, the last repeated: few sizes to record.
    """
    count = len(x)
    if is_recorded(velocity.net) and count % 4:
        pick = torch.arange(count + -count % 4, device=x.device).clamp_(max=count - 1)
        x, t, h = x[pick], t[pick], h[pick]
    return velocity.net.hidden(x, *velocity.spec.told(t.float(), h.float()))[:count]


def parts(count: int, velocity: Velocity) -> list[slice]:
    """Slices of positions whose logits fit into memory."""
    size = max(1, ROOM.get(velocity.device.type, ROOM["cpu"]) // velocity.spec.vocab)
    return [slice(first, first + size) for first in range(0, count, size)]
