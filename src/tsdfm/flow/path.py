"""The mixture path from x_0 (noise) to x_1 (data), and its exact posterior on tiny data.

x_t[j] = x_1[j] with probability κ(t), else x_0[j],      independently for every position j.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.flow.noise import Noise, uniform
from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source


def interpolate(x_0: Tensor, x_1: Tensor, t: Tensor, schedule: Schedule, noise: Noise | Tensor) -> Tensor:
    """x_t [B, L] of the pair (x_0, x_1) at the rows' times t [B]: x_1 where u < κ(t), x_0 elsewhere.

    `noise` may also be the uniforms u [B, L] themselves. Two times of one pair with the same u are nested: what has
    arrived at t has arrived at every later t′.

    >>> u = uniform(noise, x_1.shape, x_1.device)
    >>> x_s, x_t = (interpolate(x_0, x_1, time, schedule, u) for time in (s, t))
    """
    u = noise if isinstance(noise, Tensor) else uniform(noise, x_1.shape, x_1.device)
    return torch.where(u < schedule.kappa(t).view(-1, *[1] * (x_1.ndim - 1)), x_1, x_0)


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
