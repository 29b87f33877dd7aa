"""The settings of what stands beside a matched student: the auxiliary, and the watch for collapse."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.errors import UserError
from tsdfm.settings import option


@dataclass(frozen=True, kw_only=True)
class AuxiliarySettings:
    """The network that learns the student's own texts. It starts as the teacher."""

    lr: float = option(3e-4, "its learning rate; it must keep up with the student")
    warmup: int = option(50, "steps of its linear warm-up")
    alone: int = option(100, "first steps of the training, in which it learns alone")
    steps: int = option(1, "its steps for each of the student's, each on states of their own")
    dense: bool = option(True, "learn the law of x given z_a and z_b, rather than the one x that was drawn")
    teacher: float = option(0.0, "weight of KL(teacher ‖ auxiliary), D-MMD's second term; 0: none")

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UserError(f"auxiliary.lr must be above 0, not {self.lr}")
        if self.steps < 1 or min(self.warmup, self.alone, self.teacher) < 0:
            raise UserError("auxiliary.steps must be at least 1; warmup, alone and teacher may not be negative")


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """A look at the student's texts now and then: a collapse is told, and taken back if so wished."""

    every: int = option(25, "steps between two looks; 0 never looks")
    least: float = option(0.75, "collapse: its texts have less than this share of the entropy of the batch's own")
    rollback: int = option(0, "how often a training may go back to its last good weights; 0 only tells")
    slower: float = option(0.5, "factor on the student's learning rate each time it goes back")

    def __post_init__(self) -> None:
        if self.every < 0 or self.rollback < 0:
            raise UserError("watch.every and watch.rollback may not be negative")
        if not 0 < self.least < 1 or not 0 < self.slower <= 1:
            raise UserError("watch.least lies between 0 and 1, watch.slower above 0 and at most 1")
        if self.rollback and not self.every:
            raise UserError("watch.rollback needs a look now and then: set watch.every above 0")
