"""Losses of head(hidden), chunk by chunk: no [B, L, V] tensor ever exists.

The head is the last layer, so the gradient of a loss by the logits of a position is at hand as soon as they are. It is
folded back into the gradients of the hidden state, of the head's weight and of its bias at once, in the forward, and
the logits are let go. What autograd keeps is [N, D] and [V, D]. In bf16 autocast the matrix products are bf16 and the
rest float32; float64 stays float64.

This lies beside the kernels because it is what calls `rows` and `head`, and because it knows neither a network nor a
flow: teachers and students both stand on it.

Shapes: N positions, D width, V columns; a chunk has n positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.kernels import rows
from tsdfm.kernels.head import Head, padded

ROOM = {"cpu": 1 << 21, "cuda": 1 << 25}  # logits of one chunk
FAST_ROOM = 1 << 27  # and where kernels work on it: nothing but the logits in bf16 is ever made
WIDE_SUMS = True  # add chunks of the head's gradient inside the product, in float32


class Objective(Protocol):
    """The loss of a chunk `part` of positions from the student's logits [n, V], which it may use up.

    An objective may also have `by_kernel(logits [n, V'], part, scale [n], columns, gradient) → losses [n]`, which
    leaves the gradients times `scale` in the logits' place, and `has_kernel`, which says whether it can.
    """

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded: ...


@dataclass(frozen=True)
class Target:
    """A distribution for every position, as what it is made of: hidden states [N, D] of one or more stages and a head.

    One state (or the average of several, since the head is linear) gives softmax(head(hidden)); several with `shares`
    give Σ_s share_s · softmax(head(hidden_s)), the average of the stages' probabilities. Where columns of each position
    are `raised`, by tokens and numbers [N] or [N, S] each, they are so before the softmax.
    """

    hidden: Sequence[Tensor]
    shares: Sequence[float]
    weight: Tensor
    bias: Tensor | None
    head: Head | None = None  # the same head padded, for kernels
    raised: tuple[Tensor, Tensor] | None = None

    def logits(self, hidden: Tensor, part: slice) -> Tensor:
        """Logits of a chunk [n, V], float32 or better; the products run in the dtype of the head's weight."""
        logits = _logits(hidden[part], self.weight, self.bias)
        return logits if self.raised is None else raised(logits, *(x[part] for x in self.raised))

    def log_p(self, part: slice) -> Tensor:
        """log p of a chunk [n, V], float32 or better."""
        logs = [self.logits(hidden, part).log_softmax(-1) for hidden in self.hidden]
        if len(logs) == 1:
            return logs[0]
        out = logs[0].add_(math.log(self.shares[0]))
        for share, log in zip(self.shares[1:], logs[1:], strict=True):
            out = torch.logaddexp(out, log.add_(math.log(share)))
        return out


def raised(logits: Tensor, tokens: Tensor, by: Tensor) -> Tensor:
    """logits [n, V] with the columns of one or more tokens each, [n] or [n, S], raised by as many numbers."""
    rows = torch.arange(len(logits), device=logits.device)
    rows = rows if tokens.ndim == 1 else rows[:, None].expand_as(tokens)
    return logits.index_put((rows, tokens), by.to(logits.dtype), accumulate=True)


@dataclass(frozen=True)
class Divergence:
    """KL(target ‖ student) or, in `reverse`, KL(student ‖ target)."""

    target: Target
    reverse: bool = False

    @property
    def has_kernel(self) -> bool:
        """One hidden state and a padded head are what the kernel takes."""
        return len(self.target.hidden) == 1 and self.target.head is not None and self.target.raised is None

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `Objective` says, by `rows.divergence`."""
        assert self.target.head is not None
        theirs = self.target.head.whole(self.target.hidden[0][part])
        return rows.divergence(logits, theirs, scale, columns, reverse=self.reverse, gradient=gradient)

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        return rows.plain_divergence(logits, self.target.log_p(part), reverse=self.reverse, gradient=gradient)


@dataclass(frozen=True)
class CrossEntropy:
    """−log q(x_1); x_1 [N]."""

    x_1: Tensor
    has_kernel: ClassVar[bool] = True

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `Objective` says, by `rows.tokens`."""
        return rows.tokens(logits, self.x_1[part], None, scale, columns, gradient=gradient)

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        return rows.plain_tokens(logits, self.x_1[part], None, gradient=gradient)


