"""The exact posterior of the mixture path on data that is small enough to write down."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source


@dataclass(frozen=True)
class Posterior:
    """The perfect model of a data law that is small enough to write down.

    `data` [N, L] are its sequences and `weights` [N] their probabilities (normalised here). By Bayes,

        p(x_1 = dataₙ | x_t) ∝ weightₙ · Πᵢ q_t(x_t[i] | dataₙ[i]),    q_t(z | y) = κ·1{z = y} + (1 − κ)·p_0(z),

    and the model's answer is the marginal of each position, as log-probabilities [B, L, V] in float64. A state that
    the path cannot reach (independent jumps can make one) has no posterior: its row is all −inf, which every draw
    reads as uniform. It has the signature of a model, (x_t, t, h) → logits, so the solver and the ELBO take it as it
    is.
    """

    data: Tensor
    weights: Tensor
    schedule: Schedule
    source: Source

    def sequences(self, x_t: Tensor, t: Tensor) -> Tensor:
        """p(x_1 = dataₙ | x_t) [B, N]; all zero for a state that cannot be reached."""
        kappa_t = self.schedule.kappa(t).view(-1, 1, 1)
        left_t = self.schedule.remaining(t).view(-1, 1, 1)
        arrived = (x_t[:, None, :] == self.data[None]).to(torch.float64)
        likelihood = (kappa_t * arrived + left_t * self.source.probability(x_t)[:, None, :]).prod(-1)
        joint = likelihood * self.weights.to(torch.float64)
        total = joint.sum(-1, keepdim=True)
        return torch.where(total > 0, joint / total, torch.zeros_like(joint))

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor | None = None) -> Tensor:
        columns = torch.nn.functional.one_hot(self.data, self.source.vocab).to(torch.float64)  # [N, L, V], tiny
        return torch.einsum("bn,nlv->blv", self.sequences(x_t, t), columns).log()
