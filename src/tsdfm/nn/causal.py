"""A decoder-only transformer over tokens: p(x_i | x_0 … x_{i−1}), with a key-value cache for writing.

It shares its parts with the velocity network (rotary positions, norms, GELU MLP) and has neither time nor adaLN. The
tests hold the cached pass to the plain one.

Shapes: B batch, L length, D width, H heads, E = D/H head size, M room of the cache, N new tokens of a cached pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm.errors import UserError
from tsdfm.kernels.token_logs import Head, Tied
from tsdfm.nn.layers import Norm, Rotary, check_size, rotate, through
from tsdfm.nn.settings import Shape
from tsdfm.settings import Settings, required, to_dict


@dataclass
class Cache:
    """Keys and values of what was read so far, [depth, B, H, M, E] each, at fixed addresses for their whole life.

    Every pass has the same shapes whatever its position is, so that a step can be compiled or captured once.
    """

    keys: Tensor
    values: Tensor

    @property
    def room(self) -> int:
        """Positions it holds."""
        return self.keys.shape[3]


class CausalBlock(nn.Module):
    """Pre-norm attention to the past, then an MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        last = nn.Linear(shape.hidden, width)
        self.mlp = nn.Sequential(nn.Linear(width, shape.hidden), nn.GELU(approximate="tanh"), last)
        self.dropout = nn.Dropout(shape.dropout)
        for layer in (self.out, last):  # the residual stream keeps its size however deep the network is
            nn.init.normal_(layer.weight, std=0.02 / (2 * shape.depth) ** 0.5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, D] → [B, L, D]; position i sees positions up to i."""
        q, k, v = self._heads(x, cos, sin)
        x = x + self.dropout(self._mixed(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        out: Tensor = x + self.dropout(self.mlp(self.norm_2(x)))
        return out

    def cached(self, x: Tensor, turn: tuple[Tensor, Tensor], at: Tensor, see: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same for new tokens x [B, N, D] at positions `at` [N]; k, v [B, H, M, E] are filled in place.

        `see` [N, M] says which positions of the cache each new token may look at.
        """
        q, new_k, new_v = self._heads(x, *turn)
        k.index_copy_(2, at, new_k.to(k.dtype))
        v.index_copy_(2, at, new_v.to(v.dtype))
        mixed = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), attn_mask=see)
        x = x + self._mixed(mixed)
        out: Tensor = x + self.mlp(self.norm_2(x))
        return out

    def _heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, L, E], the first two turned by their positions."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def _mixed(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return out


class CausalNet(nn.Module):
    """Logits of the next token after each token.

    With `tied`, the head is the embedding itself, which suits small corpora; else it has weights of its own.

    Example: `CausalNet(NetSettings(preset="tiny").shape(), vocab=300)(tokens)` gives [B, L, 300].
    """

    def __init__(self, shape: Shape, *, vocab: int, tied: bool = True) -> None:
        super().__init__()
        if shape.positions:
            raise UserError("net.positions is for teachers and compasses: an autoregressive model knows its place")
        self.shape, self.vocab = shape, vocab
        self.embedding = nn.Embedding(vocab, shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.rotary = Rotary(shape.width // shape.heads)
        self.blocks = nn.ModuleList(CausalBlock(shape) for _ in range(shape.depth))
        self.norm = Norm(shape.width)
        self.head = None if tied else nn.Linear(shape.width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, L, V] for tokens [B, L]: those at position i are about token i + 1."""
        return self.read(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """The final hidden states [B, L, D]."""
        x = self.embedding(tokens)
        cos, sin = self.rotary(tokens.shape[1])
        out: Tensor = self.norm(through(self.blocks, x, cos, sin, again=self.shape.checkpoint))
        return out

    def read(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states."""
        return F.linear(hidden, self.linear.weight)

    @property
    def linear(self) -> Head:
        """What makes logits of hidden states."""
        return Tied(self.embedding.weight) if self.head is None else self.head

    def cache(self, batch: int, room: int, dtype: torch.dtype = torch.float32) -> Cache:
        """An empty cache for `batch` rows of up to `room` tokens."""
        shape = self.shape
        size = (shape.depth, batch, shape.heads, room, shape.width // shape.heads)
        device = self.embedding.weight.device
        return Cache(torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device))

    @torch.no_grad()
    def step(self, tokens: Tensor, at: Tensor, cache: Cache) -> Tensor:
        """Logits [B, V] after the last of the new tokens [B, N], which stand at positions `at` [N] (ascending)."""
        cos, sin = self.rotary(cache.room)
        turn = cos.index_select(0, at), sin.index_select(0, at)
        see = torch.arange(cache.room, device=at.device) <= at[:, None]
        x = self.embedding(tokens)
        for block, k, v in zip(self.blocks, cache.keys, cache.values, strict=True):
            x = cast(CausalBlock, block).cached(x, turn, at, see, k, v)
        return self.read(self.norm(x[:, -1]))


@dataclass(frozen=True, kw_only=True)
class CausalSpec(Settings):
    """What an autoregressive network is, apart from its weights; a run's manifest has it under `judge`."""

    shape: Shape
    vocab: int = required("different tokens", low=1, high=2**20)
    tied: bool
    length: int = required("tokens in a row", low=1, high=2**20)
    anchor: int = required("positions at the front of a row that are never noise", low=0, high=2**20)
    tokenizer: str

    def network(self) -> CausalNet:
        """A fresh network of this kind."""
        check_size(self.shape, self.vocab, self.length)
        return CausalNet(self.shape, vocab=self.vocab, tied=self.tied)

    def plain(self) -> dict[str, Any]:
        """For a manifest."""
        return dict(to_dict(self))
