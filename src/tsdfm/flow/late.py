"""A jump along a late grid: long steps first, and short ones near the text.

    t_j = 1 − (1 − j/k)^b,      j = 0 … k;     b = 1 are equal steps

In k equal steps 1/k of a text is still noise before the last one, which then draws what is missing all at once. Along a
late grid the first steps write a draft, and little is left for the last. With the uniform source the later steps revise
the draft: a network that is told a late time takes most tokens for the text's own, and moves those that do not go with
the rest. With masks nothing is revised, and long first steps do harm.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        """The times of `steps` steps.

        >>> LateJump(schedule, source, power=2.0).grid(4)
        (0.0, 0.4375, 0.75, 0.9375, 1.0)
        """
        return tuple(1.0 - (1.0 - t) ** self.power for t in grid(steps))
