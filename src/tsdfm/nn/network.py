"""What every network over tokens has: embeddings of tokens, of the time and of the step size, and a head at its end.

Shapes: B batch, L length, D width, C condition width, |V| columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm.nn.layers import Rotary, ScalarEmbedding, fuser


class TokenNet(nn.Module):
    """p_θ(x_1 | x_t[, t][, h]) as logits. A subclass makes what stands below, calls `tell`, and says `hidden`.

    With `step_size` it is told h besides t: both scalars are embedded, concatenated and passed through a linear layer
    and SiLU; each block's fuser, and the head's, brings them back to the condition width C.
    """

    embedding: nn.Embedding
    rotary: Rotary
    blocks: nn.ModuleList
    head: nn.Linear
    vocab: int
    step_size: bool = False

    def tell(self, cond: int, step_size: bool) -> None:
        """Make the embeddings of t and h, of width C = `cond`, and the head's fuser."""
        self.step_size = step_size
        self.time = ScalarEmbedding(cond)
        if step_size:
            self.step = ScalarEmbedding(cond)
            self.join = nn.Linear(2 * cond, 2 * cond)
        self.fuser = fuser(cond, step_size)
        self.spread: nn.Module = nn.Identity()  # what is done once for all blocks (`nn.together`)

    def condition(self, t: Tensor, h: Tensor | None) -> Tensor:
        """[B, C], or [B, 2C] with step-size conditioning."""
        if self.step_size != (h is not None):
            raise ValueError("a network with step-size conditioning needs h, and one without takes none")
        told = self.time(t) if h is None else self.join(torch.cat([self.time(t), self.step(h)], dim=-1))
        out: Tensor = self.spread(F.silu(told))
        return out

    def forward(
        self,
        x_t: Tensor,
        t: Tensor,
        h: Tensor | None = None,
        weights: Tensor | None = None,
        latent: Tensor | None = None,
        then: Callable[[Tensor, nn.Linear], Any] | None = None,
    ) -> Any:
        """Logits [B, L, |V|] of x_1 for x_t [B, L], t [B] and, where the network has them, h [B] and λ [B] (none: ½).

        With `weights` a position holds a law over tokens instead of one of them (`embed`).

        With `then`, what `then(hidden, head)` gives instead: work with the head that must happen inside the forward,
        where DDP sees it and FSDP has the weights at hand, such as a loss that never makes all logits at once.
        """
        return self.read(self.hidden(x_t, t, h, weights, latent), then)

    def hidden(
        self,
        x_t: Tensor,
        t: Tensor,
        h: Tensor | None = None,
        weights: Tensor | None = None,
        latent: Tensor | None = None,
    ) -> Tensor:
        """The final hidden state [B, L, D]; the head is linear in it."""
        raise NotImplementedError

    def read(self, hidden: Tensor, then: Callable[[Tensor, nn.Linear], Any] | None = None) -> Any:
        """The end of the forward: logits [B, L, |V|] of a hidden state [B, L, D], or what `then` makes of it."""
        return self.head(hidden) if then is None else then(hidden, self.head)

    def embed(self, x_t: Tensor, weights: Tensor | None = None) -> Tensor:
        """The embeddings [B, L, D] of tokens x_t [B, L].

        With `weights` [B, L, k+1], the mean embedding of a law over tokens: x_t [B, L, k] are some of them, and the
        last weight is shared by all |V| alike. So no [B, L, |V|] is made where few tokens have nearly all the weight.
        """
        if weights is None:
            out: Tensor = self.embedding(x_t)
            return out
        share = weights.to(self.embedding.weight.dtype).unsqueeze(-1)
        some: Tensor = (self.embedding(x_t) * share[..., :-1, :]).sum(-2)
        return some + share[..., -1, :] * self.embedding.weight[: self.vocab].mean(0)


def shifted(hidden: Tensor) -> Tensor:
    """Hidden states [B, L, D] of which position i has that of i − 1, and the first its own."""
    return torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)


def condition_of(names: Iterable[str]) -> set[str]:
    """Those names of a network's weights by which it is told t and h."""
    return {name for name in names if {"time", "step", "join", "fuser", "adaln"} & {*name.split(".")}}


def fill(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a network the weights of another of its kind. Others, in name or shape, are a ValueError.

    One that was told nothing has none for the condition: its own stay new, and a decoder's do nothing at first.
    """
    mine = net.state_dict()
    new = set() if condition_of(weights) else condition_of(mine)
    wanted = {name: tensor.shape for name, tensor in mine.items() if name not in new}
    if wanted != {name: tensor.shape for name, tensor in weights.items()}:
        raise ValueError("the weights are of another network")
    net.load_state_dict(weights, strict=False)
