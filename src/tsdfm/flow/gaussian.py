"""Uniform noise as the argmax of Gaussian noise: the duality that Duo's curriculum rests on (2506.10892).

A token x of K, as a one-hot vector in Gaussian noise, w = α̃ e_x + σ̃ ε with α̃² + σ̃² = 1, is written in one number,
r = α̃/σ̃ = e^{−γ/2}. Its largest coordinate, z = argmax w, is x with probability P(r), and else each other token alike:
that is the uniform path with

    κ = T(r) = (K·P − 1)/(K − 1),    P(r) = ∫ φ(v − r) Φ(v)^{K−1} dv,    P′(r) = (K − 1)∫ φ(v − r) φ(v) Φ(v)^{K−2} dv.

The integrands are smooth and fall off as Gaussians do, so the trapezoidal rule gives all of float64's digits.

What a network sees of w is softmax(w/τ), a law over tokens that sharpens into z as τ falls. No K Gaussians are drawn
for it: the largest of the K − 1 other coordinates are order statistics, −log Φ(ε_(i)) = Σ_{j≤i} E_j/(K − j) with
E_j ~ Exp(1), and they belong to distinct tokens, all choices alike. What lies below the last of them enters by its
mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.noise import Noise, uniform

NODES = 512
MARGIN = 9.0  # φ(9) = 1e−18


def arrived(ratio: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """κ = T(r) and its derivative by r, of ratios r […] ≥ 0, float64.

    The mean over all tokens, 1/K, is taken off inside the integral: κ is exact where it is small, too.
    """
    r = ratio.to(torch.float64)[..., None]
    v = -MARGIN + (r + 2 * MARGIN) * torch.linspace(0.0, 1.0, NODES, dtype=torch.float64, device=r.device)
    below, step = torch.special.log_ndtr(v), (ratio.to(torch.float64) + 2 * MARGIN) / (NODES - 1)
    far, near = (torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) for x in (v - r, v))
    kappa = ((far - near) * torch.exp((vocab - 1) * below)).sum(-1)
    slope = (far * near * torch.exp((vocab - 2) * below)).sum(-1) * (vocab - 1)
    scale = step * vocab / (vocab - 1)
    return (kappa * scale).clamp(0.0, 1.0), slope * scale


def gamma_of(kappa: float, vocab: int) -> float:
    """The γ = −2 log r at which T(r) = κ, by bisection."""
    low, high = -16.0, 16.0  # clean, noisy
    for _ in range(80):
        middle = (low + high) / 2
        found = float(arrived(torch.tensor(math.exp(-middle / 2)), vocab)[0])
        low, high = (middle, high) if found > kappa else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class GaussianClock:
    """Times u in [0, 1] along which γ falls in a straight line, from `noisy` to `clean`."""

    vocab: int
    clean: float
    noisy: float

    def __post_init__(self) -> None:
        if self.vocab < 2 or not self.clean < self.noisy:
            raise UserError(f"γ falls from noise to data: gamma_min {self.clean:g} must lie below {self.noisy:g}")

    def at(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r, κ = T(r) and dκ/du of times u […], float64."""
        ratio = torch.exp(-0.5 * (self.noisy + u.to(torch.float64) * (self.clean - self.noisy)))
        kappa, slope = arrived(ratio, self.vocab)
        return ratio, kappa, slope * 0.5 * ratio * (self.noisy - self.clean)


class SoftState(NamedTuple):
    """z [B, L], and the law softmax(w/τ): tokens [B, L, k], and weights [B, L, k+1] of them and of all tokens alike."""

    x_t: Tensor
    tokens: Tensor
    weights: Tensor


def soft_state(x_1: Tensor, ratio: Tensor, tau: float, vocab: int, top: int, noise: Noise) -> SoftState:
    """z = argmax w and softmax(w/τ) of tokens x_1 [B, L] in Gaussian noise of ratios r [B].

    x_1 itself and the `top` largest of the other coordinates are there one by one; `top` ≥ K − 1 is all of them. The
    sum of the rest is taken at its mean, (K − 1 − k)·E[e^{sε} | ε < ε_(k)] with s = σ̃/τ.
    """
    others = vocab - 1
    count = min(top, others)
    u = uniform(noise, (*x_1.shape, 3 * count + 1), x_1.device)
    left = others - torch.arange(count, device=x_1.device)
    logs = (torch.log1p(-u[..., :count]) / left).cumsum(-1)  # log Φ(ε_(i)), i = 1 … k
    height = -torch.special.ndtri((-torch.expm1(logs)).clamp(min=1e-300))
    own = ratio.to(torch.float64)[:, None] + torch.special.ndtri(u[..., -1].clamp(min=2.0**-54))
    tokens = distinct(u[..., count : 2 * count], u[..., 2 * count : -1], others)
    tokens = tokens + (tokens >= x_1[..., None])
    sharp = 1.0 / (tau * torch.sqrt(1 + ratio.to(torch.float64) ** 2))[:, None]
    last = height[..., -1]
    rest = 0.5 * sharp**2 + torch.special.log_ndtr(last - sharp) - torch.special.log_ndtr(last)
    rest = rest + (math.log(others - count) if count < others else -math.inf)
    parts = [own[..., None] * sharp[..., None], height * sharp[..., None], rest[..., None]]
    x_t = torch.where(own > height[..., 0], x_1, tokens[..., 0])
    return SoftState(x_t, torch.cat([x_1[..., None], tokens], -1), torch.cat(parts, -1).softmax(-1))


def distinct(u: Tensor, order: Tensor, count: int) -> Tensor:
    """k different whole numbers below `count` in any order, all orders alike, by uniforms u, order […, k] (Floyd)."""
    picks = u.shape[-1]
    found = torch.full(u.shape, -1, dtype=torch.int64, device=u.device)
    for i in range(picks):
        most = count - picks + i
        drawn = (u[..., i] * (most + 1)).to(torch.int64).clamp_(max=most)
        found[..., i] = torch.where((found == drawn[..., None]).any(-1), most, drawn)
    return found.gather(-1, order.argsort(-1))
