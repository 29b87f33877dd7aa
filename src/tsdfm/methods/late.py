"""Late grids: a few long steps, then short ones near the text. A sampler for any model, without training.

`late:2` is the power b = 2 of `flow.late`, which is also the default; b = 1 are equal steps. With `late:2:1` the last
pass revises the finished text. The number of passes stays what was asked for. What it gives and costs:
docs/neighbours.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, Method

if TYPE_CHECKING:
    from tsdfm.flow import Schedule, Source
    from tsdfm.flow.late import LateJump


def late(schedule: Schedule, source: Source, power: float = 2.0, again: float = 0) -> LateJump:
    """The jump along the grid of that power, whose last step is made `again` so often."""
    from tsdfm.flow.late import LateJump

    if not float(again).is_integer():
        raise UserError(f"a late grid has a whole number of revisions, not {again:g}")
    return LateJump(schedule, source, keep_revealed=source.mask is not None, power=power, again=int(again))


class Late(Method):
    """Late grids."""

    name, title = "late", "late grids"
    help = "a sampler that writes a draft in long steps and revises it in short ones: sample --jump late:2"
    trains = False

    def jumps(self) -> dict[str, JumpMaker]:
        return {"late": late}

    def train(self, settings: Any) -> Path:
        raise UserError("late is a way to sample: train any method, and sample --jump late:2")


METHOD = Late()
