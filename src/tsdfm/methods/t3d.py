"""T3D: trajectory self-distillation with direct discriminative optimisation, 2026 (2602.12262).

The model decodes texts x in full, one token a step, and keeps the order in which tokens were revealed. Then it learns
to tell them in one step, as a discriminator that compares it with a reference r:

    x_t    the text with a share of its tokens hidden, share from {1, ¾, ½, ¼} with P ∝ share^8
    ℓ(y)   the mean of log p(y_i | x_t) over the hidden positions i;   Δ(y) = ℓ_student(y) − ℓ_r(y)
    x̃      r's one-shot answer to x_t, a draw
    DDO    −log σ(β Δ(x)) − a · log(1 − σ(β Δ(x̃)))
    path   the mean over J levels of the cross-entropy on the first j/J of the hidden tokens in the order of reveal

and the loss is DDO + λ · path. In the path term what was revealed early weighs more: a token of rank ρ among n hidden
ones has the weight Σ_j 1{ρ < c_j}/(J c_j), c_j = ⌈j n/J⌉, j = 1 … J. Every `round` steps r becomes the student.

T3D was made for models that write block after block. Ours write all free positions at once: a row is one block unless
`block` says otherwise. The public code hides the earliest tokens of a trace; on its way the model has seen the
opposite, so `hide` is `latest` by default. A share of the hidden slots shows a random token instead of [MASK]; a masked
model is not asked there, so these are seen, but not learned.

The public code's x̃ is r's likeliest answer (`fake = "greedy"`). Where r is unsure, that takes the likeliest token's
probability away altogether; against a draw, DDO has r = the law of x as its fixed point. And share^8 shows next to
nothing but empty rows: a model that writes in several steps also needs the others, so lower `share_power` for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tsdfm.distil.settings import DistilSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods import DistilMethod, jump_for
from tsdfm.settings import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tsdfm.distil.selfplay import SelfPlayTask
    from tsdfm.engine.distributed import Processes
    from tsdfm.flow import Bound
    from tsdfm.nn.velocity import VelocitySpec
    from tsdfm.tokens.rows import TokenRows


@dataclass(frozen=True, kw_only=True)
class T3DLoop(LoopSettings):
    """The loop's settings with T3D's batch."""

    batch: int = option(256, "rows per optimiser step, over all processes together")


@dataclass(frozen=True, kw_only=True)
class T3DOptim(OptimSettings):
    """T3D's values."""

    lr: float = option(1e-5, "peak learning rate")
    weight_decay: float = option(0.01, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(20, "steps of linear warm-up")
    ema_warmup: bool = option(False, "let the average follow fast at first: decay min(ema, (1+n)/(10+n))")


@dataclass(frozen=True, kw_only=True)
class T3DSettings(DistilSettings):
    """T3D: a masked model that learns its own full decodes, against itself."""

    traces: int = option(1024, "texts that the model it starts from writes beforehand, to learn from", low=1)
    trace_steps: int | None = option(None, "steps of each; none is one for every token", low=1)
    trace_jump: str = option("ancestral", "the jump they are written by: it decides the order of reveal")
    trace_temperature: float = option(1.0, "their temperature; T3D's own is 0.1", low=0)
    block: int = option(0, "tokens of a block, which the loss is of; 0 is all that a row has to write", low=0)
    shares: tuple[float, ...] = option((1.0, 0.75, 0.5, 0.25), "shares of a block that are hidden", above=0, high=1)
    share_power: float = option(8.0, "their law is ∝ share^share_power", low=0)
    hide: Literal["latest", "earliest", "random"] = option(
        "latest", "which tokens of a trace are hidden; the public code hides the earliest revealed"
    )
    random_tokens: float = option(
        0.1, "share of the hidden tokens that become random ones instead of [MASK]", low=0, below=1
    )
    fake: Literal["draw", "greedy"] = option("draw", "the reference's answer x̃: a draw, or its likeliest tokens")
    beta: float = option(0.1, "β: how sharply student and reference are compared", above=0)
    a: float = option(0.5, "a: weight of the reference's answers", low=0)
    path: float = option(0.2, "λ: weight of the path term", low=0)
    path_levels: int = option(2, "J: levels of the path term", low=1)
    round: int = option(10, "optimiser steps after which the reference becomes the student", low=1)
    loop: T3DLoop = option(T3DLoop(), "the training loop")
    optim: T3DOptim = option(T3DOptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shares:
            raise UserError("shares takes at least one share")


@dataclass(frozen=True)
class T3DLoss:
    """DDO + λ · path of blocks: log q, log r [G, S, 2] of x and x̃, learned and rank [G, S] → losses [G]."""

    beta: float
    a: float
    path: float
    levels: int

    def __call__(
        self, log_q: Tensor, log_r: Tensor, learned: Tensor, rank: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        from torch.nn.functional import softplus

        even = learned.to(log_q.dtype) / learned.sum(-1, keepdim=True).clamp(min=1)
        gap = ((log_q - log_r) * even[..., None]).sum(-2)  # Δ(x), Δ(x̃) of each block
        ddo = softplus(-self.beta * gap[:, 0]) + self.a * softplus(self.beta * gap[:, 1])
        path = -(path_weights(learned, rank, self.levels).to(log_q.dtype) * log_q[..., 0]).sum(-1)
        told = {"ddo": ddo, "path": path, "margin": gap[:, 0], "margin_fake": gap[:, 1]}
        return ddo + self.path * path, {name: value.detach().mean() for name, value in told.items()}


def path_weights(learned: Tensor, rank: Tensor, levels: int) -> Tensor:
    """The weights [G, S] of tokens in the path term, float64: Σ_j 1{ρ < c_j}/(J c_j) where learned, else 0.

    ρ is a token's place among the n learned ones of its block in the order of `rank`, c_j = ⌈j n/J⌉. They add up to 1.
    """
    import torch

    from tsdfm.distil.traces import ranks

    size = rank.shape[-1]
    place = ranks(torch.where(learned, rank, rank + size))
    count = learned.sum(-1, keepdim=True)
    weight = torch.zeros(rank.shape, dtype=torch.float64, device=rank.device)
    for j in range(1, levels + 1):
        first = -(-j * count // levels)
        weight += (place < first) / (levels * first.clamp(min=1).double())
    return torch.where(learned, weight, 0.0)


class T3D(DistilMethod):
    """Trajectory self-distillation."""

    name, title = "t3d", "T3D"
    help = "few-step student of a masked model, against itself on its own full decodes"
    settings: ClassVar[type] = T3DSettings
    sources = ("mask",)
    keeps = ("time", "clock", "step_size")
    logits, jump = "subs", "ancestral"

    def task(
        self, settings: T3DSettings, spec: VelocitySpec, valid: TokenRows | None, world: Processes
    ) -> SelfPlayTask:
        from tsdfm.distil.selfplay import Hiding, SelfPlayTask
        from tsdfm.distil.teachers import Rounds
        from tsdfm.distil.traces import Traces
        from tsdfm.tokens.rows import TokenRows

        traces = Traces(
            spec=spec,
            rows=TokenRows(settings.tokens, "train"),
            jump=jump_for(settings.trace_jump, spec),
            count=settings.traces,
            steps=settings.trace_steps or spec.length - spec.anchor,
            temperature=settings.trace_temperature,
            seed=settings.loop.seed,
        )
        hiding = Hiding(
            block=settings.block,
            shares=settings.shares,
            power=settings.share_power,
            hide=settings.hide,
            noised=settings.random_tokens,
        )
        return SelfPlayTask(
            settings,
            spec,
            valid,
            self.bound(),
            traces=traces,
            hiding=hiding,
            reference=Rounds(settings.round),
            objective=T3DLoss(settings.beta, settings.a, settings.path, settings.path_levels),
            greedy=settings.fake == "greedy",
        )

    def bound(self) -> Bound:
        """The NELBO of masked diffusion, as for any model that answers at [MASK] alone."""
        from tsdfm.flow.elbo import Bound, elbo_rows

        return Bound("NELBO", elbo_rows)


METHOD = T3D()
