"""Whose doing it was: from the rewards of a text's places to what each token of one step is worth.

    r_l     the reward of place l, less what that place brings on average (`Usual`)
    R_i     = Σ_l γ^|l − i| r_l: what is near a token is taken for its doing. A causal judge's rewards before i do not
            depend on the token at i; so after the last step, behind which nothing is written, the sum is over l ≥ i
    A_i     = R_i less the mean of R_i of the other texts that went on from the same state, in units of its spread

Shapes: n = G·M rows of L places, M texts of each of G states side by side.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tsdfm.engine.distributed import Processes

REACH, CALM, KEPT = 9, 20.0, 0.8
"""Places that share an average, how many rewards of the general mean it begins with, and what a step keeps of it."""
MOST = 3.0  # spreads that an advantage may have


def returns(rewards: Tensor, gamma: float, *, before: bool) -> Tensor:
    """R [n, L] of rewards [n, L], in float64; `before` counts what stands before a token too."""
    place = torch.arange(rewards.shape[-1], dtype=torch.float64, device=rewards.device)
    behind = place[:, None] - place  # l − i for reward l and token i
    weights = gamma ** behind.abs()
    return rewards.double() @ (weights if before else torch.where(behind >= 0, weights, 0.0))


def total(value: Tensor, world: Processes) -> Tensor:
    """A number of all processes together, float64, and not 0."""
    value = value.double()
    if world.size > 1:
        dist.all_reduce(value)
    return value.clamp(min=1e-9)


def advantages(found: Tensor, texts: int, counts: Tensor, typical: Tensor, world: Processes) -> Tensor:
    """A [n, L] of returns [n, L], `texts` of each state, at the places that count [n, L]; 0 elsewhere.

    The spread is that of the `typical` places [n, L] of all processes' texts.
    """
    groups = found.view(-1, texts, found.shape[-1])
    others = (groups.sum(1, keepdim=True) - groups) / (texts - 1)
    rest = (groups - others).view_as(found)
    spread = (total(torch.where(typical, rest, 0.0).square().sum(), world) / total(typical.sum(), world)).sqrt()
    return torch.where(counts, (rest / spread.clamp(min=1e-6)).clamp(-MOST, MOST), 0.0)


class Usual:
    """What a place brings on average: sums over places near it, and those of ends apart, of which older steps fade.

    Without it a text would gain by ending early: an end brings more than a token does, which it need not follow up.
    """

    def __init__(self, length: int) -> None:
        self.sums = torch.zeros(2, length + 1, dtype=torch.float64)  # of rewards, and of how many; ends come last

    def bind(self, world: Processes) -> None:
        """Move to the device."""
        self.world, self.sums = world, self.sums.to(world.device)

    def less(self, rewards: Tensor, counts: Tensor, ends: Tensor) -> Tensor:
        """Rewards [n, L] less what is usual, at the places that count [n, L], of which some are `ends` [n, L].

        They are part of it from now on.
        """
        ends = counts & ends
        inside = counts & ~ends
        brought = [torch.where(here, rewards, 0.0).double() for here in (inside, ends)]
        many = [here.double() for here in (inside, ends)]
        new = torch.stack([torch.cat([places.sum(0), over.sum()[None]]) for places, over in (brought, many)])
        if self.world.size > 1:
            dist.all_reduce(new)
        self.sums.mul_(KEPT).add_(new)
        mean = self.sums[0, :-1].sum() / self.sums[1, :-1].sum().clamp(min=1)
        around = torch.ones(1, 1, REACH, dtype=torch.float64, device=self.sums.device)
        near, count = F.conv1d(self.sums[:, None, :-1], around, padding=REACH // 2)[:, 0]
        usual = (near + CALM * mean) / (count + CALM)
        last = self.sums[0, -1] / self.sums[1, -1].clamp(min=1)
        rest = rewards - torch.where(ends, last, usual).to(rewards.dtype)
        return torch.where(counts, rest, 0.0)

    def parts(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {"sums": self.sums}
