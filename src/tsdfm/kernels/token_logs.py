"""log q of some tokens of head(hidden), with gradients and without a [N, V] tensor.

    log q(y) = l_y − log Σ_v e^{l_v},   ∂/∂l_v = 1{v = y} − q_v

For losses that are no sum over positions, such as one of the mean log-probability of a text: `kernels.fused` takes the
gradients in the forward, where such a loss does not know them yet. Here logits are made twice, chunk by chunk: in the
forward and again in the backward.

Shapes: N positions, D width, V columns, K tokens a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tsdfm.kernels.fused import ROOM, compute_dtype


class Head(Protocol):
    """What gives logits of hidden states: a linear layer, or what is one."""

    @property
    def weight(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor | None: ...


class Tied(NamedTuple):
    """An embedding [V, D] as a head."""

    weight: Tensor
    bias: Tensor | None = None


def token_logs(hidden: Tensor, head: Head, tokens: Tensor) -> Tensor:
    """log q of tokens [N, K] under softmax(head(hidden [N, D])), [N, K] in float32 or better."""
    out: Tensor = _Logs.apply(hidden, head.weight, head.bias, tokens)  # type: ignore[no-untyped-call]
    return out


def logit_chunks(hidden: Tensor, head: Head) -> Iterator[tuple[slice, Tensor]]:
    """Positions and their logits [n, V], a chunk at a time, in float32 or better; without gradients."""
    return _chunks(hidden.detach(), *_cast(compute_dtype(hidden), head.weight, head.bias))


def _cast(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)


def _chunks(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    step = max(1, ROOM.get(hidden.device.type, ROOM["cpu"]) // len(weight))
    for first in range(0, len(hidden), step):
        part = slice(first, min(first + step, len(hidden)))
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden[part].to(weight.dtype), weight, bias)
        yield part, logits if logits.dtype == torch.float64 else logits.float()


class _Logs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        ctx.dtype = compute_dtype(hidden)
        ctx.save_for_backward(hidden, weight, bias, tokens)
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        out = torch.empty(tokens.shape, dtype=wide, device=hidden.device)
        for part, logits in _chunks(hidden, *_cast(ctx.dtype, weight, bias)):
            out[part] = logits.gather(-1, tokens[part]) - logits.logsumexp(-1, keepdim=True)
        return out

    @staticmethod
    def backward(ctx: Any, *by_logs: Tensor) -> Any:
        hidden, weight, bias, tokens = ctx.saved_tensors
        small, offset = _cast(ctx.dtype, weight, bias)
        by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        by_bias = None if bias is None else torch.zeros_like(bias)
        for part, logits in _chunks(hidden, small, offset):
            given = by_logs[0][part]
            by_logits = logits.softmax(-1).mul_(-given.sum(-1, keepdim=True))
            by_logits.scatter_add_(-1, tokens[part], given)
            if by_bias is not None:
                by_bias += by_logits.sum(0)
            folded = by_logits.to(ctx.dtype)
            by_hidden[part] = (folded @ small).to(hidden.dtype)
            by_weight += folded.T @ hidden[part].to(ctx.dtype)
        return by_hidden, by_weight, by_bias, None
