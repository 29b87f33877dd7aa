"""The laws of t_b and z_b: how a text x that the student drew is noised again.

    fresh       IDLM: t_b anywhere;  z_b = x with probability κ(t_b), else a new draw of the source
    posterior   D-MMD: t_b within the step, at its end for half of the rows whose step is not the last;
                z_b = x with probability 1 − (1−κ(t_b))/(1−κ(t_a)), else z_a
    mix         a row is of the fresh form with a given probability, else of the posterior one

Rows at times t_a before `since` are of the posterior form in any case: the fresh form narrows a student in its first
passes, and not in its later ones.

With the mask source both are IDLM's and D-MMD's masked forms: what is not x is [MASK], or z_a, which is [MASK] where
anything is left to be said. Shapes: z_a, x, z_b [B, L]; t_a, h, t_b [B], float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.flow import RowNoise, Schedule, Source

FIRST, SPAN = 0.02, 0.96
"""The fresh form's t_b lies in FIRST … FIRST + SPAN: near 0 nothing can be told, near 1 everything is."""
EARLY, REST = 0.1, 0.88
"""The posterior form's, in units of h after t_a."""


@dataclass(frozen=True)
class Renoised:
    """States z_b [B, L] at t_b [B]; `share` [B, 1] is the chance that a position shows x, else it shows a draw of
    probability `other` [B, L] at z_b."""

    z_b: Tensor
    t_b: Tensor
    share: Tensor
    other: Tensor

    def shown(self, p: Tensor) -> Tensor:
        """P(z_b shows x | z_a, z_b) [B, L] where x = z_b has probability p [B, L]: π p / (π p + (1−π) other).

        Given z_a and z_b, x is z_b with this probability, and else a draw of g.
        """
        by_x = self.share * p
        whole = by_x + (1 - self.share) * self.other
        return torch.where(whole > 0, by_x / whole, 1.0)


@dataclass(frozen=True)
class Forms:
    """`fresh` is the share of rows of the fresh form, among those at `since` and later."""

    fresh: float
    schedule: Schedule
    source: Source
    since: float = 0.0

    def __call__(self, x: Tensor, z_a: Tensor, t_a: Tensor, h: Tensor, noise: RowNoise) -> Renoised:
        """Noise x anew, by uniforms of the rows' own."""
        u = noise.uniform((len(x), 3))
        last = t_a + h >= 1.0
        whole = (u[:, 1] < 0.5) & ~last
        within = t_a + h * torch.where(whole, 1.0, EARLY + REST * u[:, 0])
        anew = (u[:, 2] < self.fresh) & (t_a >= self.since)
        t_b = torch.where(anew, FIRST + SPAN * u[:, 0], within)
        share = torch.where(anew, self.schedule.kappa(t_b), 1.0 - self.schedule.survival(t_a, t_b))[:, None]
        shows = noise.uniform(x.shape) < share
        noised = self.source.draw(x.shape, noise, x.device)
        z_b = torch.where(shows, x, torch.where(anew[:, None], noised, z_a))
        other = torch.where(anew[:, None], self.source.probability(z_b), (z_b == z_a).double())
        return Renoised(z_b, t_b, share, other)
