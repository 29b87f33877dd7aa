"""Self-play on traces: a student against a reference, which is the student of the round before.

Per batch: texts that the start wrote (`distil.traces`), some of their tokens hidden again; the reference's one-shot
answer x̃ for the hidden ones; and an objective of four log-probabilities, of x_1 and of x̃ under both networks. It is
one of whole blocks, not a sum over positions: `kernels.token_logs` gives what it needs.

Shapes: B rows with F free positions, cut into G blocks of S; the log-probabilities are [G, S, 2], of x_1 and of x̃.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from tsdfm.distil.teachers import Rounds
from tsdfm.distil.traces import Hidden, Remasked, Traces, ranks, remask
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import Bound, RowNoise, draw
from tsdfm.kernels.token_logs import logit_chunks, token_logs
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.teacher.task import BoundTask, Measures
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows


class BlockLoss(Protocol):
    """(log q, log r [G, S, 2] of x_1 and x̃, learned [G, S], rank [G, S]) → losses [G], and means to log."""

    def __call__(
        self, log_q: Tensor, log_r: Tensor, learned: Tensor, rank: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]: ...


@dataclass(frozen=True, kw_only=True)
class Hiding:
    """How states are made of texts: block size S (0: all free positions), the shares that are hidden and their law,
    ∝ share^power, which tokens, and how many of them become random ones."""

    block: int
    shares: tuple[float, ...]
    power: float
    hide: Hidden
    noised: float

    def size(self, spec: VelocitySpec) -> int:
        """S, or a refusal."""
        free = spec.length - spec.anchor
        size = self.block or free
        if free % size:
            raise UserError(f"blocks of {size} tokens do not divide the {free} that are written: choose another block")
        return size

    def draw(self, u: Tensor) -> Tensor:
        """Shares for uniforms u […] in [0, 1)."""
        shares = torch.tensor(self.shares, dtype=torch.float64, device=u.device)
        law = (shares**self.power).cumsum(0)
        return shares[torch.searchsorted(law / law[-1], u, right=True).clamp(max=len(shares) - 1)]


class SelfPlayTask(BoundTask):
    """What the training loop asks for. `greedy`: x̃ is the reference's likeliest answer, else one drawn from it."""

    prompts: ClassVar[bool] = True

    def __init__(
        self,
        settings: Measures,
        spec: VelocitySpec,
        valid: TokenRows | None,
        bound: Bound | None,
        *,
        traces: Traces,
        hiding: Hiding,
        reference: Rounds,
        objective: BlockLoss,
        greedy: bool,
    ) -> None:
        super().__init__(settings, spec, valid, bound)
        self.traces, self.hiding, self.reference = traces, hiding, reference
        self.objective, self.greedy, self.size = objective, greedy, hiding.size(spec)

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.reference.bind(context, self.model)
        self.traces.allocate(context.world)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student."""
        return {**self.reference.parts(), **self.traces.parts()}

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        reference = self.reference.at(step)
        numbers, _ = batch.on_host()
        x_1, order = self.traces.of(numbers, reference)  # in step 0 the reference is what the student starts from
        rank, noise = ranks(order.view(-1, self.size)), RowNoise(self.seed, batch.rows)
        found = self.states(x_1, rank, noise, self.traces.given_of(numbers))
        x_t = torch.cat([x_1[:, : self.spec.anchor], found.x_t.view(len(x_1), -1)], dim=1)
        u = noise.uniform(order.shape)
        told = self.told(found)
        both, log_r = reference(x_t, *told, then=lambda hidden, head: self.answer(hidden, head, x_1, u))
        log_q = model(x_t, *told, then=lambda hidden, head: token_logs(self.free(hidden), head, both))
        blocks = (*rank.shape, 2)
        losses, extras = self.objective(log_q.view(blocks), log_r.view(blocks), found.learned, rank)
        return losses.mean(), extras

    def states(self, x_1: Tensor, rank: Tensor, noise: RowNoise, given: Tensor | None = None) -> Remasked:
        """The states [G, S] of texts x_1 [B, L] whose free tokens have ranks [G, S]; what is `given` [B, L] stays."""
        free = x_1[:, self.spec.anchor :]
        blocks = free.shape[1] // self.size
        share = self.hiding.draw(noise.uniform((len(x_1), blocks)).flatten().to(x_1.device))
        u = noise.uniform((*free.shape, 3)).to(x_1.device).view(-1, self.size, 3)
        how, mask = self.hiding, self.spec.vocab
        held = None if given is None else given[:, self.spec.anchor :].reshape(-1, self.size)
        blocks_of = free.reshape(-1, self.size)
        return remask(blocks_of, rank, share, u, hide=how.hide, noised=how.noised, mask=mask, given=held)

    def told(self, found: Remasked) -> tuple[Tensor | None, ...]:
        """What both networks are told: the time at which so much of a row is there, and the rest of it as the step."""
        blocks = (self.spec.length - self.spec.anchor) // self.size
        hidden, room = (x.sum(-1).view(-1, blocks).sum(-1) for x in (found.masked, found.room))
        t = self.schedule.inverse(1.0 - hidden / room.clamp(min=1).double())
        return self.spec.told(t.float(), (1.0 - t).float())

    def free(self, hidden: Tensor) -> Tensor:
        """The hidden states [N, D] of the free positions."""
        return hidden[:, self.spec.anchor :].flatten(0, 1)

    @torch.no_grad()
    def answer(self, hidden: Tensor, head: nn.Linear, x_1: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """x_1 and the reference's answer x̃ at all free positions, [N, 2], and their log-probabilities under it."""
        flat, real, u = self.free(hidden), x_1[:, self.spec.anchor :].flatten(), u.flatten().to(hidden.device)
        parts = logit_chunks(flat, head)
        fake = torch.cat([logits.argmax(-1) if self.greedy else draw(logits, u[part]) for part, logits in parts])
        both = torch.stack([real, fake], dim=-1)
        return both, token_logs(flat, head, both)
