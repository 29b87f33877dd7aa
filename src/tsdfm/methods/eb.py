"""Entropy-bounded decoding: as many tokens a pass as the model is sure of, Ben-Hamu et al. 2025 (2505.24857).

A sampler for any model of the mask source. Tokens that are drawn together are drawn as if they were independent, and
the error of that is at most the sum of their entropies without the largest. So a step takes a row's masks in the order
of their entropy and reveals as many of them as keep

    Σ H − max H ≤ γ,     H in nats, of the model's own law (`methods/_orders.py`).

`eb:0.1` is γ = 0.1, which is also the default. With γ = 0 it writes one token a pass, or more where others are certain
(H = 0). How many passes a text takes is an outcome: a row is done when it has no mask left, and the NFE of texts is the
mean over them. The number of steps is the most that are made; the last one reveals what is left whatever the bound, so
give as many steps as a row has tokens for the bound to hold to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, Method
from tsdfm.methods._orders import OrderJump

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Schedule, Source

GAMMA = 0.1  # nats


@dataclass(frozen=True)
class EntropyBounded(OrderJump):
    """The masks of least entropy, up to the bound `gamma`."""

    gamma: float = GAMMA

    def goes(self, masked: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        import torch

        entropy, order = torch.sort(torch.where(masked, -scores, torch.inf), dim=-1, stable=True)
        before = torch.cat([torch.zeros_like(entropy[:, :1]), entropy.cumsum(-1)[:, :-1]], dim=-1)  # ΣH − max H
        return masked & (before <= self.gamma).gather(-1, order.argsort(-1))


def bounded(schedule: Schedule, source: Source, gamma: float = GAMMA) -> EntropyBounded:
    """The jump with the bound that was given."""
    if not gamma >= 0:
        raise UserError(f"the bound of entropy is at least 0 nats, not {gamma}")
    return EntropyBounded(schedule, source, "entropy", gamma)


class EntropyBoundedDecoding(Method):
    """Entropy-bounded decoding."""

    name, title = "eb", "entropy-bounded decoding"
    help = "a sampler for any mask model that writes as many tokens a pass as it is sure of: sample --jump eb:0.1"
    sources = ("mask",)
    trains = False

    def jumps(self) -> dict[str, JumpMaker]:
        return {"eb": bounded}

    def train(self, settings: Any) -> Path:
        raise UserError("eb is a way to sample: train mdlm, llada, or dfm on the mask source, and sample --jump eb:0.1")


METHOD = EntropyBoundedDecoding()
