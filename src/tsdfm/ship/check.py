"""What packing changed: the packed models beside the ones they were made from, on states the student really visits.

B texts, K candidates, L length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.compass.model import Compass
from tsdfm.compass.propose import propose
from tsdfm.flow import RowNoise
from tsdfm.flow.jump import PositionJump, Remembers
from tsdfm.nn.velocity import Velocity
from tsdfm.samples.model import TextModel

TEXTS, STEPS, CANDIDATES = 2, 8, 5


@dataclass(frozen=True)
class Moment:
    """States x_t [B, L] at one time, and the step that was made from them."""

    x_t: Tensor
    t: float
    h: float

    def times(self, rows: int) -> tuple[Tensor, Tensor]:
        """t and h as a network wants them, [B] each."""
        return torch.full((rows,), self.t), torch.full((rows,), self.h)


def moments_of(student: TextModel, texts: int = TEXTS, steps: int = STEPS) -> list[Moment]:
    """The states of a few texts of the student, seed 0, before each step."""
    way = student.sample(texts, steps, 0, trajectory=True).trajectory
    assert way is not None
    states = [[tokens for tokens, _ in row.states()] for row in way.rows]
    made = way.rows[0].steps
    return [Moment(torch.tensor([row[k] for row in states]), step.t, step.h) for k, step in enumerate(made)]


@torch.no_grad()
def prediction_change(before: Velocity, after: Velocity, moments: list[Moment]) -> dict[str, float]:
    """KL(p ‖ p') in nats a position, and the share of positions whose likeliest token stays the same."""
    divergence, same = [], []
    for moment in moments:
        old, new = (v(moment.x_t, *moment.times(len(moment.x_t))).double().log_softmax(-1) for v in (before, after))
        divergence.append((old.exp() * (old - new)).sum(-1).mean())
        same.append((old.argmax(-1) == new.argmax(-1)).double().mean())
    return {"kl_nats": round(mean(divergence), 7), "same_likeliest": round(mean(same), 5)}


@torch.no_grad()
def energy_change(before: Compass, after: Compass, student: Velocity, moments: list[Moment]) -> dict[str, float]:
    """How often the compass still picks the same one of K jumps of the student, and how far its energies moved.

    `difference` is the root mean square of E' − E over candidates, each less its mean over the K; `spread` is the same
    of E: what the pick turns on.
    """
    same, moved, spread = [], [], []
    for number, moment in enumerate(moments):
        states = candidates(student, moment, number)
        old, new = (c.energy(states).double().view(-1, CANDIDATES) for c in (before, after))
        old, new = old - old.mean(-1, keepdim=True), new - new.mean(-1, keepdim=True)
        same.append((old.argmin(-1) == new.argmin(-1)).double().mean())
        moved.append((new - old).square().mean())
        spread.append(old.square().mean())
    found = {"difference": mean(moved) ** 0.5, "spread": mean(spread) ** 0.5}
    return {"same_pick": round(mean(same), 5), **{name: round(value, 7) for name, value in found.items()}}


def candidates(student: Velocity, moment: Moment, seed: int) -> Tensor:
    """K independent jumps from each state, [B·K, L], with the row's anchor left in place.

    They are the model's own, or Euler's where its own looks at a whole text: what is compared is the compass.
    """
    rows, length = moment.x_t.shape
    own = student.jump()
    jump = own if isinstance(own, PositionJump) and not isinstance(own, Remembers) else student.jump("euler")
    u = RowNoise(seed, torch.arange(rows * CANDIDATES)).uniform((rows * CANDIDATES, length, 2))
    t, h = (time.double() for time in moment.times(rows))
    return propose(student, moment.x_t, t, h, u.view(rows, CANDIDATES, length, 2), jump).flatten(0, 1)


def weight_change(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """‖w' − w‖ / ‖w‖ over all weights."""
    moved = sum(float((after[name].double() - weight.double()).square().sum()) for name, weight in before.items())
    whole = sum(float(weight.double().square().sum()) for weight in before.values())
    return round((moved / whole) ** 0.5, 7) if whole else 0.0


def mean(values: list[Tensor]) -> float:
    """The mean of scalars."""
    return float(torch.stack(values).mean())
