"""A jump along a late grid: long steps first, and short ones near the text.

    t_j = 1 − (1 − j/k)^b,      j = 0 … k;     b = 1 are equal steps

In k equal steps 1/k of a text is still noise before the last one, which then draws what is missing all at once. Along a
late grid the first steps write a draft, and little is left for the last. With the uniform source the later steps revise
the draft: a network that is told a late time takes most tokens for the text's own, and moves those that do not go with
the rest. With masks nothing is revised, and long first steps do harm.

Of k steps the last `again` are revisions: the last step of a grid of k − `again`, once more, from the finished text. It
is taken for a text of that step's time, whose noise are the mistakes that are left in it. A grid that is drawn out
instead brings its last steps nearer to t = 1, where a network takes every token for right.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tsdfm.errors import UserError
from tsdfm.flow.jump import CumulativeJump, Steps
from tsdfm.flow.solver import grid


@dataclass(frozen=True)
class LateJump(CumulativeJump):
    """The cumulative jump (with masks, the ancestral one) whose steps are those of the late grid of `power` b.

    The last `again` of them are revisions, if that leaves a step to write a draft with. They need the uniform source.
    """

    power: float = 1.0
    again: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.power <= 16:
            raise UserError(f"the power of a late grid is above 0 and at most 16, not {self.power:g}")
        if self.again < 0:
            raise UserError(f"a late grid has no fewer than 0 revisions, not {self.again}")
        if self.again and self.source.mask is not None:
            raise UserError("a text of the mask source is not revised: what has left [MASK] stays; leave revisions out")

    def steps_in(self, count: int) -> Steps:
        """The steps of `count`: those of the grid, and its last one again.

        >>> from tsdfm.flow import Polynomial, Uniform
        >>> LateJump(Polynomial(1.0), Uniform(9), power=2.0, again=1).steps_in(3)
        ((0.0, 0.75), (0.75, 1.0), (0.75, 1.0))
        """
        again = max(0, min(self.again, count - 1))
        draft = tuple(pairwise(late_grid(count - again, self.power)))
        return draft + draft[-1:] * again


def late_grid(steps: int, power: float) -> tuple[float, ...]:
    """The times of `steps` steps, if each is later than the one before.

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
