"""The settings of a compass that learns on."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.compass.settings import RatioSettings
from tsdfm.errors import UserError
from tsdfm.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class RefreshSettings(Settings):
    """A compass that learns on from the student's own jumps (beyond the paper)."""

    every: int = option(0, "steps between updates of the compass; 0 leaves it frozen, as the paper does", low=0)
    lr: float = option(3e-4, "learning rate of the updates", above=0)
    ratio: RatioSettings = option(
        RatioSettings(), "the objective: the true next state against the semi-teacher's jumps"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio.proposer is not None:
            raise UserError("refresh has the semi-teacher for its proposer: leave refresh.ratio.proposer out")
