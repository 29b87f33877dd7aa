"""What methods with a frozen teacher of their own, or a compass, share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsdfm.errors import UserError

if TYPE_CHECKING:
    from tsdfm.compass.model import Compass
    from tsdfm.engine.distributed import Processes
    from tsdfm.nn.velocity import Velocity, VelocitySpec

EXACT_JUMP = {"uniform": "cumulative", "mask": "ancestral"}
"""The jump of a student that never learned what to say of tokens that have left [MASK]."""


def frozen_model(path: Path, spec: VelocitySpec, world: Processes) -> Velocity:
    """The teacher of a student of `spec`: a model whose answers are probabilities of tokens wherever they are asked."""
    from tsdfm.nn.velocity import load_velocity

    teacher = load_velocity(path, world.device, role="teacher")
    spec.match(teacher.spec, f"the teacher {path}")
    if teacher.spec.logits not in ("plain", "subs", "others"):
        raise UserError(f"{path} answers no probabilities of tokens (logits {teacher.spec.logits}): use a dfm teacher")
    return teacher


def frozen_compass(path: Path, spec: VelocitySpec, world: Processes, start: Path | None) -> Compass:
    """The compass of a student of `spec`, which starts from `start`."""
    from tsdfm.compass.model import load_compass

    compass = load_compass(path, world.device)
    compass.match(spec, f"the model in {start}")
    return compass
