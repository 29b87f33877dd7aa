"""The network of large public diffusion language models: a decoder of the Llama family, without its causal mask.

LLaDA, Dream and SDAR are such networks: RMSNorm before attention and MLP, rotary positions in split halves, queries
that share keys and values in groups, and a SwiGLU MLP. Every position sees every other. They are told neither t nor h.

Shapes: B batch, L length, D width, E head size, |V| columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm.errors import UserError
from tsdfm.nn.layers import Rotary, rotate


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """A decoder's sizes."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    theta: float = 10_000.0
    eps: float = 1e-6
    biases: bool = False  # of queries, keys and values
    head_norms: bool = False  # of queries and keys

    def __post_init__(self) -> None:
        sizes = (self.width, self.depth, self.heads, self.kv_heads, self.head, self.hidden)
        if min(sizes) < 1 or self.heads % self.kv_heads or self.head % 2:
            raise UserError("a decoder's sizes are at least 1, its head size is even, and kv_heads divides heads")


class RMSNorm(nn.Module):
    """x / √(mean x² + ε) · weight, computed in float32 or better. […, D] → […, D]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """The normed x, in its own dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class DecoderBlock(nn.Module):
    """Attention over all positions, then the MLP, each on the normed stream and added to it."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        width, queries, keys = shape.width, shape.heads * shape.head, shape.kv_heads * shape.head
        self.norm_1, self.norm_2 = RMSNorm(width, shape.eps), RMSNorm(width, shape.eps)
        self.q = nn.Linear(width, queries, bias=shape.biases)
        self.k = nn.Linear(width, keys, bias=shape.biases)
        self.v = nn.Linear(width, keys, bias=shape.biases)
        self.q_norm: nn.Module = RMSNorm(shape.head, shape.eps) if shape.head_norms else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(shape.head, shape.eps) if shape.head_norms else nn.Identity()
        self.out = nn.Linear(queries, width, bias=False)
        self.gate = nn.Linear(width, shape.hidden, bias=False)
        self.up = nn.Linear(width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, D] → [B, L, D]."""
        x = x + self.attend(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """softmax(q kᵀ/√E) v over all positions; G = heads/kv_heads queries share a key."""
        batch, length, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, self.shape.head)

        q = rotate(self.q_norm(heads(self.q(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k(x))).transpose(1, 2), cos, sin)
        v = heads(self.v(x)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.shape.heads != self.shape.kv_heads)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Decoder(nn.Module):
    """p_θ(x_1 | x_t) as logits. It is called as a `DDiT` is, with times it does not look at.

    `tokens` counts the embedding rows, |V| + 1 with [MASK] as the last. The head has |V| columns and no bias, so that
    [MASK] cannot be predicted. In files whose head is tied to the embedding it begins as a copy of it.
    """

    step_size = False

    def __init__(self, shape: DecoderShape, *, vocab: int, tokens: int) -> None:
        super().__init__()
        self.shape, self.vocab = shape, vocab
        self.embedding = nn.Embedding(tokens, shape.width)
        self.rotary = Rotary(shape.head, shape.theta)
        self.blocks = nn.ModuleList(DecoderBlock(shape) for _ in range(shape.depth))
        self.norm = RMSNorm(shape.width, shape.eps)
        self.head = nn.Linear(shape.width, vocab, bias=False)

    def forward(
        self,
        x_t: Tensor,
        t: Tensor | None = None,
        h: Tensor | None = None,
        then: Callable[[Tensor, nn.Linear], Any] | None = None,
    ) -> Any:
        """Logits [B, L, |V|] of x_1 for x_t [B, L], or what `then(hidden, head)` makes."""
        return self.read(self.hidden(x_t, t, h), then)

    def read(self, hidden: Tensor, then: Callable[[Tensor, nn.Linear], Any] | None = None) -> Any:
        """The end of the forward."""
        return self.head(hidden) if then is None else then(hidden, self.head)

    def hidden(self, x_t: Tensor, t: Tensor | None = None, h: Tensor | None = None) -> Tensor:
        """The final hidden state [B, L, D]."""
        x = self.embedding(x_t)
        cos, sin = (table.to(x.dtype) for table in self.rotary(x_t.shape[1]))
        for block in self.blocks:
            x = block(x, cos, sin)
        out: Tensor = self.norm(x)
        return out
