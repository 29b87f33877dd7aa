"""Systematic hazard sampling: the same jumps, spread evenly over the steps (2601.02799). A sampler for any model.

A plain jump tosses a coin for each position in each step, so how often a position jumps varies by chance. Here each
position draws one θ ~ U(0, 1) for the whole text and adds up its chances of leaving:

    S ← S + leave(x_t, t, h);     it jumps when S ≥ θ + m;     m ← m + 1

where m counts its jumps so far. Where the chances do not depend on what was drawn, the mean number of jumps is the same
and its variance at most ¼. Where a jump goes is drawn as before. `hazard-euler` and `hazard-cumulative` do so with the
chances of these two jumps (`flow.jump`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, Method

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import LeaveJump, Noise, Schedule, Source


@dataclass(frozen=True)
class HazardJump:
    """`inner` says how likely a position leaves; `left` holds θ + m and S of each, [2, B, L], after the first step."""

    inner: LeaveJump
    left: list[Tensor] = field(default_factory=list, repr=False, compare=False, kw_only=True)
    final_pass: ClassVar[bool] = False

    @property
    def schedule(self) -> Schedule:
        return self.inner.schedule

    @property
    def source(self) -> Source:
        return self.inner.source

    def begin(self, x_0: Tensor) -> HazardJump:
        """A jump for rows that have not begun."""
        return replace(self, left=[])

    def __call__(self, x_t: Tensor, logits: Tensor, t: Tensor, h: Tensor, noise: Noise) -> Tensor:
        import torch

        from tsdfm.flow import draw_other, uniform

        u = uniform(noise, (*x_t.shape, 2), x_t.device)
        if not self.left:
            self.left.append(torch.stack([u[..., 0], torch.zeros_like(u[..., 0])]))
        (due, hazard), other = self.left[0], draw_other(logits, x_t, u[..., 1])
        hazard += self.inner.leave(x_t, other.p_other, t, h)
        goes = hazard >= due
        due += goes
        return torch.where(goes, other.tokens, x_t)


def around(name: str, schedule: Schedule, source: Source) -> HazardJump:
    """The jump of that name, systematically."""
    from tsdfm.flow import JUMPS

    return HazardJump(JUMPS[name](schedule, source))


class Hazard(Method):
    """Systematic hazard sampling."""

    name, title = "hazard", "systematic hazard sampling"
    help = "a sampler that spreads jumps evenly over the steps: sample --jump hazard-cumulative, hazard-euler"
    trains = False

    def jumps(self) -> dict[str, JumpMaker]:
        return {f"hazard-{name}": partial(around, name) for name in ("euler", "cumulative")}

    def train(self, settings: Any) -> Path:
        raise UserError("hazard is a way to sample: train any method, and sample --jump hazard-cumulative")


METHOD = Hazard()
