"""Writing in an order: jumps of the mask source that choose which masks of a row are revealed next.

In every step each [MASK] of a row draws a token from the law that temperature and top-p have shaped, and the method
says which of them are kept; the others stay masked. Nothing that was written moves again. [MASK] cannot be drawn, and
the last step keeps all, so that no mask is left. A row without masks is done.

How sure the model is of a position follows from its own law p, before temperature and top-p: at temperature 0 the
shaped law is certain everywhere and would say nothing. Equally sure positions are taken from left to right.

    confidence   p(x̂), x̂ the token that was drawn
    margin       p_1 − p_2, the likeliest token's lead
    entropy      Σ p log p, the negative entropy
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tsdfm.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Noise, Schedule, Source


@dataclass(frozen=True)
class OrderJump:
    """A subclass says by `goes` which masks are revealed. `order` is confidence, margin, entropy or random."""

    schedule: Schedule
    source: Source
    order: str = "confidence"
    final_pass: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.source.mask is None:
            raise UserError("a jump that reveals masks in an order needs a model of the mask source")

    @property
    def mask(self) -> int:
        """[MASK]."""
        assert self.source.mask is not None
        return self.source.mask

    def goes(self, masked: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """Which masks [B, L] are revealed before the last step, by scores and one uniform u [B, L] each."""
        raise NotImplementedError

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The positions [B, L] whose logits are wanted: all masks or, where the order is random, those that go."""
        import torch

        masked = x_t == self.mask
        if self.order != "random":
            return masked
        return self.revealed(masked, torch.zeros_like(u[..., 0]), t, h, u[..., 0])

    def read(self, logits: Tensor, own: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """A token […] from logits […, V] by u […, 2], and how sure the model is of it by its own logits […, V]."""
        from tsdfm.flow import draw

        tokens = draw(logits, u[..., 1])
        return tokens, sureness(self.order, own, tokens)

    def settle(self, x_t: Tensor, tokens: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """x_{t+h} [B, L]."""
        import torch

        return torch.where(self.revealed(x_t == self.mask, scores, t, h, u[..., 0]), tokens, x_t)

    def revealed(self, masked: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """Which masks [B, L] are revealed: in the last step all."""
        last = (t + h >= 1.0).view(-1, 1)
        return masked & (last | self.goes(masked, scores, t, h, u))

    def done(self, x: Tensor) -> Tensor:
        """The rows [B] without masks."""
        return ~(x == self.mask).any(-1)

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        from tsdfm.flow import uniform

        u = uniform(noise, (*x_t.shape, 2), x_t.device)
        return self.settle(x_t, *self.read(logits, logits, u), t, h, u)


def sureness(order: str, own: Tensor, tokens: Tensor) -> Tensor:
    """The scores […] of tokens […] under logits […, V], float64: higher goes sooner. A random order has none."""
    import torch

    if order == "random":
        return torch.zeros(tokens.shape, dtype=torch.float64, device=own.device)
    own = torch.where(own.amax(-1, keepdim=True) == -torch.inf, 0.0, own)  # all −inf counts as uniform
    log_p = (own if own.dtype == torch.float64 else own.float()).log_softmax(-1)
    if order == "confidence":
        found = log_p.gather(-1, tokens[..., None]).squeeze(-1).exp()
    elif order == "margin":
        best = log_p.topk(min(2, log_p.shape[-1]), -1).values.exp()
        found = best[..., 0] - best[..., 1:].sum(-1)
    elif order == "entropy":
        found = -torch.special.entr(log_p.exp()).sum(-1)
    else:
        raise ValueError(f"no order is called {order!r}")
    return found.double()


def first(masked: Tensor, keys: Tensor, count: Tensor) -> Tensor:
    """The `count` [B] masks of each row [B, L] that have the highest keys; of equal ones, those on the left."""
    import torch

    order = torch.argsort(torch.where(masked, keys, -torch.inf), dim=-1, descending=True, stable=True)
    rank = order.argsort(-1)
    return masked & (rank < count.view(-1, 1))


def gumbel(u: Tensor) -> Tensor:
    """−log(−log u), float64: keys score/τ + Gumbel, the highest first, are a draw without replacement ∝ e^{score/τ}."""
    import torch

    return -torch.log(-torch.log(u.double().clamp(min=2.0**-54)))
