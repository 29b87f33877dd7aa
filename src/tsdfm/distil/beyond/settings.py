"""The settings of a compass that learns on."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.compass.settings import RatioSettings
from tsdfm.errors import UserError
from tsdfm.settings import option


@dataclass(frozen=True, kw_only=True)
class RefreshSettings:
    """A compass that learns on from the student's own jumps (beyond the paper)."""

    every: int = option(0, "steps between updates of the compass; 0 leaves it frozen, as the paper does")
    lr: float = option(3e-4, "learning rate of the updates")
    ratio: RatioSettings = option(
        RatioSettings(), "the objective: the true next state against the semi-teacher's jumps"
    )

    def __post_init__(self) -> None:
        if self.every < 0 or not self.lr > 0:
            raise UserError("refresh.every may not be negative, and refresh.lr must be above 0")
        if self.ratio.proposer is not None:
            raise UserError("refresh has the semi-teacher for its proposer: leave refresh.ratio.proposer out")
