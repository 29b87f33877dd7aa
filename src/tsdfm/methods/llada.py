"""LLaDA: masked diffusion whose samplers write in an order, Nie et al. 2025 (2502.09992).

A row is masked with probability p = (1−ε)u + ε, u ~ U(0, 1), at every position by itself, and the network, which is not
told the time, learns the masked tokens:

    loss = 1/L · Σ_{masked} −log p(x_1 | x_t) / p

A share of the batches (1 %) is cut to a random length, so that shorter rows are known too: all rows of a step are cut
to one length n ~ U{1 … L} after their anchor, and nothing behind it is seen or learned.
Likelihood is bounded by masking exactly k ~ U{1 … L} positions, with weight L/k (`flow.elbo.exact_rows`).

    llada          keeps the tokens the model is surest of and masks the rest again (low-confidence remasking)
    llada-random   keeps tokens at random
    llada:32       the same in blocks of 32 positions from left to right; llada-random:32

S steps share M masks as evenly as whole numbers allow, row by row: ⌊M/S⌋ each and one more in the first M mod S. With
blocks, those of a row that hold masks share the S steps as evenly, and each shares its own masks over its own steps. A
mask counts for its block alone, so gaps inside a prompt take nothing from later blocks. A row of fewer masks than steps
is done before the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tsdfm.errors import UserError
from tsdfm.methods import JumpMaker, TextMethod
from tsdfm.methods._orders import OrderJump, first
from tsdfm.methods.mdlm import MDLMLoss
from tsdfm.settings import option
from tsdfm.teacher.settings import TeacherSettings

if TYPE_CHECKING:
    from torch import Tensor

    from tsdfm.flow import Bound, Schedule, Source
    from tsdfm.nn.velocity import VelocitySpec

CUT_STREAM = 7  # of the random numbers that cut batches


@dataclass(frozen=True, kw_only=True)
class LLaDASettings(TeacherSettings):
    """LLaDA pre-training, or fine-tuning on rows with a prompt (--init-from): a network that fills in masked tokens."""

    source: Literal["mask"] = option("mask", "what x_0 is: [MASK] everywhere")
    epsilon: float = option(1e-3, "the least probability of a mask: p = (1−ε)u + ε")
    short: float = option(0.01, "share of the batches that are cut to a random length")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epsilon < 1:
            raise UserError(f"epsilon is a probability above 0 and below 1, not {self.epsilon}")
        if not 0 <= self.short <= 1:
            raise UserError(f"short is a share of the batches from 0 to 1, not {self.short}")


@dataclass(frozen=True)
class LLaDALoss(MDLMLoss):
    """−log p(x_1) at masked positions, weighted by 1/p; the mean is over all positions."""

    epsilon: float = 1e-3
    short: float = 0.0

    def times(self, rows: Tensor, seed: int) -> Tensor:
        """t with 1 − κ(t) = p: (1−ε)u + ε of low-discrepancy numbers u [B]."""
        from tsdfm.flow import row_times

        return self.schedule.inverse((1.0 - self.epsilon) * row_times(rows, seed))

    def weight(self, x_t: Tensor, t: Tensor) -> Tensor:
        """1/p = 1/(1 − κ(t)) where x_t [B, L] is [MASK], 0 elsewhere."""
        chance = self.schedule.remaining(t.double()).clamp(min=self.epsilon)
        return (x_t == self.source.mask) / chance[:, None]

    def length(self, longest: int, step: int, seed: int) -> int:
        """How many free positions of `longest` the rows of a step have, the same on all processes."""
        import torch

        from tsdfm.flow import RowNoise

        cut, where = RowNoise(seed, torch.tensor([step]), CUT_STREAM).uniform((1, 2))[0].tolist()
        return 1 + int(where * longest) if cut < self.short else longest


@dataclass(frozen=True)
class LLaDAJump(OrderJump):
    """`block` positions at a time from left to right; none: the whole row is one block.

    `begun` [B, blocks] says which blocks of the rows at hand had masks at first, `steps` how many steps there are.
    """

    block: int | None = None
    begun: Tensor | None = field(default=None, repr=False, kw_only=True)
    steps: list[int] = field(default_factory=list, repr=False, compare=False, kw_only=True)

    def begin(self, x_0: Tensor) -> LLaDAJump:
        """A jump for these rows [B, L]."""
        length = x_0.shape[1]
        block = length if self.block is None else self.block
        if length % block:
            raise UserError(f"blocks of {block} tokens do not divide a row of {length}: take a divisor of {length}")
        masks = (x_0 == self.mask).view(len(x_0), -1, block)
        return replace(self, block=block, begun=masks.any(-1), steps=[])

    def needs(self, x_t: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """Nothing is asked about the blocks behind the open one."""
        return super().needs(x_t, t, h, u) & self.opened(t, h)[0]

    def goes(self, masked: Tensor, scores: Tensor, t: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The surest masks of the open block (or any at random), as many as its steps that are left ask for."""
        opened, left = self.opened(t, h)
        here = masked & opened
        count = -(-here.sum(-1) // left)
        return first(here, u if self.order == "random" else scores, count)

    def opened(self, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The positions [B, L] up to the block that is being written, and how many steps it has left [B].

        Of n blocks with masks, block j is finished in step ⌊(j + 1)·S/n⌋.
        """
        if self.begun is None or self.block is None:
            raise ValueError("a jump that remembers begins with `begin`")
        count = self.begun.sum(-1).clamp(min=1)
        steps = self.equal_steps(float(h[0]), int(count.max()))
        index = round(float(t[0]) * steps)
        stage = -(-(index + 1) * count // steps) - 1
        opened = self.begun.cumsum(-1) - 1 <= stage[:, None]
        return opened.repeat_interleave(self.block, -1), (stage + 1) * steps // count - index

    def equal_steps(self, h: float, blocks: int) -> int:
        """How many steps of size h there are for so many blocks, or a refusal."""
        if not self.steps:
            self.steps.append(round(1 / h))
        steps = self.steps[0]
        if abs(steps * h - 1.0) > 1e-9:
            raise UserError("llada shares masks out over equal steps: give a number of steps, not a time grid")
        if blocks > steps:
            raise UserError(f"a row has {blocks} blocks to write and {steps} steps: take more steps or longer blocks")
        return steps


def in_blocks(order: str, schedule: Schedule, source: Source, block: float | None = None) -> LLaDAJump:
    """The jump with the block length that was given, or one block for the whole row."""
    if block is not None and (block < 1 or block != int(block)):
        raise UserError(f"the dial of llada is a block length in tokens, from 1 on, not {block:g}")
    return LLaDAJump(schedule, source, order, None if block is None else int(block))


class LLaDA(TextMethod):
    """Large language diffusion with masking."""

    name, title = "llada", "LLaDA"
    help = "masked diffusion with 1/p weights; writes in the order of confidence, in blocks if asked"
    settings: ClassVar[type] = LLaDASettings
    sources = ("mask",)
    time, logits, jump = False, "subs", "llada"

    def loss(self, settings: LLaDASettings, spec: VelocitySpec) -> Any:
        return LLaDALoss(spec.flow_schedule(), spec.flow_source(), settings.epsilon, settings.short)

    def jumps(self) -> dict[str, JumpMaker]:
        return {"llada": partial(in_blocks, "confidence"), "llada-random": partial(in_blocks, "random")}

    def bound(self) -> Bound:
        """The NELBO by exact numbers of masks."""
        from tsdfm.flow.elbo import Bound, exact_rows

        return Bound("NELBO, exact mask counts", exact_rows)


METHOD = LLaDA()
