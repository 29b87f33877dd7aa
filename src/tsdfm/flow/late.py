"""A jump along a late grid: long steps first, and short ones near the text.

    t_j = 1 − (1 − j/k)^b,      j = 0 … k;     b = 1 are equal steps

In k equal steps 1/k of a text is still noise before the last one, which then draws what is missing all at once. Along a
late grid the first steps write a draft, and little is left for the last. With the uniform source the later steps revise
the draft: a network that is told a late time takes most tokens for the text's own, and moves those that do not go with
the rest. With masks nothing is revised, and long first steps do harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tsdfm.errors import UserError
from tsdfm.flow.jump import CumulativeJump
from tsdfm.flow.solver import grid


@dataclass(frozen=True)
class LateJump(CumulativeJump):
    """The cumulative jump (with masks, the ancestral one) whose steps are those of the late grid of `power` b."""

    power: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.power <= 16:
            raise UserError(f"the power of a late grid is above 0 and at most 16, not {self.power:g}")

    def grid(self, steps: int) -> tuple[float, ...]:
        """The times of `steps` steps."""
        return late_grid(steps, self.power)


def late_grid(steps: int, power: float) -> tuple[float, ...]:
    """The times of `steps` steps of a late grid, if each is later than the one before.

    >>> late_grid(4, 2.0)
    (0.0, 0.4375, 0.75, 0.9375, 1.0)
    """
    times = tuple(1.0 - (1.0 - t) ** power for t in grid(steps))
    if not all(before < after for before, after in pairwise(times)):
        which = "lower" if power > 1 else "raise"
        raise UserError(
            f"{steps} steps along a late grid of power {power:g} are too short to tell apart: lower the number of "
            f"steps, or {which} the power"
        )
    return times
