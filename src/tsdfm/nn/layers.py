"""The parts of the transformer: embeddings of scalars, rotary positions, attention, and the adaLN block.

Shapes: B batch, L length, D width, C condition width, H heads, E = D/H head size.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tsdfm.errors import UserError
from tsdfm.nn.settings import Shape


def through(blocks: Iterable[nn.Module], x: Tensor, *told: Tensor | None, again: bool) -> Tensor:
    """x [B, L, D] through blocks that are all `told` the same; with `again`, activations are recomputed backwards."""
    again = again and torch.is_grad_enabled()
    for block in blocks:
        x = checkpoint(block, x, *told, use_reentrant=False) if again else block(x, *told)
    return x


class NoDraws(TorchFunctionMode):
    """Draws no weights where there are none."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Networks made inside the block have sizes and no weights (`meta`), but the rates that no file has.

    Nothing is reckoned on `meta`: torch would load its compiler for that, which takes longer than to write a text.
    """
    with torch.device("meta"), NoDraws():
        yield


def counted(end: int, by: int = 1) -> Tensor:
    """0, `by`, … below `end`, with values also where a network has no weights."""
    return torch.arange(0, end, by, device="cpu")


class ScalarEmbedding(nn.Module):
    """A scalar in [0, 1] (time t, or step size h) as a condition: sinusoids, then a SiLU MLP. [B] → [B, C]."""

    def __init__(self, cond: int, features: int = 256, period: float = 10_000.0) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(features, cond), nn.SiLU(), nn.Linear(cond, cond))
        rates = torch.exp(-math.log(period) * counted(features // 2) / (features // 2))
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        """[B] → [B, C]: cos and sin of the value at geometric rates, then the MLP."""
        rates = self.get_buffer("rates")
        angles = value.to(rates.dtype)[:, None] * rates
        out: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))
        return out


class Norm(nn.Module):
    """LayerNorm with a weight and no bias, always computed in float32 or better."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(x − mean)/σ · weight over the last dimension; [..., D] → [..., D]."""
        wide = x if x.dtype == torch.float64 else x.float()
        return F.layer_norm(wide, wide.shape[-1:]) * self.weight


class Rotary(nn.Module):
    """Rotary positions: the tables cos, sin [L, E] for a length, in float32."""

    def __init__(self, head: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.register_buffer("rates", base ** (-counted(head, 2) / head), persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin [L, E] of position · rate, each rate twice."""
        rates = self.get_buffer("rates")
        angles = torch.arange(length, device=rates.device, dtype=rates.dtype)[:, None] * rates
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+E/2}) by its position's angle. x [B, H, L, E]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """adaLN: x·(1 + scale) + shift, with shift and scale [B, D] the same at every position."""
    return x * (1 + scale[:, None]) + shift[:, None]


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ/√E) v over the positions `seen` [L, L] (none: all). q [B, H, L, E]; heads of k and v may be fewer.

    On a CPU in bf16, rows of some hundred tokens take 0.6 of the time by plain products (docs/log.md).
    """
    short = q.shape == k.shape and q.shape[2] <= 512
    if short and seen is None and q.dtype == torch.bfloat16 and q.device.type == "cpu":
        return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=q.shape[1] != k.shape[1])


class Block(nn.Module):
    """A transformer block whose norms, and the size of its contribution, follow the condition (adaLN-zero).

    The adaLN map starts at zero, so a fresh block is the identity. With `fuse`, the condition arrives twice as wide
    (time and step size) and the block's own linear fuser brings it back to C.
    """

    def __init__(self, shape: Shape, fuse: bool) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, shape.hidden), nn.GELU(approximate="tanh"), nn.Linear(shape.hidden, width)
        )
        self.dropout = nn.Dropout(shape.dropout)
        self.fuser = fuser(shape.cond, fuse)
        self.adaln = zero_(nn.Linear(shape.cond, 6 * width))

    def forward(self, x: Tensor, cond: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, D], condition [B, C] ([B, 2C] with `fuse`) → [B, L, D]: attention, then the MLP, both gated."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.adaln(self.fuser(cond)).chunk(6, dim=-1)
        attended = self.attend(modulate(self.norm_1(x), shift_1, scale_1), cos, sin)
        x = x + gate_1[:, None] * self.dropout(attended)
        out: Tensor = x + gate_2[:, None] * self.dropout(self.mlp(modulate(self.norm_2(x), shift_2, scale_2)))
        return out

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention over all positions, in both directions."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


def fuser(cond: int, fuse: bool) -> nn.Module:
    """[B, 2C] → [B, C] of a condition that is twice as wide (time and step size); what is not is left as it is."""
    return nn.Sequential(nn.Linear(2 * cond, cond), nn.SiLU()) if fuse else nn.Identity()


def check_size(shape: Shape, vocab: int, length: int) -> None:
    """Refuse a network, before it is made, that no memory here can hold, or with fewer places than its rows have.

    One without weights (`meta`) may be of any size.
    """
    if torch.get_default_device().type != "meta":
        shape.check(vocab)
    check_places(shape.positions, length)


def check_places(positions: int, length: int) -> None:
    """Refuse rows that are longer than the places that have an embedding, where places have one."""
    if 0 < positions < length:
        raise UserError(f"rows of {length} tokens, but net.positions is {positions}: raise it, or 0 for none")


def zero_(layer: nn.Linear) -> nn.Linear:
    """Start a linear layer at zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def places_of(shape: Shape) -> nn.Embedding | None:
    """Embeddings of places [positions, D], for texts whose n-th word has a role of its own; none by default."""
    if not shape.positions:
        return None
    places = nn.Embedding(shape.positions, shape.width)
    nn.init.normal_(places.weight, std=0.02)
    return places


def at_places(x: Tensor, places: nn.Embedding | None) -> Tensor:
    """x [B, L, D] plus the embeddings of its places."""
    if places is None:
        return x
    check_places(places.num_embeddings, x.shape[1])
    return x + places.weight[: x.shape[1]]
