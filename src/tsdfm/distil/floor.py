"""What the smallest step learns: the data by the generalised KL, or the frozen teacher's answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tsdfm.distil.chain import Heads
from tsdfm.distil.meaning import Raise, own_tokens, read
from tsdfm.distil.midpoint import near
from tsdfm.distil.parts import States
from tsdfm.distil.settings import StudentSettings
from tsdfm.engine.distributed import Processes
from tsdfm.errors import UserError
from tsdfm.flow.logits import readable_as
from tsdfm.flow.loss import LAST_TIME
from tsdfm.kernels.fused import Divergence, GeneralisedKL, Objective, Target
from tsdfm.nn.velocity import Velocity, VelocitySpec, load_velocity, spec_in
from tsdfm.store.bundle import find_weights


@dataclass(frozen=True)
class FromData:
    """The generalised KL against x_1, with its weight κ̇/(1−κ)."""

    spec: VelocitySpec

    def __call__(self, states: States, x_1: Tensor, x_t: Tensor) -> tuple[Objective | None, Tensor]:
        t = states.t[states.large :]
        if len(t) == 0:
            return None, t
        weight = self.spec.flow_schedule().rate(t.clamp(max=LAST_TIME))
        return read(GeneralisedKL(x_1, x_t), own_small(self.spec, states)), weight


def own_small(spec: VelocitySpec, states: States) -> Raise | None:
    """`own_tokens` of the rows with the smallest step."""
    x_t = states.x_t[states.large :]
    return own_tokens(spec, x_t, near(states.t[states.large :], x_t))


@dataclass(frozen=True)
class FromTeacher:
    """The divergence from a frozen teacher's answer to the same state."""

    teacher: Velocity
    reverse: bool

    def __call__(self, states: States, x_1: Tensor, x_t: Tensor) -> tuple[Objective | None, Tensor]:
        t, h = states.t[states.large :], states.h[states.large :]
        if len(t) == 0:
            return None, t
        heads, spec = Heads(copy=False), self.teacher.spec
        with torch.no_grad():
            told = spec.told(near(t, x_t).float(), near(h, x_t).float())
            hidden, _ = self.teacher.net(states.x_t[states.large :], *told, then=heads.keep)
        hidden, own = states.learned_small(hidden), own_small(spec, states)
        return read(Divergence(Target([hidden], (1.0,), *heads.parts(), own), self.reverse), own), torch.ones_like(t)


def frozen_teacher(settings: StudentSettings, spec: VelocitySpec, world: Processes) -> FromTeacher | None:
    """The frozen teacher, where the smallest step learns from it."""
    if settings.target != "teacher":
        return None
    path = teacher_path(settings)
    teacher = load_velocity(path, world.device, role="teacher")
    spec.match(teacher.spec, f"the teacher {path}")
    if not readable_as(teacher.spec.logits, spec.logits):  # what it never learned would be distilled
        word = f"{teacher.spec.method}, logits {teacher.spec.logits}"
        raise UserError(f"{path} answers at some positions only ({word}): use a dfm teacher")
    return FromTeacher(teacher, settings.divergence == "reverse")


def teacher_path(settings: StudentSettings) -> Path:
    """Where the frozen teacher is."""
    if settings.teacher is not None:
        return settings.teacher
    origin = find_weights(settings.init_from, settings.START, which="ema", choose="newest")
    if spec_in(origin.manifest, origin.place).step_size:
        raise UserError("target teacher needs --teacher, as init_from is a student")
    return settings.init_from
