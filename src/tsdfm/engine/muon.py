"""Muon: momentum whose matrices are made orthogonal before they move the weights.

    M ← βM + (1 − β)G,   O ≈ U Vᵀ  of  (1 − β)G + βM = U S Vᵀ,   W ← (1 − lr·decay)W − lr · 0.2 √max(m, n) · O

The last factor gives an update the size AdamW's usually has, so that both take the same learning rate and decay. It is
for matrices that multiply a token's state, where it needs far fewer steps than AdamW; embeddings, heads, vectors and
what sees the condition alone stay with AdamW.

The rule is `torch.optim.Muon`'s with `match_rms_adamw`, to which a test holds it. Ours is kept for three things that
one does not do: it turns all matrices of one shape together instead of one after another, takes queries, keys and
values apart, and leaves out a step that is not finite without the host waiting to know. On a CPU it computes in the
weights' own precision, where torch's rounds to bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from tsdfm.engine.sharded import sharded_tensor
from tsdfm.errors import UserError

TURNS = 5
ROOM = 1 << 26  # numbers of a stack: a step takes a few copies of it
QUINTIC = (3.4445, -4.7750, 2.0315)  # steep at 0: singular values end near 1 (0.7 to 1.2), not on it, in few turns
LIKE_ADAMW = 0.2


def hidden_matrices(model: nn.Module) -> list[str]:
    """Names of the trained matrices inside `model.blocks` that multiply every token's state."""
    named = ((n, p) for n, p in model.named_parameters() if p.requires_grad and p.ndim == 2)
    return [n for n, _ in named if n.startswith("blocks.") and not any(part in n for part in (".adaln.", ".fuser."))]


def orthogonal(matrices: Tensor, turns: int = TURNS) -> Tensor:
    """U Vᵀ of each of the matrices [N, m, n], m ≤ n, to within some 30 % of each singular value.

    X ← aX + b(XXᵀ)X + c(XXᵀ)²X, from X = G/‖G‖, which keeps singular vectors and drives singular values to 1.
    In bfloat16 on a GPU: the rounding is far below what the turns leave.
    """
    a, b, c = QUINTIC
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(turns):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


class _Group:
    """Matrices of one shape [m, n], m ≤ n, worked on as one stack; a tall one lies down."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        self.params = params
        first = next(iter(params.values()))
        shape = _pieces(first, parts_of(next(iter(params)), first)).shape[1:]
        count = sum(parts_of(name, p) for name, p in params.items())
        self.momentum = torch.zeros(count, *shape, dtype=first.dtype, device=first.device)

    def split(self, stack: Tensor) -> dict[str, Tensor]:
        """The part of a stack that belongs to each parameter, a view in its shape."""
        out, at = dict[str, Tensor](), 0
        for name, p in self.params.items():
            parts = parts_of(name, p)
            mine = stack[at : at + parts]
            tall = p.shape[0] // parts > p.shape[1]  # of one part, so that turning it back is a view
            out[name] = mine.view(p.shape) if parts > 1 else mine[0].mT if tall else mine[0]
            at += parts
        return out

    @torch.no_grad()
    def step(self, lr: float, decay: float, beta: float, good: Tensor) -> None:
        given = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params.values()]
        named = zip(self.params, given, strict=True)
        grads = torch.cat([_pieces(g, parts_of(name, g)) for name, g in named])
        grads = torch.where(good, grads, 0.0)
        self.momentum.lerp_(grads, ((1 - beta) * good).to(grads.dtype))
        move = orthogonal(grads.lerp(self.momentum, beta))
        move *= good * (lr * LIKE_ADAMW * math.sqrt(max(move.shape[1:])))
        weights = list(self.params.values())
        torch._foreach_mul_(weights, 1 - lr * decay * good)
        torch._foreach_sub_(weights, list(self.split(move).values()))


def parts_of(name: str, p: Tensor) -> int:
    """How many matrices lie in one parameter: queries, keys and values are made orthogonal each for itself."""
    return 3 if ".qkv." in name and p.shape[0] == 3 * p.shape[1] else 1


def portions(params: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Parameters of one shape in portions of at most `ROOM` numbers, one parameter at least."""
    most = max(1, ROOM // max(p.numel() for p in params.values()))
    names = list(params)
    return ({name: params[name] for name in names[at : at + most]} for at in range(0, len(names), most))


def _pieces(x: Tensor, parts: int) -> Tensor:
    """A matrix as `parts` matrices [parts, m, n] with m ≤ n."""
    cut = x.view(parts, x.shape[0] // parts, x.shape[1])
    return cut.mT if cut.shape[1] > cut.shape[2] else cut


class Muon:
    """Muon over named matrices, one stack for each shape. A step that is not `good` changes nothing."""

    def __init__(self, params: Mapping[str, Tensor], *, momentum: float, weight_decay: float) -> None:
        self.beta, self.decay = momentum, weight_decay
        by_shape: dict[tuple[int, ...], dict[str, Tensor]] = {}
        for name, p in params.items():
            if sharded_tensor(p):
                raise UserError("optim.rule = muon needs whole matrices: use loop.parallel ddp, or optim.rule adamw")
            shape = _pieces(p.detach(), parts_of(name, p)).shape[1:]
            by_shape.setdefault(tuple(shape), {})[name] = p
        self.groups = [_Group(some) for group in by_shape.values() for some in portions(group)]

    def step(self, lr: float, good: Tensor) -> None:
        """Move all weights by their gradients; `good` is a bool on the device, so that the host need not wait."""
        for group in self.groups:
            group.step(lr, self.decay, self.beta, good)

    def state(self) -> dict[str, Tensor]:
        """The momentum of every parameter in its own shape: views, filled in place when a checkpoint is loaded."""
        return {name: m for group in self.groups for name, m in group.split(group.momentum).items()}
