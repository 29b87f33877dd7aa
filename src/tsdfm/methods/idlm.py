"""IDLM: a student matched to its teacher by an auxiliary network (2602.19066), and D-MMD's form of it (2603.20155).

With t = 0 noise and 1 data, κ(t) the share of the text that is there, k passes, t_a = j/k, h = 1/k, or the times of a
late grid (`flow.late`), which the student then writes along:

    z_a      noised data, or a text that the student is writing, at t_a
    g        = softmax(student(z_a)),   x ~ g, one draw a position
    z_b      x noised again, at t_b: fresh (IDLM) or by the posterior given z_a (D-MMD), see `distil.matching.forms`
    auxiliary   CE(x, auxiliary(z_b)); dense: with the law of x given z_a and z_b [+ weight · KL(teacher ‖ auxiliary)]
    student     Σ_v g(v) · clip[log auxiliary(v | z_b) − log teacher(v | z_b), ±c],   gradient through g alone

Inverse distillation: where the student's texts have the teacher's law, the best auxiliary is the teacher, and nothing
pulls. With the mask source g counts where z_a is [MASK], the reward where z_b is, with the weight κ̇/(1−κ) of the bound;
the uniform source counts everywhere, with weight 1. Student and auxiliary start as the teacher. An anchor holds the
student where the matching lets go: FS-DFM's loss on some of the rows (TS-DFM's with a compass), or KL(teacher ‖
student) at z_a. With `tilt` the compass is inside the reward: the teacher's law of each position is tilted towards
texts of lower energy (`distil.matching.tilt`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.distil.beyond.settings import RefreshSettings
from tsdfm.distil.matching.settings import AuxiliarySettings, WatchSettings
from tsdfm.distil.settings import NavigateSettings, Navigation, StudentOptim, StudentSettings
from tsdfm.errors import UserError
from tsdfm.methods import StudentMethod
from tsdfm.methods._teacher import EXACT_JUMP, frozen_compass, frozen_model
from tsdfm.settings import ModelPath, option

if TYPE_CHECKING:
    from tsdfm.distil.matching.task import MatchingTask
    from tsdfm.distil.matching.times import MatchedTimes
    from tsdfm.distil.parts import Rollout
    from tsdfm.engine.distributed import Processes
    from tsdfm.nn.velocity import Velocity, VelocitySpec
    from tsdfm.tokens.rows import TokenRows


@dataclass(frozen=True, kw_only=True)
class IDLMOptim(StudentOptim):
    """The student's optimiser: a small rate, so that the auxiliary keeps up."""

    lr: float = option(2e-5, "peak learning rate")
    beta2: float = option(0.99, "decay of AdamW's second moment")
    weight_decay: float = option(0.0, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(200, "steps of linear warm-up")
    ema: float = option(0.995, "decay of the averaged weights")


@dataclass(frozen=True, kw_only=True)
class IDLMSettings(StudentSettings):
    """IDLM: a few-step model whose texts are matched to a teacher's."""

    teacher: ModelPath | None = option(None, "the teacher to match; none is init_from if that is one")
    dropout: float | None = option(0.0, "dropout while training; none is what init_from has")
    step_size: bool = option(False, "tell the student h, though what it starts from is not told")
    latent: bool = option(False, "tell the student a random number of the text's own: noise for the mask source")
    passes: tuple[int, ...] = option((4, 8, 16), "numbers of passes that the student learns to write in", low=1)
    pass_weights: tuple[float, ...] = option((1.0, 2.0, 1.0), "how often each of them is trained", low=0)
    late: float = option(
        1.0, "power of the grid they write along: 1 are equal steps, above it long ones first", low=1, high=16
    )
    form: Literal["fresh", "posterior", "mix"] = option("fresh", "how x is noised again: IDLM's way, D-MMD's, or both")
    mix: float = option(0.5, "share of rows of the fresh form, for form mix", low=0, high=1)
    since: float = option(0.0, "time t_a before which no row is of the fresh form, which narrows there", low=0, high=1)
    own: float = option(
        0.5, "share of matched rows that go on with the student's own texts; the others noise the data", low=0, high=1
    )
    clip: float = option(5.0, "largest log auxiliary − log teacher of a token; 0: no limit", low=0)
    pull: float = option(0.0, "weight of KL(teacher ‖ student) at the states of noised data", low=0)
    tilt: float = option(
        0.0, "weight of the compass's energy in the reward, in nats for each unit of it; 0: none", low=0
    )
    width: float = option(0.0, "weight of log(own/data) of the pooled token frequencies in the reward", low=0)
    anchor: float = option(
        0.0, "share of rows that learn FS-DFM's loss instead (TS-DFM's with a compass)", low=0, high=1
    )
    anchor_weight: float = option(1.0, "weight of those rows", low=0)
    auxiliary: AuxiliarySettings = option(AuxiliarySettings(), "the network beside the student")
    watch: WatchSettings = option(WatchSettings(), "the watch for collapse")
    compass: ModelPath | None = option(None, "the compass's run: navigates the anchor's midpoints, tilts the reward")
    policy: Navigation = option("sequence-to-token", "how those midpoints are made")
    probe_every: int = option(0, "steps between comparisons of blind and navigated energies; 0 never", low=0)
    navigate: NavigateSettings = option(NavigateSettings(), "navigation")
    refresh: RefreshSettings = option(RefreshSettings(), "a compass that keeps up with the student")
    optim: IDLMOptim = option(IDLMOptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not int(self.loop.batch * self.anchor) < self.loop.batch:
            raise UserError("anchor leaves no row to match: lower it, or train fs-dfm")
        micro = self.loop.micro or self.loop.batch
        if self.anchor and micro < self.loop.batch and math.ceil(micro * self.anchor) >= micro:
            raise UserError("anchor leaves loop.micro rows with none to match: raise loop.micro, or lower anchor")
        if self.auxiliary.alone >= self.loop.steps:
            raise UserError("auxiliary.alone leaves the student no step to learn in: lower it, or raise loop.steps")
        if self.auxiliary.steps > 1 and self.loop.micro is not None:
            raise UserError("auxiliary.steps above 1 needs a step's rows all at once: leave loop.micro out")
        if self.late > 1 and self.passes:
            from tsdfm.flow.late import late_grid  # loads torch

            late_grid(max(self.passes), self.late)
        if self.compass is not None and not (self.anchor > 0 or self.tilt > 0):
            raise UserError("a compass navigates the anchor's rows or tilts the reward: set anchor or tilt above 0")
        if self.tilt > 0 and self.compass is None:
            raise UserError("tilt weighs a compass's energy: it needs --compass")
        if self.loop.parallel == "fsdp":
            raise UserError("an auxiliary beside the student works with one process or ddp, not with fsdp")


class IDLM(StudentMethod):
    """Inverse-distilled diffusion language model."""

    name, title = "idlm", "IDLM"
    help = "few-step student, matched to its teacher by an auxiliary network"
    settings: ClassVar[type] = IDLMSettings
    keeps = ("time", "clock", "logits", "step_size")

    def told(self, settings: IDLMSettings, origin: VelocitySpec) -> dict[str, Any]:
        known = {"step_size": settings.step_size or origin.step_size, "latent": settings.latent or origin.latent}
        jump = EXACT_JUMP[origin.source] if settings.late == 1 else f"late:{settings.late!r}"
        return super().told(settings, origin) | known | {"jump": jump}

    def times(self, settings: IDLMSettings) -> MatchedTimes:
        from tsdfm.distil.matching.times import MatchedTimes, Passes
        from tsdfm.distil.times import Levels

        levels = super().times(settings)
        assert isinstance(levels, Levels)
        passes = Passes(settings.passes, settings.pass_weights, settings.late)
        return MatchedTimes(passes, levels, settings.loop.batch, settings.anchor, settings.own)

    def rollout(self, settings: IDLMSettings, spec: VelocitySpec, world: Processes) -> Rollout:
        """The anchor's: FS-DFM's chain, or TS-DFM's where there is a compass."""
        from tsdfm.methods.ts_dfm import METHOD as TS_DFM

        if settings.anchor > 0 and not (spec.step_size and spec.logits == "plain"):
            raise UserError("anchor is FS-DFM's loss, of a dfm student that is told h: set --step-size, or anchor to 0")
        if settings.compass is None or not settings.anchor:
            return super().rollout(settings, spec, world)
        return TS_DFM.rollout(settings, spec, world)  # type: ignore[arg-type]

    def task(
        self, settings: IDLMSettings, spec: VelocitySpec, valid: TokenRows | None, world: Processes
    ) -> MatchingTask:
        from tsdfm.distil.floor import teacher_path

        teacher = frozen_model(teacher_path(settings), spec, world)
        return self.matching(settings, spec, valid, world, teacher)

    def matching(
        self, settings: IDLMSettings, spec: VelocitySpec, valid: TokenRows | None, world: Processes, teacher: Velocity
    ) -> MatchingTask:
        """The task with a teacher that is there."""
        from tsdfm.distil.matching.auxiliary import Auxiliary
        from tsdfm.distil.matching.forms import Forms
        from tsdfm.distil.matching.match import Match
        from tsdfm.distil.matching.task import MatchingTask
        from tsdfm.distil.matching.tilt import Tilt
        from tsdfm.distil.matching.watch import Watch
        from tsdfm.distil.matching.width import Width

        tilt = None
        if settings.tilt and settings.compass is not None:
            tilt = Tilt(settings.tilt, frozen_compass(settings.compass, spec, world, settings.init_from))
        fresh = {"fresh": 1.0, "posterior": 0.0, "mix": settings.mix}[settings.form]
        match = Match(
            spec=spec,
            teacher=teacher,
            auxiliary=Auxiliary(settings.auxiliary, settings, spec, teacher),
            forms=Forms(fresh, spec.flow_schedule(), spec.flow_source(), settings.since),
            clip=settings.clip or float("inf"),
            by_bound=spec.source == "mask",
            pull=settings.pull,
            width=Width(settings.width, spec.vocab) if settings.width else None,
            tilt=tilt,
        )
        parts = self.parts(settings, spec, world)
        watch = Watch(settings.watch)
        return MatchingTask(settings, spec, valid, parts, self.bound(), match, watch, settings.anchor_weight)

    def inputs(self, settings: IDLMSettings) -> dict[str, Path]:
        from tsdfm.distil.floor import teacher_path

        found = {"teacher": teacher_path(settings)}
        return found if settings.compass is None else {**found, "compass": settings.compass}


METHOD = IDLM()
