"""SDTT: self-distillation through time, Deschenaux and Gulcehre 2024 (2410.21035).

A masked model learns to do in one step what its teacher does in m steps of size dt. In our time, where κ(t) is the
share of the text that is there:

    t ~ U[0, 1),   x_t on the path,   the teacher takes m ancestral steps of dt from x_t, at t, t + dt, …
    target of a masked position   the teacher's law at the step that revealed it; if none did, at the last
    loss                          Σ over masked positions of a divergence(student at x_t, target)

After every `round` steps the student becomes the teacher and dt doubles: from a model of 1 024 steps, round r makes one
of 1 024/2^r. Near the end the m steps share what is left of the time, so that they never pass t = 1.

The divergence is KL(student ‖ target) unless set otherwise. mse and tvd are distances of probabilities; the public code
takes them of log-probabilities, which is a setting. It also runs the first teacher step at a later time than t, which
reveals too few; here its time is t. The network is told what its start is told, and answers at [MASK] alone (subs).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from tsdfm.distil.settings import DistilSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods import DistilMethod
from tsdfm.settings import option

if TYPE_CHECKING:
    from tsdfm.distil.reveal import Reveal
    from tsdfm.distil.teachers import Rounds
    from tsdfm.distil.times import Doubling
    from tsdfm.engine.distributed import Processes
    from tsdfm.flow import Bound
    from tsdfm.nn.velocity import VelocitySpec


@dataclass(frozen=True, kw_only=True)
class SDTTLoop(LoopSettings):
    """Seven rounds of 10 000 steps."""

    steps: int = option(70_000, "optimiser steps")
    batch: int = option(128, "rows per optimiser step, over all processes together")


@dataclass(frozen=True, kw_only=True)
class SDTTOptim(OptimSettings):
    """A small constant learning rate, and an average that starts from trained weights."""

    lr: float = option(6e-5, "peak learning rate")
    beta2: float = option(0.999, "decay of AdamW's second moment")
    weight_decay: float = option(0.0, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(500, "steps of linear warm-up")
    floor: float = option(1.0, "where the cosine ends, as a share of the peak")
    ema_warmup: bool = option(False, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")


@dataclass(frozen=True, kw_only=True)
class SDTTSettings(DistilSettings):
    """SDTT: a masked model distilled in rounds, in each of which its step doubles."""

    teacher_steps: int = option(2, "m: steps of the teacher that one step of the student stands for", low=1)
    start_steps: int = option(1024, "steps in which the first teacher writes: its dt is 1/start_steps", low=1)
    round: int = option(
        10_000, "optimiser steps of a round; then the student becomes the teacher and dt doubles", low=1
    )
    divergence: Literal["reverse", "forward", "mse", "tvd"] = option(
        "reverse", "reverse: KL(student ‖ target); forward: KL(target ‖ student); mse; tvd: total variation"
    )
    distance_of: Literal["probabilities", "log-probabilities"] = option(
        "probabilities", "what mse and tvd compare; the public code's are of log-probabilities"
    )
    loop: SDTTLoop = option(SDTTLoop(), "the training loop")
    optim: SDTTOptim = option(SDTTOptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        rounds = METHOD.rounds(self)
        if self.teacher_steps * 2 ** (rounds - 1) > self.start_steps:
            raise UserError(
                f"in round {rounds} of {rounds} a step of the student would be longer than the whole way: "
                "lower loop.steps, or raise round or start_steps"
            )


class SDTT(DistilMethod):
    """Self-distillation through time."""

    name, title = "sdtt", "SDTT"
    help = "few-step student of a masked model, in rounds that double its step"
    settings: ClassVar[type] = SDTTSettings
    sources = ("mask",)
    keeps = ("time", "clock", "step_size")
    logits, jump = "subs", "ancestral"

    def rounds(self, settings: SDTTSettings) -> int:
        return -(-settings.loop.steps // settings.round)

    def times(self, settings: SDTTSettings) -> Doubling:
        from tsdfm.distil.times import Doubling

        return Doubling(settings.teacher_steps / settings.start_steps, settings.round)

    def teacher(self, settings: SDTTSettings, spec: VelocitySpec, world: Processes) -> Rounds:
        from tsdfm.distil.teachers import Rounds

        return Rounds(settings.round)

    def rollout(self, settings: SDTTSettings, spec: VelocitySpec, world: Processes) -> Reveal:
        from tsdfm.distil.divergences import divergence_from
        from tsdfm.distil.reveal import Reveal

        logs = settings.distance_of == "log-probabilities"
        return Reveal(spec, settings.teacher_steps, partial(divergence_from, settings.divergence, logs=logs))

    def bound(self) -> Bound:
        """The NELBO of masked diffusion, as for any model that answers at [MASK] alone."""
        from tsdfm.flow.elbo import Bound, elbo_rows

        return Bound("NELBO", elbo_rows)


METHOD = SDTT()
