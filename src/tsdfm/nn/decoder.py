"""The network of large public diffusion language models: a decoder of the Llama family, without its causal mask.

LLaDA, Dream and SDAR are such networks: RMSNorm before attention and MLP, rotary positions in split halves, queries
that share keys and values in groups, and a SwiGLU MLP. Every position sees every other; with blocks, as in SDAR, those
of its own block and of the blocks before it. They are told neither t nor h. One that is to learn more (`cond`) is: its
norms, and the size of what a block adds, follow the condition by maps that start at zero, so that it begins as the
network it was.

Shapes: B batch, L length, D width, C condition width, E head size, |V| columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm.errors import UserError
from tsdfm.nn.layers import Rotary, attention, fuser, modulate, rotate, through, zero_
from tsdfm.nn.network import TokenNet, shifted
from tsdfm.settings import Settings, option, required


@dataclass(frozen=True, kw_only=True)
class DecoderShape(Settings):
    """A decoder's sizes."""

    width: int = required("width of the residual stream", low=1, high=2**17)
    depth: int = required("blocks", low=1, high=1024)
    heads: int = required("attention heads", low=1, high=1024)
    kv_heads: int = required("heads of keys and values, which the others share", low=1, high=1024)
    head: int = required("size of a head", low=1, high=2**14)
    hidden: int = required("hidden width of the MLP", low=1, high=2**23)
    theta: float = option(10_000.0, "base of the rotary positions", above=0)
    eps: float = option(1e-6, "added under the root of a norm", low=0, below=1)
    biases: bool = option(False, "have queries, keys and values a bias?")
    head_norms: bool = option(False, "are queries and keys normed head by head?")
    block: int = option(0, "positions see their own block of so many and those before it; 0: all", low=0, high=2**20)
    cond: int = option(0, "width of the condition, for a network that is told t or h; 0: it is not", low=0, high=2**17)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads or self.head % 2:
            raise UserError("a decoder's sizes are at least 1, its head size is even, and kv_heads divides heads")


def flops_per_token(shape: DecoderShape, vocab: int, length: int) -> float:
    """Floating-point operations of one forward pass for one token, as those of a DDiT are counted."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    matrices = shape.depth * shape.width * (2 * queries + 2 * keys + 3 * shape.hidden) + shape.width * vocab
    return 2.0 * matrices + 4.0 * shape.depth * length * queries


AnyShape = TypeVar("AnyShape", bound=DecoderShape | None)
CONDITION = 128  # width of the condition of a decoder that was told nothing, and will be


def told_decoder(shape: AnyShape, told: bool) -> AnyShape:
    """The same decoder with a condition, if it is to be `told` t or h; none of none."""
    return replace(shape, cond=CONDITION) if shape is not None and told and not shape.cond else shape


def seen_by(block: int, length: int, device: torch.device) -> Tensor | None:
    """[L, L]: which positions a position sees: those of its own block of so many, and of those before; none: all."""
    if not block:
        return None
    block_of = torch.arange(length, device=device) // block
    return block_of[None] <= block_of[:, None]


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

    def __init__(self, shape: DecoderShape, fuse: bool = False) -> None:
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
        if shape.cond:
            self.fuser = fuser(shape.cond, fuse)
            self.adaln = zero_(nn.Linear(shape.cond, 6 * width))

    def forward(self, x: Tensor, cond: Tensor | None, cos: Tensor, sin: Tensor, seen: Tensor | None = None) -> Tensor:
        """x [B, L, D], condition [B, C] ([B, 2C] with `fuse`) or none → [B, L, D].

        Position i looks at those j where `seen` [L, L] says so (none: at all).
        """
        if cond is None:
            x = x + self.attend(self.norm_1(x), cos, sin, seen)
            return x + self.mlp(self.norm_2(x))
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.adaln(self.fuser(cond)).chunk(6, dim=-1)
        x = x + (1 + gate_1[:, None]) * self.attend(modulate(self.norm_1(x), shift_1, scale_1), cos, sin, seen)
        out: Tensor = x + (1 + gate_2[:, None]) * self.mlp(modulate(self.norm_2(x), shift_2, scale_2))
        return out

    def mlp(self, x: Tensor) -> Tensor:
        """SwiGLU."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None = None) -> Tensor:
        """softmax(q kᵀ/√E) v over the positions `seen`; G = heads/kv_heads queries share a key."""
        batch, length, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, self.shape.head)

        q = rotate(self.q_norm(heads(self.q(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k(x))).transpose(1, 2), cos, sin)
        v = heads(self.v(x)).transpose(1, 2)
        mixed = attention(q, k, v, seen)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Decoder(TokenNet):
    """p_θ(x_1 | x_t[, t][, h]) as logits. It is called as a `DDiT` is; without `shape.cond` it does not look at times.

    `tokens` counts the embedding rows, |V| + 1 with [MASK] as the last. The head has |V| columns and no bias, so that
    [MASK] cannot be predicted. In files whose head is tied to the embedding it begins as a copy of it. With `shift` the
    answer at position i is read off the hidden state of i − 1, as in a `DDiT`.
    """

    def __init__(
        self,
        shape: DecoderShape,
        *,
        vocab: int,
        tokens: int,
        step_size: bool = False,
        shift: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        if step_size and not shape.cond:
            raise UserError("a decoder that is told the step size needs a condition: its cond is 0")
        self.shape, self.vocab, self.shift, self.checkpoint = shape, vocab, shift, checkpoint
        self.embedding = nn.Embedding(tokens, shape.width)
        if shape.cond:
            self.tell(shape.cond, step_size)
        self.rotary = Rotary(shape.head, shape.theta)
        self.blocks = nn.ModuleList(DecoderBlock(shape, fuse=step_size) for _ in range(shape.depth))
        self.norm = RMSNorm(shape.width, shape.eps)
        if shape.cond:
            self.adaln = zero_(nn.Linear(shape.cond, 2 * shape.width))
        self.head = nn.Linear(shape.width, vocab, bias=False)

    def hidden(
        self,
        x_t: Tensor,
        t: Tensor | None = None,
        h: Tensor | None = None,
        weights: Tensor | None = None,
        latent: Tensor | None = None,
    ) -> Tensor:
        """The final hidden state [B, L, D]."""
        x = self.embed(x_t, weights)
        cos, sin = self.rotary(x_t.shape[1])  # not rounded to 16 bits, where far places would look alike
        seen = seen_by(self.shape.block, x_t.shape[1], x_t.device)
        cond = self.condition(t, h) if self.shape.cond and t is not None else None
        out: Tensor = self.norm(through(self.blocks, x, cond, cos, sin, seen, again=self.checkpoint))
        if cond is not None:
            out = modulate(out, *self.adaln(self.fuser(cond)).chunk(2, dim=-1))
        return shifted(out) if self.shift else out
