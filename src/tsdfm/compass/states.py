"""Flow states of rows of text: x_t, and any earlier x_t′, of the same pair (x_0, x_1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.flow import RowNoise, Schedule, Source, interpolate, row_times


@dataclass(frozen=True)
class Walk:
    """Pairs (x_0, x_1) [B, L] with the uniforms u [B, L] that say when each position arrives: when κ(t) passes u.

    States of one walk are nested: what has arrived at t has arrived at every later time. The first `anchor` positions,
    and of rows with a prompt what is `given` [B, L], always hold x_1 and never count as revealed.
    """

    x_0: Tensor
    x_1: Tensor
    u: Tensor
    schedule: Schedule
    anchor: int
    given: Tensor | None = None

    def at(self, t: Tensor) -> Tensor:
        """x_t [B, L] at the rows' times t [B]."""
        x_t = interpolate(self.x_0, self.x_1, t, self.schedule, self.u)
        x_t[:, : self.anchor] = self.x_1[:, : self.anchor]
        return x_t if self.given is None else torch.where(self.given, self.x_1, x_t)

    def revealed(self, t: Tensor) -> Tensor:
        """Which positions carry their token of x_1 at t, bool [B, L], what is given left out."""
        arrived = self.u < self.schedule.kappa(t).view(-1, 1)
        arrived[:, : self.anchor] = False
        return arrived if self.given is None else arrived & ~self.given

    def room(self) -> Tensor:
        """How many positions rows have [B]; of rows with a prompt, those of the answer."""
        return (torch.ones_like(self.x_1, dtype=torch.bool) if self.given is None else ~self.given).sum(-1)

    def select(self, index: Tensor) -> Walk:
        """Some of the rows; an index may occur more than once."""
        given = None if self.given is None else self.given[index]
        return Walk(self.x_0[index], self.x_1[index], self.u[index], self.schedule, self.anchor, given)


def walk(
    x_1: Tensor, source: Source, schedule: Schedule, anchor: int, noise: RowNoise, given: Tensor | None = None
) -> Walk:
    """Draw x_0 and the arrival uniforms of rows x_1 [B, L], of which some positions may be `given` [B, L]."""
    x_0 = source.draw(x_1.shape, noise, x_1.device)
    return Walk(x_0, x_1, noise.uniform(x_1.shape).to(x_1.device), schedule, anchor, given)


def positive_times(rows: Tensor, seed: int, clean: float, noise: RowNoise) -> Tensor:
    """t ~ U(0, 1) [B], float64, spread evenly over neighbouring rows; a share `clean` of them is t = 1."""
    t = row_times(rows, seed)
    return torch.where(noise.uniform((len(rows),)).to(t.device) < clean, torch.ones_like(t), t)
