"""The large-step target: what the semi-teacher, in steps half as large, would say of the whole step.

    rk4     k1 at (x_t, t), k2 at (mid1, t + h/2), k3 at (mid2, t + h/2), k4 at (mid3, t + h);   (k1 + 2k2 + 2k3 + k4)/6
    heun    k1 at (x_t, t), k2 at (mid1, t + h/2);                                               (k1 + k2)/2
    euler   k1 at (x_t, t)

Every stage sees the step size h/2. Midpoints are chained, x_t → mid1 → mid2 → mid3, each a jump of h/2 by the policy;
the third starts at t + h/2 again, as RK-4 has it. The head is linear and the same in all stages, so the average of the
logits is the head of the averaged hidden states: only hidden states are kept, and logits live one stage at a time.
A network that is told, or answers, something else than t and logits of x_1 is asked and read as its spec says
(`distil.meaning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.distil.meaning import ROLLED, Stages, own_tokens, read
from tsdfm.distil.midpoint import Blind, Policy, near
from tsdfm.distil.parts import States, Teacher
from tsdfm.distil.settings import StudentSettings
from tsdfm.distil.stats import Stats
from tsdfm.engine.sharded import sharded_module
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import CumulativeJump, Noise
from tsdfm.kernels.fused import Divergence, Objective, Target, compute_dtype
from tsdfm.kernels.head import Head, padded
from tsdfm.nn.velocity import VelocitySpec

if TYPE_CHECKING:
    from tsdfm.distil.recorded import RecordedTarget


@dataclass(frozen=True)
class Estimator:
    """Stage times in units of h after t, their shares of the average, and how many midpoints join them."""

    times: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def midpoints(self) -> int:
        return len(self.times) - 1


ESTIMATORS = {
    "rk4": Estimator((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    "heun": Estimator((0.0, 0.5), (0.5, 0.5)),
    "euler": Estimator((0.0,), (1.0,)),
}


class Chain:
    """The roll-out of FS-DFM: an RK-4 chain of the teacher with blind midpoints."""

    def __init__(self, settings: StudentSettings, spec: VelocitySpec) -> None:
        self.settings, self.spec = settings, spec
        self.estimator = ESTIMATORS[settings.estimator]
        self.jump = CumulativeJump(spec.flow_schedule(), spec.flow_source())
        self.recorded: RecordedTarget | None = None
        self.held: Tensor | None = None
        if spec.step_size and spec.logits not in ROLLED:
            raise UserError(f"a model whose logits are {spec.logits} cannot be rolled out: start from mdlm, duo or dfm")
        if spec.logits != "plain" and settings.average == "probabilities":
            raise UserError(f"average probabilities needs plain answers, and these are {spec.logits}: use logits")

    def bind(self, context: Context, teacher: Teacher, student: nn.Module) -> None:
        if self.spec.anchor:
            self.held = torch.arange(self.spec.length, device=context.world.device) < self.spec.anchor
        if self.settings.record and context.graphs is not None and self.may_record():
            from tsdfm.distil.recorded import RecordedTarget

            self.recorded = RecordedTarget(teacher.at(0), context.graphs)

    def may_record(self) -> bool:
        """Is a target made of the same operations in every step?"""
        return self.spec.logits == "plain" and self.spec.time and self.spec.clock == "t"

    def begin(self, batch: Any, teacher: nn.Module, step: int) -> None: ...

    def stats(self, step: int | None) -> Stats | None:
        return None

    def policy(self, step: int, stats: Stats | None, given: Tensor | None = None) -> Policy:
        """The midpoint policy at a step of the training; what is `given` [n, L] stays, besides the anchor."""
        return Blind(self.jump, self.held if given is None else given)

    def __call__(
        self, teacher: nn.Module, states: States, step: int, stats: Stats | None
    ) -> tuple[Objective | None, Tensor | None]:
        target = self.target(teacher, states, step, stats)
        if target is None:
            return None, None
        x_t = states.x_t[: states.large]
        own = own_tokens(self.spec, x_t, near(states.t[: states.large], x_t))
        return read(Divergence(target, self.settings.divergence == "reverse"), own), None

    def target(self, teacher: nn.Module, states: States, step: int, stats: Stats | None) -> Target | None:
        """The distribution of the large steps' learned positions, or None where there is no such row."""
        rows, given = states.large, None if states.given is None else states.given[: states.large]
        policy = self.policy(step, stats, given)
        if rows == 0 and sharded_module(teacher) and states.most > 0:
            # other processes may have some, and every call of a sharded network is a joint one
            rows, policy = 1, Blind(self.jump)
        if rows == 0:
            return None
        first = torch.arange(rows, device=states.noise.rows.device)
        whole = max(rows, states.most) if states.x_t.is_cuda else rows
        x_t, t, h = states.x_t[:whole], states.t[:whole], states.h[:whole]
        places = None if states.places is None else states.places[1][: states.cut]
        make: Callable[..., Target] = partial(target_of, teacher, spec=self.spec, places=places)
        if self.recorded is not None and self.recorded.fits(teacher, policy, x_t):
            make = self.recorded
        noise, spec = states.noise.select(first), self.spec
        target = make(x_t, t, h, policy, noise, self.estimator, self.settings.average, spec.anchor, rows)
        return target if states.large else None

    def measured(self, stats: Stats, rows: float, device: torch.device) -> Mapping[str, Tensor]:
        return stats.mean(rows * self.estimator.midpoints, device)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        return {}


