"""The settings of what stands beside a matched student: the auxiliary, and the watch for collapse."""

from __future__ import annotations

from dataclasses import dataclass

from tsdfm.errors import UserError
from tsdfm.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class AuxiliarySettings(Settings):
    """The network that learns the student's own texts. It starts as the teacher."""

    lr: float = option(3e-4, "its learning rate; it must keep up with the student", above=0)
    warmup: int = option(50, "steps of its linear warm-up", low=0)
    alone: int = option(100, "first steps of the training, in which it learns alone", low=0)
    steps: int = option(1, "its steps for each of the student's, each on states of their own", low=1)
    dense: bool = option(True, "learn the law of x given z_a and z_b, rather than the one x that was drawn")
    teacher: float = option(0.0, "weight of KL(teacher ‖ auxiliary), D-MMD's second term; 0: none", low=0)


@dataclass(frozen=True, kw_only=True)
class WatchSettings(Settings):
    """A look at the student's texts now and then: a collapse is told, and taken back if so wished."""

    every: int = option(25, "steps between two looks; 0 never looks", low=0)
    least: float = option(
        0.75, "collapse: its texts have less than this share of the entropy of the batch's own", above=0, below=1
    )
    rollback: int = option(0, "how often a training may go back to its last good weights; 0 only tells", low=0)
    slower: float = option(0.5, "factor on the student's learning rate each time it goes back", above=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rollback and not self.every:
            raise UserError("watch.rollback needs a look now and then: set watch.every above 0")
