"""Discrete consistency distillation: Duo made to write in few steps; Sahoo et al. 2025 (2506.10892).

The student at a noisier state learns what its teacher says at a cleaner state of the same path:

    x_t, x_s of one text with the same noise, s = t + dt;     minimise KL( student(x_t, t) ‖ teacher(x_s, s) )

at every position. After every `round` steps the student becomes the teacher and dt doubles.

The published coupling takes the argmax of w = α̃e_x + σ̃ε at t and at s, with one ε. No Gaussians need be drawn for
it. Let y be the largest of the other K − 1 coordinates of ε: the argmax is x where α̃/σ̃ > ε_y − ε_x, and y
elsewhere, at every time. So the state is y up to some time and x from then on; y is any other token alike; and the
state at t is x with probability κ + (1−κ)/K. That is the path of `flow.interpolate` with one x_0 and one u for both
times: there, too, the state is x_0 until κ(t) > u, and x_0 is x itself with probability 1/K. The law of (x_t, x_s) is
the same, and given x_t it is a step along the bridge to x_1,

    x_s = x_1 with probability (κ(s) − κ(t))/(1 − κ(t)), else x_t.

dt is a step of `clock`: of the Gaussian noise's γ, as published, or of t itself, in which samplers step. The student is
told what its start is told and predicts what it predicts: a Duo model's π, or p(x_1 | x_t) of any uniform model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.distil.settings import DistilSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods import DistilMethod
from tsdfm.methods.duo import METHOD as DUO
from tsdfm.methods.duo import clock_of
from tsdfm.settings import option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tsdfm.distil.parts import States
    from tsdfm.distil.task import StudentTask
    from tsdfm.distil.teachers import Rounds
    from tsdfm.engine.distributed import Processes
    from tsdfm.flow import Bound, RowNoise, Schedule
    from tsdfm.flow.gaussian import GaussianClock
    from tsdfm.nn.velocity import VelocitySpec
    from tsdfm.tokens.rows import TokenRows

CLEAN, NOISY = 0.9987, 0.0062  # κ at γ = −4 and −1 with GPT-2's tokens, the published range


@dataclass(frozen=True, kw_only=True)
class DCDLoop(LoopSettings):
    """Five rounds of 10 000 steps."""

    steps: int = option(50_000, "optimiser steps")
    batch: int = option(128, "rows per optimiser step, over all processes together")


@dataclass(frozen=True, kw_only=True)
class DCDOptim(OptimSettings):
    """The published values: a small learning rate that stays, and an average that starts from trained weights."""

    lr: float = option(6e-5, "peak learning rate")
    beta2: float = option(0.999, "decay of AdamW's second moment")
    weight_decay: float = option(0.0, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(500, "steps of linear warm-up")
    floor: float = option(1.0, "where the cosine ends, as a share of the peak")
    ema: float = option(0.999, "decay of the averaged weights; 0 turns them off")
    ema_warmup: bool = option(False, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")


@dataclass(frozen=True, kw_only=True)
class DCDSettings(DistilSettings):
    """DCD: a Duo model, or another uniform one, distilled in rounds, in each of which its step doubles."""

    start_steps: int = option(512, "steps in which the first teacher writes: its dt is 1/start_steps", low=1)
    round: int = option(
        10_000, "optimiser steps of a round; then the student becomes the teacher and dt doubles", low=1
    )
    divergence: Literal["forward", "reverse"] = option(
        "reverse", "reverse: KL(student ‖ teacher), as published; forward: KL(teacher ‖ student)"
    )
    clock: Literal["gaussian", "t"] = option("gaussian", "what dt is a step of: the γ of Gaussian noise, or t itself")
    gamma_min: float | None = option(
        None, f"γ of the cleanest states of clock gaussian; none is where κ = {CLEAN}", low=-100, high=100
    )
    gamma_max: float | None = option(
        None, f"γ of the noisiest states of clock gaussian; none is where κ = {NOISY}", low=-100, high=100
    )
    loop: DCDLoop = option(DCDLoop(), "the training loop")
    optim: DCDOptim = option(DCDOptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        rounds = METHOD.rounds(self)
        if 2 ** (rounds - 1) > self.start_steps:
            raise UserError(
                f"in round {rounds} of {rounds} dt would be longer than the whole way: "
                "lower loop.steps, or raise round or start_steps"
            )


@dataclass(frozen=True)
class RoundTimes:
    """Pairs of times dt apart, dt = 2^round/start_steps of a clock; none is t itself. All rows are large steps.

    A pair begins at u − dt, or at 0 where that lies before it: the share dt of all pairs begins at pure noise, as every
    text does.
    """

    first: float
    every: int
    schedule: Schedule
    clock: GaussianClock | None = None
    share: float = 1.0
    smallest: float = 0.0

    def large(self, numbers: Tensor, step: int) -> Tensor:
        import torch

        return torch.ones_like(numbers, dtype=torch.bool)

    def draw(self, large: Tensor, noise: RowNoise, step: int) -> tuple[Tensor, Tensor]:
        from tsdfm.flow import row_times

        dt = self.first * 2.0 ** (step // self.every)
        begin = (row_times(noise.rows, noise.seed) - dt).clamp(min=0.0)
        if self.clock is None:
            return begin, begin * 0 + dt
        t, s = (self.schedule.inverse(self.clock.at(u)[1]) for u in (begin, begin + dt))
        return t, s - t


@dataclass(frozen=True)
class Ahead:
    """The roll-out: what the teacher says at t + h of the same path (`distil.parts.Rollout`)."""

    spec: VelocitySpec
    reverse: bool

    def bind(self, context: Any, teacher: Any, student: nn.Module) -> None: ...

    def begin(self, batch: Any, teacher: nn.Module, step: int) -> None: ...

    def stats(self, step: int | None) -> None: ...

    def __call__(self, teacher: nn.Module, states: States, step: int, stats: Any) -> tuple[Any, None]:
        import torch

        from tsdfm.distil.chain import Heads, send
        from tsdfm.kernels.fused import Divergence, Target

        t, s, h = send([states.t, states.t + states.h, states.h], states.x_t)
        heads = Heads(copy=False)
        with torch.no_grad():
            told = self.spec.told(s.float(), h.float())
            hidden, _ = teacher(self.bridge(states, t, s), *told, then=heads.keep)
        return Divergence(Target([states.learned(hidden)], (1.0,), *heads.parts()), self.reverse), None

    def bridge(self, states: States, t: Tensor, s: Tensor) -> Tensor:
        """x_s [B, L] given x_t and x_1."""
        import torch

        from tsdfm.flow import uniform

        stays = self.spec.flow_schedule().survival(t, s)[:, None]
        u = uniform(states.noise, states.x_t.shape, states.x_t.device)
        return torch.where(u < stays, states.x_t, states.x_1)

    def measured(self, stats: Any, rows: float, device: Any) -> Mapping[str, Tensor]:
        return {}

    def parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {}


class DCD(DistilMethod):
    """Discrete consistency distillation."""

    name, title = "duo-dcd", "Duo with DCD"
    help = "few-step student of a Duo model, or another uniform one, in rounds that double its step"
    settings: ClassVar[type] = DCDSettings
    sources = ("uniform",)
    keeps = ("time", "clock", "logits")
    clock, logits, jump = DUO.clock, DUO.logits, DUO.jump

    def rounds(self, settings: DCDSettings) -> int:
        return -(-settings.loop.steps // settings.round)

    def check(self, settings: DCDSettings) -> None:
        """The settings have looked at themselves; their times follow from the model's vocabulary."""

    def task(self, settings: DCDSettings, spec: VelocitySpec, valid: TokenRows | None, world: Processes) -> StudentTask:
        from tsdfm.distil.parts import Parts
        from tsdfm.distil.task import StudentTask

        if spec.logits == "score":
            raise UserError(f"{settings.init_from} answers with scores, duo-dcd needs a law of x_1: take duo or dfm")
        clock = None
        if settings.clock == "gaussian":
            clock = clock_of(spec.vocab, settings.gamma_min, settings.gamma_max, CLEAN, NOISY)
        parts = Parts(
            times=RoundTimes(1.0 / settings.start_steps, settings.round, spec.flow_schedule(), clock),
            teacher=self.teacher(settings, spec, world),
            rollout=self.rollout(settings, spec, world),
            floor=self.floor(settings, spec, world),
        )
        return StudentTask(settings, spec, valid, parts, self.bound())

    def teacher(self, settings: DCDSettings, spec: VelocitySpec, world: Processes) -> Rounds:
        from tsdfm.distil.teachers import Rounds

        return Rounds(settings.round)

    def rollout(self, settings: DCDSettings, spec: VelocitySpec, world: Processes) -> Ahead:
        return Ahead(spec, settings.divergence == "reverse")

    def bound(self) -> Bound:
        return DUO.bound()


METHOD = DCD()
