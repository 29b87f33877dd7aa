"""Di4C: a few-step model with correlations between its tokens, as a mixture of product laws (2410.08709).

A network that answers for every position by itself can write tokens that go together only over many passes. Told a
random number λ that all positions share, it is a law of whole texts in one pass, E_λ Π_i p_i(x_i | x_t, λ):

    x_u    one step of the frozen teacher from x_t, of size `gap`
    x      ~ the student's average at x_u
    loss   −log (1/M) Σ_m Π_i p_i(x_i | x_t, λ_m),   λ_m ~ U(0, 1),
           and the same of the text itself, with the weight `data` · σ(20(½ − t)), t = 0 noise and 1 data

with a control variate (`distil.mixture`; the paper's takes off the product of the mixture's marginals, ours the mean of
each λ's own). Within a `gap` of the end x_u is the whole text: there the teacher itself is learned. λ is embedded and
added to every token's embedding; the paper appends it as a token. Any jump writes with it, with a λ a text and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.distil.settings import DistilSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods import DistilMethod
from tsdfm.methods._teacher import EXACT_JUMP, frozen_model
from tsdfm.settings import ModelPath, option

if TYPE_CHECKING:
    from tsdfm.distil.mixture import Anywhere, MixtureTask, OneStep
    from tsdfm.distil.teachers import Average
    from tsdfm.engine.distributed import Processes
    from tsdfm.nn.velocity import VelocitySpec
    from tsdfm.tokens.rows import TokenRows


@dataclass(frozen=True, kw_only=True)
class Di4CLoop(LoopSettings):
    """The loop, whose best checkpoint is the one nearest to its own target."""

    best: str = option("kl", "metric of the evaluation that names the best checkpoint, lower is better")


@dataclass(frozen=True, kw_only=True)
class Di4COptim(OptimSettings):
    """The optimiser. The average is what a row's text is drawn from."""

    lr: float = option(3e-5, "peak learning rate")
    weight_decay: float = option(0.0, "decay of matrices; vectors, norms and embeddings have none")
    ema: float = option(0.999, "decay of the averaged weights")
    ema_warmup: bool = option(False, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")


@dataclass(frozen=True, kw_only=True)
class Di4CSettings(DistilSettings):
    """Di4C: a mixture of product laws, distilled from a model that has none."""

    teacher: ModelPath | None = option(None, "the frozen teacher; none is init_from")
    dropout: float | None = option(0.0, "dropout while training; none is what init_from has")
    mixture: int = option(8, "numbers λ that every row of a step is looked at with", low=1)
    gap: float = option(1 / 16, "size of the teacher's step", above=0, high=1)
    data: float = option(0.1, "weight of −log p of the text itself; 0: none", low=0)
    loop: Di4CLoop = option(Di4CLoop(), "the training loop")
    optim: Di4COptim = option(Di4COptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loop.parallel == "fsdp":
            raise UserError("di4c works with one process or ddp, not with fsdp")


class Di4C(DistilMethod):
    """Distilling dimensional correlations."""

    name, title = "di4c", "Di4C"
    help = "few-step student whose tokens go together: a mixture of product laws"
    settings: ClassVar[type] = Di4CSettings
    keeps = ("time", "clock", "logits", "step_size")

    def told(self, settings: Di4CSettings, origin: VelocitySpec) -> dict[str, Any]:
        return super().told(settings, origin) | {"latent": True, "jump": EXACT_JUMP[origin.source]}

    def bound(self) -> None:
        """None: the law of a text is a mean over λ, of which a bound would need many."""

    def times(self, settings: Di4CSettings) -> Anywhere:
        from tsdfm.distil.mixture import Anywhere

        return Anywhere(settings.gap)

    def teacher(self, settings: Di4CSettings, spec: VelocitySpec, world: Processes) -> Average:
        from tsdfm.distil.teachers import Average

        return Average()

    def rollout(self, settings: Di4CSettings, spec: VelocitySpec, world: Processes) -> OneStep:
        from tsdfm.distil.mixture import OneStep

        velocity = frozen_model(settings.teacher or settings.init_from, spec, world)
        return OneStep(spec, velocity, settings.loop.seed)

    def task(
        self, settings: Di4CSettings, spec: VelocitySpec, valid: TokenRows | None, world: Processes
    ) -> MixtureTask:
        from tsdfm.distil.mixture import MixtureTask

        parts = self.parts(settings, spec, world)
        return MixtureTask(settings, spec, valid, parts, None, mixture=settings.mixture, data=settings.data)

    def inputs(self, settings: Di4CSettings) -> dict[str, Path]:
        return {"teacher": settings.teacher or settings.init_from}


METHOD = Di4C()
