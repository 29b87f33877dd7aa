"""ReMDM: samplers that take tokens back; Wang et al. 2025 (2503.00307). For any model, by Duo's Ψ (`flow.psi`).

From t to s = t + h, with α = κ, a revealed token is masked again with probability σ, and a [MASK] is revealed so that
the share of revealed tokens stays what the schedule says:

    revealed   P([MASK]) = σ,                                  P(stay) = 1 − σ
    [MASK]     P(y) = p(y)·[α_s − (1−σ)α_t]/(1 − α_t),         P([MASK]) = (1 − α_s − σα_t)/(1 − α_t)

for 0 ≤ σ ≤ σ_max = min(1, (1 − α_s)/α_t). With σ = 0 it is MDLM's ancestral step. This is Ψ with ρ = σ/(1 − α_s), which
has a meaning for the uniform source, too: a token goes back to noise with that much more chance than by the exact
step. There σ_max = 1 − α_s.

    remdm-cap       σ = min(η, σ_max)
    remdm-rescale   σ = η·σ_max
    remdm-conf      σ of a position = σ_max · softmax of −ψ over the row's revealed positions; ψ is the probability its
                    token was written with, so that about one token a step is taken back, the least sure first. It needs
                    to know what is revealed, and so the mask source
    remdm-loop      MDLM's steps up to α_on; then α stays and σ = η; then MDLM's steps to the end

The paper's η are for 1 024 steps and take back next to nothing in 8. Loop's phases get whole numbers of steps, one at
least, so that 8 steps are 8 steps; the public code's α overshoots α_on on such a grid. A network that is told the time
is told the one of the loop's α.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, Method

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Noise, Schedule, Source
    from tsdfm.flow.psi import PsiJump

ETA = {"cap": 0.008, "rescale": 0.015, "loop": 0.02}  # η of the paper's scripts
ON, OFF, ALPHA_ON = 0.45, 0.95, 0.9  # where the loop begins and ends, in our time, and the share that is revealed in it


@dataclass(frozen=True)
class ReMDMPace:
    """How α and σ go along a text (`flow.psi`); `kind` is cap, rescale or loop, `eta` its η."""

    schedule: Schedule
    source: Source
    eta: float
    kind: str

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise UserError(f"ReMDM's η is a probability, not {self.eta}")
        if self.kind == "loop" and self.source.mask is None and self.eta > 1 - ALPHA_ON + 1e-9:
            raise UserError(f"on the uniform source the loop's η is at most {1 - ALPHA_ON:.2g}, not {self.eta}")

    def most(self, before: Tensor, after: Tensor) -> Tensor:
        """σ_max: 1 − α_s, above which Ψ's weights may be negative, and more where a [MASK] can make up for it."""
        import torch

        if self.source.mask is None:
            return 1 - after
        return torch.where(before > 0, (1 - after) / before.clamp(min=1e-300), 1.0).clamp(0.0, 1.0)

    def sigma(self, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """α_t, α_s and σ, each [B, 1] float64."""
        if self.kind == "loop":
            return self.loop(t, h)
        before, after = (self.schedule.kappa(time.double().view(-1, 1)) for time in (t, t + h))
        most = self.most(before, after)
        return before, after, most.clamp(max=self.eta) if self.kind == "cap" else self.eta * most

    def loop(self, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same along three phases: α from 0 to α_on, at α_on, from α_on to 1."""
        import torch

        steps = round(1 / float(h[0]))
        if not math.isclose(steps * float(h[0]), 1.0, rel_tol=1e-9) or steps < 3:
            raise UserError("remdm-loop needs three equal steps or more: its phases are whole numbers of them")
        first, last = max(1, round(ON * steps)), max(1, round((1 - OFF) * steps))
        first = min(first, steps - last - 1)
        index = torch.round(t.double() * steps).view(-1, 1)

        def alpha(k: Tensor) -> Tensor:
            end = ALPHA_ON + (1 - ALPHA_ON) * (k - (steps - last)) / last
            return torch.where(k <= first, ALPHA_ON * k / first, end.clamp(min=ALPHA_ON))

        looping = (index >= first) & (index < steps - last)
        return alpha(index), alpha(index + 1), torch.where(looping, self.eta, 0.0)

    def rates(self, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """α_t, α_s and ρ = σ/(1 − α_s), as `flow.psi.Pace` has them."""
        before, after, sigma = self.sigma(t, h)
        return before, after, sigma / (1 - after).clamp(min=1e-300)

    def when(self, t: Tensor, h: Tensor) -> Tensor:
        """t, or in the loop the time at which the schedule has its α."""
        return self.schedule.inverse(self.loop(t, h)[0].view(-1)) if self.kind == "loop" else t


@dataclass(frozen=True)
class ConfidenceReMDM:
    """remdm-conf. It remembers ψ [B, L], the probability with which each token was written, over a text's steps."""

    schedule: Schedule
    source: Source
    written: Tensor | None = field(default=None, repr=False, kw_only=True)
    final_pass: ClassVar[bool] = False

    def __post_init__(self) -> None:
        mask_of(self.source)

    def begin(self, x_0: Tensor) -> ConfidenceReMDM:
        """A jump for these rows, which have written nothing; what is given is as sure as can be."""
        import torch

        return replace(self, written=torch.ones(x_0.shape, dtype=torch.float64, device=x_0.device))

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        import torch

        from tsdfm.flow import draw, uniform

        if self.written is None:
            raise ValueError("a jump that remembers begins with `begin`")
        before, after, most = ReMDMPace(self.schedule, self.source, 1.0, "rescale").sigma(t, h)
        masked = x_t == mask_of(self.source)
        weight = torch.where(masked, 0.0, torch.exp(-self.written))
        sigma = most * weight / weight.sum(-1, keepdim=True).clamp(min=1e-300)
        u = uniform(noise, (*x_t.shape, 2), x_t.device)
        reveal = torch.where(after >= 1.0, 1.0, (after - (1 - sigma) * before) / (1 - before).clamp(min=1e-300))
        drawn = draw(logits, u[..., 1])
        sure = logits.double().log_softmax(-1).gather(-1, drawn[..., None]).squeeze(-1).exp()
        changes = u[..., 0] < torch.where(masked, reveal, sigma)
        self.written.copy_(torch.where(masked & changes, sure, self.written))
        return torch.where(changes, torch.where(masked, drawn, mask_of(self.source)), x_t)


def mask_of(source: Source) -> int:
    """[MASK], or a refusal where there is none."""
    if source.mask is None:
        raise UserError("remdm-conf masks tokens again: it needs a model of the mask source")
    return source.mask


def with_eta(kind: str, schedule: Schedule, source: Source, eta: float | None = None) -> PsiJump:
    """A jump with the η that was given, or the paper's."""
    from tsdfm.flow.psi import PsiJump

    return PsiJump(schedule, source, ReMDMPace(schedule, source, ETA[kind] if eta is None else eta, kind))


class ReMDM(Method):
    """Re-masking samplers."""

    name, title = "remdm", "ReMDM"
    help = "samplers that take tokens back, for any model: sample --jump remdm-cap, -rescale, -loop; mask: -conf"
    trains = False

    def jumps(self) -> dict[str, JumpMaker]:
        made: dict[str, JumpMaker] = {f"remdm-{kind}": partial(with_eta, kind) for kind in ETA}
        return {**made, "remdm-conf": ConfidenceReMDM}

    def train(self, settings: Any) -> Path:
        raise UserError("remdm is a way to sample: train mdlm, dfm or duo, and sample --jump remdm-cap")


METHOD = ReMDM()
