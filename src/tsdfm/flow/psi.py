"""The exact step of a mixture path, and Ψ: a share of it gone back to noise and predicted anew. For every source.

A model that knows π(y) = p(x_1 = y | the other positions) knows the law of the state at any s > t, exactly: draw x̂ from
p(x_1 | x_t), then x_s from the bridge between x_t and x̂. With α = κ, a = α_t/α_s, z = x_t, and p_z, p_o = 1 − p_z the
posterior chances that z is x_1 or not, a step is one of three things:

    go to a token drawn from π without z      p_o · (α_s − α_t)/(1 − α_t)
    go to a token of the source               (1 − a)(1 − α_s) · [ p_o/(1 − α_t) + p_z/(1 − α_t + Kα_t) ]     (uniform)
    stay                                      the rest

With the mask source a [MASK] (p_o = 1) does the first or stays, and a revealed token stays. This is MDLM's ancestral
step and that of Duo, who writes it as one fraction. Ψ (Duo, chapter II) mixes in a fresh start, x̂ noised again to s:

    Ψ = (1 − ρ) · the exact step + ρ · [ α_s p(x_1 | x_t) + (1 − α_s) source ]

It keeps the share of tokens that have arrived, for any ρ, since both parts do. With the mask source it is ReMDM:
ρ = σ/(1 − α_s), where σ is the chance that a revealed token is masked again.

The posterior follows from π by Bayes: with the uniform source p_o = π_o(1 − α_t)/(1 − α_t + Kα_t π_z).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow.draw import draw_other
from tsdfm.flow.logits import Reads
from tsdfm.flow.noise import Noise, uniform
from tsdfm.flow.schedule import Schedule
from tsdfm.flow.source import Source

SMALL = 1e-300


class Pace(Protocol):
    """How a text is walked through: α and ρ of a step, and the time that the network is told of its state."""

    def rates(self, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """α_t, α_s and ρ of the step from t [B] to s = t + h, each [B, 1] float64."""
        ...

    def when(self, t: Tensor, h: Tensor) -> Tensor:
        """The time [B] at which the schedule has α_t."""
        ...


@dataclass(frozen=True)
class Steady:
    """α by the schedule, and the same ρ = `renewed` in every step."""

    schedule: Schedule
    renewed: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.renewed <= 1:
            raise UserError(f"the share of Ψ that is drawn anew lies in 0 to 1, not {self.renewed:g}")

    def rates(self, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, after = (self.schedule.kappa(time.double().view(-1, 1)) for time in (t, t + h))
        return before, after, torch.full_like(before, self.renewed)

    def when(self, t: Tensor, h: Tensor) -> Tensor:
        return t


@dataclass(frozen=True)
class PsiJump:
    """Ψ along a pace. Two uniforms a position: what it does, and to which token it goes."""

    schedule: Schedule
    source: Source
    pace: Pace
    reads: ClassVar[Reads] = "others"
    final_pass: ClassVar[bool] = False

    def when(self, t: Tensor, h: Tensor) -> Tensor:
        """The time [B] that the network is told."""
        return self.pace.when(t, h)

    def chances(self, x_t: Tensor, own: Tensor, other: Tensor, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities [B, L] to go to another token of π, and to one of the source; π_z, π_o [B, L] float64."""
        before, after, renewed = self.pace.rates(t, h)
        rest, size = 1 - before, self.source.vocab * before
        arrives = torch.where(after >= 1.0, 1.0, (after - before) / rest.clamp(min=SMALL))
        if self.source.mask is not None:
            other = (x_t == self.source.mask).double()  # what is revealed is x_1
            noised: Tensor | float = 0.0
        else:
            other = other * rest / (rest + size * own).clamp(min=SMALL)
            noised = other / rest.clamp(min=SMALL) + (1 - other) / (rest + size)
            noised = noised * (1 - after) * (after - before) / after.clamp(min=SMALL)
        return (
            other * (arrives + renewed * (after - arrives)),
            (1 - renewed) * noised + renewed * (1 - after),
        )

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The positions [B, L] that could change for some logits, by uniforms u [B, L, 2]."""
        one = torch.ones_like(x_t, dtype=torch.float64)
        goes, noised = self.chances(x_t, one - 1, one, t, h)
        return u[..., 0] < goes + noised

    def move(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The jump by uniforms u [B, L, 2] and logits of π [B, L, V]."""
        other = draw_other(logits, x_t, u[..., 1])
        goes, noised = self.chances(x_t, other.p_z, other.p_other, t, h)
        back = torch.where(u[..., 0] < goes + noised, self.noise(u[..., 1]), x_t)
        return torch.where(u[..., 0] < goes, other.tokens, back)

    def noise(self, u: Tensor) -> Tensor:
        """Tokens […] of the source by uniforms u […]."""
        if self.source.mask is not None:
            return torch.full_like(u, self.source.mask, dtype=torch.int64)
        return (u * self.source.vocab).to(torch.int64).clamp_(max=self.source.vocab - 1)

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        return self.move(x_t, logits, t, h, uniform(noise, (*x_t.shape, 2), x_t.device))


@dataclass(frozen=True)
class GreedyTail(PsiJump):
    """The same, and after the last step one pass more, in which every position takes π's likeliest token."""

    final_pass: ClassVar[bool] = True

    def finish(self, x: Tensor, logits: Tensor, noise: Noise) -> Tensor:
        """argmax of the logits [B, L, V]; the state x [B, L] is what the network was shown."""
        return logits.argmax(-1)