@torch.no_grad()
def target_of(
    semi: nn.Module,
    x_t: Tensor,
    t: Tensor,
    h: Tensor,
    policy: Policy,
    noise: Noise,
    estimator: Estimator,
    average: str = "logits",
    anchor: int = 0,
    rows: int | None = None,
    *,
    spec: VelocitySpec | None = None,
    places: Tensor | None = None,
) -> Target:
    """The target for states x_t [B, L] at t [B] over h [B] (best on the host, in float64), as one list of positions.

    The first `anchor` positions of every row are left out, or all but `places` (`Stages`). Only the first `rows` are
    wanted (none: all, and `noise` is theirs): others keep the batch at one size, so that a compiled semi-teacher is
    compiled once; they do not move. `spec` says what it is told and what it answers (none: t and h, logits of x_1).
    """
    rows = len(x_t) if rows is None else rows
    heads, stages = Heads(copy=sharded_module(semi)), Stages(average, anchor, spec, places)
    sent = send(host_side(t, h, policy, estimator, rows), x_t)
    chain(semi, x_t, sent, policy, noise, heads, estimator, stages, rows)
    return stages.target(estimator.shares, *heads.parts())


def host_side(t: Tensor, h: Tensor, policy: Policy, estimator: Estimator, rows: int) -> list[Tensor]:
    """What the host knows before any stage: the stages' times [B], h/2 [B], and the rows each midpoint looks at."""
    times = [t + time * h for time in estimator.times]
    return [*times, h / 2, *(policy.above(time[:rows]) for time in times[:-1])]


def send(values: list[Tensor], other: Tensor) -> list[Tensor]:
    """Vectors on the device of `other`; those of eight-byte numbers go there in one copy."""
    if any(value.element_size() != 8 for value in values):
        return [near(value, other) for value in values]
    return unpack(near(pack(values), other), [(len(value), value.dtype) for value in values])


def pack(values: list[Tensor]) -> Tensor:
    """Vectors of eight-byte numbers as one."""
    return torch.cat([value.view(torch.int64) for value in values])


def unpack(words: Tensor, parts: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
    """What was packed, as views."""
    found = torch.split(words, [size for size, _ in parts])
    return [part.view(dtype) for part, (_, dtype) in zip(found, parts, strict=True)]


def chain(
    semi: nn.Module,
    x_t: Tensor,
    sent: list[Tensor],
    policy: Policy,
    noise: Noise,
    heads: Heads,
    estimator: Estimator,
    stages: Stages,
    rows: int,
) -> None:
    """The stages and the midpoints between them, with what the host `sent`; their hidden states go into `stages`."""
    x, last, spec = x_t, estimator.midpoints, stages.spec
    mean = None if spec is None else spec.meaning()
    times, half, above = sent[: last + 1], sent[last + 1], sent[last + 2 :]
    small = half.float()
    for stage, (time, share) in enumerate(zip(times, estimator.shares, strict=True)):
        told = (time.float(), small) if spec is None else spec.told(time.float(), small)
        hidden, logits = _stage(semi, x, told, heads, last=stage == last)
        stages.add(hidden[:rows], x[:rows], time[:rows], share)
        if logits is not None:
            logits = logits[:rows] if mean is None else mean(logits[:rows], x[:rows], time[:rows, None])
            # a jump starts where its stage was: mid3 leaves mid2 at t + h/2
            moved = policy.advance(x[:rows], logits, time[:rows], half[:rows], above[stage], noise)
            x = moved if rows == len(x) else torch.cat([moved, x[rows:]])
            del logits


class Heads:
    """The semi-teacher's head, got hold of inside its forward: padded once for all stages where kernels run.

    A `copy` is made where the weights are gathered for the forward only (FSDP). A head that is `ready` is used as is.
    """

    def __init__(self, *, copy: bool, ready: Head | None = None) -> None:
        self.copy = copy
        self.padded = ready
        self.plain: tuple[Tensor, Tensor | None] | None = None

    def logits(self, hidden: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
        """A stage's hidden states and logits."""
        return hidden, self._pad(head)(hidden) if kernels.on(hidden, "head") else head(hidden)

    def keep(self, hidden: Tensor, head: nn.Linear) -> tuple[Tensor, None]:
        """The last stage's hidden states; the head is kept for the loss."""
        if kernels.on(hidden, "head"):
            self._pad(head)
        else:
            self.plain = head_of(head, copy=self.copy)
        return hidden, None

    def parts(self) -> tuple[Tensor, Tensor | None, Head | None]:
        """What a `Target` takes."""
        if self.padded is None:
            assert self.plain is not None
            return *self.plain, None
        weight, bias, columns = self.padded.weight, self.padded.bias, self.padded.columns
        return weight[:columns], None if bias is None else bias[:columns], self.padded

    def _pad(self, head: nn.Linear) -> Head:
        if self.padded is None:
            self.padded = padded(head.weight, head.bias, compute_dtype(head.weight))
        return self.padded


def _stage(
    semi: nn.Module, x: Tensor, told: tuple[Tensor | None, ...], heads: Heads, *, last: bool
) -> tuple[Tensor, Tensor | None]:
    """The hidden states of a stage and, but for the last, its logits."""
    found: tuple[Tensor, Tensor | None] = semi(x, *told, then=heads.keep if last else heads.logits)
    return found


def head_of(head: nn.Linear, *, copy: bool = False) -> tuple[Tensor, Tensor | None]:
    """A head's weight and bias as products use them; a copy where they are gathered for this forward only (FSDP)."""
    dtype = compute_dtype(head.weight)
    weight = head.weight.detach().to(dtype, copy=copy)
    return weight, None if head.bias is None else head.bias.detach().to(dtype, copy=copy)