@dataclass(frozen=True)
class GeneralisedKL:
    """The bracket of the generalised KL (`kernels.rows`) of x_1, x_t [N], V for [MASK]; its weight κ̇/(1 − κ) belongs
    into `scale`."""

    x_1: Tensor
    x_t: Tensor
    has_kernel: ClassVar[bool] = True

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `Objective` says, by `rows.tokens`."""
        return rows.tokens(logits, self.x_1[part], self.x_t[part], scale, columns, gradient=gradient)

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        return rows.plain_tokens(logits, self.x_1[part], self.x_t[part], gradient=gradient)


@dataclass(frozen=True)
class ScoreEntropy:
    """The score entropy (`kernels.rows.scores`) against ratios of N positions; its weight belongs into `scale`."""

    to: rows.Ratios
    has_kernel: ClassVar[bool] = True

    def by_kernel(self, logits: Tensor, part: slice, scale: Tensor, columns: int, gradient: bool) -> Tensor:
        """As `Objective` says, by `rows.scores`."""
        return rows.scores(logits, self.to[part], scale, columns, gradient=gradient)

    def __call__(self, logits: Tensor, part: slice, gradient: bool) -> rows.Graded:
        return rows.plain_scores(logits, self.to[part], gradient=gradient)


def fused_loss(hidden: Tensor, head: nn.Linear, objective: Objective, scale: Tensor) -> Tensor:
    """Σ_i scale_i · loss_i over positions, a scalar with gradients of hidden state and head, which can be taken once.

    Args:
        hidden: [N, D], what the head reads.
        head: D → V.
        objective: the loss of a chunk of positions from their logits.
        scale: [N], the weight of each position.
    """
    grad = torch.is_grad_enabled() and (hidden.requires_grad or head.weight.requires_grad)
    out: Tensor = _Fused.apply(hidden, head.weight, head.bias, objective, scale, grad)  # type: ignore[no-untyped-call]
    return out


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """What matrix products run in: autocast's dtype where it is on, else the tensor's own."""
    kind = hidden.device.type
    if hidden.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return hidden.dtype


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, objective: Objective, scale: Tensor, grad: bool
    ) -> Tensor:
        dtype, columns = compute_dtype(hidden), weight.shape[0]
        if getattr(objective, "has_kernel", False) and kernels.on(hidden, "rows"):
            ctx.made, found = _by_kernel(hidden, padded(weight, bias, dtype), weight.dtype, objective, scale, grad)
            return found
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        small, offset = _cast(weight, dtype), _cast(bias, dtype)
        made = [torch.zeros_like(x) if grad and x is not None else None for x in (hidden, weight, bias)]
        step = max(1, ROOM.get(hidden.device.type, ROOM["cpu"]) // columns)
        with torch.autocast(hidden.device.type, enabled=False):
            for first in range(0, len(hidden), step):
                part = slice(first, min(first + step, len(hidden)))
                x = _cast(hidden[part], dtype)
                loss, by_logits = objective(_logits(x, small, offset), part, grad)
                total += (loss * scale[part]).sum()
                if by_logits is not None:
                    _fold(made, part, by_logits.mul_(scale[part, None].to(by_logits.dtype)), x, small)
        ctx.made = made
        return total.to(hidden.dtype if hidden.dtype == torch.float64 else torch.float32)

    @staticmethod
    def backward(ctx: Any, *by_loss: Tensor) -> Any:
        if ctx.made is None:
            raise RuntimeError("the gradients of a fused loss can be taken once only")
        made, ctx.made = ctx.made, None
        # in their own place: they are nobody else's, and those of a head are large
        return (*(None if x is None else x.mul_(by_loss[0].to(x.dtype)) for x in made), None, None, None)


def _by_kernel(
    hidden: Tensor, head: Head, dtype: torch.dtype, objective: Any, scale: Tensor, grad: bool
) -> tuple[list[Tensor | None], Tensor]:
    """The chunks with kernels: gradients of hidden state, weight and bias (or Nones), and the loss.

    Logits and their gradients share one buffer in the dtype of the products; the weight's gradient is summed in
    float32.
    """
    columns, x = head.columns, hidden.detach().to(head.weight.dtype)
    weights = scale.to(torch.float32)
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    by_hidden = torch.empty_like(x) if grad else None
    by_weight: Tensor | None = None
    by_bias = torch.zeros(len(head.weight), device=x.device) if grad and head.bias is not None else None
    with torch.autocast(hidden.device.type, enabled=False):
        for part in fast_chunks(len(x), len(head.weight)):
            logits = head.whole(x[part])
            total += (objective.by_kernel(logits, part, weights[part], columns, grad) * scale[part]).sum()
            if by_hidden is not None:
                torch.mm(logits, head.weight, out=by_hidden[part])
                by_weight = _add_product(by_weight, logits.T, x[part])
            if by_bias is not None:
                by_bias += logits.sum(0, dtype=torch.float32)
    made = [
        None if by_hidden is None else by_hidden.to(hidden.dtype),
        None if by_weight is None else by_weight[:columns].to(dtype),
        None if by_bias is None else by_bias[:columns].to(dtype),
    ]
    return made, total.to(torch.float32)


def fast_chunks(count: int, columns: int) -> Iterator[slice]:
    """`count` positions in chunks of nearly equal size, whole multiples of 128 (but the last), that fit `FAST_ROOM`."""
    most = max(1, FAST_ROOM // columns)
    chunks = -(-count // most)
    size = -(-count // max(1, chunks))
    size = min(-(-size // 128) * 128, most) if most >= 128 else size
    return (slice(first, min(first + size, count)) for first in range(0, count, size or 1))


def _add_product(into: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """into [V', D] float32 + a @ b, in place; with `WIDE_SUMS` the product is never rounded to bf16 on its way."""
    if WIDE_SUMS and a.is_cuda and a.dtype != torch.float32:
        if into is None:
            return torch.mm(a, b, out_dtype=torch.float32)
        return torch.addmm(into, a, b, out_dtype=torch.float32, out=into)
    product = (a @ b).float()
    return product if into is None else into.add_(product)


def _fold(made: list[Tensor | None], part: slice, by_logits: Tensor, x: Tensor, weight: Tensor) -> None:
    """Add a chunk's gradients: hidden = G W, weight = Gᵀ x, bias = Σ G."""
    by_hidden, by_weight, by_bias = made
    assert by_hidden is not None
    assert by_weight is not None
    if by_bias is not None:
        by_bias += by_logits.sum(0)
    small = by_logits.to(x.dtype)
    by_hidden[part] = (small @ weight).to(by_hidden.dtype)
    by_weight += small.T @ x


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return None if value is None else value.detach().to(dtype)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """head(hidden) [n, V], float32 or better."""
    logits = F.linear(hidden.to(weight.dtype), weight, bias)
    return logits if logits.dtype == torch.float64 else logits.float()
